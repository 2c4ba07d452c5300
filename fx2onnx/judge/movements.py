"""The movements of the reference under other rounding: the most costly comparison rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np

from fx2onnx.judge.constants import (
    ALIKE,
    CHOSEN,
    MOST_BY_FLOAT64,
    MOST_LARGER,
    MOVED_RATIO,
    MOVEMENT_RATIO,
    OWN_ERROR,
    SCALE_EPSILONS,
    SPREAD_RATIO,
    UNEXPLAINED,
)  # fmt: skip
from fx2onnx.judge.engines import Array
from fx2onnx.judge.tolerance import (
    EAGER,
    MODULES_OWN,
    Exact,
    Grain,
    Judged,
    Scale,
    by_scale,
    is_exact,
    judged,
    worst_of,
    wrong_places,
)  # fmt: skip


class Movements:
    """The outputs of eager PyTorch where its operators rounded otherwise, run by run: the fourth comparison rule for one output.

    Numbers are looked at one by one and in rows, along the last axis: where a program chooses, a row is another one as a
    whole, and an engine has to have one that some run has. Of three axes and more it may be an item along the first.
    """

    def __init__(self, want: Array, grain: Grain = MODULES_OWN) -> None:
        self.want, self._grain = want, grain
        self.scale = None if is_exact(want) else Scale.of(want, grain)
        self._floor = 0.0 if self.scale is None else SCALE_EPSILONS
        self.is_by_rows = True
        """True if each row has to be one of some run's. Where each number is rounded to one of two values, there are
        too many."""
        self.runs: list[Array] = []
        self._rows: list[Array] = []
        """The distance of each row of a run from eager PyTorch's."""
        self._nearest: list[Array] = []
        """The distance of each row of a run from the nearest row of eager PyTorch and all other runs."""
        self._spread = self._most_off = self._largest = 0.0
        """Over all runs: the largest mean square, how many numbers are off, the largest movement."""
        self._of_other_shapes: dict[tuple[int, ...], list[Array]] = {}
        """The outputs of runs in which rounding decides the number of rows: scores at a threshold, say."""
        self._items: Movements | None = None
        self._moves_elsewhere = 0.0
        """The largest movement where the shape is another one."""

    def add(self, moved: Array) -> None:
        """One more run."""
        if moved.shape != self.want.shape:
            self._of_other_shapes.setdefault(moved.shape, []).append(moved)
            return
        gap = self._gap(moved, self.want)
        self._spread = max(self._spread, _root_mean_square(gap))
        self._most_off = max(self._most_off, _count(gap, 0.0))
        self._largest = max(self._largest, float(gap.max(initial=0.0)))
        rows = nearest = _row_gaps(gap)
        for place, run in enumerate(self.runs):
            between = _row_gaps(self._gap(moved, run))
            nearest = np.minimum(nearest, between)
            self._nearest[place] = np.minimum(self._nearest[place], between)
        self.runs.append(moved)
        self._rows.append(rows)
        self._nearest.append(nearest)

    @property
    def changes_shape(self) -> bool:
        """True if some run had another shape."""
        return bool(self._of_other_shapes)

    def judge(self, got: Array) -> Judged:
        """Return whether ``got`` is one more of these: off by as much, in as many numbers and rows, and in the same rows."""
        if got.shape != self.want.shape:
            return self._judge_elsewhere(got)
        found = self._judge_by_rows(got)
        if found.ok or not self._chooses_items():
            return found
        found = self._by_items().judge(_as_rows(got))
        found.ok = found.ok and self._are_known(got)
        return found

    def _chooses_items(self) -> bool:
        """Return whether runs have other items as a whole, such as the masks of objects whose order rounding decides."""
        if self.scale is None or self.want.ndim < 3 or len(self.want) < 2 or not self.is_by_rows:
            return False
        return max(self._largest, self._moves_elsewhere) * self.scale.epsilon >= CHOSEN

    def _by_items(self) -> Movements:
        """The same with a row for each item along the first axis."""
        if self._items is None:
            self._items = Movements(_as_rows(self.want), self._grain)
        for run in self.runs[len(self._items.runs) :]:
            self._items.add(_as_rows(run))
        self._items._spread = max(self._items._spread, self._spread)
        self._items._moves_elsewhere = self._moves_elsewhere
        return self._items

    def _are_known(self, got: Array) -> bool:
        """Return whether items stand in some run, at any place, except for as few as in runs."""
        assert self.scale is not None
        near = ALIKE * self.scale.largest
        runs = [_sketch(run) for run in (self.want, *self.runs)]
        apart = [np.concatenate(runs[:place] + runs[place + 1 :]) for place in range(len(runs))]
        most = max((_count(_to_nearest(*pair), near) for pair in zip(runs, apart, strict=True)), default=0)
        return _count(_to_nearest(_sketch(got), np.concatenate(runs)), near) <= MOVEMENT_RATIO * most + 1

    def _judge_by_rows(self, got: Array) -> Judged:
        if not self._has_nan_as_runs_have(got):
            return Judged(float("inf"), 0.0, False, "rounding")
        floor, gap = self._floor, self._gap(got, self.want)
        moved = functools.reduce(np.maximum, self._rows, np.zeros(1))
        others = [_row_gaps(gap), *(_row_gaps(self._gap(got, run)) for run in self.runs)]
        rest = functools.reduce(np.minimum, others)
        count, most = _count(rest, floor), max((_count(left, floor) for left in self._nearest), default=0)
        unexplained = _count(rest, MOVED_RATIO * np.maximum(moved, self._moves_elsewhere) + floor)
        is_alike = _root_mean_square(gap) <= SPREAD_RATIO * self._spread + floor
        is_seldom = not self.is_by_rows or (count <= MOVEMENT_RATIO * most + 1 and unexplained <= UNEXPLAINED * count)
        if self.scale is None:
            off, limit = _count(gap, 0.0), MOVEMENT_RATIO * self._most_off
            return Judged(float(off), limit, off <= limit and is_alike and is_seldom, "rounding")
        most_moved = float(moved.max(initial=self._moves_elsewhere))
        found = worst_of(gap, np.float64(MOVEMENT_RATIO * most_moved + floor), self.scale, "rounding")
        found.ok = found.ok and is_alike and is_seldom
        return found

    def _judge_elsewhere(self, got: Array) -> Judged:
        """Compare an output of another shape than eager PyTorch's with those of the runs that have it, too."""
        runs = [run for run in self._of_other_shapes.get(got.shape, ()) if not wrong_places(got, run)]
        if not runs:
            return Judged(float("inf"), 0.0, False, "rounding")
        there = Movements(runs[0], self._grain)
        there.is_by_rows, there._spread, there._moves_elsewhere = self.is_by_rows, self._spread, self._largest
        for run in runs[1:]:
            there.add(run)
        return there.judge(got)

    def _has_nan_as_runs_have(self, got: Array) -> bool:
        """Return whether NaN stands where eager PyTorch has it, or where rounding decides whether it has: except for
        few rows."""
        if self.scale is None:
            return True
        is_nan = np.isnan(self.want)
        differs = _any_of_row(np.isnan(got) != is_nan)
        changes = [_any_of_row(np.isnan(run) != is_nan) for run in self.runs] if differs.any() else []
        open_rows = functools.reduce(np.logical_or, changes, np.zeros_like(differs))
        return int(np.count_nonzero(differs & ~open_rows)) <= UNEXPLAINED * int(np.count_nonzero(differs))

    @property
    def largest(self) -> float:
        """The largest movement of a number; of integers and bools, how many were others."""
        if self.scale is None:
            return self._most_off
        return self._largest * self.scale.epsilon * self.scale.largest

    def _gap(self, one: Array, other: Array) -> Array:
        """The distance in units of the scale; of integers and bools 1 where they differ. Infinity, such as of scores
        that were not chosen, is off by as much as the largest number is.
        """
        if self.scale is None:
            return np.asarray(one != other, np.float32)
        gap: Array = self.scale.units(one, other)
        gap[np.isnan(gap)] = 0.0
        gap[np.isinf(gap)] = 1.0 / self.scale.epsilon
        return gap


