"""Triangular solves, Cholesky, LU, QR and the matrix exponential, as Loops over columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import filled_with, identity_matrix
from fx2onnx.aten_map.linalg.linear_solve import (
    WORK,
    column_of,
    eliminated,
    first_pivot,
    loop,
    positions,
    row_of,
    turned,
    zero_result,
)
from fx2onnx.aten_map.linalg.products import least
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.sizes.expr import DimLike

aten = torch.ops.aten
D = ir.DataType


def triangular_solve(op: Emit, matrix: ir.Value, right: ir.Value, upper: bool, unit: bool = False) -> ir.Value:
    """X with triangular ``matrix`` X = ``right``: one row a round, x[k] = (b[k] - A[k] X) / A[k, k].

    Rows not yet found are 0, so the whole row of A can be multiplied; its other triangle is cleared before.
    Shapes:  matrix [*, N, N], right [*, N, K] -> [*, N, K].
    """
    dims = (*broadcast_dims(op.dims(matrix)[:-2], op.dims(right)[:-2], (1,)), *op.dims(right)[-2:])
    dims = dims if op.rank(matrix) > 2 or op.rank(right) > 2 else dims[-2:]
    count = dims[-2]
    if 0 in dims:
        return op.expand(right, dims)
    rows = positions(op, count)
    columns = op.Transpose(rows, perm=[1, 0])
    zero = op.const(0, op.dtype(matrix))
    inside = op.Greater(columns, rows) if upper else op.Less(columns, rows)
    strict = op.Where(inside, matrix, zero)
    start = filled_with(op, dims, 0, op.dtype(right))

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        place = op.Sub(op.size(count - 1), index) if upper else index
        known = op.MatMul(row_of(op, strict, place), states[0])
        row = op.Sub(row_of(op, right, place), known)
        if not unit:
            row = op.Div(row, column_of(op, row_of(op, matrix, place), place))
        return [op.Where(op.Equal(rows, place), row, states[0])]

    return loop(op, count, [start], body)[0]


def _linalg_solve_triangular(
    op: Emit, self: ir.Value, B: ir.Value, upper: bool, left: bool, unitriangular: bool
) -> ir.Value:
    B = op.cast(B, op.dtype(self))
    if left:
        return triangular_solve(op, self, B, upper, unitriangular)
    found = triangular_solve(op, turned(op, self), turned(op, B), not upper, unitriangular)
    return turned(op, found)


def _triangular_solve(
    op: Emit, self: ir.Value, A: ir.Value, upper: bool, transpose: bool, unitriangular: bool
) -> tuple[ir.Value, ir.Value]:
    matrix = turned(op, A) if transpose else A
    found = triangular_solve(op, matrix, self, upper != transpose, unitriangular)
    return found, op.expand(A, op.result_dims(1))


register_shared(_linalg_solve_triangular, "Loop of rows", *overloads_of("linalg_solve_triangular"))
register_shared(_triangular_solve, "Loop of rows", *overloads_of("triangular_solve"))


def cholesky(op: Emit, matrix: ir.Value) -> ir.Value:
    """L with L L^T = ``matrix``, read from the lower triangle; column k is (a[k] - L L[k]^T) / its root, in float64."""
    dims = op.dims(matrix)
    matrix = op.cast(matrix, WORK)
    if 0 in dims:
        return matrix
    rows = positions(op, dims[-1])
    columns = op.Transpose(rows, perm=[1, 0])

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        known = op.MatMul(states[0], turned(op, row_of(op, states[0], index)))
        rest = op.Sub(column_of(op, matrix, index), known)
        column = op.Div(rest, op.Sqrt(row_of(op, rest, index)))
        here = op.And(op.Equal(columns, index), op.Not(op.Less(rows, index)))
        return [op.Where(here, column, states[0])]

    return loop(op, dims[-1], [filled_with(op, dims, 0, WORK)], body)[0]


def _cholesky(op: Emit, self: ir.Value, upper: bool = False) -> Any:
    factor = cholesky(op, turned(op, self) if upper else self)
    found = op.cast(turned(op, factor) if upper else factor, op.result_dtype())
    return found if len(op.result) == 1 else (found, first_pivot(op, factor, op.IsNaN, 1))


def _from_factor(op: Emit, factor: ir.Value, right: ir.Value, upper: bool) -> ir.Value:
    """(L L^T)^-1 right, or with U^T U."""
    factor, right = op.cast(factor, WORK), op.cast(right, WORK)
    lower = turned(op, factor) if upper else factor
    half = triangular_solve(op, lower, right, False)
    return triangular_solve(op, turned(op, lower), half, True)


def _cholesky_solve(op: Emit, self: ir.Value, input2: ir.Value, upper: bool) -> ir.Value:
    return op.cast(_from_factor(op, input2, self, upper), op.result_dtype())


def _cholesky_inverse(op: Emit, self: ir.Value, upper: bool) -> ir.Value:
    count = op.dims(self)[-1]
    unit = op.expand(identity_matrix(op, count, count, WORK), op.dims(self))
    return op.cast(_from_factor(op, self, unit, upper), op.result_dtype())


_CHOLESKY = "linalg_cholesky linalg_cholesky_ex cholesky"
register_shared(_cholesky, "Loop of columns", *overloads_of(_CHOLESKY))
register_shared(_cholesky_solve, "two triangular Loops", *overloads_of("cholesky_solve"))
register_shared(_cholesky_inverse, "two triangular Loops", *overloads_of("cholesky_inverse"))


def unpacked(op: Emit, packed: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(L with a unit diagonal [*, M, K], U [*, K, N]), K = min(M, N)."""
    dims = op.dims(packed)
    batch, count, width = dims[:-2], dims[-2], dims[-1]
    small, dtype = least(count, width), op.dtype(packed)
    rows = positions(op, count)
    columns = op.Transpose(positions(op, width), perm=[1, 0])
    zero, one = op.const(0.0, dtype), op.const(1.0, dtype)
    lower = op.Where(op.Greater(rows, columns), packed, zero)
    lower = op.Where(op.Equal(rows, columns), one, lower)
    upper = op.Where(op.Greater(rows, columns), zero, packed)
    last = op.rank(packed) - 1
    if small != width:
        lower = op.Slice(lower, [0], op.sizes([small]), [last], outputs=[(dtype, (*batch, count, small))])
    if small != count:
        upper = op.Slice(upper, [0], op.sizes([small]), [last - 1], outputs=[(dtype, (*batch, small, width))])
    return lower, upper


