"""Sums, means, products, extremes and truth over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import cast, filled_with
from fx2onnx.aten_map.gathering import where
from fx2onnx.aten_map.table.axes import axes_of, axis_of
from fx2onnx.aten_map.table.dtypes import TORCH_DTYPES, Number, as_dtype, compute_dtype, opmath, takes, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten
D = ir.DataType
Dimensions: TypeAlias = "int | Sequence[int] | None"
SUMS = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"}
)
"""Reductions that PyTorch accumulates in float32: in bfloat16, the 8 bits are gone after some hundred elements."""


def reduced_axes(op: Emit, value: ir.Value, dim: Dimensions) -> list[int]:
    """The axes that a reduction over ``dim`` takes: all of them for None and for an empty list."""
    rank = op.rank(value)
    if rank == 0:
        return []
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(rank))
    return axes_of(dim, rank)


def reduce(op: Emit, op_type: str, value: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    """One Reduce node over ``dim`` in the value's dtype (or a wider one); a 0-d value as one element.

    Where an axis that stays is empty, onnxruntime's shape is wrong: an empty tensor is made instead.
    """
    axes = reduced_axes(op, value, dim)
    dims = op.dims(value)
    if any(size == 0 for axis, size in enumerate(dims) if axis not in axes):
        left = [1 if axis in axes else size for axis, size in enumerate(dims) if keepdim or axis not in axes]
        return filled_with(op, left, 0, op.dtype(value))
    keywords: dict[str, Any] = {} if len(axes) == op.rank(value) else {"axes": axes}
    dtype = op.dtype(value)
    wide = op.cast(value, D.FLOAT) if dtype == D.BFLOAT16 and op_type in SUMS else value
    return op.cast(through(op, op_type, wide, keepdims=int(keepdim and bool(axes)), **keywords), dtype)


def count_of(op: Emit, value: ir.Value, dim: Dimensions) -> DimLike:
    """The number of elements that a reduction over ``dim`` combines."""
    dims = op.dims(value)
    return product([dims[axis] for axis in reduced_axes(op, value, dim)])


def _reduction(op_type: str) -> Callable[..., ir.Value]:
    """``op_type`` in the result's dtype; sums and products of narrower integers in int64, which wrap when they are cast, where
    onnxruntime's int32 ends at its largest number.
    """

    def entry(op: Emit, self: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
        dtype = op.result_dtype()
        computed = D.INT64 if op_type in ("ReduceSum", "ReduceProd") and dtype in _WRAPPING else dtype
        return op.cast(reduce(op, op_type, cast(op, self, computed), dim, keepdim), dtype)

    return entry


_WRAPPING = frozenset({D.INT8, D.UINT8, D.INT16, D.INT32})


def _mean(op: Emit, self: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    return mean(op, op.cast(self, op.result_dtype()), dim, keepdim)


def mean(op: Emit, value: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    """ReduceMean; NaN over no elements, where onnxruntime gives 0."""
    count = count_of(op, value, dim)
    if count == 0:
        return op.Div(reduce(op, "ReduceSum", value, dim, keepdim), 0.0)
    if op.may_be_zero(count):
        return op.Div(reduce(op, "ReduceSum", value, dim, keepdim), op.size(count, op.dtype(value)))
    return reduce(op, "ReduceMean", value, dim, keepdim)


_GROWING = frozenset({"Mul", "Pow", "BitShift"})
"""Operators whose integers may be far larger than those that they are made of."""


def _sum(op: Emit, self: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    """ReduceSum. Of products of int64, such as those of a hash, the last of CumSum: onnxruntime (1.31) adds int64 as float64,
    which holds 53 bits.
    """
    axes, producer = reduced_axes(op, self, dim), op.producer(self)
    if len(axes) == 1 and producer is not None and producer.op_type in _GROWING and op.dtype(self) == D.INT64:
        size = op.dims(self)[axes[0]]
        if isinstance(size, int) and size and op.result_dtype() == D.INT64:
            running = through(op, "CumSum", self, axis=op.const(np.int64(axes[0])))
            last = np.array([size - 1]) if keepdim else np.int64(size - 1)
            return op.Gather(running, op.const(last), axis=axes[0])
    return _reduction("ReduceSum")(op, self, dim, keepdim)


register_shared(_sum, "ReduceSum", *overloads_of("sum.default sum.dim_IntList"))
register_shared(_mean, "ReduceMean", *overloads_of("mean.default mean.dim"))
register_shared(_reduction("ReduceProd"), "ReduceProd", *overloads_of("prod.default prod.dim_int"))
register_shared(_reduction("ReduceMax"), "ReduceMax", *overloads_of("amax.default max.default"))
register_shared(_reduction("ReduceMin"), "ReduceMin", *overloads_of("amin.default min.default"))


def any_true(op: Emit, bools: ir.Value) -> ir.Value:
    """Return whether any of all elements is true; onnxruntime has no ReduceMax of no bools, and that of no integers is not 0."""
    return op.Greater(op.ReduceSum(op.cast(bools, D.INT32), keepdims=0), 0)


def truth(op: Emit, op_type: str, value: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    """ReduceMax (any) or ReduceMin (all) of bools; the neutral element over no elements."""
    bools, count = op.cast(value, D.BOOL), count_of(op, value, dim)
    if op.may_be_zero(count):  # onnxruntime has no ReduceMax of no bools
        odd = bools if op_type == "ReduceMax" else op.Not(bools)
        some = op.Greater(reduce(op, "ReduceSum", op.cast(odd, D.INT32), dim, keepdim), 0)
        return some if op_type == "ReduceMax" else op.Not(some)
    if count == 0:
        total = reduce(op, "ReduceSum", op.cast(bools, D.INT32), dim, keepdim)
        return op.Equal(total, 0 if op_type == "ReduceMin" else 1)
    return reduce(op, op_type, bools, dim, keepdim)


def _truth(op_type: str) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
        if dim is not None and not isinstance(dim, int) and not len(dim) and op.rank(self):
            return op.cast(op.cast(self, D.BOOL), op.result_dtype())
        return op.cast(truth(op, op_type, self, dim, keepdim), op.result_dtype())

    return entry


def _is_nonzero(op: Emit, self: ir.Value) -> ir.Value:
    return op.reshape(op.cast(self, D.BOOL), ())


register_shared(_truth("ReduceMin"), "ReduceMin of bools", *overloads_of("all.default all.dim all.dims _is_all_true"))
register_shared(_truth("ReduceMax"), "ReduceMax of bools", *overloads_of("any.default any.dim any.dims _is_any_true"))
register_shared(_is_nonzero, "Cast to bool, Reshape to rank 0", *overloads_of("is_nonzero"))


def _count_nonzero(op: Emit, self: ir.Value, dim: Dimensions = None) -> ir.Value:
    if dim is not None and not isinstance(dim, int) and not len(dim):
        dim = None
    return reduce(op, "ReduceSum", op.cast(op.cast(self, D.BOOL), D.INT64), dim)


register_shared(_count_nonzero, "ReduceSum(x != 0)", *overloads_of("count_nonzero.default count_nonzero.dim_IntList"))


def without_nan(op: Emit, value: ir.Value, instead: float = 0.0) -> ir.Value:
    """NaN replaced by ``instead``."""
    return where(op, through(op, "IsNaN", value), op.const(instead, op.dtype(value)), value)


def _nansum(op: Emit, self: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    return _reduction("ReduceSum")(op, without_nan(op, self) if op.is_float(self) else self, dim, keepdim)


def _nanmean(op: Emit, self: ir.Value, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    dtype = op.result_dtype()
    total = _nansum(op, self, dim, keepdim)
    present = op.cast(op.Not(through(op, "IsNaN", self)), opmath(dtype))
    count = op.cast(reduce(op, "ReduceSum", present, dim, keepdim), dtype)
    return through(op, "Div", total, count)


register_shared(_nansum, "ReduceSum(Where(IsNaN, 0))", *overloads_of("nansum.default"))
register_shared(_nanmean, "nansum / count of numbers", *overloads_of("nanmean.default"))


def variance(
    op: Emit,
    value: ir.Value,
    dim: Dimensions,
    correction: Number,
    keepdim: bool,
    root: bool = False,
    with_mean: bool = True,
) -> tuple[ir.Value, ir.Value]:
    """(variance or its root, mean), both in the opmath dtype: the two-pass form, as PyTorch's result demands.

    The divisor is max(count - correction, 0), so that too few elements give NaN or inf.
    """
    value = op.cast(value, opmath(op.dtype(value)))
    dtype = op.dtype(value)
    center = mean(op, value, dim, True)
    squares = reduce(op, "ReduceSumSquare", op.Sub(value, center), dim, keepdim)
    count = count_of(op, value, dim)
    if isinstance(count, Dim) or isinstance(correction, Dim):
        divisor = op.Max(op.Sub(op.size(count, dtype), as_dtype(op, correction, dtype)), 0)
    else:
        divisor = op.const(max(float(count) - float(correction), 0.0), dtype)
    spread = op.Div(squares, divisor)
    if with_mean and not keepdim and op.rank(value):
        axes = reduced_axes(op, value, dim)
        center = op.Squeeze(center, axes=axes)
    return (op.Sqrt(spread) if root else spread), center


def _variance(root: bool, with_mean: bool) -> Callable[..., Any]:
    def entry(
        op: Emit,
        self: ir.Value,
        dim: Dimensions = None,
        unbiased: bool = True,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> Any:
        delta = (1 if unbiased else 0) if correction is None else correction
        if with_mean:
            spread, center = variance(op, self, dim, delta, keepdim, root)
            return op.cast(spread, op.result_dtype()), op.cast(center, op.result_dtype(1))
        spread, _ = variance(op, self, dim, delta, keepdim, root, with_mean=False)
        return op.cast(spread, op.result_dtype())

    return entry


for _name, _root, _with_mean in (
    ("var", False, False),
    ("std", True, False),
    ("var_mean", False, True),
    ("std_mean", True, True),
):
    register_shared(
        _variance(_root, _with_mean),
        "ReduceMean, Sub, ReduceSumSquare, Div" + (", Sqrt" if _root else ""),
        *overloads_of(f"{_name}.default {_name}.dim {_name}.correction"),
    )


def log_sum_exp(op: Emit, value: ir.Value, dim: Dimensions, keepdim: bool) -> ir.Value:
    """log(sum(exp(x - m))) + m of the largest m. ReduceLogSumExp is the same but in onnxruntime (1.31), which takes no m off
    where the first number of a row is -inf: large numbers beside it overflow, small ones vanish.
    """
    if count_of(op, value, dim) == 0:
        return reduce(op, "ReduceLogSumExp", value, dim, keepdim)
    dtype = op.dtype(value)
    most = reduce(op, "ReduceMax", value, dim, True)
    most = op.Where(op.Equal(op.Abs(most), op.const(math.inf, dtype)), op.const(0.0, dtype), most)
    total = reduce(op, "ReduceSum", op.Exp(op.Sub(value, most)), dim, keepdim)
    return op.Add(op.Log(total), most if keepdim else op.reshape(most, op.dims(total)))


def _logsumexp(op: Emit, self: ir.Value, dim: Dimensions, keepdim: bool = False) -> ir.Value:
    return log_sum_exp(op, op.cast(self, op.result_dtype()), dim, keepdim)


register_shared(_logsumexp, "ReduceMax, Exp, ReduceSum, Log", *overloads_of("logsumexp special_logsumexp"))


def arg_reduce(op: Emit, op_type: str, value: ir.Value, dim: int | None, keepdim: bool) -> ir.Value:
    """ArgMax or ArgMin, the first of equals; over all elements for ``dim`` None."""
    rank = op.rank(value)
    if op.dtype(value) == D.INT64 and not takes(op_type, op.opset, D.INT64):
        value = op.cast(value, D.DOUBLE)
    wide = compute_dtype(op, op_type, op.dtype(value))
    flat = op.cast(value, wide)
    if dim is None or rank == 0:
        if rank != 1:
            flat = op.Reshape(flat, np.array([-1]))
        found = op.node(op_type, flat, axis=0, keepdims=0)
        return op.reshape(found, (1,) * rank) if keepdim and rank else found
    return op.node(op_type, flat, axis=axis_of(dim, rank), keepdims=int(keepdim))


def _arg(op_type: str) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value, dim: int | None = None, keepdim: bool = False) -> ir.Value:
        if not op.is_float(self):
            return arg_reduce(op, op_type, self, dim, keepdim)
        sign = 1 if op_type == "ArgMax" else -1
        dtype = op.dtype(self)
        most = op.const(sign * torch.finfo(TORCH_DTYPES[dtype]).max, dtype)
        finite = through(op, "Min" if sign > 0 else "Max", self, most)  # so that NaN is above infinity
        value = where(op, through(op, "IsNaN", self), op.const(sign * math.inf, dtype), finite)
        return arg_reduce(op, op_type, value, dim, keepdim)

    return entry


register_shared(_arg("ArgMax"), "ArgMax, NaN taken as inf, inf as the largest number", *overloads_of("argmax.default"))
register_shared(
    _arg("ArgMin"), "ArgMin, NaN taken as -inf, -inf as the smallest number", *overloads_of("argmin.default")
)


def max_with_place(op: Emit, value: ir.Value, axis: int) -> tuple[ir.Value, ir.Value]:
    """(the greatest, where it is first) along an axis, which goes."""
    return reduce(op, "ReduceMax", value, axis), arg_reduce(op, "ArgMax", value, axis, False)


def _with_indices(name: str) -> Callable[..., tuple[ir.Value, ir.Value]]:
    def entry(op: Emit, self: ir.Value, dim: int, keepdim: bool = False) -> tuple[ir.Value, ir.Value]:
        values = reduce(op, f"Reduce{name}", self, dim, keepdim)
        return values, arg_reduce(op, f"Arg{name}", self, dim, keepdim)

    return entry


def _aminmax(op: Emit, self: ir.Value, dim: int | None, keepdim: bool) -> tuple[ir.Value, ir.Value]:
    low, high = (reduce(op, op_type, self, dim, False) for op_type in ("ReduceMin", "ReduceMax"))
    dims = op.result_dims()
    return (low, high) if not keepdim else (op.reshape(low, dims), op.reshape(high, dims))


register_shared(_with_indices("Max"), "ReduceMax, ArgMax", *overloads_of("max.dim"))
register_shared(_with_indices("Min"), "ReduceMin, ArgMin", *overloads_of("min.dim"))
register_shared(_aminmax, "ReduceMin, ReduceMax", *overloads_of("aminmax"))


@translates(aten.sum_to_size.default)
def sum_to_size(op: Emit, self: ir.Value, size: Sequence[DimLike]) -> ir.Value:
    """sum_to_size(Tensor self, SymInt[] size) -> Tensor

    ONNX:    ReduceSum over the axes that broadcasting added.
    """
    extra = op.rank(self) - len(size)
    axes = list(range(extra))
    axes += [axis + extra for axis, dim in enumerate(size) if dim == 1 and op.dims(self)[axis + extra] != 1]
    value = op.cast(self, op.result_dtype())
    if not axes:
        return value
    return op.reshape(reduce(op, "ReduceSum", value, axes, True), size)