def _as_rows(array: Array) -> Array:
    return array.reshape(len(array), -1)


def _sketch(array: Array, parts: int = 256) -> Array:
    """Each item along the first axis as the means of its parts."""
    rows = np.nan_to_num(_as_rows(array).astype(np.float32, copy=False))
    width = -(-rows.shape[1] // parts)
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % width)))
    return np.asarray(padded.reshape(len(rows), -1, width).mean(axis=2))


def _to_nearest(sketches: Array, known: Array) -> Array:
    """The distance of each sketch from the nearest of those that are known."""
    return np.array([np.abs(known - sketch).max(axis=1, initial=0.0).min() for sketch in sketches], np.float32)


def _row_gaps(gap: Array) -> Array:
    """The largest of each row; of a vector each number."""
    return np.asarray(gap.max(axis=-1, initial=0.0)) if gap.ndim > 1 else gap


def _any_of_row(places: Array) -> Array:
    return np.asarray(places.any(axis=-1)) if places.ndim > 1 else places


def _count(gap: Array, floor: Array | float) -> int:
    return int(np.count_nonzero(gap > floor))


def _root_mean_square(units: Array) -> float:
    return float(np.sqrt(np.mean(np.square(units, dtype=np.float64)))) if units.size else 0.0


INEXACT_TRANSFORMS = frozenset(["onnxruntime"])
"""Engines whose STFT and DFT are off by much more than rounding: their outputs are compared with
``TRANSFORM_UNITS``."""


