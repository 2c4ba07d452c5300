"""Tensors made from sizes and numbers, and changes of dtype: to, type_as, copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.dtypes import FLOATS, SMALL_INTEGERS, TORCH_DTYPES, Operand, as_dtype, takes
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, is_real_number

aten = torch.ops.aten
D = ir.DataType

FOLDED_ELEMENTS = 1024
"""Ranges, grids and identity matrices of known sizes up to this many elements are constants of the file."""
FOLDED_FLOATS = 1 << 16
"""Ranges of floats are constants up to this many elements: nodes would round them otherwise than PyTorch's kernels."""


def filled_with(
    op: Emit, dims: Sequence[DimLike], number: Any, dtype: ir.DataType, like: ir.Value | None = None
) -> ir.Value:
    """A tensor of ``dims`` full of ``number``. ``like``: a value whose shape is ``dims``, read where it is symbolic."""
    if isinstance(number, Dim):
        return op.expand(op.size(number, dtype), dims)
    if isinstance(number, ir.Value):
        return op.expand(cast(op, number, dtype), dims)
    if not dims:
        return op.const(number, dtype)
    symbolic = any(isinstance(dim, Dim) for dim in dims)
    shape = op.Shape(like) if symbolic and like is not None else op.sizes(dims)
    with np.errstate(all="ignore"):
        array = np.asarray(number).astype(dtype.numpy()).reshape(1)
    return op.ConstantOfShape(shape, value=ir.Tensor(array, dtype=dtype), outputs=[(dtype, tuple(dims))])


def _full(op: Emit, self: ir.Value | None = None, fill_value: Any = 0) -> ir.Value:
    dtype, dims = op.result[0]
    like = self if self is not None and op.dims(self) == tuple(dims) else None
    return filled_with(op, dims, fill_value, dtype, like)


_ZEROS = "zeros zeros_like new_zeros zero empty.memory_format empty_like empty_strided empty_permuted new_empty "
_ZEROS += "new_empty_strided _efficientzerotensor"
register_shared(_full, "ConstantOfShape", *overloads_of(_ZEROS))
register_shared(lambda op, self=None: _full(op, self, 1), "ConstantOfShape", *overloads_of("ones ones_like new_ones"))
register_shared(_full, "ConstantOfShape; Expand of a size", *overloads_of("full full_like new_full"))
register_shared(
    lambda op, self, value: _full(op, self, value),
    "ConstantOfShape; Expand of a tensor",
    *overloads_of("fill.Scalar fill.Tensor"),
)


@translates(aten.scalar_tensor.default)
def scalar_tensor(op: Emit, s: Any, dtype: torch.dtype | None) -> ir.Value:
    """scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor

    ONNX:    a constant.
    """
    return op.reshape(as_dtype(op, s, op.result_dtype()), ())  # a size from data may be a tensor of one number


def counted(op: Emit, count: DimLike, dtype: ir.DataType) -> ir.Value:
    """0, 1, .. count - 1 in ``dtype``."""
    if isinstance(count, int) and count <= FOLDED_ELEMENTS:
        return op.const(np.arange(count), dtype)
    made = dtype if takes("Range", op.opset, dtype) and dtype not in FLOATS else D.INT64
    bounds = [op.const(0, made), op.size(count, made), op.const(1, made)]
    return op.cast(op.Range(*bounds, outputs=[(made, (count,))]), dtype)


def _arange(op: Emit, end: Any, start: Any = 0, step: Any = 1) -> ir.Value:
    """Integers: Range. Floats: start + step * i with i counted in integers, as PyTorch does; Range itself would count
    its elements in the tensor's own precision. In float64 where float32 rounds more than once: 10 * 1.3 is 13 there, whose
    floor is another number than that of one unit less."""
    dtype, (count,) = op.result[0]
    if _are_folded(count, dtype, start, end, step):
        return _whole_range(op, dtype, start, step, count) or made_by_torch(
            op, dtype, aten.arange.start_step, start, end, step
        )
    if dtype not in FLOATS and any(map(is_real_number, (start, end, step))):  # whole numbers are asked for
        start, step = (int(each) if isinstance(each, float) else each for each in (start, step))
        value = op.Mul(counted(op, count, D.INT64), as_dtype(op, step, D.INT64))
        return op.cast(op.Add(value, as_dtype(op, start, D.INT64)), dtype)
    if dtype in FLOATS:
        is_exact = _in_float32(step) and _in_float32(start) and (start == 0 or _is_whole(step))
        wide = D.FLOAT if dtype in FLOATS and dtype != D.DOUBLE and is_exact else D.DOUBLE
        value = counted(op, count, wide)
        value = value if step == 1 else op.Mul(value, as_dtype(op, step, wide))
        value = value if start == 0 else op.Add(value, as_dtype(op, start, wide))
        return cast(op, value, dtype)
    made = dtype if takes("Range", op.opset, dtype) else D.INT64
    if isinstance(step, Dim) or step < 0 or _may_be_negative(start) or (isinstance(start, int) and start >> 52):
        value = op.Mul(counted(op, count, made), as_dtype(op, step, made))
        return op.cast(op.Add(value, as_dtype(op, start, made)), dtype)
    bounds = [as_dtype(op, number, made) for number in (start, end, step)]
    return op.cast(op.Range(*bounds, outputs=[(made, (count,))]), dtype)


