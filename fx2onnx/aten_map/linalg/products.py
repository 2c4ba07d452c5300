"""Products of tensors: einsum, tensordot, kron, cross, outer; sums of products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted, identity_matrix
from fx2onnx.aten_map.matmul import product as matrix_product
from fx2onnx.aten_map.reductions import count_of, mean, reduce
from fx2onnx.aten_map.repeating import diagonal_of
from fx2onnx.aten_map.table.axes import axis_of
from fx2onnx.aten_map.table.dtypes import compute_dtype, floating, opmath, promoted, through
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import has_op
from fx2onnx.sizes.expr import Dim, DimLike, apply

aten = torch.ops.aten
D = ir.DataType
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum(op: Emit, equation: str, tensors: Sequence[ir.Value], dims: Sequence[DimLike]) -> ir.Value:
    """One Einsum-12; before it, products of axes set side by side and a ReduceSum."""
    dtype = op.dtype(tensors[0])
    if not has_op("Einsum", op.opset):
        return _spread_einsum(op, equation, tensors)
    if dtype == D.INT64:
        equation, tensors = _summed_alone(op, equation, tensors)
    wide = compute_dtype(op, "Einsum", dtype)
    operands = [op.cast(tensor, wide) for tensor in tensors]
    result = op.Einsum(*operands, equation=equation, outputs=[(wide, tuple(dims))])
    return op.cast(result, dtype)


def _summed_alone(op: Emit, equation: str, tensors: Sequence[ir.Value]) -> tuple[str, list[ir.Value]]:
    """The axes that one operand alone has summed by ReduceSum: onnxruntime's Einsum adds int64 along them as float64."""
    left, output = equation.split("->")
    terms, found = left.split(","), []
    for term, tensor in zip(terms, tensors, strict=True):
        axes = [axis for axis, letter in enumerate(term) if letter != "." and (left + output).count(letter) == 1]
        found.append(through(op, "ReduceSum", tensor, axes=axes, keepdims=0) if axes else tensor)
    shared = [
        "".join(letter for letter in term if letter == "." or (left + output).count(letter) > 1) for term in terms
    ]
    return f"{','.join(shared)}->{output}", found


def _spread_einsum(op: Emit, equation: str, tensors: Sequence[ir.Value]) -> ir.Value:
    left, output = equation.split("->")
    terms = left.split(",")
    letters = output + "".join(sorted({letter for term in terms for letter in term} - set(output)))
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise UserError("E203", f"einsum {equation} needs Einsum", next="export with opset_version=12 or newer")
    total: ir.Value | None = None
    for term, tensor in zip(terms, tensors, strict=True):
        kept = [letter for letter in letters if letter in term]
        value = op.Transpose(tensor, perm=[term.index(letter) for letter in kept]) if len(kept) > 1 else tensor
        new = [axis for axis, letter in enumerate(letters) if letter not in term]
        value = op.Unsqueeze(value, axes=new) if new else value
        total = value if total is None else through(op, "Mul", total, value)
    assert total is not None
    gone = list(range(len(output), len(letters)))
    return through(op, "ReduceSum", total, axes=gone, keepdims=0) if gone else total


