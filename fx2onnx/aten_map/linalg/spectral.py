"""Decompositions with their vectors: singular values, and eigenvalues of symmetric matrices.

The vectors are unique up to signs, and up to a rotation where values are equal: those of a file are others than PyTorch's, and
as right. What a model makes of them (a rotation that fits points, a whitened batch) hangs on neither.
"""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.aten_map.creation import filled_with, identity_matrix
from fx2onnx.aten_map.linalg.eigen import (
    diagonalized,
    orthogonalized,
    packed_reflections,
    reflections,
    symmetric,
    tall,
)
from fx2onnx.aten_map.linalg.linear_solve import WORK, turned, zero_result
from fx2onnx.aten_map.linalg.products import least
from fx2onnx.aten_map.repeating import diagonal_of
from fx2onnx.aten_map.sorting import sort
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike


def _ordered(op: Emit, matrix: ir.Value, order: ir.Value) -> ir.Value:
    """The columns of [*, M, N] by the indices [*, N]."""
    row = op.Unsqueeze(order, axes=[op.rank(order) - 1])
    return op.GatherElements(matrix, op.expand(row, op.dims(matrix)), axis=op.rank(matrix) - 1)


def _first(op: Emit, value: ir.Value, count: DimLike, axis: int) -> ir.Value:
    dims = list(op.dims(value))
    if dims[axis] == count:
        return value
    dims[axis] = count
    axes = [axis % op.rank(value)]
    return op.Slice(value, [0], op.sizes([count]), axes, outputs=[(op.dtype(value), tuple(dims))])


def _orthonormal(op: Emit, columns: ir.Value, width: DimLike) -> ir.Value:
    """[*, M, width] of orthonormal columns: those of [*, M, N] that are not zero, and others in the place of the rest."""
    *batch, count, given = op.dims(columns)
    rounds, last = least(count, given), op.rank(columns) - 1
    packed, scales = packed_reflections(op, columns, rounds)
    unit = op.expand(identity_matrix(op, count, width, WORK), (*batch, count, width))
    found = reflections(op, packed, scales, unit)
    turns = diagonal_of(op, packed, 0, last - 1, last, rounds)
    signs = op.Where(op.Less(turns, 0), op.const(-1.0, WORK), op.const(1.0, WORK))
    if width != rounds:
        pads = [0] * (2 * op.rank(signs) - 1)
        after = op.sizes([*pads, width - rounds])
        signs = op.Pad(signs, after, op.const(1.0, WORK), outputs=[(WORK, (*batch, width))])
    return op.Mul(found, op.Unsqueeze(signs, axes=[op.rank(signs) - 1]))


def _svd(op: Emit, A: ir.Value, full_matrices: bool = True, compute_uv: bool = True) -> tuple[ir.Value, ...]:
    """(U, S, Vh) by one-sided Jacobi rotations: A V = U S, the columns of U that S leaves open by Householder reflections."""
    *_, rows, columns = op.dims(A)
    if 0 in op.dims(A):
        raise UserError("E203", "the singular value decomposition of an empty matrix", next="skip it where a size is 0")
    source, is_wide = tall(op, A)
    turns, vectors, lengths = orthogonalized(op, source)
    values, order = sort(op, lengths, -1, True)
    small = least(rows, columns)
    dtypes = [dtype for dtype, _ in op.result]
    if not compute_uv:
        return zero_result(op, 0), op.cast(_first(op, values, small, -1), dtypes[1]), zero_result(op, 2)
    turns, vectors = _ordered(op, turns, order), _ordered(op, vectors, order)
    kept = op.Greater(values, 0)
    shares = op.Where(kept, op.Reciprocal(op.Where(kept, values, op.const(1.0, WORK))), op.const(0.0, WORK))
    turns = op.Mul(turns, op.Unsqueeze(shares, axes=[op.rank(shares) - 1]))
    high = op.dims(source)[-2]
    left = _orthonormal(op, turns, high if full_matrices else small)
    right = vectors if full_matrices else _first(op, vectors, small, -1)
    left, right = (right, left) if is_wide else (left, right)
    return (
        op.cast(left, dtypes[0]),
        op.cast(_first(op, values, small, -1), dtypes[1]),
        op.cast(turned(op, right), dtypes[2]),
    )


def _old_svd(op: Emit, self: ir.Value, some: bool, compute_uv: bool) -> tuple[ir.Value, ...]:
    """(U, S, V), V as it is; zeros without vectors."""
    if not compute_uv:
        _, values, _ = _svd(op, self, not some, False)
        return (
            filled_with(op, op.result_dims(0), 0, op.result[0][0]),
            values,
            filled_with(op, op.result_dims(2), 0, op.result[2][0]),
        )
    left, values, right = _svd(op, self, not some)
    return left, values, turned(op, right)


def _eigh(op: Emit, self: ir.Value, UPLO: str) -> tuple[ir.Value, ir.Value]:
    """(eigenvalues in ascending order, eigenvectors in columns) of the symmetric matrix that one triangle stands for."""
    if 0 in op.dims(self):
        raise UserError("E203", "the eigenvalues of an empty matrix", next="skip it where a size is 0")
    values, vectors = diagonalized(op, symmetric(op, self, UPLO.upper() == "L"))
    values, order = sort(op, values, -1)
    (first, _), (second, _) = op.result
    return op.cast(values, first), op.cast(_ordered(op, vectors, order), second)


def _inner_eigh(op: Emit, A: ir.Value, UPLO: str, compute_v: bool) -> tuple[ir.Value, ir.Value]:
    values, vectors = _eigh(op, A, UPLO)
    return values, vectors if compute_v else zero_result(op, 1)


register_shared(_svd, "one-sided Jacobi rotations in a Loop", *overloads_of("linalg_svd _linalg_svd"))
register_shared(_old_svd, "one-sided Jacobi rotations in a Loop", *overloads_of("svd"))
register_shared(_eigh, "Jacobi rotations in a Loop", *overloads_of("linalg_eigh"))
register_shared(_inner_eigh, "Jacobi rotations in a Loop", *overloads_of("_linalg_eigh"))
