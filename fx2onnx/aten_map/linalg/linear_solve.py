"""Elimination in Loops over the columns: solve, inverse, determinant, LU. Any size, symbolic ones too, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import filled_with, identity_matrix
from fx2onnx.aten_map.linalg.products import least, matrix_power
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.repeating import diagonal_of
from fx2onnx.aten_map.table.axes import swap
from fx2onnx.aten_map.table.dtypes import opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes import broadcast_dims
from fx2onnx.sizes.expr import DimLike, product

aten = torch.ops.aten
D = ir.DataType
WORK = D.DOUBLE
"""Eliminations lose digits; in float64 a float32 result keeps all of its own."""


def loop(
    op: Emit, count: DimLike, states: Sequence[ir.Value], body: Callable[[Emit, ir.Value, list[ir.Value]], Any]
) -> list[ir.Value]:
    """``Loop`` of ``count`` rounds: ``body(op, round, states)`` gives the new states, of the same types."""
    index = op.subgraph_input("round", D.INT64, ())
    go_on = op.subgraph_input("go_on", D.BOOL, ())
    formal = [op.subgraph_input("state", op.dtype(state), op.dims(state)) for state in states]

    def inner(emit: Emit) -> list[ir.Value]:
        return [emit.Identity(go_on), *body(emit, index, formal)]

    graph = op.subgraph("rounds", [index, go_on, *formal], inner)
    typed = [(op.dtype(state), op.dims(state)) for state in states]
    found = op.Loop(op.size(count), op.const(np.array(True)), *states, body=graph, outputs=typed)
    return list(found) if isinstance(found, tuple) else [found]


def turned(op: Emit, matrix: ir.Value) -> ir.Value:
    """The last two axes swapped."""
    return swap(op, matrix, op.rank(matrix) - 2, op.rank(matrix) - 1)


def positions(op: Emit, count: DimLike) -> ir.Value:
    """0 .. count - 1 as a column [count, 1]."""
    if isinstance(count, int):
        return op.const(np.arange(count).reshape(count, 1))
    numbers = op.Range(op.const(np.int64(0)), op.size(count), op.const(np.int64(1)), outputs=[(D.INT64, (count,))])
    return op.Unsqueeze(numbers, axes=[1])


def column_of(op: Emit, matrix: ir.Value, index: ir.Value) -> ir.Value:
    """matrix[.., :, index] as [.., n, 1]."""
    return op.Gather(matrix, op.Reshape(index, [1]), axis=op.rank(matrix) - 1)


def row_of(op: Emit, matrix: ir.Value, index: ir.Value) -> ir.Value:
    """matrix[.., index, :] as [.., 1, n]."""
    return op.Gather(matrix, op.Reshape(index, [1]), axis=op.rank(matrix) - 2)


def pivot_row(
    op: Emit, matrix: ir.Value, index: ir.Value, rows: ir.Value, pivot: bool = True
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(the row with the greatest element of column ``index`` at or below it, the matrix with that row swapped with
    row ``index``, the place of that row as [.., 1, 1])."""
    if not pivot:
        return row_of(op, matrix, index), matrix, op.Reshape(index, [1, 1])
    axis = op.rank(matrix) - 2
    size = op.Abs(column_of(op, matrix, index))
    below = op.Not(op.Less(rows, index))
    size = op.Where(below, size, op.const(-1.0, op.dtype(matrix)))
    best = op.ArgMax(size, axis=axis, keepdims=1)
    is_best, is_own = op.Equal(rows, best), op.Equal(rows, index)
    zero = op.const(0.0, op.dtype(matrix))
    chosen = op.ReduceSum(op.Where(is_best, matrix, zero), axes=[axis], keepdims=1)
    own = row_of(op, matrix, index)
    swapped = op.Where(is_own, chosen, op.Where(is_best, own, matrix))
    return chosen, swapped, best


def solve(op: Emit, matrix: ir.Value, right: ir.Value) -> ir.Value:
    """X with ``matrix`` X = ``right``: Gauss-Jordan with partial pivoting on the two side by side.

    Shapes:  matrix [*, N, N], right [*, N, K] -> [*, N, K]; the batches broadcast.
    """
    batch = broadcast_dims(op.dims(matrix)[:-2], op.dims(right)[:-2]) if op.rank(matrix) + op.rank(right) > 4 else ()
    count, width = op.dims(matrix)[-1], op.dims(right)[-1]
    matrix = op.expand(op.cast(matrix, WORK), (*batch, count, count))
    right = op.expand(op.cast(right, WORK), (*batch, count, width))
    if count == 0 or width == 0 or 0 in batch:
        return right
    both = op.Concat(matrix, right, axis=op.rank(matrix) - 1)
    rows = positions(op, count)

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        chosen, swapped, _ = pivot_row(op, states[0], index, rows)
        scaled = op.Div(chosen, column_of(op, chosen, index))
        factors = column_of(op, swapped, index)
        cleared = op.Sub(swapped, op.Mul(factors, scaled))
        return [op.Where(op.Equal(rows, index), scaled, cleared)]

    (solved,) = loop(op, count, [both], body)
    typed = (WORK, (*batch, count, width))
    starts, ends = op.sizes([count]), op.const(np.array([2**63 - 1]))
    return op.Slice(solved, starts, ends, op.const(np.array([op.rank(both) - 1])), outputs=[typed])


