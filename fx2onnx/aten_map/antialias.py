"""Weights of resampling along one axis, as numbers: antialiased, and in fixed point for uint8. Source: HelperInterpBase in ATen/native/cpu/UpSampleKernel.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt


def _cubic(x: float, a: float = -0.5) -> float:
    """Keys' filter: a = -0.5 as PIL has it, -0.75 without antialias."""
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _plain_cubic(x: float) -> float:
    return _cubic(x, -0.75)


def _sinc(x: float) -> float:
    return 1.0 if x == 0 else math.sin(math.pi * x) / (math.pi * x)


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3) if -3 <= x < 3 else 0.0


FILTERS: dict[str, tuple[Callable[[float], float], int]] = {
    "linear": (lambda x: max(0.0, 1.0 - abs(x)), 2),
    "cubic": (_cubic, 4),
    "lanczos": (_lanczos, 6),
}
"""Mode -> filter and how many elements it reads without scaling."""


def _add_taps(row: npt.NDArray[np.float64], place: float, width: int, kernel: Callable[[float], float]) -> None:
    """The ``width`` elements around ``place``; those beyond an end count for the element at that end."""
    first = math.floor(place) - width // 2 + 1
    for tap in range(first, first + width):
        row[min(max(tap, 0), len(row) - 1)] += kernel(tap - place)


MAX_PRECISION_BITS, WEIGHT_LIMIT = 22, 1 << 15
"""uint8 is resampled with 16-bit weights of as many bits as fit."""


def resampling_matrix(
    size: int,
    count: int,
    mode: str,
    scale_factor: float | None,
    align_corners: bool,
    antialias: bool = True,
    delta: float = 0.0,
    skips_idle: bool = True,
) -> npt.NDArray[np.float64]:
    """[count, size]: how much of each input element goes into each output. ``delta`` is 0.5 for aligned uint8;
    ``skips_idle``: an axis that keeps its size is left as it is, whatever the factor.
    """
    if size == count and skips_idle and (antialias or mode != "cubic" or scale_factor is None):
        return np.eye(size)
    kernel, width = FILTERS[mode]
    if mode == "cubic" and not antialias:
        kernel = _plain_cubic
    if align_corners:
        scale = (size - 1) / (count - 1) if count > 1 else 0.0
    elif scale_factor is not None and scale_factor > 0:
        scale = 1.0 / scale_factor
    else:
        scale = size / count
    shrinks = antialias and scale >= 1
    support = width * 0.5 * (scale if shrinks else 1.0)
    matrix = np.zeros((count, size))
    for index in range(count):
        center = scale * (index + 0.5 - delta)
        if not antialias:
            _add_taps(matrix[index], center - 0.5 + delta, width, kernel)
            continue
        start = max(int(center - support + 0.5 + delta), 0)
        end = min(int(center + support + 0.5 + delta), size)
        places = np.arange(start, end)
        weights = np.array([kernel((place - center + 0.5 - delta) / (scale if shrinks else 1.0)) for place in places])
        total = weights.sum()
        matrix[index, start:end] = weights / total if total else weights
    return matrix


def fixed_point(matrix: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], int]:
    """Weights rounded to integers, and by how many bits they are scaled."""
    top, bits = matrix.max(), 0
    while bits < MAX_PRECISION_BITS and int(0.5 + top * (1 << (bits + 1))) < WEIGHT_LIMIT:
        bits += 1
    return np.trunc(matrix * (1 << bits) + np.where(matrix < 0, -0.5, 0.5)), bits