def _lu(op: Emit, A: ir.Value, pivot: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
    packed, permutation, _, _ = eliminated(op, A, pivot)
    lower, upper = (op.cast(part, op.result_dtype()) for part in unpacked(op, packed))
    order = op.cast(turned(op, permutation), op.result_dtype()) if pivot else zero_result(op, 0)
    return order, lower, upper


def _lu_factor(op: Emit, A: ir.Value, pivot: bool) -> tuple[ir.Value, ...]:
    packed, _, _, places = eliminated(op, A, pivot)
    found = (op.cast(packed, op.result_dtype()), places)
    if len(op.result) == 2:
        return found
    return (*found, first_pivot(op, packed, lambda pivots: op.Equal(pivots, op.const(0.0, op.dtype(packed))), 2))


register_shared(_lu, "Loop of eliminations", *overloads_of("linalg_lu"))
register_shared(_lu_factor, "Loop of eliminations", *overloads_of("linalg_lu_factor linalg_lu_factor_ex _lu_with_info"))


def permutation_of(op: Emit, places: ir.Value, count: DimLike, dtype: ir.DataType) -> ir.Value:
    """P with A = P L U from LAPACK's pivots (row k was swapped with row places[k] - 1)."""
    batch, rounds = op.dims(places)[:-1], op.dims(places)[-1]
    rows = positions(op, count)
    start = op.expand(identity_matrix(op, count, count, dtype), (*batch, count, count))
    numbers = op.Unsqueeze(op.cast(places, D.INT64), axes=[op.rank(places)])

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        place = op.Sub(row_of(op, numbers, index), 1)
        chosen = op.Where(op.Equal(rows, place), states[0], op.const(0, dtype))
        chosen = op.ReduceSum(chosen, axes=[op.rank(chosen) - 2], keepdims=1)
        own = row_of(op, states[0], index)
        kept = op.Where(op.Equal(rows, place), own, states[0])
        return [op.Where(op.Equal(rows, index), chosen, kept)]

    return turned(op, loop(op, rounds, [start], body)[0])


def _lu_unpack(
    op: Emit, LU_data: ir.Value, LU_pivots: ir.Value, unpack_data: bool, unpack_pivots: bool
) -> tuple[ir.Value, ir.Value, ir.Value]:
    order, lower, upper = (zero_result(op, index) for index in range(3))
    if unpack_pivots:
        batch, given = op.dims(LU_data)[:-2], op.dims(LU_pivots)[:-1]
        if op.rank(LU_pivots) == 0 or len(given) > len(batch) or any(size not in (1, own) for size, own in zip(given[::-1], batch[::-1], strict=False)):  # fmt: skip
            raise UserError(
                "E203", f"lu_unpack of {[*map(str, batch)]} matrices with {[*map(str, given)]} rows of pivots"
            )
        LU_pivots = op.expand(LU_pivots, (*op.result_dims(0)[:-2], op.dims(LU_pivots)[-1]))
        order = permutation_of(op, LU_pivots, op.dims(LU_data)[-2], op.result_dtype())
    if unpack_data:
        lower, upper = unpacked(op, LU_data)
    return order, lower, upper


def _lu_solve(
    op: Emit, LU: ir.Value, pivots: ir.Value, B: ir.Value, left: bool = True, adjoint: bool = False
) -> ir.Value:
    packed, right = op.cast(LU, WORK), op.cast(B, WORK)
    order = permutation_of(op, pivots, op.dims(LU)[-2], WORK)
    lower, upper = unpacked(op, packed)
    right = right if left else turned(op, right)
    if adjoint != (not left):
        half = triangular_solve(op, turned(op, upper), right, False)
        found = op.MatMul(order, triangular_solve(op, turned(op, lower), half, True, True))
    else:
        half = triangular_solve(op, lower, op.MatMul(turned(op, order), right), False, True)
        found = triangular_solve(op, upper, half, True)
    return op.cast(found if left else turned(op, found), op.result_dtype())


def _old_lu_solve(op: Emit, self: ir.Value, LU_data: ir.Value, LU_pivots: ir.Value) -> ir.Value:
    return _lu_solve(op, LU_data, LU_pivots, self)


register_shared(_lu_unpack, "Where of the triangles; Loop of exchanges", *overloads_of("lu_unpack"))
register_shared(_lu_solve, "Loops", *overloads_of("linalg_lu_solve"))
register_shared(_old_lu_solve, "Loops", *overloads_of("lu_solve"))


def _qr(op: Emit, A: ir.Value, mode: str) -> tuple[ir.Value, ir.Value]:
    """Householder reflections, the signs LAPACK's: R[k, k] = -sign(x) |x|; a column that is done is left alone."""
    dims = op.dims(A)
    batch, count, width = dims[:-2], dims[-2], dims[-1]
    if 0 in dims:
        raise UserError("E203", "the QR factorisation of an empty matrix", next="skip it where a size is 0")
    rows = positions(op, count)
    unit = op.expand(identity_matrix(op, count, count, WORK), (*batch, count, count))
    zero = op.const(0.0, WORK)

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        column = column_of(op, states[0], index)
        below = op.Where(op.Greater(rows, index), column, zero)
        axes = [op.rank(column) - 2]
        tail = op.ReduceSumSquare(below, axes=axes, keepdims=1)
        lead = row_of(op, column, index)
        length = op.Sqrt(op.Add(op.Mul(lead, lead), tail))
        lead = op.Add(lead, op.Where(op.Less(lead, 0), op.Neg(length), length))
        vector = op.Where(op.Equal(rows, index), lead, below)
        square = op.Add(op.Mul(lead, lead), tail)
        idle = op.Equal(tail, 0)
        factor = op.Where(idle, zero, op.Div(op.const(2.0, WORK), op.Where(idle, op.const(1.0, WORK), square)))
        scaled = op.Mul(vector, factor)
        reflected = op.Sub(states[0], op.MatMul(scaled, op.MatMul(turned(op, vector), states[0])))
        rotated = op.Sub(states[1], op.MatMul(op.MatMul(states[1], vector), turned(op, scaled)))
        return [reflected, rotated]

    rounds = least(count - 1, width)  # type: ignore[arg-type]
    upper, rotation = loop(op, rounds, [op.cast(A, WORK), unit], body)
    columns = op.Transpose(positions(op, width), perm=[1, 0])
    upper = op.Where(op.Greater(rows, columns), zero, upper)
    small, last, dtype = least(count, width), op.rank(A) - 1, op.result_dtype()
    if mode != "complete" and small != count:
        upper = op.Slice(upper, [0], op.sizes([small]), [last - 1], outputs=[(WORK, (*batch, small, width))])
        rotation = op.Slice(rotation, [0], op.sizes([small]), [last], outputs=[(WORK, (*batch, count, small))])
    return (zero_result(op, 0) if mode == "r" else op.cast(rotation, dtype)), op.cast(upper, dtype)


def _old_qr(op: Emit, self: ir.Value, some: bool) -> tuple[ir.Value, ir.Value]:
    return _qr(op, self, "reduced" if some else "complete")


TAYLOR_TERMS = 18
"""Terms for a matrix of norm at most 1/2: the rest is below 1e-22."""


def _matrix_exp(op: Emit, self: ir.Value) -> ir.Value:
    """Scaling and squaring: exp(A) = exp(A / 2^s)^(2^s), by Horner's Taylor sum; s from the greatest finite norm, in a Loop."""
    dims, dtype = op.dims(self), op.result_dtype()
    if 0 in dims:
        return self
    value = op.cast(self, WORK)
    norms = reduce(op, "ReduceL1", value, -2)
    norm = op.ReduceMax(op.Where(op.Less(norms, math.inf), norms, op.const(0.0, WORK)), keepdims=0)
    doublings = op.Ceil(op.Div(op.Log(op.Max(norm, 0.5)), float(np.log(2))))
    doublings = op.Add(doublings, 1.0)
    scaled = op.Div(value, op.Pow(op.const(2.0, WORK), doublings))
    unit = identity_matrix(op, dims[-1], dims[-1], WORK)
    total = op.expand(unit, dims)
    for term in range(TAYLOR_TERMS, 0, -1):
        total = op.Add(unit, op.Div(op.MatMul(scaled, total), float(term)))
    index = op.subgraph_input("round", D.INT64, ())
    go_on = op.subgraph_input("go_on", D.BOOL, ())
    state = op.subgraph_input("power", WORK, dims)
    body = op.subgraph("square", [index, go_on, state], lambda op: [op.Identity(go_on), op.MatMul(state, state)])
    rounds = op.cast(doublings, D.INT64)
    found = op.Loop(rounds, op.const(np.array(True)), total, body=body, outputs=[(WORK, dims)])
    return op.cast(found, dtype)


register_shared(_qr, "Loop of Householder reflections", *overloads_of("linalg_qr"))
register_shared(_old_qr, "Loop of Householder reflections", *overloads_of("qr"))
register_shared(_matrix_exp, "Taylor sum and squarings", *overloads_of("linalg_matrix_exp matrix_exp"))


def _refused(name: str) -> Any:
    def entry(op: Emit) -> ir.Value:
        raise UserError(
            "E203",
            f"{name} cannot be expressed in ONNX",
            why="ONNX has no operator for this factorisation, and no loop over columns gives it",
            next="compute it outside the model and pass the result as an input",
        )

    return entry


_SPECTRAL = "linalg_eig linalg_eigvals linalg_ldl_factor linalg_ldl_factor_ex "
_SPECTRAL += "linalg_ldl_solve _linalg_eigvals"
_COMPLEX_ALONE = "linalg_svd svd _linalg_svd linalg_eigh _linalg_eigh"
for _name in (*_SPECTRAL.split(), *_COMPLEX_ALONE.split()):
    for _overload_name in getattr(getattr(aten, _name, None), "overloads", list)():
        _overload = getattr(getattr(aten, _name), _overload_name)
        if not any(argument.is_out for argument in _overload._schema.arguments):
            for _is_complex in (True,) if _name in _COMPLEX_ALONE.split() else (False, True):
                register_shared(
                    _refused(_name), "refused: no such factorisation in ONNX", _overload, is_complex=_is_complex
                )
