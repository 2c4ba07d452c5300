"""The tolerance model: the differences between an engine's output and the reference's that are rounding.

The reference is an argument: eager PyTorch, the file before a change, arrays. What it takes to say more of it than its
numbers (a run in float64, runs that round otherwise) are functions that are called only where they decide.

In this order, until one settles it, since each costs more than the one before:

1. The difference itself, of numbers that float32 hits as well as it can.
2. The distance between two engines: where the reference is no farther from each of them than they are from each other,
   three programs agree up to rounding.
3. float64: an engine may be a small multiple as far from it as the reference is.
4. The reference with its operators rounding otherwise (``movements.py``): as many numbers may be off, and by as much.

Every difference is compared with the scale of the numbers beside it: mask values (``finfo.min`` or -1e4 in
the place of others) have a scale of their own, and so is a row or a channel of much smaller numbers than the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np

from fx2onnx.judge.constants import (
    ALIKE,
    BY_CHANCE,
    DISTANCE_RATIO,
    ERROR_RATIO,
    LEAST_SCALE,
    MASK_GAP,
    MASK_SHARE,
    MOST_BY_DISTANCE,
    MOST_BY_FLOAT64,
    SCALE_EPSILONS,
    SMALL_PART,
    SPREAD,
    UNJUDGED_EPSILONS,
)  # fmt: skip
from fx2onnx.judge.engines import Array

EAGER = "eager PyTorch"
"""The usual reference."""

_BLOCK = 1 << 16


def structure_problem(got: Array, want: Array, reference: str = EAGER) -> str:
    """The problem with dtype or shape; empty where there is none."""
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, {reference} has {list(want.shape)}"
    if got.dtype.itemsize != want.dtype.itemsize or (got.dtype != want.dtype and want.dtype.kind != "V"):
        return f"dtype {got.dtype}, {reference} has {want.dtype}"
    return ""


def is_exact(want: Array) -> bool:
    """Return whether they are integers, bools or texts, which have to be equal."""
    return want.dtype.kind in "biuOSUT" or "int" in want.dtype.name


NAN_PLACES = "NaN in other places than "


def wrong_places(got: Array, want: Array, reference: str = EAGER) -> str:
    """The problem that NaN or infinities stand in other places than in the reference; empty if they do not."""
    if not np.array_equal(np.isnan(got), np.isnan(want)):
        return NAN_PLACES + reference
    infinite = np.isinf(want) | np.isinf(got)
    if infinite.any() and not np.array_equal(got[infinite], want[infinite]):
        return f"infinity in other places than {reference}"
    return ""


def is_mask_value(array: Array, largest: float | None = None) -> Array:
    """A mask of the mask values: numbers near the end of the array's dtype, or of a narrower one that ends at
    ``largest``."""
    end = float(ml_dtypes.finfo(array.dtype).max) if largest is None else largest
    with np.errstate(invalid="ignore"):
        found: Array = np.abs(array) > MASK_SHARE * end
    return found


def where_it_says_something(got: Array, want: Array, *, places: bool) -> Array:
    """The output, and eager PyTorch's in the place of NaN, which says that the file knows no number there: zero times NaN is
    NaN, too, where a product stands for a choice, and so is a sum of infinities in another order. What eager PyTorch makes NaN
    may be infinite for the same reason. ``places``: whether integers say something.
    """
    if is_exact(want):
        return got if places or want.dtype.kind == "b" else want
    is_open = np.isnan(got) | (np.isnan(want) & np.isinf(got))
    return np.where(is_open, want, got) if is_open.any() else got


class Grain(NamedTuple):
    """The distance between the numbers with which a file computes, where it is larger than in the module's dtype."""

    epsilon: float = 0.0
    """The unit in the last place."""
    least: float = 0.0
    """The least number that has all its digits."""


