"""Reductions on spans: sums, norms, extremes and products along axes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fx2onnx.proof.spans import RULES, ULPS, Call, Interval, product_of, rule, sum_share


@rule("ReduceSum", "ReduceMean", "AveragePool", "GlobalAveragePool", "CumSum", "Col2Im")
def _sum(call: Call) -> Interval:
    """Sums with weights that are not negative."""
    x = call.span(0)
    rest = [call.constant(index) if call.has(index) else None for index in range(1, len(call.args))]
    low, high, error, size = (call.run(each, *rest)[0] for each in (x.low, x.high, x.error, x.reach))
    count = max(x.low.shape, default=1) if low.shape == x.low.shape else x.low.size / max(low.size, 1)
    if call.op_type == "AveragePool":
        count = math.prod(call.attrs["kernel_shape"])
    if call.op_type == "Col2Im":
        count = math.prod(call.constant(2).tolist())
    slack = count * 2.0**-52 * size * bool((x.low < 0).any())
    found = Interval.between(low - slack, high + slack, error + (call.rounded(size, count + 2) if call.unit else 0.0))
    return found.above(call.run(np.maximum(x.lowest, 0), *rest)[0], x.lowest, share=sum_share(count + 2, call.unit))


@rule("ReduceSumSquare", "ReduceL2")
def _squares(call: Call) -> Interval:
    x = call.span(0)
    square = product_of(call, x, x, is_square=True)
    rest = [call.constant(index) if call.has(index) else None for index in range(1, len(call.args))]
    parts = (square.low, square.high, square.error, square.reach)
    low, high, error, size = (call.run(each, *rest, op_type="ReduceSum")[0] for each in parts)
    count = x.low.size / max(low.size, 1)
    if call.op_type == "ReduceL2":  # a norm is off by no more than the norm of what its numbers are off
        low, high = np.sqrt(low), np.sqrt(high)
        error, size = call.run(x.error, *rest)[0], np.sqrt(size)
    return Interval.between(low, high, error + call.rounded(size, count + 4)).above(np.zeros(()))


@rule("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool")
def _most(call: Call) -> Interval:
    if call.outputs > 1:
        raise LookupError("indices")
    x = call.span(0)
    rest = [call.constant(index) if call.has(index) else None for index in range(1, len(call.args))]
    error = call.run(x.error, *rest, op_type=call.op_type.replace("Min", "Max"))[0]
    return Interval(call.run(x.low, *rest)[0], call.run(x.high, *rest)[0], error)


def _of(call: Call, op_type: str, *args: Interval | None) -> Interval:
    """The span that another operator has for these operands, with the attributes of this one."""
    made = RULES[op_type](replace(call, op_type=op_type, args=args))
    assert isinstance(made, Interval)
    return made


@rule("ReduceL1", "ReduceLogSum", "Mean")
def _composed(call: Call) -> Interval:
    match call.op_type:
        case "ReduceL1":
            return _of(call, "ReduceSum", _of(call, "Abs", call.span(0)), *call.args[1:])
        case "ReduceLogSum":
            return _of(call, "Log", _of(call, "ReduceSum", *call.args))
    share = Interval.of(np.asarray(1 / len(call.args)))
    made = product_of(call, _of(call, "Sum", *call.args), share)
    return Interval(made.low, made.high, made.error + call.rounded(made.reach))


@rule("ReduceLogSumExp")
def _log_sum_exp(call: Call) -> Interval:
    """Numbers that are off by e move the result by no more than the largest e."""
    x, rest = call.span(0), [call.constant(index) if call.has(index) else None for index in range(1, len(call.args))]
    top = [call.run(each, *rest, op_type="ReduceMax")[0] for each in (x.low, x.high, x.error, x.reach)]
    sums = [
        call.run(np.exp(each - each.max()), *rest, op_type="ReduceSum")[0] if np.isfinite(each).all() else None
        for each in (x.low, x.high)
    ]
    count = x.low.size / max(top[0].size, 1)
    low = top[0] if sums[0] is None else np.maximum(top[0], np.log(np.maximum(sums[0], 1e-300)) + x.low.max())
    error = top[2] + call.rounded(top[3] + math.log(count + 1) + 1, 2 * count + 3 * ULPS)
    return Interval.between(low - 1e-12 * np.abs(low), top[1] + math.log(count + 1), error)


@rule("ReduceProd")
def _factors(call: Call) -> Interval:
    """Products of bounds: the result is no larger than the product of the largest magnitudes."""
    x, rest = call.span(0), [call.constant(index) if call.has(index) else None for index in range(1, len(call.args))]
    reach, size = (call.run(each, *rest)[0] for each in (x.reach, x.size))
    count = x.low.size / max(reach.size, 1)
    low = call.run(x.low, *rest)[0] if (x.low >= 0).all() else -size
    slack = 1e-12 * size
    return Interval.between(low - slack, size + slack, reach - size + slack + call.rounded(reach, count + 1))