def _in_float32(number: Any) -> bool:
    """Return whether float32 holds the number exactly; sizes count as exact."""
    return isinstance(number, Dim) or (not isinstance(number, ir.Value) and float(np.float32(number)) == number)


def _is_whole(number: Any) -> bool:
    return isinstance(number, Dim) or (not isinstance(number, ir.Value) and float(number).is_integer())


def _may_be_negative(start: Any) -> bool:
    """onnxruntime makes a Slice of a Gather by a Range, where negative numbers are counted from the end."""
    if isinstance(start, Dim):
        return start.constant < 0 or any(factor < 0 for factor in start.terms.values())
    return bool(start < 0)


register_shared(
    _arange, "Range; floats from a Range of integers", *overloads_of("arange arange.start arange.start_step")
)


def made_by_torch(op: Emit, dtype: ir.DataType, function: Any, *numbers: Any, **named: Any) -> ir.Value:
    """A constant of what PyTorch makes of plain numbers: its kernels round floats in an order that depends on their lanes."""
    made = function(*numbers, dtype=TORCH_DTYPES[dtype], device="cpu", **named)
    return op.const((made.double() if made.is_floating_point() else made).numpy(), dtype)


def _whole_range(op: Emit, dtype: ir.DataType, start: Any, step: Any, count: Any) -> ir.Value | None:
    """A constant of whole numbers that every float dtype's kernel computes exactly before it rounds; None for other numbers."""
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    if dtype in FLOATS and max(abs(start), abs(start + step * count)) >= 1 << 24:
        return None
    return op.const(start + step * np.arange(count), dtype)


def _are_folded(count: DimLike, dtype: ir.DataType, *operands: Operand) -> bool:
    most = FOLDED_FLOATS if dtype in FLOATS else FOLDED_ELEMENTS
    return (
        isinstance(count, int) and 0 < count <= most and not any(isinstance(each, ir.Value | Dim) for each in operands)
    )


def _range(op: Emit, start: Any, end: Any, step: Any = 1) -> ir.Value:
    """Numbers as of arange, the end included: only the number of elements differs, and it is in the result's dims."""
    dtype, (count,) = op.result[0]
    if _are_folded(count, dtype, start, end, step):
        return _whole_range(op, dtype, start, step, count) or made_by_torch(
            op, dtype, aten.range.step, start, end, step
        )
    wide = D.DOUBLE if dtype == D.DOUBLE or dtype not in FLOATS else D.FLOAT
    value = op.Add(op.Mul(counted(op, count, wide), as_dtype(op, step, wide)), as_dtype(op, start, wide))
    return cast(op, value, dtype)


register_shared(_range, "Range of integers, Mul, Add; a constant where it is short", *overloads_of("range range.step"))


def _linspace(op: Emit, start: Operand, end: Operand, steps: DimLike) -> ir.Value:
    if _are_folded(steps, op.result_dtype(), start, end):
        return made_by_torch(op, op.result_dtype(), aten.linspace.default, start, end, steps)
    return cast(op, _spaced(op, start, end, steps), op.result_dtype())