def eliminated(op: Emit, matrix: ir.Value, pivot: bool = True) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """(LU in one matrix, the rows' permutation as a matrix P with P A = L U, the permutation's sign, LAPACK's pivots).

    Shapes:  matrix [*, M, N] -> [*, M, N], [*, M, M], [*, 1, 1], int32 [*, min(M, N)] counted from 1.
    """
    dims = op.dims(matrix)
    batch, count, width = dims[:-2], dims[-2], dims[-1]
    matrix = op.cast(matrix, WORK)
    rows = positions(op, count)
    order = op.expand(identity_matrix(op, count, count, WORK), (*batch, count, count))
    both = op.Concat(matrix, order, axis=op.rank(matrix) - 1)
    wide = op.Transpose(positions(op, width + count), perm=[1, 0])  # type: ignore[arg-type]
    sign = filled_with(op, (*batch, 1, 1), 1.0, WORK)
    rounds = least(count, width)
    numbers = op.Reshape(positions(op, rounds), [-1])
    places = filled_with(op, (*batch, rounds), 0, D.INT64)

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        chosen, swapped, place = pivot_row(op, states[0], index, rows, pivot)
        sign = op.Where(op.Equal(place, index), op.Identity(states[1]), op.Neg(states[1]))
        flat = op.Squeeze(place, axes=[op.rank(place) - 1])
        places = op.Where(op.Equal(numbers, index), op.Add(flat, 1), states[2])
        lead = column_of(op, chosen, index)
        zero, one = op.const(0.0, WORK), op.const(1.0, WORK)
        factors = op.Div(column_of(op, swapped, index), op.Where(op.Equal(lead, 0), one, lead))
        factors = op.Where(op.Greater(rows, index), factors, zero)
        inside = op.And(op.Greater(wide, index), op.Less(wide, op.size(width)))
        cleared = op.Sub(swapped, op.Mul(factors, op.Where(inside, chosen, zero)))
        here = op.And(op.Equal(wide, index), op.Greater(rows, index))
        return [op.Where(here, factors, cleared), sign, places]

    found, sign, places = loop(op, rounds, [both, sign, places], body)
    axis = op.const(np.array([op.rank(matrix) - 1]))
    start, middle, end = op.sizes([0]), op.sizes([width]), op.const(np.array([2**63 - 1]))
    lower_upper = op.Slice(found, start, middle, axis, outputs=[(WORK, dims)])
    permutation = op.Slice(found, middle, end, axis, outputs=[(WORK, (*batch, count, count))])
    return lower_upper, permutation, sign, op.cast(places, D.INT32)


