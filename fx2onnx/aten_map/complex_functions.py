"""Functions of complex numbers by real formulas; operators that are linear in their operands, part by part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.complex_numbers import (
    as_pair,
    as_real,
    conjugate,
    exponential,
    inverse_of,
    logarithm,
    magnitude,
    multiplied,
    pair,
    parts,
    quotient,
    scaled,
)
from fx2onnx.aten_map.table.registry import OpOverload, overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import mark_complex

aten = torch.ops.aten
D = ir.DataType
Pair = tuple[ir.Value, ir.Value]


def root(op: Emit, self: ir.Value) -> ir.Value:
    """The root with a real part of at least 0: u = sqrt((|z| + |a|) / 2) and v = |b| / (2 u), in the order of a's sign."""
    real, imaginary = parts(op, self)
    zero, half = op.const(0.0, op.dtype(real)), op.const(0.5, op.dtype(real))
    large = op.Sqrt(op.Mul(op.Add(magnitude(op, self), op.Abs(real)), half))
    nothing = op.Equal(large, zero)
    divisor = op.Where(nothing, op.const(1.0, op.dtype(real)), large)
    small = op.Div(op.Mul(op.Abs(imaginary), half), divisor)
    is_left = op.Less(real, zero)
    height = op.Where(is_left, large, small)
    return pair(op, op.Where(is_left, small, large), op.Where(op.Less(imaginary, zero), op.Neg(height), height))


def _sin(op: Emit, a: ir.Value, b: ir.Value) -> Pair:
    return op.Mul(op.Sin(a), op.Cosh(b)), op.Mul(op.Cos(a), op.Sinh(b))


def _cos(op: Emit, a: ir.Value, b: ir.Value) -> Pair:
    return op.Mul(op.Cos(a), op.Cosh(b)), op.Neg(op.Mul(op.Sin(a), op.Sinh(b)))


def _sinh(op: Emit, a: ir.Value, b: ir.Value) -> Pair:
    return op.Mul(op.Sinh(a), op.Cos(b)), op.Mul(op.Cosh(a), op.Sin(b))


def _cosh(op: Emit, a: ir.Value, b: ir.Value) -> Pair:
    return op.Mul(op.Cosh(a), op.Cos(b)), op.Mul(op.Sinh(a), op.Sin(b))


def _tanh(op: Emit, a: ir.Value, b: ir.Value) -> Pair:
    """(t (1 + s^2) + i s (1 - t^2)) / (1 + t^2 s^2), t = tanh a, s = tan b: nothing overflows for large a."""
    one, t, s = op.const(1.0, op.dtype(a)), op.Tanh(a), op.Tan(b)
    t_squared, s_squared = op.Mul(t, t), op.Mul(s, s)
    below = op.Add(one, op.Mul(t_squared, s_squared))
    real = op.Div(op.Mul(t, op.Add(one, s_squared)), below)
    return real, op.Div(op.Mul(s, op.Sub(one, t_squared)), below)


def _tan(op: Emit, a: ir.Value, b: ir.Value) -> Pair:
    real, imaginary = _tanh(op, op.Neg(b), a)
    return imaginary, op.Neg(real)


def _of_parts(formula: Callable[[Emit, ir.Value, ir.Value], Pair]) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value) -> ir.Value:
        return pair(op, *formula(op, *parts(op, self)))

    return entry


def _plus(op: Emit, value: ir.Value, number: float) -> ir.Value:
    return op.Add(value, op.const(np.array([number, 0.0]), op.dtype(value)))


def sigmoid(op: Emit, self: ir.Value) -> ir.Value:
    return inverse_of(op, _plus(op, exponential(op, op.Neg(self)), 1.0))


def power(op: Emit, self: Any, exponent: Any) -> ir.Value:
    """exp(w log z); 0 to the power of 0 is 1, to any other 0."""
    dtype = op.result_dtype()
    if isinstance(exponent, int) and exponent == 2:
        return multiplied(op, self, self)
    base, wanted = as_pair(op, self, dtype), as_pair(op, exponent, dtype)
    found = exponential(op, multiplied(op, wanted, logarithm(op, base)))
    zero, one = op.const(np.zeros(2), dtype), op.const(np.array([1.0, 0.0]), dtype)
    found = op.Where(op.Not(_nonzero(op, base, True)), zero, found)
    return op.Where(op.Not(_nonzero(op, wanted, True)), one, found)


def _nonzero(op: Emit, value: ir.Value, keepdims: bool = False) -> ir.Value:
    """Return whether any part is not zero."""
    zero = op.const(0.0, op.dtype(value))
    same = op.cast(op.Equal(value, zero), D.INT32)
    both = op.ReduceMin(same, axes=[op.rank(value) - 1], keepdims=int(keepdims))
    return op.Not(op.cast(both, D.BOOL))


