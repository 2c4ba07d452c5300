"""Norms, distances and variances of complex numbers, by those of their magnitudes and parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.complex_numbers import as_pair, as_real, magnitude, pair, parts, scaled
from fx2onnx.aten_map.table.registry import OpOverload, overloads_of, register_shared
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten


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


def _renorm(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
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
    ("renorm", _renorm),
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
