"""Eigenvalues and singular values by Jacobi rotations in a Loop, and products of Householder reflections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import filled_with, identity_matrix
from fx2onnx.aten_map.linalg.linear_solve import WORK, column_of, loop, positions, row_of, turned
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.repeating import diagonal_of
from fx2onnx.aten_map.sorting import sort
from fx2onnx.aten_map.table.axes import whole
from fx2onnx.aten_map.table.dtypes import TORCH_DTYPES, as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike, apply

aten = torch.ops.aten
D = ir.DataType
SWEEPS = 10
"""Cyclic Jacobi converges quadratically: 10 sweeps leave nothing in float64 up to the size allowed."""
MAX_SIZE = 64
"""A sweep takes n^2 / 2 rotations of n^3 operations each."""


def size_of(op: Emit, matrix: ir.Value) -> int:
    """The size of a square matrix. Raises UserError E203 where it is dynamic or too large."""
    size = op.dims(matrix)[-1]
    if not isinstance(size, int) or size > MAX_SIZE:
        raise UserError(
            "E203",
            f"eigenvalues or singular values of a matrix of size {size}",
            why=f"ONNX has no operator; Jacobi rotations are emitted for fixed sizes up to {MAX_SIZE}",
            next="compute them outside the model and pass them as an input",
        )
    return size


def _turned_pairs(
    op: Emit,
    size: int,
    states: list[ir.Value],
    products: Callable[[Emit, ir.Value, ir.Value, ir.Value], tuple[ir.Value, ir.Value, ir.Value]],
    turn_with: Callable[[Emit, ir.Value, ir.Value], ir.Value],
) -> list[ir.Value]:
    """Jacobi's Loop over all pairs p < q, ``SWEEPS`` times: the rotation that makes the pair's product 0.

    ``products(op, state, p, q)`` gives the pair's (pp, pq, qq); ``turn_with(op, state, rotation)`` the next first state;
    the second state gathers the rotations.
    """
    pairs = np.array([(p, q) for p in range(size) for q in range(p + 1, size)], dtype=np.int64)
    rows = positions(op, size)
    columns = op.Transpose(rows, perm=[1, 0])
    unit, zero, one = identity_matrix(op, size, size, WORK), op.const(0.0, WORK), op.const(1.0, WORK)
    table = op.const(pairs)

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        both = op.Gather(table, op.Mod(index, len(pairs)), axis=0)
        p = op.Gather(both, op.const(np.array([0])), axis=0)
        q = op.Gather(both, op.const(np.array([1])), axis=0)
        app, apq, aqq = products(op, states[0], p, q)
        idle = op.Equal(apq, 0)
        theta = op.Div(op.Sub(aqq, app), op.Mul(op.Where(idle, one, apq), 2.0))
        root = op.Add(op.Abs(theta), op.Sqrt(op.Add(op.Mul(theta, theta), 1.0)))
        tangent = op.Div(op.Where(op.Less(theta, 0), op.const(-1.0, WORK), one), root)
        tangent = op.Where(idle, zero, tangent)
        cosine = op.Reciprocal(op.Sqrt(op.Add(op.Mul(tangent, tangent), 1.0)))
        sine = op.Mul(tangent, cosine)
        is_p, is_q = op.Equal(rows, p), op.Equal(rows, q)
        to_p, to_q = op.Equal(columns, p), op.Equal(columns, q)
        turn = op.Where(op.Or(op.And(is_p, to_p), op.And(is_q, to_q)), cosine, unit)
        turn = op.Where(op.And(is_p, to_q), sine, turn)
        turn = op.Where(op.And(is_q, to_p), op.Neg(sine), turn)
        return [turn_with(op, states[0], turn), op.MatMul(states[1], turn)]

    return loop(op, SWEEPS * len(pairs), states, body)


def diagonalized(op: Emit, matrix: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(eigenvalues [*, N] unsorted, eigenvectors [*, N, N] in columns) of symmetric float64 matrices."""
    size, dims = size_of(op, matrix), op.dims(matrix)
    last = op.rank(matrix) - 1
    vectors = op.expand(identity_matrix(op, size, size, WORK), dims)

    def products(op: Emit, state: ir.Value, p: ir.Value, q: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        row_p, row_q = row_of(op, state, p), row_of(op, state, q)
        return column_of(op, row_p, p), column_of(op, row_p, q), column_of(op, row_q, q)

    def turn_with(op: Emit, state: ir.Value, turn: ir.Value) -> ir.Value:
        return op.MatMul(op.MatMul(turned(op, turn), state), turn)

    if size > 1:
        matrix, vectors = _turned_pairs(op, size, [matrix, vectors], products, turn_with)
    return diagonal_of(op, matrix, 0, last - 1, last, size), vectors


def orthogonalized(op: Emit, matrix: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(A V [*, M, N] with orthogonal columns, V [*, N, N], the columns' lengths [*, N]): one-sided Jacobi, in float64.

    The lengths are the singular values; those of wide matrices are taken from the transpose, so that M >= N.
    """
    value = op.cast(matrix, WORK)
    size, axis = size_of(op, value), op.rank(value) - 2
    vectors = op.expand(identity_matrix(op, size, size, WORK), (*op.dims(value)[:-2], size, size))

    def products(op: Emit, state: ir.Value, p: ir.Value, q: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        first, second = column_of(op, state, p), column_of(op, state, q)
        terms = op.Mul(first, first), op.Mul(first, second), op.Mul(second, second)
        own, shared, other = (op.ReduceSum(term, axes=[axis], keepdims=1) for term in terms)
        return own, shared, other

    if size > 1:
        states = [value, vectors]
        value, vectors = _turned_pairs(op, size, states, products, lambda op, state, turn: op.MatMul(state, turn))
    return value, vectors, op.ReduceL2(value, axes=[axis], keepdims=0)


def tall(op: Emit, matrix: ir.Value) -> tuple[ir.Value, bool]:
    """The matrix, or its transpose where it is wider than high, or may be; and whether it is the transpose."""
    rows, columns = op.dims(matrix)[-2:]
    is_wide = isinstance(rows, int) and (not isinstance(columns, int) or rows < columns)
    return (turned(op, matrix) if is_wide else matrix), is_wide


def symmetric(op: Emit, matrix: ir.Value, lower: bool) -> ir.Value:
    """The matrix that one triangle stands for, in float64."""
    value = op.cast(matrix, WORK)
    rows = positions(op, size_of(op, matrix))
    columns = op.Transpose(rows, perm=[1, 0])
    own = op.Less(columns, rows) if lower else op.Greater(columns, rows)
    mirrored = op.Where(own, value, turned(op, value))
    return op.Where(op.Equal(rows, columns), value, mirrored)


def singular_values(op: Emit, matrix: ir.Value) -> ir.Value:
    """The singular values in descending order, in float64: as many as the smaller size, which may be the dynamic one."""
    values = sort(op, orthogonalized(op, tall(op, matrix)[0])[2], -1, True)[0]
    rows, columns = op.dims(matrix)[-2:]
    if isinstance(rows, int) and isinstance(columns, int):
        return values
    count = whole(apply("min", rows, columns))
    return op.Slice(values, [0], op.sizes([count]), [-1], outputs=[(WORK, (*op.dims(values)[:-1], count))])


def _eigvalsh(op: Emit, self: ir.Value, UPLO: str) -> ir.Value:
    if op.dims(self)[-1] == 0:
        return filled_with(op, op.result_dims(), 0, op.result_dtype())
    values, _ = diagonalized(op, symmetric(op, self, UPLO.upper() == "L"))
    return op.cast(sort(op, values, -1)[0], op.result_dtype())


def _svdvals(op: Emit, A: ir.Value) -> ir.Value:
    return op.cast(singular_values(op, A), op.result_dtype())


register_shared(_eigvalsh, "Jacobi rotations in a Loop, TopK", *overloads_of("linalg_eigvalsh"))
register_shared(_svdvals, "one-sided Jacobi rotations in a Loop, ReduceL2, TopK", *overloads_of("linalg_svdvals"))


def spectral_norm(op: Emit, matrix: ir.Value, order: Any) -> ir.Value:
    """The largest (2), smallest (-2) or sum ("nuc") of the singular values of the last two axes."""
    values = singular_values(op, matrix)
    op_type = {2: "ReduceMax", -2: "ReduceMin", "nuc": "ReduceSum"}[order]
    return reduce(op, op_type, values, -1)


def epsilon_of(op: Emit, matrix: ir.Value) -> float:
    return float(torch.finfo(TORCH_DTYPES[op.dtype(matrix)]).eps)


def noise(op: Emit, matrix: ir.Value) -> ir.Value:
    """eps * max(M, N), which is what rounding makes of a singular value of 0 beside one of 1."""
    return op.Mul(op.size(apply("max", *op.dims(matrix)[-2:]), WORK), op.const(epsilon_of(op, matrix), WORK))


def cutoff(op: Emit, matrix: ir.Value, largest: ir.Value, atol: Any, rtol: Any) -> ir.Value:
    """max(atol, rtol * largest) as [*]; rtol is eps * max(M, N) where neither is given, 0 where only atol is."""
    if rtol is None:
        if atol is None:
            rtol = noise(op, matrix)
        elif isinstance(atol, ir.Value):
            relative = op.Where(op.Greater(op.cast(atol, WORK), 0), op.const(0.0, WORK), noise(op, matrix))
            return op.Max(op.cast(atol, WORK), op.Mul(relative, largest))
        else:
            rtol = 0.0 if atol > 0 else noise(op, matrix)
    relative = op.Mul(as_dtype(op, rtol, WORK), largest)
    return relative if atol is None else op.Max(as_dtype(op, atol, WORK), relative)


def _magnitudes(op: Emit, matrix: ir.Value, hermitian: bool) -> ir.Value:
    if hermitian:
        return op.Abs(diagonalized(op, symmetric(op, matrix, True))[0])
    return singular_values(op, matrix)


def _matrix_rank(
    op: Emit, matrix: ir.Value, hermitian: bool, atol: Any = None, rtol: Any = None, tol: Any = None
) -> ir.Value:
    if 0 in op.dims(matrix):
        return filled_with(op, op.result_dims(), 0, D.INT64)
    values = _magnitudes(op, matrix, hermitian)
    largest = reduce(op, "ReduceMax", values, -1)
    limit = as_dtype(op, tol, WORK) if tol is not None else cutoff(op, matrix, largest, atol, rtol)
    column = op.Unsqueeze(limit, axes=[op.rank(limit)])
    return reduce(op, "ReduceSum", op.cast(op.Greater(values, column), D.INT64), -1)


_RANKS = "linalg_matrix_rank linalg_matrix_rank.tol_tensor linalg_matrix_rank.atol_rtol_tensor "
_RANKS += "linalg_matrix_rank.atol_rtol_float"
register_shared(_matrix_rank, "singular values above the cutoff, counted", *overloads_of(_RANKS))


def pseudo_inverse(op: Emit, matrix: ir.Value, atol: Any, rtol: Any, hermitian: bool) -> ir.Value:
    """V (1 / s where above the cutoff) U^T: of symmetric matrices from the eigenvalues, else by one-sided Jacobi."""
    zero, one = op.const(0.0, WORK), op.const(1.0, WORK)
    source, is_wide = (symmetric(op, matrix, True), False) if hermitian else tall(op, matrix)
    if hermitian:
        values, vectors = diagonalized(op, source)
        columns, sizes, divisor = vectors, op.Abs(values), values
    else:
        columns, vectors, sizes = orthogonalized(op, source)
        divisor = op.Mul(sizes, sizes)
    limit = cutoff(op, matrix, reduce(op, "ReduceMax", sizes, -1), atol, rtol)
    kept = op.Greater(sizes, op.Unsqueeze(limit, axes=[op.rank(limit)]))
    inverted = op.Where(kept, op.Reciprocal(op.Where(kept, divisor, one)), zero)
    scaled = op.Mul(vectors, op.Unsqueeze(inverted, axes=[op.rank(inverted) - 1]))
    if is_wide:
        return op.MatMul(columns, turned(op, scaled))
    return op.MatMul(scaled, turned(op, columns))


def _pinv(
    op: Emit, self: ir.Value, hermitian: bool = False, atol: Any = None, rtol: Any = None, rcond: Any = None
) -> ir.Value:
    if 0 in op.dims(self):
        return filled_with(op, op.result_dims(), 0, op.result_dtype())
    relative = rcond if rcond is not None else rtol
    absolute = 0.0 if atol is None and rcond is not None else atol
    return op.cast(pseudo_inverse(op, self, absolute, relative, hermitian), op.result_dtype())


def _lstsq(op: Emit, self: ir.Value, b: ir.Value, rcond: float | None, driver: str | None) -> tuple[ir.Value, ...]:
    """(solution of least norm, squared residuals, rank, singular values), the last three where the driver gives them.

    Source:  linalg_lstsq_out_info in ATen/native/BatchLinearAlgebra.cpp; the driver is gelsy unless one is named, and gels reads no rcond.
    """
    dtype, driver = op.result_dtype(), driver or "gelsy"
    is_vector = op.rank(b) == 1 or (op.rank(self) - 1 == op.rank(b) and op.dims(b) == op.dims(self)[:-1])
    right = op.Unsqueeze(op.cast(b, WORK), axes=[op.rank(b)]) if is_vector else op.cast(b, WORK)
    relative: Any = noise(op, self) if rcond is None or driver == "gels" else rcond
    if driver == "gelsy" and rcond is not None and not rcond < 1:
        raise UserError(
            "E203",
            f"linalg_lstsq with rcond={relative} and the driver gelsy",
            why="it leaves out all columns but one of a factorisation with pivots",
            next="pass an rcond below 1, or driver='gelsd'",
        )
    if rcond is not None and (
        (driver == "gelsd" and not 0 < rcond < 1) or (driver == "gelss" and rcond < 0)
    ):  # as LAPACK takes it
        relative = epsilon_of(op, self) / 2
    inverse = pseudo_inverse(op, self, 0.0, relative, False)
    solution = op.MatMul(inverse, right)
    gaps = op.Sub(op.MatMul(op.cast(self, WORK), solution), right)
    empty = [op.expand(op.const(0, kind), dims) for kind, dims in op.result]
    values = singular_values(op, self) if driver != "gels" else None
    residuals, rank, singular = empty[1], empty[2], empty[3]
    if 0 not in op.result_dims(1):
        residuals = op.reshape(op.cast(reduce(op, "ReduceSumSquare", gaps, -2), dtype), op.result_dims(1))
    if values is not None:
        limit = op.Mul(op.ReduceMax(values, axes=[-1], keepdims=1), as_dtype(op, relative, WORK))
        rank = reduce(op, "ReduceSum", op.cast(op.Greater(values, limit), D.INT64), -1)
    if values is not None and driver in ("gelsd", "gelss"):
        singular = op.cast(values, dtype)
    solution = op.Squeeze(solution, axes=[op.rank(solution) - 1]) if is_vector else solution
    return op.cast(solution, dtype), residuals, rank, singular


register_shared(_lstsq, "pseudo-inverse by one-sided Jacobi rotations in a Loop", *overloads_of("linalg_lstsq"))


_PINVS = "linalg_pinv linalg_pinv.atol_rtol_float linalg_pinv.atol_rtol_tensor linalg_pinv.rcond_tensor pinverse"
register_shared(_pinv, "Jacobi rotations in a Loop, the values above the cutoff inverted", *overloads_of(_PINVS))


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


def packed_reflections(op: Emit, matrix: ir.Value, rounds: DimLike) -> tuple[ir.Value, ir.Value]:
    """(R in the upper triangle and the reflections' vectors below it, their scales [*, rounds]) of a float64 matrix."""
    dims = op.dims(matrix)
    rows, columns = positions(op, dims[-2]), op.Transpose(positions(op, dims[-1]), perm=[1, 0])
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

    scales = filled_with(op, (*dims[:-2], 1, rounds), 0, WORK)
    packed, scales = loop(op, rounds, [matrix, scales], body)
    return packed, op.Squeeze(scales, axes=[op.rank(scales) - 2])


def _geqrf(op: Emit, self: ir.Value) -> tuple[ir.Value, ir.Value]:
    """LAPACK's packed form: R in the upper triangle, below it the reflections' vectors (1 at their top left out)."""
    dims, dtype = op.dims(self), op.result_dtype()
    if 0 in dims:
        return filled_with(op, dims, 0, dtype), filled_with(op, op.result_dims(1), 0, dtype)
    packed, scales = packed_reflections(op, op.cast(self, WORK), op.result_dims(1)[-1])
    return op.cast(packed, dtype), op.cast(scales, dtype)


register_shared(_geqrf, "Loop of Householder reflections", *overloads_of("geqrf"))
register_shared(_householder_product, "Loop of reflections", *overloads_of("linalg_householder_product orgqr"))
register_shared(_ormqr, "Loop of reflections", *overloads_of("ormqr"))