def _any_part(question: Callable[[Emit, ir.Value], ir.Value], negate: bool = False) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value) -> ir.Value:
        answers = op.cast(question(op, self), D.INT32)
        found = op.cast(op.ReduceMax(answers, axes=[op.rank(self) - 1], keepdims=0), D.BOOL)
        return op.Not(found) if negate else found

    return entry


def _is_infinite(op: Emit, value: ir.Value) -> ir.Value:
    return op.Equal(op.Abs(value), op.const(math.inf, op.dtype(value)))


def _is_unbounded(op: Emit, value: ir.Value) -> ir.Value:
    return op.Or(_is_infinite(op, value), op.IsNaN(value))


def _filled(op: Emit, self: ir.Value, mask: ir.Value, value: Any) -> ir.Value:
    dtype = op.result_dtype()
    column = op.Unsqueeze(mask, axes=[op.rank(mask)])
    return op.Where(column, as_pair(op, value, dtype), as_pair(op, self, dtype))


def real_entry(op: Emit, overload: OpOverload, given: dict[str, Any]) -> Any:
    """The entry for real numbers, its results without the axis of the pair."""
    outer = op.result
    op.result = tuple((dtype, tuple(dims[:-1])) for dtype, dims in outer)
    try:
        return as_real(op, overload, given)
    finally:
        op.result = outer


def _part_of(op: Emit, argument: Any, index: int) -> Any:
    if isinstance(argument, ir.Value) and op.is_complex(argument):
        return parts(op, argument)[index]
    if isinstance(argument, list | tuple):
        return [_part_of(op, item, index) for item in argument]
    return argument


def _values_in(argument: Any) -> list[ir.Value]:
    return [
        leaf for leaf in (argument if isinstance(argument, list | tuple) else [argument]) if isinstance(leaf, ir.Value)
    ]


VALUES = frozenset({
    "self", "src", "source", "values", "input", "tensor", "tensors", "A", "vec1", "vec2", "mat1", "mat2",
    "grad_output",
})  # fmt: skip
"""Arguments whose numbers reach the result: real ones among complex ones have an imaginary part of 0."""


