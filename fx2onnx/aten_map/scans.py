"""Running sums, products and extremes along one axis; differences and trapezoids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.creation import cast, filled_with
from fx2onnx.aten_map.gathering import where
from fx2onnx.aten_map.powers import log_add_exp
from fx2onnx.aten_map.table.axes import axis_of, sliced, whole, with_rank
from fx2onnx.aten_map.table.dtypes import FLOATS, floating, opmath, promoted, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import has_op
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import Dim

aten = torch.ops.aten
D = ir.DataType
Step: TypeAlias = Callable[[Emit, list[ir.Value], ir.Value], tuple[list[ir.Value], list[ir.Value]]]


def scan_along(
    op: Emit, value: ir.Value, axis: int, initial: Sequence[ir.Value], step: Step, outputs: Sequence[ir.DataType]
) -> list[ir.Value]:
    """``Scan`` over ``axis``: ``step(op, states, element)`` gives the new states and one piece of each output.

    Where the axis may be empty it has a further element, of which nothing is used: onnxruntime's Scan of no elements is an
    error, or ends the process. So does its Scan of no rows along an axis other than the first, which is moved for it.
    """
    dims, length = op.dims(value), op.dims(value)[axis]
    if length == 0:
        return [op.cast(value, dtype) for dtype in outputs]
    rest: Dims = dims[:axis] + dims[axis + 1 :]
    if axis and any(isinstance(dim, Dim) for dim in rest):
        order = [axis, *(other for other in range(len(dims)) if other != axis)]
        moved = scan_along(op, op.Transpose(value, perm=order), 0, initial, step, outputs)
        return [op.Transpose(each, perm=np.argsort(order).tolist()) for each in moved]
    if isinstance(length, Dim):
        further = filled_with(op, (*dims[:axis], 1, *dims[axis + 1 :]), 0, op.dtype(value))
        dims = (*dims[:axis], whole(length + 1), *dims[axis + 1 :])
        value = op.Concat(value, further, axis=axis)
    states = [op.subgraph_input("state", op.dtype(state), op.dims(state)) for state in initial]
    element = op.subgraph_input("element", op.dtype(value), rest)

    def body(inner: Emit) -> list[ir.Value]:
        new_states, pieces = step(inner, states, element)
        return [*new_states, *pieces]

    graph = op.subgraph("step", [*states, element], body)
    typed = [(op.dtype(state), op.dims(state)) for state in initial] + [(dtype, dims) for dtype in outputs]
    results = op.Scan(
        *initial,
        value,
        body=graph,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis] * len(outputs),
        outputs=typed,
    )
    found: tuple[ir.Value, ...] = results if isinstance(results, tuple) else (results,)
    pieces = list(found[len(initial) :])
    return [sliced(op, each, axis, 0, length, length) for each in pieces] if isinstance(length, Dim) else pieces


def _without_axis(op: Emit, value: ir.Value, axis: int) -> Dims:
    dims = op.dims(value)
    return dims[:axis] + dims[axis + 1 :]


def cumulative_sum(op: Emit, value: ir.Value, dim: int) -> ir.Value:
    """CumSum over ``dim``; a 0-d value as it is."""
    if op.rank(value) == 0:
        return value
    return through(op, "CumSum", value, axis=op.const(np.int64(axis_of(dim, op.rank(value)))))


def _cumsum(op: Emit, self: ir.Value, dim: int) -> ir.Value:
    return cumulative_sum(op, cast(op, self, op.result_dtype()), dim)


def cumulative_product(op: Emit, value: ir.Value, dim: int) -> ir.Value:
    """CumProd-26, else a Scan of Mul."""
    if op.rank(value) == 0:
        return value
    axis = axis_of(dim, op.rank(value))
    if has_op("CumProd", op.opset):
        return through(op, "CumProd", value, axis=op.const(np.int64(axis)))
    dtype = op.dtype(value)

    def step(op: Emit, states: list[ir.Value], element: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        total = through(op, "Mul", states[0], element)
        return [total], [op.Identity(total)]

    ones = filled_with(op, _without_axis(op, value, axis), 1, dtype)
    return scan_along(op, value, axis, [ones], step, [dtype])[0]


def _cumprod(op: Emit, self: ir.Value, dim: int) -> ir.Value:
    dtype = op.result_dtype()
    return op.cast(cumulative_product(op, cast(op, self, opmath(dtype)), dim), dtype)


register_shared(_cumsum, "CumSum", *overloads_of("cumsum.default"))
register_shared(_cumprod, "CumProd-26, else Scan of Mul", *overloads_of("cumprod.default"))


def _running_extreme(comparison: str) -> Callable[..., tuple[ir.Value, ir.Value]]:
    def entry(op: Emit, self: ir.Value, dim: int) -> tuple[ir.Value, ir.Value]:
        if op.rank(self) == 0:
            return self, op.const(np.int64(0))
        dtype, axis = op.dtype(self), axis_of(dim, op.rank(self))
        worked = D.INT32 if op.is_bool(self) else dtype
        limits = torch.finfo(torch.float32) if worked in FLOATS else np.iinfo(worked.numpy())
        lowest: float = -np.inf if worked in FLOATS else limits.min
        highest: float = np.inf if worked in FLOATS else limits.max
        rest = _without_axis(op, self, axis)
        first = filled_with(op, rest, lowest if comparison == "GreaterOrEqual" else highest, worked)
        place = filled_with(op, rest, 0, D.INT64)

        def step(op: Emit, states: list[ir.Value], element: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            best, where_best, index = states
            better = compare(op, comparison, element, best)
            if worked in FLOATS:
                better = op.Or(better, through(op, "IsNaN", element))
            best = where(op, better, element, best)
            where_best = op.Where(better, index, where_best)
            return [best, where_best, op.Add(index, 1)], [op.Identity(best), op.Identity(where_best)]

        initial = [first, place, op.const(np.int64(0))]
        values, indices = scan_along(op, op.cast(self, worked), axis, initial, step, [worked, D.INT64])
        return op.cast(values, dtype), indices

    return entry


register_shared(_running_extreme("GreaterOrEqual"), "Scan of GreaterOrEqual and Where", *overloads_of("cummax.default"))
register_shared(_running_extreme("LessOrEqual"), "Scan of LessOrEqual and Where", *overloads_of("cummin.default"))


def _logcumsumexp(op: Emit, self: ir.Value, dim: int) -> ir.Value:
    dtype = op.result_dtype()
    if op.rank(self) == 0:
        return self
    value, axis = op.cast(self, opmath(dtype)), axis_of(dim, op.rank(self))

    def step(op: Emit, states: list[ir.Value], element: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        total = log_add_exp(op, states[0], element)
        return [total], [op.Identity(total)]

    start = filled_with(op, _without_axis(op, self, axis), -np.inf, op.dtype(value))
    return op.cast(scan_along(op, value, axis, [start], step, [op.dtype(value)])[0], dtype)


register_shared(_logcumsumexp, "Scan of logaddexp", *overloads_of("logcumsumexp.default"))


def neighbours(op: Emit, value: ir.Value, axis: int) -> tuple[ir.Value, ir.Value]:
    """(all but the last, all but the first) along ``axis``."""
    dims = list(op.dims(value))
    size = whole(dims[axis] - 1)
    dims[axis] = max(size, 0) if isinstance(size, int) else size
    typed = (op.dtype(value), tuple(dims))
    before = op.Slice(value, starts=[0], ends=[-1], axes=[axis], outputs=[typed])
    after = op.Slice(value, starts=[1], ends=[2**63 - 1], axes=[axis], outputs=[typed])
    return before, after


def difference(op: Emit, value: ir.Value, axis: int) -> ir.Value:
    """x[1:] - x[:-1]; of bools whether they differ."""
    before, after = neighbours(op, value, axis)
    if op.is_bool(value):
        return op.Xor(after, before)
    return through(op, "Sub", after, before)


def _diff(op: Emit, self: ir.Value, n: int, dim: int, prepend: ir.Value | None, append: ir.Value | None) -> ir.Value:
    if n == 0:
        return self
    axis = axis_of(dim, op.rank(self))
    dtype = op.result_dtype()
    parts = [op.cast(part, dtype) for part in (prepend, self, append) if part is not None]
    value = op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    for _ in range(n):
        if op.dims(value)[axis] == 0:
            break
        value = difference(op, value, axis)
    return value


register_shared(_diff, "Slice, Slice, Sub, n times", *overloads_of("diff.default"))


def _double_areas(op: Emit, y: ir.Value, axis: int, x: ir.Value | None, dx: float) -> ir.Value:
    """(y[:-1] + y[1:]) (x[1:] - x[:-1]), in the dtype PyTorch multiplies in: integers wrap around before they widen."""
    before, after = neighbours(op, y, axis)
    if x is None:
        wide = floating(opmath(op.dtype(y)))
        return op.Mul(op.Add(op.cast(before, wide), op.cast(after, wide)), float(dx))
    both = through(op, "Add", before, after)
    if op.rank(x) == 1 and op.rank(y) > 1:
        widths = difference(op, x, 0)
        trailing = op.rank(y) - 1 - axis
        if trailing:
            widths = op.Unsqueeze(widths, axes=list(range(1, trailing + 1)))
    else:
        widths = difference(op, with_rank(op, x, op.rank(y)), axis)
    dtype = promoted(op, both, widths)
    return through(op, "Mul", op.cast(both, dtype), op.cast(widths, dtype))


def _half(op: Emit, total: ir.Value) -> ir.Value:
    wide = floating(opmath(op.dtype(total)))
    return op.cast(op.Mul(op.cast(total, wide), 0.5), op.result_dtype())


def _summable(op: Emit, value: ir.Value) -> ir.Value:
    return value if op.is_float(value) else op.cast(value, D.INT64)


def _with_equal_steps(op: Emit, y: ir.Value, axis: int, dx: float) -> ir.Value:
    """(sum of y - (first + last) / 2) dx, as PyTorch computes it, which is NaN where y is infinite at an end."""
    wide = floating(opmath(op.dtype(y)))
    first, last = (op.Gather(y, op.const(np.int64(place)), axis=axis) for place in (0, -1))
    ends = through(op, "Add", first, last)
    total = op.ReduceSum(op.cast(y, wide), axes=[axis], keepdims=0)
    return op.cast(op.Mul(op.Sub(total, op.Mul(op.cast(ends, wide), 0.5)), dx), op.result_dtype())


def _trapezoid(op: Emit, y: ir.Value, dim: int, x: ir.Value | None = None, dx: Any = 1) -> ir.Value:
    axis = axis_of(dim, op.rank(y))
    if op.dims(y)[axis] == 0 or (op.dims(y)[axis] == 1 and x is not None):
        return filled_with(op, op.result_dims(), 0, op.result_dtype())
    if x is None:
        return _with_equal_steps(op, y, axis, float(dx))
    areas = _summable(op, _double_areas(op, y, axis, x, dx))
    if op.dims(areas)[axis] == 0:  # one place for all values, as PyTorch broadcasts it
        return filled_with(op, op.result_dims(), 0, op.result_dtype())
    return _half(op, op.ReduceSum(areas, axes=[axis], keepdims=0))


def _cumulative_trapezoid(op: Emit, y: ir.Value, dim: int, x: ir.Value | None = None, dx: Any = 1) -> ir.Value:
    axis = axis_of(dim, op.rank(y))
    return _half(op, cumulative_sum(op, _summable(op, _double_areas(op, y, axis, x, dx)), axis))


register_shared(_trapezoid, "Slice, Add, Mul, ReduceSum", *overloads_of("trapezoid.x trapezoid.dx trapz.x trapz.dx"))
register_shared(
    _cumulative_trapezoid, "Slice, Add, Mul, CumSum", *overloads_of("cumulative_trapezoid.x cumulative_trapezoid.dx")
)