def explicit_terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The operands' letters and the output's: no blanks, no ellipsis (letters of its own, counted from the right), and
    where no output is written the letters that occur once, in alphabetical order.
    """
    text = equation.replace(" ", "")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if not arrow:
        body = text.replace("...", "").replace(",", "")
        output = ("..." if "..." in text else "") + "".join(sorted(c for c in set(body) if body.count(c) == 1))
    spare = [letter for letter in LETTERS if letter not in text]
    widths = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "..." in term]
    common = spare[: max(widths, default=0)]
    terms = [
        term.replace("...", "".join(common[len(common) - rank + len(term.replace("...", "")) :]))
        for term, rank in zip(terms, ranks, strict=True)
    ]
    return terms, output.replace("...", "".join(common))


def _squeezed(op: Emit, terms: list[str], tensors: Sequence[ir.Value]) -> tuple[list[str], list[ir.Value]]:
    """Axes of size 1 that broadcast against larger ones taken out: Einsum does not broadcast."""
    sizes: dict[str, DimLike] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        for letter, dim in zip(term, op.dims(tensor), strict=True):
            sizes[letter] = dim if sizes.get(letter, 1) == 1 else sizes[letter]
    kept_terms, kept = [], []
    for term, tensor in zip(terms, tensors, strict=True):
        gone = [axis for axis, dim in enumerate(op.dims(tensor)) if dim == 1 and sizes[term[axis]] != 1]
        kept.append(op.Squeeze(tensor, axes=gone) if gone else tensor)
        kept_terms.append("".join(letter for axis, letter in enumerate(term) if axis not in gone))
    return kept_terms, kept


@translates(aten.einsum.default)
def einsum_default(op: Emit, equation: str, tensors: Sequence[ir.Value], path: Any) -> ir.Value:
    """einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor

    ONNX:    Einsum-12.
    """
    terms, output = explicit_terms(equation, [op.rank(tensor) for tensor in tensors])
    terms, kept = _squeezed(op, terms, [op.cast(tensor, op.result_dtype()) for tensor in tensors])
    return einsum(op, f"{','.join(terms)}->{output}", kept, op.result_dims())


@translates(aten.tensordot.default)
def tensordot(
    op: Emit, self: ir.Value, other: ir.Value, dims_self: Sequence[int], dims_other: Sequence[int]
) -> ir.Value:
    """tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor

    ONNX:    Einsum.
    """
    left = list(LETTERS[: op.rank(self)])
    right = list(LETTERS[op.rank(self) : op.rank(self) + op.rank(other)])
    shared = set()
    for first, second in zip(dims_self, dims_other, strict=True):
        letter = left[axis_of(first, op.rank(self))]
        right[axis_of(second, op.rank(other))] = letter
        shared.add(letter)
    output = [letter for letter in left + right if letter not in shared]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(output)}"
    return einsum(op, equation, [self, other], op.result_dims())


def _outer(op: Emit, self: ir.Value, vec2: ir.Value) -> ir.Value:
    dtype = op.result_dtype()
    column, row = op.Unsqueeze(op.cast(self, dtype), axes=[1]), op.cast(vec2, dtype)
    if dtype == D.BOOL:
        return op.And(column, row)
    return through(op, "Mul", column, row)


register_shared(_outer, "Mul of a column and a row", *overloads_of("outer ger"))


@translates(aten.kron.default)
def kron(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
    """kron(Tensor self, Tensor other) -> Tensor

    ONNX:    Mul with the axes interleaved, Reshape.
    """
    rank = max(op.rank(self), op.rank(other))
    dtype = op.result_dtype()

    def padded(value: ir.Value) -> list[DimLike]:
        return [1] * (rank - op.rank(value)) + list(op.dims(value))

    left = op.reshape(op.cast(self, dtype), [size for dim in padded(self) for size in (dim, 1)])
    right = op.reshape(op.cast(other, dtype), [size for dim in padded(other) for size in (1, dim)])
    mixed = op.And(left, right) if dtype == D.BOOL else through(op, "Mul", left, right)
    sizes = [first * second for first, second in zip(padded(self), padded(other), strict=True)]
    return op.reshape(mixed, sizes)  # type: ignore[arg-type]


def cross_product(op: Emit, left: ir.Value, right: ir.Value, axis: int) -> ir.Value:
    """(a2 b3 - a3 b2, a3 b1 - a1 b3, a1 b2 - a2 b1) along ``axis``."""
    dtype = op.result_dtype()
    left, right = op.cast(left, dtype), op.cast(right, dtype)
    ahead, behind = np.array([1, 2, 0]), np.array([2, 0, 1])

    def turned(value: ir.Value, order: Any) -> ir.Value:
        return op.Gather(value, order, axis=axis - len(op.result_dims()) + op.rank(value))

    first = through(op, "Mul", turned(left, ahead), turned(right, behind))
    second = through(op, "Mul", turned(left, behind), turned(right, ahead))
    return through(op, "Sub", first, second)


def _cross(op: Emit, self: ir.Value, other: ir.Value, dim: int | None) -> ir.Value:
    """The cross product along ``dim``; without it, along the first axis of size 3."""
    axis = op.dims(self).index(3) if dim is None else axis_of(dim, len(op.result_dims()))
    return cross_product(op, self, other, axis)


register_shared(_cross, "Gather of rotated components, Mul, Sub", *overloads_of("linalg_cross cross"))


@translates(aten.inner.default)
def inner(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
    """inner(Tensor self, Tensor other) -> Tensor

    ONNX:    Einsum over the last axes; Mul of a scalar.
    """
    if op.rank(self) == 0 or op.rank(other) == 0:
        dtype = op.result_dtype()
        return through(op, "Mul", op.cast(self, dtype), op.cast(other, dtype))
    left, right = LETTERS[: op.rank(self) - 1], LETTERS[26 : 25 + op.rank(other)]
    return einsum(op, f"{left}z,{right}z->{left}{right}", [self, other], op.result_dims())


@translates(aten.linalg_vecdot.default)
def linalg_vecdot(op: Emit, x: ir.Value, y: ir.Value, dim: int) -> ir.Value:
    """linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor

    ONNX:    Mul, ReduceSum. Of two vectors PyTorch reads no dim.
    """
    dtype = op.result_dtype()
    return reduce(
        op,
        "ReduceSum",
        through(op, "Mul", op.cast(x, dtype), op.cast(y, dtype)),
        dim if op.rank(x) != 1 or op.rank(y) != 1 else 0,
    )


def _chain(op: Emit, tensors: Sequence[ir.Value]) -> ir.Value:
    total = tensors[0]
    for value in tensors[1:]:
        total = matrix_product(op, total, value)
    return total


register_shared(_chain, "MatMul from left to right", *overloads_of("linalg_multi_dot chain_matmul"))


def least(first: DimLike, second: DimLike) -> DimLike:
    if isinstance(first, Dim) or isinstance(second, Dim):
        return apply("min", first, second)  # type: ignore[return-value]
    return min(first, second)


@translates(aten.trace.default)
def trace(op: Emit, self: ir.Value) -> ir.Value:
    """trace(Tensor self) -> Tensor

    ONNX:    the diagonal, ReduceSum.
    """
    diagonal = diagonal_of(op, op.cast(self, op.result_dtype()), 0, 0, 1, least(*op.dims(self)))
    return reduce(op, "ReduceSum", diagonal)


def covariance(
    op: Emit, value: ir.Value, correction: int, fweights: ir.Value | None, aweights: ir.Value | None
) -> ir.Value:
    """Rows are variables. Weighted means and sums; the divisor is sum w - correction (sum w a / sum w)."""
    rows = op.reshape(value, (1, op.dims(value)[0] if op.rank(value) else 1)) if op.rank(value) < 2 else value
    dtype = op.dtype(rows)
    if fweights is None and aweights is None:
        count = count_of(op, rows, 1)
        centered = op.Sub(rows, mean(op, rows, 1, True))
        weighted, divisor = centered, op.Sub(op.size(count, dtype), float(correction))
    else:
        parts = [op.cast(item, dtype) for item in (fweights, aweights) if item is not None]
        weights = parts[0] if len(parts) == 1 else op.Mul(*parts)
        total = reduce(op, "ReduceSum", weights)
        center = op.Div(reduce(op, "ReduceSum", op.Mul(rows, weights), 1, True), total)
        centered = op.Sub(rows, center)
        weighted = op.Mul(centered, weights)
        if aweights is not None and correction:
            share = op.Div(reduce(op, "ReduceSum", op.Mul(weights, op.cast(aweights, dtype))), total)
            divisor = op.Sub(total, op.Mul(share, float(correction)))
        else:
            divisor = op.Sub(total, float(correction))
    divisor = op.Max(divisor, 0.0)
    return op.Div(op.MatMul(weighted, op.Transpose(centered, perm=[1, 0])), divisor)


@translates(aten.cov.default)
def cov(op: Emit, self: ir.Value, correction: int, fweights: ir.Value | None, aweights: ir.Value | None) -> ir.Value:
    """cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor

    ONNX:    MatMul of the centered rows.
    """
    value = op.cast(op.cast(self, D.INT64) if op.is_bool(self) else self, floating(opmath(op.result_dtype())))
    found = covariance(op, value, correction, fweights, aweights)
    return op.cast(op.reshape(found, op.result_dims()), op.result_dtype())


@translates(aten.corrcoef.default)
def corrcoef(op: Emit, self: ir.Value) -> ir.Value:
    """corrcoef(Tensor self) -> Tensor

    ONNX:    the covariance over the deviations, Clip to [-1, 1].
    """
    dtype = floating(opmath(op.result_dtype()))
    found = covariance(op, op.cast(self, dtype), 1, None, None)
    if not op.result_dims():
        return op.cast(op.reshape(op.Div(found, found), ()), op.result_dtype())
    size = op.dims(found)[0]
    deviation = op.Sqrt(diagonal_of(op, found, 0, 0, 1, size))
    scaled = op.Div(op.Div(found, op.Unsqueeze(deviation, axes=[1])), op.Unsqueeze(deviation, axes=[0]))
    held = op.Clip(scaled, min=op.const(-1.0, dtype), max=op.const(1.0, dtype))
    return op.cast(held, op.result_dtype())


@translates(aten.linalg_vander.default)
def linalg_vander(op: Emit, x: ir.Value, N: DimLike | None) -> ir.Value:
    """linalg_vander(Tensor x, *, SymInt? N=None) -> Tensor

    ONNX:    Pow by 0, 1, .. N - 1.
    """
    dtype = op.result_dtype()
    count = op.dims(x)[-1] if N is None else N
    column = op.Unsqueeze(op.cast(x, dtype), axes=[op.rank(x)])
    return op.reshape(through(op, "Pow", column, counted(op, count, dtype)), op.result_dims())


def matrix_power(op: Emit, value: ir.Value, exponent: int) -> ir.Value:
    """Powers by repeated squaring; ``exponent`` >= 0."""
    if exponent == 0:
        size = op.dims(value)[-1]
        return op.expand(identity_matrix(op, size, size, op.dtype(value)), op.dims(value))
    result: ir.Value | None = None
    square = value
    while exponent:
        if exponent & 1:
            result = square if result is None else matrix_product(op, result, square)
        exponent >>= 1
        if exponent:
            square = matrix_product(op, square, square)
    assert result is not None
    return result


@translates(aten._trilinear.default)
def _trilinear(
    op: Emit,
    i1: ir.Value,
    i2: ir.Value,
    i3: ir.Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
) -> ir.Value:
    """_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim, int unroll_dim=1) -> Tensor

    The product of the three, each with new axes at the places ``expand``, summed over ``sumdim``: one Einsum.
    """
    ranks = {op.rank(value) + len(places) for value, places in ((i1, expand1), (i2, expand2), (i3, expand3))}
    if len(ranks) > 1:
        raise UserError("E203", "a trilinear product of tensors of several ranks", next="give new axes to all three")
    letters = "abcdefghijkl"[: op.rank(i1) + len(expand1)]
    expand1, expand2, expand3, sumdim = (
        [axis_of(axis, len(letters)) for axis in axes] for axes in (expand1, expand2, expand3, sumdim)
    )
    terms = ["".join(x for i, x in enumerate(letters) if i not in places) for places in (expand1, expand2, expand3)]
    sizes = [set[DimLike]() for _ in letters]
    for term, value in zip(terms, (i1, i2, i3), strict=True):
        for letter, size in zip(term, op.dims(value), strict=True):
            sizes[letters.index(letter)].add(size)
    if any(
        len({size for size in each if isinstance(size, int)}) > 1 or (1 in each and len(each) > 1) for each in sizes
    ):
        raise UserError("E203", "a trilinear product of sizes that differ along an axis", next="expand the tensors")
    kept = "".join(letter for index, letter in enumerate(letters) if index not in sumdim)
    dtype, dims = op.result[0]
    wide = opmath(promoted(op, i1, i2, i3))
    operands = [op.cast(value, wide) for value in (i1, i2, i3)]
    return op.cast(op.Einsum(*operands, equation=f"{','.join(terms)}->{kept}", outputs=[(wide, dims)]), dtype)
