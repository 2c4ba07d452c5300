"""Constants of floats in proofs: products and sums of them, and how many roundings two are apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fx2onnx.proof.nodes import Array

FOLD_ROUNDINGS = 32.0
"""Roundings of a float that folds of a few weights may come to; each is at most half a unit in the last place."""
_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_FEW = 64
_CANCELLED = 1024.0
"""The share of the parts of a sum, or of 1, below which they cancel."""


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A constant of floats: ``held`` times ``factor``. ``size`` has the magnitudes that ``held`` was summed from, of which its rounding is
    a share.
    """

    held: Array
    unit: float
    size: Array | None = None
    """Default: the magnitudes of the floats themselves."""
    factor: float = 1.0
    """Weights that scalars were multiplied with are one array, so that they are compared by their factors."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.shape

    @property
    def ndim(self) -> int:
        return self.held.ndim

    @property
    def count(self) -> int:
        return self.held.size

    @property
    def value(self) -> Array:
        return self.held if self.factor == 1.0 else self.wide

    @property
    def wide(self) -> Array:
        """The floats in float64."""
        found = self.held.astype(np.float64, copy=False)
        return found if self.factor == 1.0 else found * self.factor

    @property
    def magnitude(self) -> Array:
        found = np.abs(self.held).astype(np.float64) if self.size is None else self.size
        return found if self.factor == 1.0 else found * abs(self.factor)

    @property
    def largest(self) -> float:
        """The element of the largest magnitude."""
        low, high = float(self.held.min()), float(self.held.max())
        return (high if high >= -low else low) * self.factor

    @property
    def cancels(self) -> bool:
        """True for a sum that is far smaller than what it was summed from, beside numbers of inputs that are of order 1."""
        return self.size is not None and float(self.magnitude.max(initial=0)) > _CANCELLED * max(1.0, abs(self.largest))

    def part(self, pick: Callable[[Array], Array]) -> Number:
        """Elements of it, or all of them in another shape."""
        return Number(pick(self.held), self.unit, None if self.size is None else pick(self.size), self.factor)

    def has_elements_of(self, other: Number) -> bool:
        """Return whether both hold the same memory in the same order."""
        one, two = (each.held.__array_interface__ for each in (self, other))
        keys = ("data", "shape", "strides", "typestr")
        return self.size is other.size and all(one.get(key) == two.get(key) for key in keys)

    def times(self, other: Number) -> Number:
        """The product of two constants, as they broadcast; an array times a scalar is the same array."""
        unit = max(self.unit, other.unit)
        for number, by in ((self, other), (other, self)):
            if by.count == 1 and by.size is None and number.count > _FEW and by.ndim <= number.ndim:
                return Number(number.held, unit, number.size, number.factor * float(by.wide.reshape(())))
        size = None if self.size is other.size is None else self.magnitude * other.magnitude
        return Number(self.wide * other.wide, unit, size)


def number_of(array: Array | None) -> Number | None:
    """A constant array as a number; None for one that holds no floats."""
    unit = None if array is None else _UNITS.get(str(array.dtype))
    return None if array is None or unit is None else Number(array, unit)


def multiplied(one: Number | None, other: Number | None) -> Number | None:
    """The product of two constants, as they broadcast; None is 1."""
    return one or other if one is None or other is None else one.times(other)


def added(one: Number | None, other: Number | None) -> Number | None:
    """The sum of two constants, as they broadcast; None is 0."""
    if one is None or other is None:
        return one or other
    return Number(one.wide + other.wide, max(one.unit, other.unit), one.magnitude + other.magnitude)


def roundings_apart(one: Number, other: Number) -> float:
    """The largest number of roundings between two constants of one shape. A few elements tell most pairs apart."""
    if one.shape != other.shape:
        return math.inf
    unit = max(one.unit, other.unit)
    if one.count > _FEW:
        if one.has_elements_of(other):
            off, most = abs(one.factor - other.factor), max(abs(one.factor), abs(other.factor)) * unit
            return 0.0 if not off else off / most if most else math.inf
        few = [each.part(lambda array: np.array(array.flat[:_FEW])) for each in (one, other)]
        if roundings_apart(*few) > FOLD_ROUNDINGS:
            return math.inf
    if one.size is other.size is None and one.factor == other.factor and np.array_equal(one.held, other.held):
        return 0.0
    with np.errstate(invalid="ignore"):
        off = np.abs(one.wide - other.wide)
    if not off.any():
        return 0.0
    size = np.maximum(one.magnitude, other.magnitude) * unit
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(off == 0, 0.0, off / size)
    return float(share.max()) if np.isfinite(share).all() else math.inf


def trimmed(number: Number) -> Number:
    """A constant without leading axes of size 1, and one that is the same everywhere as a scalar."""
    if number.count:
        first = number.value.reshape(-1)[0]
        if (number.value == first).all():
            size = None if number.size is None else np.asarray(number.magnitude.max())
            return Number(np.asarray(first), number.unit, size)
    return without_front(number)


def without_front(number: Number) -> Number:
    while number.ndim and number.shape[0] == 1:
        number = number.part(lambda array: array[0])
    return number
