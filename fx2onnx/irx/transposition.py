"""Transposing a float32 matrix as fast as memory allows, through the BLAS library that NumPy ships."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fx2onnx.irx.data_file import Bytes, Piece

Array: TypeAlias = npt.NDArray[Any]

NAMES = (
    ("scipy_cblas_somatcopy64_", ctypes.c_int64),
    ("cblas_somatcopy64_", ctypes.c_int64),
    ("cblas_somatcopy", ctypes.c_int),
)
"""How builds of OpenBLAS call ``cblas_somatcopy`` (one of its extensions of BLAS), and their integers."""

ROW_MAJOR, TRANSPOSED = 101, 112
"""``CblasRowMajor`` and ``CblasTrans`` of cblas.h."""


@functools.cache
def _somatcopy() -> Callable[..., None] | None:
    """``cblas_somatcopy(order, trans, rows, cols, alpha, a, lda, b, ldb)``; None where NumPy's BLAS has none."""
    try:
        library = ctypes.CDLL(
            importlib.import_module("numpy._core._multiarray_umath").__file__
        )  # looks into what that depends on, too
    except (ImportError, OSError):
        return None
    for name, integer in NAMES:
        function = getattr(library, name, None)
        if function is not None:
            place, pointer = ctypes.c_int, ctypes.c_void_p
            function.argtypes = [place, place, integer, integer, ctypes.c_float, pointer, integer, pointer, integer]
            function.restype = None
            return function  # type: ignore[no-any-return]
    return None


def transposed_pieces(matrix: Array, size: int) -> Iterator[Piece]:
    """The bytes of ``matrix.T`` in C order, some of its rows at a time.

    Shapes:    matrix (m, n); a column must fit into ``size`` bytes.
    Dtypes:    any; float32 is some 5 times faster than by NumPy, which goes element by element.
    """
    length, count = matrix.shape
    apart, inside = matrix.strides
    function = (
        _somatcopy() if matrix.dtype == np.float32 and inside == 4 and apart % 4 == 0 and apart >= 4 * count else None
    )
    row_bytes = length * matrix.itemsize
    step = size // row_bytes
    for start in range(0, count, step):
        part = matrix[:, start : start + step] if step < count else matrix
        yield Piece(row_bytes * part.shape[1], functools.partial(_transpose, part, function))


def _transpose(matrix: Array, function: Callable[..., None] | None, target: Bytes) -> None:
    length, rows = matrix.shape
    if function is None:
        target.view(matrix.dtype).reshape(rows, length)[...] = matrix.T
        return
    leading = matrix.strides[0] // 4
    function(ROW_MAJOR, TRANSPOSED, length, rows, 1.0, matrix.ctypes.data, leading, target.ctypes.data, length)