def _as_pairs(op: Emit, given: dict[str, Any]) -> dict[str, Any]:
    dtype = op.result_dtype()

    def paired(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [paired(item) for item in argument]
        return as_pair(op, argument, dtype) if isinstance(argument, ir.Value) else argument

    return {name: paired(argument) if name in VALUES else argument for name, argument in given.items()}


def _part_by_part(op: Emit, overload: OpOverload, given: dict[str, Any]) -> Any:
    is_kept_real = "src" in given and not op.is_complex(given["self"])
    values = [leaf for name in VALUES & given.keys() for leaf in _values_in(given[name])]
    if is_kept_real or not any(map(op.is_complex, values)):
        return as_real(op, overload, {name: _part_of(op, argument, 0) for name, argument in given.items()})
    pairs = _as_pairs(op, given)
    number = complex(given.get("value") or 0)  # what a padding is filled with
    filler = [{"value": part} if "value" in given else {} for part in (number.real, number.imag)]
    real, imaginary = [
        real_entry(
            op, overload, {name: _part_of(op, argument, index) for name, argument in pairs.items()} | filler[index]
        )
        for index in (0, 1)
    ]
    if isinstance(real, ir.Value):
        return pair(op, real, imaginary)
    return tuple(pair(op, *both) for both in zip(real, imaginary, strict=True))


def _broadcast_tensors(op: Emit, overload: OpOverload, given: dict[str, Any]) -> Any:
    """Each tensor keeps its dtype, and those of real numbers have no axis of the pair."""
    return tuple(
        mark_complex(op.expand(tensor, dims)) if op.is_complex(tensor) else op.expand(tensor, dims)
        for tensor, (_, dims) in zip(given["tensors"], op.result, strict=True)
    )


def _product_of(first: str, second: str) -> Callable[[Emit, OpOverload, dict[str, Any]], ir.Value]:
    """(a + bi)(c + di) by four real products; a bias is added afterwards."""

    def entry(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
        dtype, bias = op.result_dtype(), given.get("bias")
        rest = {**given, "bias": None} if bias is not None else given

        def times(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
            return real_entry(op, overload, {**rest, first: left, second: right})  # type: ignore[no-any-return]

        found = multiplied(op, as_pair(op, given[first], dtype), as_pair(op, given[second], dtype), times)
        if bias is None:
            return found
        offset = as_pair(op, bias, dtype)
        trailing = 0 if overload is aten.linear.default else op.rank(found) - 3
        axes = list(range(1, trailing + 1))
        return op.Add(found, op.Unsqueeze(offset, axes=axes) if axes else offset)

    return entry


def _einsum(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    tensors = given["tensors"]
    if len(tensors) > 2:
        raise UserError(
            "E203",
            f"einsum of {len(tensors)} complex tensors",
            why="products of two are expressed by the real ones of their parts",
            next="multiply the operands two by two",
        )
    if len(tensors) == 1:
        return _part_by_part(op, overload, given)  # type: ignore[no-any-return]

    def times(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
        return real_entry(op, overload, {**given, "tensors": [left, right]})  # type: ignore[no-any-return]

    left, right = (as_pair(op, tensor, op.result_dtype()) for tensor in tensors)
    return multiplied(op, left, right, times)


def _vdot(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    left = conjugate(op, as_pair(op, given["self"], op.result_dtype()))
    return _product_of("self", "tensor")(op, aten.dot.default, {"self": left, "tensor": given["other"]})


def _times(op: Emit, value: ir.Value, factor: Any) -> ir.Value:
    if factor == 1:
        return value
    return multiplied(op, value, as_pair(op, factor, op.dtype(value)))


def _added(overload: OpOverload, names: tuple[str, str], seconds: str) -> Callable[..., ir.Value]:
    """beta self + alpha (first second), by the product's own overload."""

    def entry(op: Emit, _: OpOverload, given: dict[str, Any]) -> ir.Value:
        product = {"self": given[names[0]], seconds: given[names[1]]}
        found = _times(op, _product_of("self", seconds)(op, overload, product), given["alpha"])
        if given["beta"] == 0:
            return found
        return op.Add(_times(op, as_pair(op, given["self"], op.result_dtype()), given["beta"]), found)

    return entry


def _between(op: Emit, self: Any, end: Any, weight: Any) -> ir.Value:
    start, stop, part = (as_pair(op, operand, op.result_dtype()) for operand in (self, end, weight))
    return op.Add(start, multiplied(op, part, op.Sub(stop, start)))


def _with_product(op: Emit, self: Any, tensor1: Any, tensor2: Any, value: Any) -> ir.Value:
    dtype = op.result_dtype()
    product = multiplied(op, as_pair(op, tensor1, dtype), as_pair(op, tensor2, dtype))
    return op.Add(as_pair(op, self, dtype), _times(op, product, value))


def _with_quotient(op: Emit, self: Any, tensor1: Any, tensor2: Any, value: Any) -> ir.Value:
    dtype = op.result_dtype()
    added = quotient(op, _times(op, as_pair(op, tensor1, dtype), value), as_pair(op, tensor2, dtype))
    return op.Add(as_pair(op, self, dtype), added)


def _created(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    """One number everywhere; the elements of empty tensors, which are any, are 0."""
    number = given.get("fill_value", given.get("value", 1 if "ones" in overload._schema.name else 0))
    dtype, dims = op.result[0]
    asked = given.get("dtype")
    return op.expand(op.const(number, dtype) if asked and not asked.is_complex else as_pair(op, number, dtype), dims)


def _on_truth(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    """Apply the overload to "is the number different from zero", for each number."""
    truths = {
        name: _nonzero(op, argument) if isinstance(argument, ir.Value) and op.is_complex(argument) else argument
        for name, argument in given.items()
    }
    return as_real(op, overload, truths)  # type: ignore[no-any-return]


def _adjoint(op: Emit, overload: OpOverload, given: dict[str, Any]) -> ir.Value:
    value = given["self"]
    rank = op.rank(value) - 1
    perm = [*range(rank), rank]
    if rank >= 2:
        perm[rank - 2], perm[rank - 1] = perm[rank - 1], perm[rank - 2]
    if overload is aten.numpy_T.default:
        perm = [*reversed(range(rank)), rank]
    turned = op.Transpose(value, perm=perm) if rank >= 2 else op.Identity(value)
    return conjugate(op, turned) if overload in CONJUGATED else turned


CONJUGATED = frozenset(overloads_of("mH adjoint matrix_H"))
_BY_FORMULA: list[tuple[str, str, Callable[..., ir.Value]]] = [
    ("sqrt", "Sqrt of the parts' sums", root),
    ("rsqrt", "the root's reciprocal", lambda op, self: inverse_of(op, root(op, self))),
    ("sin", "Sin, Cos, Sinh, Cosh", _of_parts(_sin)),
    ("cos", "Sin, Cos, Sinh, Cosh", _of_parts(_cos)),
    ("tan", "Tanh, Tan", _of_parts(_tan)),
    ("sinh", "Sin, Cos, Sinh, Cosh", _of_parts(_sinh)),
    ("cosh", "Sin, Cos, Sinh, Cosh", _of_parts(_cosh)),
    ("tanh", "Tanh, Tan", _of_parts(_tanh)),
    ("sigmoid", "1 / (1 + exp(-z))", sigmoid),
    ("silu", "z / (1 + exp(-z))", lambda op, self: multiplied(op, self, sigmoid(op, self))),
    ("log2", "Log |z|, angle", lambda op, self: scaled(op, logarithm(op, self), 1 / math.log(2.0))),
    ("log10", "Log |z|, angle", lambda op, self: scaled(op, logarithm(op, self), 1 / math.log(10.0))),
    ("log1p", "log(1 + z)", lambda op, self: logarithm(op, _plus(op, self, 1.0))),
    ("expm1", "exp(z) - 1", lambda op, self: _plus(op, exponential(op, self), -1.0)),
    ("exp2 special_exp2", "exp(z log 2)", lambda op, self: exponential(op, scaled(op, self, math.log(2.0)))),
    ("pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar", "exp(w log z)", power),
    ("lerp.Scalar lerp.Tensor", "self + weight (end - self)", _between),
    ("addcmul", "four Mul, Add", _with_product),
    ("addcdiv", "Mul by conj / |z|^2, Add", _with_quotient),
    ("isnan", "IsNaN of either part", _any_part(lambda op, value: op.IsNaN(value))),
    ("isinf", "Equal of either part's Abs", _any_part(_is_infinite)),
    ("isfinite", "Equal, IsNaN of either part", _any_part(_is_unbounded, negate=True)),
    (
        "isreal",
        "Equal of the imaginary part",
        lambda op, self: op.Equal(parts(op, self)[1], op.const(0.0, op.dtype(self))),
    ),
    ("masked_fill.Scalar masked_fill.Tensor", "Where of pairs", _filled),
]
_BY_PARTS: list[tuple[str, str, Callable[[Emit, OpOverload, dict[str, Any]], ir.Value]]] = [
    (
        "tril triu diagonal diag diag_embed gather index_add index_copy take trace fliplr flipud rot90 tile scatter.src "
        "scatter_add repeat_interleave.self_int pad constant_pad_nd take_along_dim index_put expand_as expand_copy "
        "diagonal_copy linalg_diagonal diagonal_scatter diagflat hstack dstack vstack column_stack row_stack block_diag "
        "hsplit.int hsplit.array vsplit.int vsplit.array dsplit.int dsplit.array tensor_split.sections tensor_split.indices "
        "meshgrid meshgrid.indexing atleast_1d atleast_2d atleast_3d cartesian_prod combinations ravel "
        "unfold select_copy.int slice_copy.Tensor select_scatter slice_scatter select_backward slice_backward squeeze_copy unsqueeze_copy view_copy permute_copy t_copy transpose_copy.int",
        "the real form of each part",
        _part_by_part,
    ),
    ("broadcast_tensors", "Expand of each", _broadcast_tensors),
    ("linear", "four of the real form", _product_of("input", "weight")),
    ("conv1d conv2d conv3d", "four of the real form", _product_of("input", "weight")),
    ("tensordot kron inner linalg_cross cross", "four of the real form", _product_of("self", "other")),
    ("dot", "four of the real form", _product_of("self", "tensor")),
    ("mv", "four of the real form", _product_of("self", "vec")),
    ("outer ger", "four of the real form", _product_of("self", "vec2")),
    ("vdot", "four of the real form, one conjugated", _vdot),
    ("addmm", "four MatMul", _added(aten.mm.default, ("mat1", "mat2"), "mat2")),
    ("addmv", "four MatMul", _added(aten.mv.default, ("mat", "vec"), "vec")),
    ("addr", "four Mul", _added(aten.outer.default, ("vec1", "vec2"), "vec2")),
    ("baddbmm", "four MatMul", _added(aten.bmm.default, ("batch1", "batch2"), "mat2")),
    (
        "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full empty.memory_format empty_like "
        "new_empty empty_strided new_empty_strided empty_permuted fill.Scalar fill.Tensor",
        "Expand of a pair",
        _created,
    ),
    ("einsum", "four of the real form", _einsum),
    ("any any.dim any.dims all all.dim all.dims count_nonzero count_nonzero.dim_IntList nonzero logical_not logical_and "
     "logical_or logical_xor", "the real form of whether numbers are not zero", _on_truth),
    ("t mT mH H adjoint matrix_H numpy_T", "Transpose", _adjoint),
]  # fmt: skip


def _by_parts(function: Callable[..., ir.Value], overload: OpOverload) -> Callable[..., ir.Value]:
    return lambda op, **given: function(op, overload, given)


for _names, _form, _function in _BY_FORMULA:
    register_shared(_function, _form, *overloads_of(_names), is_complex=True)
for _names, _form, _function in _BY_PARTS:
    for _overload in overloads_of(_names):
        register_shared(_by_parts(_function, _overload), _form, _overload, is_complex=True)
