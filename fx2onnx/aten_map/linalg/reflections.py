"""Products of Householder reflections, and QR in LAPACK's packed form: Loops over the reflections."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.aten_map.creation import filled, identity_matrix
from fx2onnx.aten_map.linalg.linear_solve import WORK, column_of, loop, positions, row_of, turned
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit


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
