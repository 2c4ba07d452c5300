"""How far a value is from the one that PyTorch has, and whether rounding explains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.judge.engines import Array
from fx2onnx.judge.movements import settled
from fx2onnx.judge.tolerance import MODULES_OWN, Exact, Grain, is_exact

DECADES = range(-9, 2)
"""The histogram's powers of ten; what is less or more is in the first or the last."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One value of the file beside PyTorch's.

    ``max_abs_error`` and ``allowed`` are absolute. ``counts`` has, for each of ``DECADES``, how many numbers are off by so
    much of the scale. ``problem`` says what is wrong beyond numbers, such as a dtype or a shape.
    """

    max_abs_error: float
    allowed: float
    differing: int
    size: int
    counts: tuple[int, ...] = ()
    problem: str = ""

    @property
    def is_wrong(self) -> bool:
        return bool(self.problem) or not self.max_abs_error <= self.allowed

    def describe(self) -> str:
        """One line."""
        if self.problem:
            return self.problem
        return (
            f"{self.differing} of {self.size} numbers differ, the largest error is {self.max_abs_error:.3g}, "
            f"allowed {self.allowed:.3g}"
        )

    def histogram(self) -> list[str]:
        """A line for each power of ten in which there are errors."""
        most = max(self.counts, default=0)
        return [
            f"{'<' if decade == DECADES[0] else ''}1e{decade:+03d} {'#' * max(1, round(24 * count / most)):<24} {count}"
            for decade, count in zip(DECADES, self.counts, strict=False)
            if count
        ]


def difference(got: Any, want: Array, exact: Exact | None = None, grain: Grain = MODULES_OWN) -> Difference:
    """``got`` beside PyTorch's ``want``, by the rules of a verification, with float64 as the only other run of PyTorch. ``exact``
    is asked only where it decides; without it PyTorch is taken for exact, and there is no histogram.
    """
    got = np.asarray(got)
    found = settled(got, want, exact, grain=grain, reference="PyTorch")
    if got.shape != want.shape or got.dtype.itemsize != want.dtype.itemsize:
        return Difference(float("inf"), 0.0, want.size, want.size, problem=found.problem)
    off = _off(got, want)
    differing = int(np.count_nonzero(off))
    problem = "" if found.ok or is_exact(want) else found.problem
    counts = () if found.ok or problem or is_exact(want) or exact is None else _counts(got, want, off, found.scale)
    return Difference(found.error, found.allowed, differing, want.size, counts, problem)


def _off(got: Array, want: Array) -> Array:
    """Where the numbers differ, NaNs being equal."""
    off: Array = got != want
    return off if is_exact(want) else off & ~(np.isnan(got) & np.isnan(want))


def _counts(got: Array, want: Array, off: Array, scale: float) -> tuple[int, ...]:
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(got[off].astype(np.float64) - want[off].astype(np.float64))
        decade = np.floor(np.log10(error / (scale or 1.0)))
    places = np.clip(np.nan_to_num(decade, neginf=DECADES[0]), DECADES[0], DECADES[-1]).astype(int) - DECADES[0]
    return tuple(np.bincount(places, minlength=len(DECADES)).tolist())


class Once:
    """A list that is computed when it is first asked for, or None where it cannot be."""

    def __init__(self, compute: Any) -> None:
        self._compute = compute
        self._values: list[Any] | None = None
        self._is_done = False

    def at(self, index: int) -> Any:
        if not self._is_done:
            self._values, self._is_done = self._compute(), True
        return None if self._values is None or index >= len(self._values) else self._values[index]
