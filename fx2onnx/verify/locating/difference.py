"""How far a value is from the one that PyTorch has, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fx2onnx.judge.engines import Array

EPSILONS = 32.0
"""Units in the last place that a value may be off by without a look at float64: another order of summation, another erf."""

OWN_RATIO = 16.0
"""A value may be so many times as far from float64 as PyTorch's own is."""

UNJUDGED_EPSILONS = 4096.0
"""The units where the operators do not run in float64."""

FILL_RATIO = 1e4
"""Numbers so many times larger than all that differ are fill (the lowest number of a mask), and say nothing of their scale."""

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


Exact = Callable[[], Array | None]
"""Gives the float64 value, or None where it cannot be had."""


def difference(got: Any, want: Array, exact: Exact | None = None, least_epsilon: float = 0.0) -> Difference:
    """``got`` beside PyTorch's ``want``. ``exact`` is asked only where it decides; without it PyTorch is taken for exact, and
    there is no histogram. The unit in the last place is ``least_epsilon`` at least.
    """
    got = np.asarray(got)
    problem = _unlike(got, want)
    if problem:
        return Difference(float("inf"), 0.0, want.size, want.size, problem=problem)
    if want.dtype.kind in "biuOSU":
        return _of_integers(got, want, exact)
    epsilon = max(float(ml_dtypes.finfo(want.dtype).eps), least_epsilon)
    if want.dtype.itemsize >= 4 and want.size:
        quick = _quick(got, want, EPSILONS * epsilon)
        if quick is not None and (exact is None or not quick.is_wrong):
            return quick
    off = _off(got, want)
    nans = int(np.count_nonzero(np.isnan(got) != np.isnan(want))) if off is not None else 0
    if nans:
        return Difference(float("inf"), 0.0, nans, want.size, problem=f"NaN in {nans} other places than in PyTorch")
    if off is None or not off.any():
        return Difference(0.0, 0.0, 0, want.size)
    off_got, off_want = got[off].astype(np.float64), want[off].astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.nan_to_num(np.abs(off_got - off_want), nan=np.inf)
    scale = _scale(want, _largest(off_want))
    allowed = EPSILONS * epsilon * scale
    if exact is not None and float(error.max()) > allowed:
        error, allowed = _against_exact(exact(), want, off, off_got, error, allowed)
    largest = float(error.max())
    return Difference(largest, allowed, len(error), want.size, _counts(error, scale) if largest > allowed else ())


def _quick(got: Array, want: Array, units: float) -> Difference | None:
    """The difference in the arrays' own precision, PyTorch taken for exact; None where a number is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - want)
    largest = float(error.max())
    if not np.isfinite(largest):
        return None
    off = error > 0
    allowed = units * _scale(want, float(np.max(np.abs(want), where=off, initial=0.0)))
    return Difference(largest, allowed, int(np.count_nonzero(off)), want.size)


def _off(got: Array, want: Array) -> Array | None:
    """Where the numbers differ, NaNs being equal; None where nothing does."""
    if np.array_equal(got, want):
        return None
    off: Array = got != want
    both = np.isnan(got) & np.isnan(want)
    return off & ~both if both.any() else off


def _unlike(got: Array, want: Array) -> str:
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, PyTorch has {list(want.shape)}"
    if got.dtype.itemsize != want.dtype.itemsize or (got.dtype != want.dtype and want.dtype.kind != "V"):
        return f"dtype {got.dtype}, PyTorch has {want.dtype}"
    return ""


def _of_integers(got: Array, want: Array, exact: Exact | None) -> Difference:
    """Equal, save for twice as many as float64 chooses otherwise: what was compared or rounded was nearly equal there."""
    differing = int(np.count_nonzero(got != want))
    allowed = 0.0
    if differing and exact is not None:
        truth = exact()
        if truth is not None and truth.shape == want.shape:
            allowed = 2.0 * np.count_nonzero(truth != want)
    return Difference(float(differing), allowed, differing, want.size)


def _largest(array: Array) -> float:
    """The largest finite magnitude."""
    if not array.size:
        return 0.0
    largest = max(float(array.max()), -float(array.min()))
    return largest if np.isfinite(largest) else float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _scale(want: Array, largest_off: float) -> float:
    """The largest magnitude, but for fill; ``largest_off`` is that of the numbers that differ."""
    largest = _largest(want)
    return min(largest, FILL_RATIO * largest_off) or largest


def _against_exact(
    truth: Array | None, want: Array, off: Array, off_got: Array, error: Array, allowed: float
) -> tuple[Array, float]:
    """The errors and what is allowed, judged by float64 where there is a value for every number."""
    if truth is None:
        return error, allowed * (UNJUDGED_EPSILONS / EPSILONS)
    if truth.shape != want.shape or bool(np.any(np.isfinite(want) & ~np.isfinite(truth))):
        return error, allowed
    truth, finite = truth.astype(np.float64), np.isfinite(want)
    own = float(np.abs(want[finite].astype(np.float64) - truth[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        from_truth = np.nan_to_num(np.abs(off_got - truth[off]), nan=np.inf)
    return np.minimum(error, from_truth), allowed + OWN_RATIO * own


def _counts(error: Array, scale: float) -> tuple[int, ...]:
    with np.errstate(divide="ignore"):
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