MODULES_OWN = Grain()


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of each number for comparisons: one for all, or an array of as many axes, of size 1 where all along an axis have
    one.
    """

    largest: float
    each: Array | float
    epsilon: float

    @staticmethod
    def of(want: Array, grain: Grain = MODULES_OWN) -> Scale:
        """The scales of an output of eager PyTorch, whose numbers are as far apart as ``grain`` at least."""
        own = ml_dtypes.finfo(want.dtype)
        epsilon, least = max(float(own.eps), grain.epsilon), max(float(own.smallest_normal), grain.least)
        numbers = want if want.dtype in (np.float32, np.float64) else want.astype(np.float32)
        largest = _largest(numbers)
        if not np.isfinite(largest):
            numbers = np.where(np.isfinite(numbers), numbers, 0)
            largest = _largest(numbers)
        each = _with_small_parts(numbers, _without_masks(numbers, largest))
        return Scale(largest, np.maximum(each, least) if isinstance(each, np.ndarray) else max(each, least), epsilon)

    def units(self, one: Array, other: Array) -> Array:
        """The difference in units of the last place of the scale. Equal numbers, infinite ones too, differ by nothing."""
        dtype = np.float64 if np.float64 in (one.dtype, other.dtype) else np.float32
        left, right = one.astype(dtype, copy=False), other.astype(dtype, copy=False)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            gap: Array = np.subtract(left, right, out=np.empty(left.shape, dtype))
            np.abs(gap, out=gap)
            if gap.size and not np.isfinite(gap.max()):
                gap[(left == right) | (np.isnan(left) & np.isnan(right))] = 0.0
            gap /= np.asarray(np.maximum(self.each, LEAST_SCALE) * self.epsilon, dtype)
        return gap

    def groups(self) -> tuple[Array | None, int]:
        """The index of the scale of each number; None where all have one."""
        if not isinstance(self.each, np.ndarray):
            return None, 1
        values, index = np.unique(self.each, return_inverse=True)
        return index.reshape(self.each.shape), len(values)


def _float(array: Array) -> Array:
    """A copy as float32 or float64."""
    copied: Array = np.array(array, np.float64 if array.dtype == np.float64 else np.float32)
    return copied


def _largest(numbers: Array) -> float:
    return max(abs(float(numbers.max(initial=0.0))), abs(float(numbers.min(initial=0.0))))


def _blocks(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The arrays flat, piece by piece: what a piece takes stays in the cache."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, _BLOCK):
        yield tuple(array[start : start + _BLOCK] for array in flat)


def _pieces(got: Array, want: Array, each: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Both and the scales, which broadcast to them, piece by piece: what a piece takes stays in the cache."""
    if not want.ndim or want.size <= _BLOCK:
        yield got, want, each
        return
    step = max(1, _BLOCK * len(want) // want.size)
    for start in range(0, len(want), step):
        own = each[start : start + step] if each.ndim and len(each) > 1 else each
        if step > 1 or want.ndim == 1:
            yield got[start : start + step], want[start : start + step], own
        else:
            yield from _pieces(got[start], want[start], own[0] if each.ndim else own)


def _without_masks(numbers: Array, largest: float) -> Array | float:
    """The scale of mask values and that of the rest: there is none of about half of them, and several are far below."""
    each: Array | float = largest
    top = largest
    while top > 0:
        if any(_has_middle(block, top) for (block,) in _blocks(numbers)):
            break
        magnitude = np.abs(numbers)
        is_below = magnitude < top / MASK_GAP
        count = int(np.count_nonzero(is_below))
        if not count or count < numbers.size // 100:
            break
        below = float(magnitude[is_below].max())
        if below > top * _least_share(count, 1):
            break
        each = np.where(is_below, below or min(top / MASK_GAP, 1.0), each)
        top = below
    return each


def _least_share(count: int, parts: int) -> float:
    """The least share of an output's largest number that counts: all ``count`` numbers of one of its ``parts`` parts are below it
    by chance as seldom as ``BY_CHANCE`` says, where numbers are as often near to nothing as elsewhere.
    """
    return float((BY_CHANCE / parts) ** (1 / count)) / SPREAD


def _has_middle(block: Array, top: float) -> bool:
    magnitude = np.abs(block)
    return bool(np.any((magnitude >= top / MASK_GAP) & (magnitude < top / 2)))


def _with_small_parts(numbers: Array, each: Array | float) -> Array | float:
    """The scale of rows and channels that are much smaller than the rest."""
    usual = float(each.min()) if isinstance(each, np.ndarray) else each
    if numbers.ndim < 2 or not usual:
        return each
    is_masked = np.abs(numbers) > usual if isinstance(each, np.ndarray) else None
    kept = numbers if is_masked is None else np.where(is_masked, 0, numbers)
    for axis, count in enumerate(numbers.shape):
        if count < 2:
            continue
        others = tuple(other for other in range(numbers.ndim) if other != axis)
        most, least = kept.max(axis=others, keepdims=True), kept.min(axis=others, keepdims=True)
        part = np.maximum(np.abs(most), np.abs(least))
        drawn = 1 if bool((most - least <= usual * ALIKE).all()) else numbers.size // count
        is_small = (part < usual * min(SMALL_PART, _least_share(drawn, count))) & (part > 0)
        if is_small.any():
            lower = np.minimum(each, np.where(is_small, part, np.inf))
            each = lower if is_masked is None else np.where(is_masked, each, lower)
    return each


@dataclass(slots=True)
class Judged:
    """A comparison: the largest error and what was allowed of it, both absolute, where they are nearest to each other."""

    error: float
    allowed: float
    ok: bool
    by: str = ""
    """The rule that settled it."""
    off: int = 0
    """The number of elements that are farther off than the first rule allows."""
    problem: str = ""
    """A problem other than the error of floats: a dtype, a shape, places of NaN, integers."""
    scale: float = 0.0
    """The largest finite magnitude of the reference."""

    @staticmethod
    def wrong(problem: str) -> Judged:
        """The result for a problem that is not about numbers."""
        return Judged(float("inf"), 0.0, False, problem=problem)


Exact = Callable[[], Array | None]
"""Gives the reference's float64 value, or None where it cannot be had."""


def judged(
    got: Array, want: Array, scale: Scale | None = None, others: Iterable[Array] = (), exact: Exact | None = None,
    grain: Grain = MODULES_OWN, reference: str = EAGER,
) -> Judged:  # fmt: skip
    """An output by the first three rules; ``others``: what other engines gave."""
    problem = structure_problem(got, want, reference)
    if problem:
        return Judged.wrong(problem)
    if is_exact(want):
        off = int(np.count_nonzero(got != want))
        text = f"{off} of {want.size} numbers differ" if off else ""
        return Judged(float(off), 0.0, not off, "equality", off, text)
    scale = scale or Scale.of(want, grain)
    first = found = by_difference(got, want, scale)
    if not first.ok:
        problem = wrong_places(got, want, reference)
        truth = None
        if not problem:
            settled = by_distance(got, want, others, scale)
            truth = exact() if settled is None and exact is not None else None
            found = settled or (by_float64(got, want, truth, scale) if truth is not None else None) or first
        else:
            found = Judged(float("inf"), first.allowed, False, first.by, first.off, problem)
    found.scale = scale.largest
    return found


def by_difference(got: Array, want: Array, scale: Scale) -> Judged:
    """The first rule."""
    if not isinstance(scale.each, np.ndarray):
        largest = largest_gap(got, want)
        allowed = SCALE_EPSILONS * scale.epsilon * scale.each
        if largest <= allowed:
            return Judged(largest, allowed, True, "difference")
    worst = Judged(0.0, 0.0, True, "difference")
    share = -1.0
    for left, right, each in _pieces(got, want, np.asarray(scale.each)):
        part = Scale(scale.largest, each, scale.epsilon)
        found = worst_of(part.units(left, right), np.float64(SCALE_EPSILONS), part, "difference")
        found.off += worst.off
        if found.error > share * found.allowed or found.error != found.error:
            share = found.error / (found.allowed or 1.0)
            worst = found
        worst.off = found.off
    return worst


def largest_gap(one: Array, other: Array) -> float:
    """The largest difference; NaN or infinity where a number is NaN or infinite."""
    largest = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for left, right in _blocks(one, other):
            gap = _float(left)
            gap -= right.astype(gap.dtype, copy=False)
            largest = max(largest, abs(float(gap.max())), abs(float(gap.min())), key=lambda x: np.inf if x != x else x)
    return largest


def by_distance(got: Array, want: Array, others: Iterable[Array], scale: Scale) -> Judged | None:
    """The second rule, with what other engines gave; None where it does not say that all is well."""
    own = scale.units(got, want)
    distance = float(own.max(initial=0.0))
    for other in others:
        if other.shape != want.shape or other.dtype != want.dtype:
            continue
        nearest = min(float(scale.units(got, other).max(initial=0.0)), float(scale.units(other, want).max(initial=0.0)))
        allowed = min(DISTANCE_RATIO * nearest, MOST_BY_DISTANCE * SCALE_EPSILONS)
        if distance <= allowed:
            return worst_of(own, np.float64(allowed), scale, "distance")
    return None


def by_float64(got: Array, want: Array, exact: Array, scale: Scale) -> Judged | None:
    """The third rule; None where float64 does not stand for what float32 computes: another shape, no numbers, or so far off
    that something was chosen otherwise, which says nothing of how far all other numbers may be off.
    """
    if exact.shape != want.shape or bool(np.any(np.isfinite(want) & ~np.isfinite(exact))):
        return None
    truth = np.where(np.isfinite(want), exact, want)
    own, error = scale.units(want.astype(np.float64), truth), scale.units(got.astype(np.float64), truth)
    if float(own.max(initial=0.0)) > MOST_BY_FLOAT64 * SCALE_EPSILONS:
        return None
    error[_float(got) == _float(want)] = 0.0
    index, count = scale.groups()
    if index is None:
        allowed: Array | np.float64 = np.float64(ERROR_RATIO * own.max(initial=0.0) + SCALE_EPSILONS)
    else:
        most = np.zeros(count)
        np.maximum.at(most, np.broadcast_to(index, own.shape).reshape(-1), own.reshape(-1))
        allowed = (ERROR_RATIO * most + SCALE_EPSILONS)[index]
    return worst_of(error, allowed, scale, "float64")


def is_near(want: Array, exact: Array) -> bool:
    """Return whether eager PyTorch gives what float64 does, except for rounding."""
    if want.shape != exact.shape or is_exact(want):
        return bool(np.array_equal(want, exact))
    return by_float64(want, want, exact, Scale.of(want)) is not None


def by_scale(got: Array, want: Array, scale: Scale) -> Judged:
    """The rule for a reference of which nothing is known: it runs neither in float64 nor rounding otherwise."""
    return worst_of(scale.units(got, want), np.float64(UNJUDGED_EPSILONS), scale, "scale")


def worst_of(units: Array, allowed: Array | np.float64, scale: Scale, by: str) -> Judged:
    """The number with the largest share of what is allowed."""
    if not units.size:
        return Judged(0.0, 0.0, True, by)
    share = units / allowed
    place = np.unravel_index(int(np.argmax(share)), share.shape)
    unit = max(float(np.broadcast_to(scale.each, units.shape)[place]), LEAST_SCALE) * scale.epsilon
    most = float(np.broadcast_to(allowed, units.shape)[place])
    error = float(units[place])
    return Judged(error * unit, most * unit, bool(error <= most), by, int(np.count_nonzero(share > 1)))