def _spaced(op: Emit, start: Operand, end: Operand, steps: DimLike) -> ir.Value:
    """``steps`` numbers from ``start`` to ``end``, counted from the nearer end, in float32 or float64.

    Where the result holds integers or bools, the ends are made such numbers first.
    Source: ATen/native/cpu/RangeFactoriesKernel.cpp, linspace.
    """
    wide = D.DOUBLE if op.result_dtype() not in FLOATS or op.result_dtype() == D.DOUBLE else D.FLOAT
    if op.result_dtype() not in FLOATS:
        start, end = (_as_whole(op, item, op.result_dtype()) for item in (start, end))
    first, last = as_dtype(op, start, wide), as_dtype(op, end, wide)
    if isinstance(steps, int) and steps <= 1:
        return op.Reshape(first, [1]) if steps else op.const(np.zeros(0), wide)
    gaps = steps - 1
    divisor = op.Max(op.size(gaps, wide), 1) if isinstance(gaps, Dim) else op.const(gaps, wide)
    step = op.Div(op.Sub(last, first), divisor)
    index = counted(op, steps, wide)
    from_start = op.Add(first, op.Mul(step, index))
    from_end = op.Sub(last, op.Mul(step, op.Sub(as_dtype(op, gaps, wide), index)))
    half = op.const(steps // 2, wide) if isinstance(steps, int) else op.size(steps // 2, wide)
    return op.Where(op.Less(index, half), from_start, from_end)


def _as_whole(op: Emit, operand: Operand, dtype: ir.DataType) -> Operand:
    """A number as an integer or bool ``dtype`` holds it: what an integer is beyond its bits is dropped."""
    if isinstance(operand, ir.Value):
        return op.cast(operand if dtype == D.BOOL else op.cast(operand, D.INT64), dtype)
    if isinstance(operand, Dim):
        return operand
    return bool(operand) if dtype == D.BOOL else np.array(int(operand)).astype(dtype.numpy()).item()


def _logspace(op: Emit, start: Operand, end: Operand, steps: DimLike, base: float) -> ir.Value:
    if _are_folded(steps, op.result_dtype(), start, end):
        return made_by_torch(op, op.result_dtype(), aten.logspace.default, start, end, steps, base)
    if steps == 1 and op.result_dtype() not in FLOATS:  # the one number is not made an integer first
        spaced = op.reshape(as_dtype(op, start, D.DOUBLE), (1,))
    else:
        spaced = _spaced(op, start, end, steps)
    return cast(op, op.Pow(op.const(float(base), op.dtype(spaced)), spaced), op.result_dtype())


_ENDS = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
register_shared(_linspace, "Range, Mul, Add from both ends", *overloads_of(" ".join(f"linspace.{e}" for e in _ENDS)))
register_shared(_logspace, "Pow(base, linspace)", *overloads_of(" ".join(f"logspace.{e}" for e in _ENDS)))


def identity_matrix(op: Emit, rows: DimLike, columns: DimLike, dtype: ir.DataType) -> ir.Value:
    """Ones on the diagonal."""
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= FOLDED_ELEMENTS:
        return op.const(np.eye(rows, columns), dtype)
    made = dtype if takes("EyeLike", op.opset, dtype) else D.FLOAT
    shape = filled_with(op, (rows, columns), 0, made)
    return op.cast(op.EyeLike(shape, dtype=made), dtype)


def _eye(op: Emit) -> ir.Value:
    dtype, (rows, columns) = op.result[0]
    return identity_matrix(op, rows, columns, dtype)


register_shared(_eye, "EyeLike(ConstantOfShape); a constant where small", *overloads_of("eye eye.m"))


def _triangle_indices(places: Callable[[int, int, int], Any]) -> Any:
    return lambda op, row, col, offset: op.const(np.stack(places(row, offset, col)), op.result_dtype())


register_shared(_triangle_indices(np.tril_indices), "a constant", *overloads_of("tril_indices"))
register_shared(_triangle_indices(np.triu_indices), "a constant", *overloads_of("triu_indices"))


def meshgrid(op: Emit, tensors: Sequence[ir.Value], indexing: str = "ij") -> tuple[ir.Value, ...]:
    """Each tensor along an axis of its own, repeated along the others."""
    order = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        order[0], order[1] = 1, 0
    sizes: list[DimLike] = [op.dims(tensor)[0] if op.rank(tensor) else 1 for tensor in tensors]
    dims = [sizes[index] for index in order]
    results = []
    for index, tensor in enumerate(tensors):
        place = order.index(index)
        shape = [size if axis == place else 1 for axis, size in enumerate(dims)]
        results.append(op.expand(op.reshape(tensor, shape), dims))
    return tuple(results)


register_shared(meshgrid, "Reshape and Expand of each", *overloads_of("meshgrid meshgrid.indexing"))


def cast(op: Emit, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Cast with PyTorch's values: towards zero; what does not fit a small integer wraps around, by way of int64."""
    if op.dtype(value) in FLOATS and (dtype in SMALL_INTEGERS or dtype in (D.UINT32, D.UINT64)):
        value = op.cast(value, D.INT64)
    return op.cast(value, dtype)


def _to(op: Emit, self: ir.Value) -> ir.Value:
    return cast(op, self, op.result_dtype())


_TO = "to.device to.dtype to.dtype_layout to.other to.prim_Device to.prim_dtype to.prim_other _to_copy type_as "
_TO += "_cast_Byte _cast_Char _cast_Short _cast_Int _cast_Long _cast_Half _cast_Float _cast_Double "
_TO += "_autocast_to_full_precision _autocast_to_reduced_precision to_dense _to_cpu"
register_shared(_to, "Cast; nothing where the dtype stays", *overloads_of(_TO))


@translates(aten.copy.default)
def copy_default(op: Emit, self: ir.Value, src: ir.Value) -> ir.Value:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor

    ONNX:    Cast and Expand of ``src``.
    """
    return op.expand(cast(op, src, op.dtype(self)), op.dims(self))


def item(op: Emit, self: ir.Value) -> ir.Value:
    if op.rank(self) == 0:
        return self
    return op.Reshape(self, op.sizes(()))


register_shared(item, "Reshape to rank 0", *overloads_of("item _local_scalar_dense"))