def larger_units(want: Array, exact: Array, moved: Array, grain: Grain = MODULES_OWN) -> float:
    """The factor of the larger units of ``STAGES``: 1 if a run with the smallest ones (``moved``) is as far from eager
    PyTorch as float64 is, which it usually is three times, or if float64 chose otherwise as a whole.

    The median says it, since a choice that rounding decides changes some numbers by much.
    """
    if is_exact(want) or not want.size or not want.shape == exact.shape == moved.shape:
        return 1.0
    scale = Scale.of(want, grain)
    with np.errstate(invalid="ignore"):
        own, step = (float(np.nanmedian(scale.units(each, want))) for each in (exact, moved))
    if not OWN_ERROR < own <= MOST_BY_FLOAT64 * SCALE_EPSILONS or not step:
        return 1.0
    return min(max(own / step, 1.0), MOST_LARGER)


def settled(
    got: Array, want: Array, exact: Exact | None = None, moved: Callable[[], Iterable[Array]] | None = None,
    grain: Grain = MODULES_OWN, reference: str = EAGER,
) -> Judged:  # fmt: skip
    """An output by all rules. ``moved``: gives what the reference gives where it rounds otherwise, run by run; where it is not
    said, float64 is the only such run. Without ``exact`` and ``moved`` the first rule has the last word.
    """
    known: list[Array | None] = []

    def once() -> Array | None:
        if not known:
            known.append(None if exact is None else exact())
        return known[0]

    found = judged(got, want, None, (), None if exact is None else once, grain, reference)
    if found.ok or (exact is None and moved is None) or found.problem.startswith(("shape", "dtype", "infinity")):
        return found
    movements = Movements(want, grain)
    runs = moved() if moved is not None else (each for each in (once(),) if each is not None)
    for run in runs:
        movements.add(run)
        again = movements.judge(got)
        if again.ok:
            again.scale = found.scale
            return again
    if movements.scale is not None and not movements.runs and not movements.changes_shape and once() is None:
        return by_scale(got, want, movements.scale) if not found.problem else found
    return found
