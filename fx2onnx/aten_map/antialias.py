"""Weights of antialiased resampling along one axis. Source: HelperInterpBase in ATen/native/cpu/UpSampleKernel.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt


def _triangle(x: float) -> float:
    return max(0.0, 1.0 - abs(x))


def _cubic(x: float) -> float:
    """Keys' filter with a = -0.5, as PIL has it."""
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _sinc(x: float) -> float:
    return 1.0 if x == 0 else math.sin(math.pi * x) / (math.pi * x)


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3) if -3 <= x < 3 else 0.0


FILTERS: dict[str, tuple[Callable[[float], float], int]] = {
    "linear": (_triangle, 2),
    "cubic": (_cubic, 4),
    "lanczos": (_lanczos, 6),
}
"""Mode -> filter and how many elements it reads without scaling."""


def resampling_matrix(
    size: int, count: int, mode: str, scale_factor: float | None, align_corners: bool
) -> npt.NDArray[np.float64]:
    """[count, size]: how much of each input element goes into each output."""
    kernel, width = FILTERS[mode]
    if align_corners:
        scale = (size - 1) / (count - 1) if count > 1 else 0.0
    elif scale_factor is not None and scale_factor > 0:
        scale = 1.0 / scale_factor
    else:
        scale = size / count
    support = width * 0.5 * max(scale, 1.0)
    shrink = 1.0 / scale if scale >= 1 else 1.0
    matrix = np.zeros((count, size))
    for index in range(count):
        center = scale * (index + 0.5)
        start = max(int(center - support + 0.5), 0)
        end = min(int(center + support + 0.5), size)
        weights = np.array([kernel((place - center + 0.5) * shrink) for place in range(start, end)])
        total = weights.sum()
        matrix[index, start:end] = weights / total if total else weights
    return matrix