def determinant_parts(op: Emit, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(the pivots [*, N], the permutation's sign [*])."""
    count = op.dims(matrix)[-1]
    found, _, sign, _ = eliminated(op, matrix)
    last = op.rank(matrix) - 1
    return diagonal_of(op, found, 0, last - 1, last, count), op.Squeeze(sign, axes=[last - 1, last])


def _det(op: Emit, matrix: ir.Value) -> ir.Value:
    dtype = op.result_dtype()
    if 0 in op.dims(matrix)[-2:]:
        return filled_with(op, op.dims(matrix)[:-2], 1.0, dtype)
    if dtype != D.DOUBLE and product(op.dims(matrix)) != 0:
        value = op.Det(op.cast(matrix, opmath(dtype)), outputs=[(opmath(dtype), op.dims(matrix)[:-2])])
        return op.cast(value, dtype)
    pivots, sign = determinant_parts(op, matrix)
    return op.cast(op.Mul(reduce(op, "ReduceProd", pivots, -1), sign), dtype)


def log_determinant(op: Emit, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(sign, log |det|)."""
    if 0 in op.dims(matrix)[-2:]:
        batch = op.dims(matrix)[:-2]
        return filled_with(op, batch, 1.0, WORK), filled_with(op, batch, 0.0, WORK)
    pivots, sign = determinant_parts(op, matrix)
    signs = op.Mul(reduce(op, "ReduceProd", op.Sign(pivots), -1), sign)
    return signs, reduce(op, "ReduceSum", op.Log(op.Abs(pivots)), -1)


def _slogdet(op: Emit, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    sign, size = log_determinant(op, matrix)
    return op.cast(sign, op.result_dtype()), op.cast(size, op.result_dtype(1))


def _logdet(op: Emit, self: ir.Value) -> ir.Value:
    sign, size = log_determinant(op, self)
    nan = op.const(float("nan"), WORK)
    return op.cast(op.Where(op.Less(sign, 0), nan, size), op.result_dtype())


register_shared(_det, "Det; a Loop of eliminations in float64", *overloads_of("linalg_det det"))
register_shared(_slogdet, "Loop of eliminations, Sign, Log", *overloads_of("linalg_slogdet slogdet"))
register_shared(_logdet, "Loop of eliminations, Log", *overloads_of("logdet"))


def inverse(op: Emit, matrix: ir.Value) -> ir.Value:
    """The inverse in float64."""
    count = op.dims(matrix)[-1]
    return solve(op, matrix, identity_matrix(op, count, count, WORK))


def zero_result(op: Emit, index: int) -> ir.Value:
    """Output ``index`` full of zeros: what is not asked for."""
    dtype, dims = op.result[index]
    return filled_with(op, dims, 0, dtype)


def first_pivot(op: Emit, factor: ir.Value, is_failed: Callable[[ir.Value], ir.Value], index: int) -> ir.Value:
    """Output ``index``, the ``info`` of LAPACK: the number of the first pivot, counted from 1, that ends the factorization; 0
    where there is none.
    """
    count = least(*op.dims(factor)[-2:])
    if count == 0:
        return zero_result(op, index)
    last = op.rank(factor) - 1
    failed = is_failed(diagonal_of(op, factor, 0, last - 1, last, count))
    numbers = op.Add(op.Reshape(positions(op, count), [-1]), 1)
    none = op.Add(op.size(count), 1)
    first = op.ReduceMin(op.Where(failed, numbers, none), axes=[-1], keepdims=0)
    return op.cast(op.Where(op.Equal(first, none), op.const(np.int64(0)), first), op.result_dtype(index))


def _zero_pivot(op: Emit, matrix: ir.Value) -> ir.Value:
    """Output 1: the number of the first pivot of the LU factorization that is 0."""
    return first_pivot(op, eliminated(op, matrix)[0], lambda pivots: op.Equal(pivots, op.const(0.0, WORK)), 1)


def _inverse(op: Emit, matrix: ir.Value) -> Any:
    found = op.cast(inverse(op, matrix), op.result_dtype())
    return found if len(op.result) == 1 else (found, _zero_pivot(op, matrix))


register_shared(_inverse, "Gauss-Jordan in a Loop", *overloads_of("linalg_inv inverse linalg_inv_ex"))


def _solve(op: Emit, A: ir.Value, B: ir.Value, left: bool = True) -> Any:
    vector = len(op.result_dims()) < max(op.rank(A), 2) or (
        op.rank(B) == 1 or (op.rank(B) == op.rank(A) - 1 and op.dims(B) == op.dims(A)[:-1])
    )
    last = op.rank(B)
    right = op.Unsqueeze(B, axes=[last]) if vector else B
    if left:
        found = solve(op, A, right)
    else:
        found = turned(op, solve(op, turned(op, A), turned(op, right)))
    if vector:
        found = op.Squeeze(found, axes=[op.rank(found) - 1])
    found = op.cast(found, op.result_dtype())
    return found if len(op.result) == 1 else (found, _zero_pivot(op, A))


register_shared(_solve, "Gauss-Jordan in a Loop", *overloads_of("linalg_solve linalg_solve_ex"))


def _tensorinv(op: Emit, self: ir.Value, ind: int) -> ir.Value:
    dims = op.dims(self)
    flat = op.reshape(self, (product(dims[:ind]), product(dims[ind:])))
    return op.reshape(op.cast(inverse(op, flat), op.result_dtype()), (*dims[ind:], *dims[:ind]))


def _tensorsolve(op: Emit, self: ir.Value, other: ir.Value, dims: Sequence[int] | None) -> ir.Value:
    rank = op.rank(self)
    matrix = self
    if dims:
        gone = [dim % rank for dim in dims]
        matrix = op.Transpose(self, perm=[axis for axis in range(rank) if axis not in gone] + gone)
    size = product(op.dims(other))
    right = op.reshape(other, (size, 1))
    found = solve(op, op.reshape(matrix, (size, size)), right)
    return op.reshape(op.cast(found, op.result_dtype()), op.result_dims())


register_shared(_tensorinv, "Reshape, Gauss-Jordan", *overloads_of("linalg_tensorinv"))
register_shared(_tensorsolve, "Reshape, Gauss-Jordan", *overloads_of("linalg_tensorsolve"))


def _matrix_power(op: Emit, self: ir.Value, n: int) -> ir.Value:
    if n >= 0:
        return matrix_power(op, self, n)
    return op.cast(matrix_power(op, inverse(op, self), -n), op.result_dtype())


register_shared(_matrix_power, "MatMul by repeated squaring", *overloads_of("linalg_matrix_power matrix_power"))
