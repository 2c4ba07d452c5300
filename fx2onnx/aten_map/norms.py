"""Vector and matrix norms, distances made of them, and those of complex numbers, by their magnitudes and parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.complex_numbers import as_pair, as_real, magnitude, pair, parts, scaled
from fx2onnx.aten_map.layout import pairs_of
from fx2onnx.aten_map.linalg.eigen import singular_values, spectral_norm
from fx2onnx.aten_map.linalg.linear_solve import WORK, inverse
from fx2onnx.aten_map.reductions import Dimensions, count_of, reduce, reduced_axes
from fx2onnx.aten_map.table.axes import axes_of, filled, transpose
from fx2onnx.aten_map.table.dtypes import opmath, promoted, through
from fx2onnx.aten_map.table.registry import OpOverload, overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
D = ir.DataType

ONE_NODE: dict[float, str] = {1.0: "ReduceL1", 2.0: "ReduceL2"}
OF_MAGNITUDES: dict[float, str] = {math.inf: "ReduceMax", -math.inf: "ReduceMin"}


def vector_norm(op: Emit, value: ir.Value, order: float, dim: Dimensions, keepdim: bool) -> ir.Value:
    """(sum |x|^p)^(1/p), with its limits for 0 and the infinities, in the value's dtype."""
    order = float(order)
    if order in ONE_NODE:
        return reduce(op, ONE_NODE[order], value, dim, keepdim)
    if order == 0:
        nonzero = op.cast(op.cast(value, D.BOOL), op.dtype(value))
        return reduce(op, "ReduceSum", nonzero, dim, keepdim)
    magnitudes = op.Abs(value)
    if order in OF_MAGNITUDES:
        if count_of(op, value, dim) == 0:
            return reduce(op, "ReduceSum", magnitudes, dim, keepdim)
        return reduce(op, OF_MAGNITUDES[order], magnitudes, dim, keepdim)
    total = reduce(op, "ReduceSum", op.Pow(magnitudes, order), dim, keepdim)
    return op.Pow(total, 1 / order)


def _in_opmath(op: Emit, self: ir.Value, order: float, dim: Dimensions, keepdim: bool) -> ir.Value:
    dtype = op.result_dtype()
    native = float(order) in ONE_NODE or float(order) in OF_MAGNITUDES
    value = op.cast(self, dtype if native else opmath(dtype))
    return op.cast(vector_norm(op, value, order, dim, keepdim), dtype)


