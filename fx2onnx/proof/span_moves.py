"""Operators on spans whose outputs hold elements of their operands (moves, gathers, scatters), and reductions along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fx2onnx.proof.nodes import Array
from fx2onnx.proof.spans import RULES, ULPS, Interval, SpanCall, Unbounded, product_of, rule, sum_share

MOVED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *(
                "Reshape",
                "Flatten",
                "Squeeze",
                "Unsqueeze",
                "Transpose",
                "Slice",
                "Split",
                "Expand",
                "Tile",
                "Identity",
            ),
            *(
                "DepthToSpace",
                "SpaceToDepth",
                "CenterCropPad",
                "Trilu",
                "ReverseSequence",
                "Compress",
                "GatherElements",
                "GatherND",
            ),
        ),
        (0,),
    ),
    "Pad": (0, 2),
    "ScatterND": (0, 2),
    "ScatterElements": (0, 2),
    "Concat": (),
}
"""Operators whose outputs hold elements of these operands; of none: of all."""
_INDEXED = frozenset(["GatherElements", "GatherND", "ScatterElements", "ScatterND"])


def _moved(call: SpanCall) -> list[Interval]:
    """Each output element is one of an operand's, or a sum or extreme of some."""
    if call.attrs.get("reduction", "none") not in ("none", b"none"):
        return [_reduced(call)]
    if call.op_type in _INDEXED and call.span(1).value is None:
        return [_anywhere(call)]
    data = MOVED[call.op_type] or range(len(call.args))
    rest = [None if not call.has(index) or index in data else call.constant(index) for index in range(len(call.args))]

    def run(pick: Callable[[Interval], Array]) -> list[Array]:
        taken = [pick(call.span(i)) if i in data and call.has(i) else rest[i] for i in range(len(call.args))]
        return call.run(*taken, outputs=call.outputs)

    parts = zip(*map(run, (lambda s: s.low, lambda s: s.high, lambda s: s.error, lambda s: s.lowest)), strict=True)
    return [Interval(low, high, error, None, least) for low, high, error, least in parts]


def _reduced(call: SpanCall) -> Interval:
    """Elements that updates are added to, or that an update may replace, at places that are the same for all inputs."""
    data, places, new = call.span(0), call.constant(1), call.span(2)
    reduction = str(call.attrs["reduction"])
    if reduction == "mul":
        raise Unbounded("a product of updates")
    low, high = (call.run(getattr(data, end), places, getattr(new, end))[0] for end in ("low", "high"))
    if reduction != "add":
        return Interval(low, high, call.run(data.error, places, new.error, reduction="max")[0])
    error, size = (call.run(getattr(data, end), places, getattr(new, end))[0] for end in ("error", "reach"))
    return Interval.between(low, high, error + call.rounded(size, new.low.size + 1))


def _anywhere(call: SpanCall) -> Interval:
    """Elements from, or written to, places that inputs choose: between the bounds of all of them."""
    data = call.span(0)
    if call.op_type.startswith("Gather"):
        shape = call.run(data.low, np.zeros(call.span(1).low.shape, np.int64))[0].shape
        ends = data.low.min(initial=np.inf), data.high.max(initial=-np.inf), data.error.max(initial=0)
        return Interval(*(np.full(shape, end) for end in ends))
    new = call.span(2)
    low, high = np.minimum(data.low, new.low.min(initial=np.inf)), np.maximum(data.high, new.high.max(initial=-np.inf))
    return Interval(low, high, np.maximum(data.error, new.error.max(initial=0)))


RULES.update(dict.fromkeys(MOVED, _moved))


@rule("Dropout")
def _dropout(call: SpanCall) -> list[Interval]:
    if call.has(2) and call.constant(2).any():
        raise LookupError("Dropout")
    return [call.span(0)]


@rule("Gather")
def _gather(call: SpanCall) -> Interval:
    """Rows at places that are between two bounds have the bounds of all rows between them."""
    data, places = call.span(0), call.span(1)
    axis = int(call.attrs.get("axis", 0)) % data.low.ndim
    rows = data.low.shape[axis]
    if places.value is not None:
        return Interval(*(call.run(each, places.value)[0] for each in (data.low, data.high, data.error)))
    first, last = np.clip(places.low.min(), -rows, rows - 1), np.clip(places.high.max(), -rows, rows - 1)
    part = slice(None) if first < 0 <= last else slice(int(first) % rows, int(last) % rows + 1)
    index = (*(slice(None),) * axis, part)
    shape = (*data.low.shape[:axis], *places.low.shape, *data.low.shape[axis + 1 :])
    ones = (*data.low.shape[:axis], *(1,) * places.low.ndim, *data.low.shape[axis + 1 :])
    found = [data.low[index].min(axis), data.high[index].max(axis), data.error[index].max(axis)]
    return Interval(*(np.broadcast_to(each.reshape(ones), shape) for each in found))


@rule("ReduceSum", "ReduceMean", "AveragePool", "GlobalAveragePool", "CumSum", "Col2Im")
def _sum(call: SpanCall) -> Interval:
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
def _squares(call: SpanCall) -> Interval:
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
def _most(call: SpanCall) -> Interval:
    if call.outputs > 1:
        raise LookupError("indices")
    x = call.span(0)
    rest = [call.constant(index) if call.has(index) else None for index in range(1, len(call.args))]
    error = call.run(x.error, *rest, op_type=call.op_type.replace("Min", "Max"))[0]
    return Interval(call.run(x.low, *rest)[0], call.run(x.high, *rest)[0], error)


def _of(call: SpanCall, op_type: str, *args: Interval | None) -> Interval:
    """The span that another operator has for these operands, with the attributes of this one."""
    made = RULES[op_type](replace(call, op_type=op_type, args=args))
    assert isinstance(made, Interval)
    return made


@rule("ReduceL1", "ReduceLogSum", "Mean")
def _composed(call: SpanCall) -> Interval:
    match call.op_type:
        case "ReduceL1":
            return _of(call, "ReduceSum", _of(call, "Abs", call.span(0)), *call.args[1:])
        case "ReduceLogSum":
            return _of(call, "Log", _of(call, "ReduceSum", *call.args))
    share = Interval.of(np.asarray(1 / len(call.args)))
    made = product_of(call, _of(call, "Sum", *call.args), share)
    return Interval(made.low, made.high, made.error + call.rounded(made.reach))


@rule("ReduceLogSumExp")
def _log_sum_exp(call: SpanCall) -> Interval:
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
def _factors(call: SpanCall) -> Interval:
    """Products of bounds: the result is no larger than the product of the largest magnitudes."""
    x, rest = call.span(0), [call.constant(index) if call.has(index) else None for index in range(1, len(call.args))]
    reach, size = (call.run(each, *rest)[0] for each in (x.reach, x.size))
    count = x.low.size / max(reach.size, 1)
    low = call.run(x.low, *rest)[0] if (x.low >= 0).all() else -size
    slack = 1e-12 * size
    return Interval.between(low - slack, size + slack, reach - size + slack + call.rounded(reach, count + 1))
