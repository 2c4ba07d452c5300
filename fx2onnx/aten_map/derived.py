"""Operators made of others: gradient, combinations, sum_to_size, resize, histogramdd, reflections."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.creation import filled, identity_matrix
from fx2onnx.aten_map.linalg.factorizations import turned
from fx2onnx.aten_map.linalg.linear_solve import WORK, column_of, loop, positions, row_of
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.searching import _edges as edges_of
from fx2onnx.aten_map.table.axes import axes_of, moved
from fx2onnx.aten_map.table.dtype_support import floating
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.dims import Dim, DimLike, product
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
D = ir.DataType


def fixed(dim: DimLike, what: str) -> int:
    """A size that must be a number. Raises UserError E203."""
    if isinstance(dim, Dim):
        raise UserError("E203", f"{what} of a dynamic size", next="make that dim static")
    return int(dim)


@translates(aten.combinations.default)
def combinations(op: Emit, self: ir.Value, r: int, with_replacement: bool) -> ir.Value:
    """combinations(Tensor self, int r=2, bool with_replacement=False) -> Tensor

    ONNX:    Gather by a constant table.
    """
    count = fixed(op.dims(self)[0], "combinations")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    table = np.array(list(choose(range(count), r)), dtype=np.int64).reshape(-1, r)
    return op.Gather(self, table, axis=0)


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


def _resize(op: Emit, self: ir.Value) -> ir.Value:
    """The first elements in a new shape; what is added is 0, where PyTorch leaves whatever was in memory."""
    dims = op.result_dims()
    old, new = fixed(product(op.dims(self)), "resize"), fixed(product(tuple(dims)), "resize")
    flat = op.reshape(self, (old,))
    if new < old:
        flat = op.Slice(flat, starts=[0], ends=[new], axes=[0])
    elif new > old:
        flat = op.Pad(flat, pads=np.array([0, new - old]))
    return op.reshape(flat, dims)


register_shared(_resize, "Slice or Pad of the flat tensor, Reshape", *overloads_of("resize resize_as"))


# -- gradient -----------------------------------------------------------------------------------------------------------
def _gradient_along(op: Emit, value: ir.Value, axis: int, spacing: Any, edge_order: int) -> ir.Value:
    """Differences of second order inside, of ``edge_order`` at the ends; ``spacing`` a step or a tensor of places.

    As a matrix product along the axis for steps; for places its coefficients are computed in the graph.
    """
    count = fixed(op.dims(value)[axis], "gradient")
    dtype, last = op.dtype(value), op.rank(value) - 1
    rows = moved(op, value, [axis], [last])
    if isinstance(spacing, ir.Value):
        places = op.cast(spacing, dtype)
        steps = op.Sub(
            op.Slice(places, starts=[1], ends=[2**63 - 1], axes=[0]), op.Slice(places, starts=[0], ends=[-1], axes=[0])
        )
    else:
        steps = op.const(np.full(count - 1, float(spacing)), dtype)
    weights = _weights(op, steps, count, edge_order)
    found = op.MatMul(rows, weights)
    return moved(op, found, [last], [axis])


def _weights(op: Emit, steps: ir.Value, count: int, edge_order: int) -> ir.Value:
    """[count, count]: column i holds the coefficients of the derivative at i, from the steps h[0 .. count - 2]."""
    dtype = op.dtype(steps)

    def step(index: int) -> ir.Value:
        return op.Gather(steps, op.const(np.array([index])), axis=0)

    def three(near: ir.Value, far: ir.Value) -> list[ir.Value]:
        """Coefficients at the first of three points, steps ``near`` then ``far``."""
        both = op.Add(near, far)
        first = op.Neg(op.Div(op.Add(op.Add(near, near), far), op.Mul(near, both)))
        return [first, op.Div(both, op.Mul(near, far)), op.Neg(op.Div(near, op.Mul(far, both)))]

    columns: list[ir.Value] = []
    inner_left = op.Slice(steps, starts=[0], ends=[-1], axes=[0]) if count > 2 else None
    inner_right = op.Slice(steps, starts=[1], ends=[2**63 - 1], axes=[0]) if count > 2 else None
    matrix: ir.Value | None = None
    if inner_left is not None:
        both = op.Add(inner_left, inner_right)
        parts = {
            0: op.Neg(op.Div(inner_right, op.Mul(inner_left, both))),
            1: op.Div(op.Sub(inner_right, inner_left), op.Mul(inner_left, inner_right)),
            2: op.Div(inner_left, op.Mul(inner_right, both)),
        }
        for offset, part in parts.items():
            mask = np.zeros((count, count - 2))
            mask[np.arange(count - 2) + offset, np.arange(count - 2)] = 1
            spread = op.Mul(op.const(mask, dtype), part)
            matrix = spread if matrix is None else op.Add(matrix, spread)
    if edge_order == 1 or count < 3:
        left_parts = [op.Neg(op.Reciprocal(step(0))), op.Reciprocal(step(0))]
        right_parts = [op.Neg(op.Reciprocal(step(count - 2))), op.Reciprocal(step(count - 2))]
    else:
        left_parts = three(step(0), step(1))
        right_parts = [op.Neg(part) for part in three(step(count - 2), step(count - 3))[::-1]]
    pad = op.const(np.zeros(count - len(left_parts)), dtype)
    filler = [pad] if count > len(left_parts) else []
    columns = [op.Unsqueeze(op.Concat(*left_parts, *filler, axis=0), axes=[1])]
    columns += [matrix] if matrix is not None else []
    columns.append(op.Unsqueeze(op.Concat(*filler, *right_parts, axis=0), axes=[1]))
    return op.Concat(*columns, axis=1)


def _gradient(
    op: Emit, self: ir.Value, dim: Any = None, spacing: Any = None, edge_order: int = 1
) -> tuple[ir.Value, ...]:
    axes = list(range(op.rank(self))) if dim is None else axes_of(dim, op.rank(self))
    steps = list(spacing) if isinstance(spacing, list | tuple) else [1 if spacing is None else spacing] * len(axes)
    value = op.cast(self, floating(op.dtype(self)))
    return tuple(
        op.cast(_gradient_along(op, value, axis, step, edge_order), op.result_dtype())
        for axis, step in zip(axes, steps, strict=True)
    )


_GRADIENTS = ("scalarint", "scalararray", "array", "scalarrayint", "scalarrayarray", "tensorarrayint", "tensorarray")
register_shared(
    _gradient, "MatMul with difference coefficients", *overloads_of(" ".join(f"gradient.{name}" for name in _GRADIENTS))
)


# -- histograms of several variables --------------------------------------------------------------------------------------
def _edges_of_several(
    op: Emit, self: ir.Value, bins: Sequence[Any], range: Sequence[float] | None, weight: Any, density: bool
) -> tuple[ir.Value, ...]:
    """The edges of every variable's bins: those given, or even steps over the range (the samples' own, if none)."""
    variables = len(bins)
    samples = op.reshape(self, (product(op.dims(self)[:-1]), variables))
    edges = []
    for index, given in enumerate(bins):
        low, high = (0.0, 0.0) if range is None else (range[2 * index], range[2 * index + 1])
        column = op.Gather(samples, op.const(np.array([index])), axis=1)
        edges.append(given if isinstance(given, ir.Value) else edges_of(op, column, given, low, high, 0.5))
    return tuple(edges)


def _counts_in_bins(
    op: Emit, self: ir.Value, edges: Sequence[ir.Value], weight: ir.Value | None, density: bool
) -> ir.Value:
    """Each variable one-hot in its bins, the outer products of all summed over the samples by Einsum."""
    dtype, variables = op.dtype(self), len(edges)
    samples = op.reshape(self, (product(op.dims(self)[:-1]), variables))
    hits = []
    for index, edge in enumerate(edges):
        column = op.Gather(samples, op.const(np.array([index])), axis=1)
        starts = op.Slice(edge, starts=[0], ends=[-1], axes=[0])
        ends = op.Slice(edge, starts=[1], ends=[2**63 - 1], axes=[0])
        last = op.Slice(edge, starts=[-1], ends=[2**63 - 1], axes=[0])
        inside = op.And(compare(op, "GreaterOrEqual", column, starts), op.Less(column, ends))
        final = op.And(op.Equal(column, last), op.Equal(ends, last))
        hits.append(op.cast(op.Or(inside, final), dtype))
    letters = "abcdefghijklmnop"[:variables]
    terms = [f"z{letter}" for letter in letters]
    if weight is not None:
        hits.append(op.reshape(weight, (product(op.dims(weight)),)))
        terms.append("z")
    hist = op.Einsum(*hits, equation=f"{','.join(terms)}->{letters}", outputs=[op.result[0]])
    if density:
        hist = op.Div(hist, op.ReduceSum(hist, keepdims=0))
        for axis, edge in enumerate(edges):
            width = op.Sub(
                op.Slice(edge, starts=[1], ends=[2**63 - 1], axes=[0]), op.Slice(edge, starts=[0], ends=[-1], axes=[0])
            )
            shape = [-1 if index == axis else 1 for index in range(variables)]
            hist = op.Div(hist, op.Reshape(width, np.array(shape)))
    return hist


def _histogramdd(
    op: Emit, self: ir.Value, bins: Any, range: Sequence[float] | None, weight: ir.Value | None, density: bool
) -> tuple[ir.Value, ...]:
    each = [bins] * fixed(op.dims(self)[-1], "histogramdd") if isinstance(bins, int) else bins
    edges = _edges_of_several(op, self, each, range, weight, density)
    return (_counts_in_bins(op, self, edges, weight, density), *edges)


def _histogramdd_in(
    op: Emit, self: ir.Value, bins: Sequence[Any], weight: ir.Value | None, density: bool, range: Any = None
) -> ir.Value:
    return _counts_in_bins(op, self, _edges_of_several(op, self, bins, range, weight, density), weight, density)


_DD = "histogramdd histogramdd.int_bins histogramdd.TensorList_bins"
register_shared(_histogramdd, "one-hot bins, Einsum", *overloads_of(_DD))
_DD_COUNTS = "_histogramdd_from_bin_cts _histogramdd_from_bin_tensors"
register_shared(_histogramdd_in, "one-hot bins, Einsum", *overloads_of(_DD_COUNTS))
register_shared(_edges_of_several, "even steps over each variable's range", *overloads_of("_histogramdd_bin_edges"))


# -- reflections ----------------------------------------------------------------------------------------------------------
def reflections(op: Emit, vectors: ir.Value, tau: ir.Value, start: ir.Value, transpose: bool = False) -> ir.Value:
    """H1 H2 .. Hk ``start`` (or transposed: Hk .. H1), Hi = 1 - tau[i] v v^T, v the column i below a unit diagonal."""
    rows = positions(op, op.dims(vectors)[-2])
    count = op.dims(tau)[-1]
    zero, one = op.const(0.0, WORK), op.const(1.0, WORK)
    scales = op.Unsqueeze(tau, axes=[op.rank(tau) - 1])

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        place = index if transpose else op.Sub(op.size(count - 1), index)
        column = op.Where(op.Greater(rows, place), column_of(op, vectors, place), zero)
        column = op.Where(op.Equal(rows, place), one, column)
        scale = column_of(op, scales, place)
        known = op.MatMul(turned(op, column), states[0])
        return [op.Sub(states[0], op.Mul(op.MatMul(column, known), scale))]

    return loop(op, count, [start], body)[0]


def _householder_product(op: Emit, input: ir.Value, tau: ir.Value) -> ir.Value:
    dims = op.dims(input)
    unit = op.expand(identity_matrix(op, dims[-2], dims[-1], WORK), dims)
    found = reflections(op, op.cast(input, WORK), op.cast(tau, WORK), unit)
    return op.cast(found, op.result_dtype())


def _ormqr(op: Emit, self: ir.Value, input2: ir.Value, input3: ir.Value, left: bool, transpose: bool) -> ir.Value:
    vectors, tau, other = (op.cast(item, WORK) for item in (self, input2, input3))
    if left:
        found = reflections(op, vectors, tau, op.expand(other, op.result_dims()), transpose)
    else:
        found = turned(op, reflections(op, vectors, tau, turned(op, other), not transpose))
    return op.cast(found, op.result_dtype())


def _geqrf(op: Emit, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    """LAPACK's packed form: R in the upper triangle, below it the reflections' vectors (1 at their top left out)."""
    dims, width = op.dims(self), op.dims(self)[-1]
    count, rounds = dims[-2], op.result_dims(1)[-1]
    dtype = op.result_dtype()
    if 0 in dims:
        return filled(op, dims, 0, dtype), filled(op, op.result_dims(1), 0, dtype)
    rows, columns = positions(op, count), op.Transpose(positions(op, width), perm=[1, 0])
    places = op.Transpose(positions(op, rounds), perm=[1, 0])
    zero, one = op.const(0.0, WORK), op.const(1.0, WORK)

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        column = column_of(op, states[0], index)
        lead = row_of(op, column, index)
        below = op.Where(op.Greater(rows, index), column, zero)
        tail = op.ReduceSumSquare(below, axes=[op.rank(column) - 2], keepdims=1)
        idle = op.Equal(tail, 0)
        length = op.Sqrt(op.Add(op.Mul(lead, lead), tail))
        beta = op.Where(idle, lead, op.Where(op.Less(lead, 0), length, op.Neg(length)))
        gap = op.Where(idle, one, op.Sub(lead, beta))
        scale = op.Where(idle, zero, op.Div(op.Sub(beta, lead), op.Where(idle, one, beta)))
        packed = op.Div(below, gap)
        vector = op.Where(op.Equal(rows, index), one, packed)
        reflected = op.Sub(states[0], op.Mul(scale, op.MatMul(vector, op.MatMul(turned(op, vector), states[0]))))
        kept = op.And(op.Equal(columns, index), op.Greater(rows, index))
        reflected = op.Where(op.Less(columns, index), states[0], reflected)
        return [op.Where(kept, packed, reflected), op.Where(op.Equal(places, index), scale, states[1])]

    scales = filled(op, (*dims[:-2], 1, rounds), 0, WORK)
    packed, scales = loop(op, rounds, [op.cast(self, WORK), scales], body)
    return op.cast(packed, dtype), op.cast(op.Squeeze(scales, axes=[op.rank(scales) - 2]), dtype)


register_shared(_geqrf, "Loop of Householder reflections", *overloads_of("geqrf"))
register_shared(_householder_product, "Loop of reflections", *overloads_of("linalg_householder_product orgqr"))
register_shared(_ormqr, "Loop of reflections", *overloads_of("ormqr"))