def _norm(op: Emit, self: ir.Value, p: float | None = 2, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    return op.reshape(_in_opmath(op, self, 2 if p is None else p, dim, keepdim), op.result_dims())


register_shared(
    lambda op, self, ord=2, dim=None, keepdim=False: _norm(op, self, ord, dim, keepdim),
    "ReduceL2, ReduceL1; |x| and its power sums",
    *overloads_of("linalg_vector_norm"),
)
_NORMS = "norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype"
register_shared(_norm, "ReduceL2, ReduceL1; |x| and its power sums", *overloads_of(_NORMS))
register_shared(_norm, "ReduceL2", *overloads_of("frobenius_norm.dim"))


def matrix_norm(op: Emit, value: ir.Value, order: Any, dim: Sequence[int], keepdim: bool) -> ir.Value:
    """Frobenius, the largest (smallest) absolute column or row sum, or of the singular values (2, -2, "nuc")."""
    rows, columns = axes_of(dim, op.rank(value))
    if order == "fro" or (count_of(op, value, dim) == 0 and order in (1, 2, "nuc", math.inf)):
        return reduce(op, "ReduceL2", value, [rows, columns], keepdim)
    if order in (1, -1, math.inf, -math.inf):
        inner, outer = (rows, columns) if abs(order) == 1 else (columns, rows)
        sums = reduce(op, "ReduceL1", value, inner, True)
        most = reduce(op, "ReduceMax" if order > 0 else "ReduceMin", sums, outer, True)
        return most if keepdim else op.Squeeze(most, axes=sorted((rows, columns)))
    others = [axis for axis in range(op.rank(value)) if axis not in (rows, columns)]
    found = spectral_norm(op, transpose(op, value, [*others, rows, columns]), order)
    return op.Unsqueeze(found, axes=sorted((rows, columns))) if keepdim else found


def _linalg_matrix_norm(
    op: Emit, self: ir.Value, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False
) -> ir.Value:
    return op.cast(matrix_norm(op, op.cast(self, opmath(op.result_dtype())), ord, dim, keepdim), op.result_dtype())


def _linalg_norm(op: Emit, self: ir.Value, ord: Any = None, dim: Dimensions = None, keepdim: bool = False) -> ir.Value:
    axes = reduced_axes(op, self, dim)
    if ord is None or (len(axes) == 1 and not isinstance(ord, str)) or op.rank(self) == 0:
        return _norm(op, self, ord, dim, keepdim)
    dims = list(dim) if isinstance(dim, list | tuple) and dim else [-2, -1]
    return _linalg_matrix_norm(op, self, ord, dims, keepdim)


def _nuclear(op: Emit, self: ir.Value, dim: Sequence[int] = (-2, -1), keepdim: bool = False) -> ir.Value:
    return op.cast(matrix_norm(op, self, "nuc", dim, keepdim), op.result_dtype())


def _cond(op: Emit, self: ir.Value, p: Any = None) -> ir.Value:
    order = 2 if p is None else p
    if 0 in op.dims(self):
        return filled(op, op.result_dims(), 0, op.result_dtype())
    if order in (2, -2):
        values = singular_values(op, self)
        low, high = reduce(op, "ReduceMin", values, -1), reduce(op, "ReduceMax", values, -1)
        found = op.Div(high, low) if order == 2 else op.Div(low, high)
        return op.cast(found, op.result_dtype())
    value = op.cast(self, WORK)
    if order == "nuc":
        other = op.cast(inverse(op, value), D.FLOAT)
        norm = spectral_norm(op, self, order)
        found = op.Mul(norm, spectral_norm(op, other, order))  # the inverse of a singular matrix is infinite
        found = op.Where(op.IsNaN(found), op.Mul(norm, op.const(math.inf, op.dtype(norm))), found)
    else:
        found = op.Mul(
            matrix_norm(op, value, order, [-2, -1], False),
            matrix_norm(op, inverse(op, value), order, [-2, -1], False),
        )
        found = op.Where(op.IsNaN(found), op.const(math.inf, op.dtype(found)), found)  # 0 times an infinity
    return op.cast(found, op.result_dtype())


register_shared(_cond, "norms or singular values of A and its inverse", *overloads_of("linalg_cond linalg_cond.p_str"))


register_shared(
    _linalg_matrix_norm,
    "ReduceL2; ReduceL1, ReduceMax",
    *overloads_of("linalg_matrix_norm.default linalg_matrix_norm.str_ord"),
)
register_shared(_linalg_norm, "as vector or matrix norm", *overloads_of("linalg_norm.default linalg_norm.ord_str"))
register_shared(_nuclear, "sum of the singular values", *overloads_of("nuclear_norm.default nuclear_norm.dim"))


def _dist(op: Emit, self: ir.Value, other: ir.Value, p: float) -> ir.Value:
    wide = opmath(op.result_dtype())
    gap = op.Sub(op.cast(self, wide), op.cast(other, wide))
    return op.cast(vector_norm(op, gap, p, None, False), op.result_dtype())


def _renorm(op: Emit, self: ir.Value, p: float, dim: int, maxnorm: float) -> ir.Value:
    """Slices along ``dim`` longer than ``maxnorm`` scaled by maxnorm / (norm + 1e-7)."""
    wide = opmath(op.result_dtype())
    value = op.cast(self, wide)
    kept = axes_of(dim, op.rank(self))[0]
    rest = [axis for axis in range(op.rank(self)) if axis != kept]
    norm = vector_norm(op, value, p, rest, True)
    factor = op.Where(
        op.Greater(norm, float(maxnorm)),
        op.Div(op.const(float(maxnorm), wide), op.Add(norm, 1e-7)),
        op.const(1.0, wide),
    )
    return op.cast(op.Mul(value, factor), op.result_dtype())


register_shared(_dist, "vector norm of the difference", *overloads_of("dist"))
register_shared(_renorm, "vector norms, Where, Mul", *overloads_of("renorm"))


def _norm_of_gaps(op: Emit, gaps: ir.Value, order: float, dim: int) -> ir.Value:
    """The vector norm; 0 of no gaps; of order 0 as PyTorch counts differences, which a NaN makes NaN: the sum of min(ceil(|x|), 1)."""
    if order != 0:
        found = vector_norm(op, gaps, order, dim, False)
        is_least_infinite = order == math.inf and not isinstance(op.dims(gaps)[dim], int)
        return op.Max(found, op.const(0.0, op.dtype(gaps))) if is_least_infinite else found
    return reduce(op, "ReduceSum", op.Min(op.Ceil(op.Abs(gaps)), op.const(1.0, op.dtype(gaps))), dim, False)


def pairwise_norm(op: Emit, left: ir.Value, right: ir.Value, order: float) -> ir.Value:
    """Norms of all differences of rows: left [*, P, M], right [*, R, M] -> [*, P, R]. Memory: P x R x M."""
    gaps = op.Sub(op.Unsqueeze(left, axes=[op.rank(left) - 1]), op.Unsqueeze(right, axes=[op.rank(right) - 2]))
    return _norm_of_gaps(op, gaps, order, -1)


def _pdist(op: Emit, self: ir.Value, p: float) -> ir.Value:
    """The upper triangle of the distances of all rows of [N, M], row by row."""
    if op.rank(self) != 2:
        raise UserError(
            "E203", f"pairwise distances of a tensor of {op.rank(self)} axes", next="give it as a matrix, a row each"
        )
    rows = op.dims(self)[0]
    if isinstance(rows, int):
        first, second = (op.const(places) for places in np.triu_indices(rows, 1))
    else:
        first, second = (
            op.Gather(pairs_of(op, rows, op.result_dims()[0]), op.const(np.int64(row)), axis=0) for row in (0, 1)
        )
    gaps = op.Sub(op.Gather(self, first, axis=0), op.Gather(self, second, axis=0))
    return _norm_of_gaps(op, gaps, p, 1)


register_shared(pairwise_norm, "norms of all differences", *overloads_of("cdist _cdist_forward"))
register_shared(_pdist, "Gather twice, norm", *overloads_of("pdist _pdist_forward"))


def _pairwise_distance(op: Emit, x1: ir.Value, x2: ir.Value, p: float, eps: float, keepdim: bool) -> ir.Value:
    dtype = op.result_dtype()
    if op.is_float(x1) or op.is_float(x2):
        x1, x2 = op.cast(x1, opmath(dtype)), op.cast(x2, opmath(dtype))
    shared = promoted(op, x1, x2)
    gap = op.Add(op.cast(through(op, "Sub", op.cast(x1, shared), op.cast(x2, shared)), opmath(dtype)), eps)
    return op.cast(vector_norm(op, gap, p, -1, keepdim), dtype)


register_shared(_pairwise_distance, "norm(x1 - x2 + eps)", *overloads_of("pairwise_distance"))


def _of_magnitudes(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    given = {**given, "dtype": None} if "dtype" in given else given
    return as_real(op, overload, {**given, "self": magnitude(op, given["self"])})  # type: ignore[no-any-return]


def _matrix_norm(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    """A complex matrix norm: from magnitudes, or from the singular values of [[A, -B], [B, A]], which has each of them twice."""
    order = given.get("ord", "nuc" if overload in _NUCLEAR else None)
    self, dim = given["self"], given.get("dim")
    rank = op.rank(self) - 1
    is_vector = isinstance(dim, int) or (dim is not None and len(dim) == 1) or rank < 2
    if order not in (2, -2, "nuc") or (is_vector and order != "nuc"):
        return _of_magnitudes(op, overload, given)
    real, imaginary = parts(op, self)
    rows, columns = (axis % rank for axis in (dim or (-2, -1)))
    above = op.Concat(real, op.Neg(imaginary), axis=columns)
    whole = op.Concat(above, op.Concat(imaginary, real, axis=columns), axis=rows)
    found: ir.Value = as_real(op, overload, {**given, "self": whole})
    return op.Mul(found, op.const(0.5, op.dtype(found))) if order == "nuc" else found


_NUCLEAR = overloads_of("nuclear_norm.default nuclear_norm.dim")


def _distance(op: Emit, self: Any, other: Any, p: float) -> ir.Value:
    dtype = op.result_dtype()
    gap = op.Sub(as_pair(op, self, dtype), as_pair(op, other, dtype))
    return as_real(op, aten.norm.Scalar, {"self": magnitude(op, gap), "p": p})  # type: ignore[no-any-return]


def _complex_renorm(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    """Scaled as the magnitudes are; zeros stay."""
    lengths = magnitude(op, given["self"])
    one = op.const(1.0, op.dtype(lengths))
    outer, op.result = op.result, ((op.dtype(lengths), tuple(op.dims(lengths))),)
    try:
        wanted = as_real(op, overload, {**given, "self": lengths})
    finally:
        op.result = outer
    is_zero = op.Equal(lengths, op.const(0.0, op.dtype(lengths)))
    return scaled(op, given["self"], op.Where(is_zero, one, op.Div(wanted, op.Where(is_zero, one, lengths))))


def _variance(op: Emit, overload: OpOverload, given: dict[str, Any]) -> Any:
    """The sum of the parts' variances, or its root; beside it the pair of the parts' means, where it is asked for."""
    outer = op.result
    op.result = (outer[0], *((dtype, tuple(dims[:-1])) for dtype, dims in outer[1:]))
    try:
        found = [as_real(op, overload, {**given, "self": part}) for part in parts(op, given["self"])]
    finally:
        op.result = outer
    is_root = "std" in overload._schema.name
    both = [each[0] if isinstance(each, tuple) else each for each in found]
    total = op.Add(*(op.Mul(each, each) if is_root else each for each in both))
    total = op.Sqrt(total) if is_root else total
    return (total, pair(op, found[0][1], found[1][1])) if isinstance(found[0], tuple) else total


def _entry(function: Callable[[Emit, OpOverload, dict[str, Any]], Any], overload: OpOverload) -> Callable[..., Any]:
    return lambda op, **given: function(op, overload, given)


_BY_NORM = (
    ("linalg_matrix_norm.default linalg_matrix_norm.str_ord linalg_norm.default linalg_norm.ord_str", _matrix_norm),
    ("nuclear_norm.default nuclear_norm.dim", _matrix_norm),
    ("linalg_vector_norm norm.Scalar norm.ScalarOpt_dim", _of_magnitudes),
    ("norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype frobenius_norm.dim", _of_magnitudes),
    ("renorm", _complex_renorm),
    (
        "var var.dim var.correction std std.dim std.correction var_mean var_mean.dim "
        "var_mean.correction std_mean std_mean.dim std_mean.correction",
        _variance,
    ),
)
for _names, _function in _BY_NORM:
    for _overload in overloads_of(_names):
        register_shared(
            _entry(_function, _overload), "the real form of |z|, or of the parts", _overload, is_complex=True
        )
register_shared(_distance, "the norm of |a - b|", *overloads_of("dist"), is_complex=True)
