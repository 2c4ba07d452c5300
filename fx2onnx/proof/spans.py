"""Operators on spans: bounds of each element of a value, and of what rounding makes of it, as they follow from those of the operands.

A rule is given what the operator is given, as spans, and returns the spans of its outputs. Numbers are float64, and bounds go outward
by more than what float64 rounds. A bound that is not known is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from fx2onnx.proof.nodes import Array
from fx2onnx.semantics.folding import compute_all

ULPS = 8.0
"""Roundings that a function such as Exp or Erf may be off in a runtime."""
_OUTWARD = 1e-13
"""Share of a bound that float64 may lose in an operator."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Each element of a value over all inputs: between ``low`` and ``high`` in real numbers, and at most ``error`` away in floats."""

    low: Array
    high: Array
    error: Array
    value: Array | None = None
    """The value itself, where it is the same for all inputs and has no rounding."""
    least: Array | None = None
    """A number that no float is below, where more is known than ``low - error``: a square is never negative."""

    @property
    def size(self) -> Array:
        """The largest magnitude in real numbers."""
        return np.asarray(np.maximum(np.abs(self.low), np.abs(self.high)))

    @property
    def reach(self) -> Array:
        """The largest magnitude in floats."""
        return np.asarray(self.size + self.error)

    @property
    def lowest(self) -> Array:
        """A number that no float is below."""
        found = np.where(np.isinf(self.error), -np.inf, self.low - self.error)
        return np.asarray(found if self.least is None else np.maximum(found, self.least))

    def reshape(self, *shape: Any) -> Interval:
        """The span with its elements in another shape."""
        value = None if self.value is None else self.value.reshape(*shape)
        least = None if self.least is None else self.least.reshape(*shape)
        low, high, error = (each.reshape(*shape) for each in (self.low, self.high, self.error))
        return Interval(low, high, error, value, least)

    def above(self, *parts: Array, share: float = 0.0) -> Interval:
        """The span where all of ``parts`` are at least 0, which sums and products of positive numbers keep: the first is the least."""
        if any((part < 0).any() for part in parts):
            return self
        return Interval(
            self.low, self.high, self.error, self.value, np.broadcast_to(parts[0] * (1 - share), self.low.shape)
        )

    @classmethod
    def of(cls, array: Array) -> Interval:
        """A constant."""
        wide = np.asarray(array).astype(np.float64)
        return cls(wide, wide, np.zeros_like(wide), array)

    @classmethod
    def between(cls, low: Any, high: Any, error: Any = 0.0) -> Interval:
        """Bounds that one rounding was made of, which go outward; where one is no number, nothing is known."""
        low, high, error = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (low, high, error)))
        lost = np.isnan(low) | np.isnan(high) | np.isnan(error)
        return cls(
            np.where(lost, -np.inf, np.where(np.isinf(low), low, low - _OUTWARD * np.abs(low))),
            np.where(lost, np.inf, np.where(np.isinf(high), high, high + _OUTWARD * np.abs(high))),
            np.where(lost, np.inf, error),
        )


@dataclass(slots=True)
class SpanCall:
    """One operator with the spans of its operands."""

    op_type: str
    opset: int
    attrs: Mapping[str, Any]
    args: Sequence[Interval | None]
    outputs: int
    dtype: np.dtype[Any]
    """The dtype of the first output."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """The faults that some input may cause: a kind and a sentence each."""
    shape: tuple[int, ...] = ()
    """The shape of the first output."""
    operand: np.dtype[Any] | None = None
    """The dtype of the first operand."""

    @property
    def unit(self) -> float:
        """The share of a number that a rounding is at most; 0 where the dtype is no float."""
        return unit_of(self.dtype)

    def span(self, index: int) -> Interval:
        """An operand that is given. Raises LookupError."""
        found = self.args[index]
        if found is None:
            raise LookupError(index)
        return found

    def constant(self, index: int) -> Array:
        """An operand that is the same for all inputs. Raises LookupError."""
        found = self.span(index).value
        if found is None:
            raise LookupError(index)
        return found

    def has(self, index: int) -> bool:
        return index < len(self.args) and self.args[index] is not None

    def run(self, *arrays: Array | None, op_type: str = "", outputs: int = 1, **attrs: Any) -> list[Array]:
        """The outputs of the operator's kernel. Raises LookupError where there is none."""
        op_type, given = op_type or self.op_type, {**self.attrs, **attrs}
        found = compute_all(op_type, self.opset, arrays, given, outputs)
        if found is None:
            raise LookupError(op_type)
        return found

    def rounded(self, size: Any, count: float = 1.0) -> Any:
        """The largest error of ``count`` roundings of a number of that size."""
        if not self.unit:
            return np.zeros_like(size)
        return sum_share(count, self.unit) * size + count * float(ml_dtypes.finfo(self.dtype).smallest_normal)


class Unbounded(LookupError):
    """The reason why an operator that has a rule has no bound here."""


Rule: TypeAlias = Callable[[SpanCall], "Interval | list[Interval]"]
RULES: dict[str, Rule] = {}


def unit_of(dtype: np.dtype[Any]) -> float:
    """Half the distance of 1 to the next number; 0 where the dtype is no float."""
    try:
        return float(ml_dtypes.finfo(dtype).eps) / 2
    except ValueError:
        return 0.0


def limits_of(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The smallest and the largest number of a dtype."""
    if dtype == np.bool_:
        return 0.0, 1.0
    limits: Callable[[Any], Any] = ml_dtypes.finfo if unit_of(dtype) else ml_dtypes.iinfo
    return float(limits(dtype).min), float(limits(dtype).max)


def sum_share(count: float, unit: float) -> float:
    """The share of the sum of magnitudes that ``count`` roundings are at most, in any order."""
    return count * unit / (1 - count * unit) if count * unit < 1 else math.inf


def rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return register


@rule("Where")
def _where(call: SpanCall) -> Interval:
    condition, one, other = call.span(0), call.span(1), call.span(2)
    may, may_not = condition.high > 0, condition.low < 1
    low = np.minimum(np.where(may, one.low, np.inf), np.where(may_not, other.low, np.inf))
    high = np.maximum(np.where(may, one.high, -np.inf), np.where(may_not, other.high, -np.inf))
    error = np.maximum(np.where(may, one.error, 0), np.where(may_not, other.error, 0))
    flipped = np.maximum(np.abs(one.high - other.low), np.abs(other.high - one.low)) + np.maximum(
        one.error, other.error
    )
    flipped = np.where(np.isnan(flipped), np.inf, flipped)
    return Interval(low, high, np.where(condition.error > 0, flipped, error))


@rule("Add", "Sub", "Sum")
def _add(call: SpanCall) -> Interval:
    found = call.span(0)
    for index in range(1, len(call.args)):
        other = call.span(index)
        low, high = (-other.high, -other.low) if call.op_type == "Sub" else (other.low, other.high)
        error = found.error + other.error
        made = Interval.between(found.low + low, found.high + high, error)
        is_exact = np.isinf(made.low) & (made.low == made.high)  # a mask of minus infinity
        made = Interval(made.low, made.high, np.where(is_exact, 0.0, error + call.rounded(made.size + error)))
        lows = (found.lowest, other.lowest)
        found = made if call.op_type == "Sub" else made.above(lows[0] + lows[1], *lows, share=2 * call.unit)
    return found


def product_of(call: SpanCall, one: Interval, other: Interval, *, is_square: bool = False) -> Interval:
    """``one * other``, rounded once."""
    corners = [
        np.nan_to_num(a * b, nan=0.0, posinf=np.inf, neginf=-np.inf)
        for a in (one.low, one.high)
        for b in (other.low, other.high)
    ]
    parts = [one.size * other.error, other.size * one.error, one.error * other.error]
    low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
    if is_square:
        low = np.where((one.low < 0) & (one.high > 0), 0.0, np.maximum(low, 0))
    made = Interval.between(low, high, sum(np.where(np.isnan(part), 0.0, part) for part in parts))
    made = Interval(made.low, made.high, made.error + call.rounded(made.size + made.error))
    lows = (one.lowest, other.lowest)
    return made.above(np.zeros(())) if is_square else made.above(lows[0] * lows[1], *lows, share=2 * call.unit)


@rule("Mul")
def _mul(call: SpanCall) -> Interval:
    return product_of(call, call.span(0), call.span(1), is_square=call.args[0] is call.args[1])


@rule("Reciprocal")
def _reciprocal(call: SpanCall) -> Interval:
    return inverse_of(call, call.span(0))


def reaches_zero(x: Interval) -> Array:
    """True for each element that may be 0, in real numbers or in floats."""
    return np.asarray((np.minimum(x.lowest, x.low) <= 0) & (x.high + x.error >= 0))


def inverse_of(call: SpanCall, x: Interval) -> Interval:
    """``1 / x``, of which nothing is known where the divisor may be 0."""
    is_open = reaches_zero(x)
    nearest = np.minimum(np.abs(x.low), np.abs(x.high))
    floats = np.where(x.low > 0, x.lowest, nearest - x.error)
    low, high = np.where(is_open, -np.inf, 1 / x.high), np.where(is_open, np.inf, 1 / x.low)
    most = np.maximum(1 / nearest, 1 / floats)  # both have one sign
    error = np.where(x.error == 0, 0.0, np.minimum(x.error / (nearest * floats), most))
    made = Interval.between(low, high, np.where(is_open, np.inf, error))
    made = Interval(made.low, made.high, made.error + call.rounded(made.size + made.error))
    return made.above(np.zeros(()), x.lowest)


def _slope_log(low: Array, high: Array) -> Array:
    return np.where(low > 0, 1 / np.where(low > 0, low, 1), np.inf)


_RISING: dict[str, Callable[[Array, Array], Any]] = {
    **dict.fromkeys(("Relu", "Tanh", "Softplus", "Elu", "Atan"), lambda low, high: 1.0),
    **dict.fromkeys(("LeakyRelu", "Softsign", "Asinh"), lambda low, high: 1.0),
    "Sigmoid": lambda low, high: 0.25,
    "HardSigmoid": lambda low, high: 1.0,
    "Erf": lambda low, high: 1.1284,
    "Exp": lambda low, high: np.exp(np.minimum(high, 800)),
    "Log": _slope_log,
    "Sinh": lambda low, high: np.cosh(np.minimum(np.maximum(np.abs(low), np.abs(high)), 700)),
}
"""Functions that never fall, and the largest slope between two places."""


def _rising(call: SpanCall) -> Interval:
    x = call.span(0)
    if call.op_type in ("LeakyRelu", "Elu", "HardSigmoid") and not 0 <= float(call.attrs.get("alpha", 0)) <= 1:
        raise LookupError(call.op_type)
    low, high = call.run(x.low)[0], call.run(x.high)[0]
    low, high = np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
    slope = _RISING[call.op_type](np.minimum(x.lowest, x.low), x.high + x.error)
    error = np.where(x.error == 0, 0.0, x.error * slope)
    made = Interval.between(low, high, error)
    count = 0.0 if call.op_type == "Relu" else ULPS
    size = made.size + abs(float(call.attrs.get("alpha", 1.0))) * (call.op_type in _CANCELS)
    made = Interval(made.low, made.high, made.error + call.rounded(size, count) if count else made.error)
    return made.above(np.zeros(())) if call.op_type in _POSITIVE else made


_CANCELS = frozenset(["Elu", "Softplus", "Asinh", "Sinh"])
"""Functions near 0 as differences of numbers near 1, whose rounding stays."""
_POSITIVE = frozenset(["Exp", "Sigmoid", "Softplus", "Relu", "HardSigmoid"])
"""Functions whose floats are never negative, whatever rounding does."""
RULES.update(dict.fromkeys(_RISING, _rising))


@rule("Sqrt")
def _sqrt(call: SpanCall) -> Interval:
    return root_of(call, call.span(0))


def root_of(call: SpanCall, x: Interval) -> Interval:
    """``sqrt(x)``, whose slope is infinite at 0: the error is at most its own root."""
    low, high, lowest = (np.sqrt(np.maximum(each, 0)) for each in (x.low, x.high, x.lowest))
    made = Interval.between(low, high, np.minimum(np.sqrt(x.error), x.error / np.maximum(low + lowest, 1e-300)))
    made = Interval(made.low, made.high, made.error + call.rounded(made.size + made.error, 2))
    return made.above(lowest, share=4 * call.unit)


_DIPS: dict[str, tuple[float, float, float]] = {
    "Gelu": (-0.7525, -0.1701, 1.13),
    "HardSwish": (-1.5, -0.375001, 1.5),
    "Swish": (-1.27847, -0.278465, 1.1),
    "Mish": (-1.19241, -0.308841, 1.09),
}
"""Functions that fall up to a place, then rise: the place, a number below the least value, and the largest slope."""


def _dip(call: SpanCall) -> Interval:
    x = call.span(0)
    place, least, slope = _DIPS[call.op_type]
    if float(call.attrs.get("alpha", 1.0)) != 1.0:
        raise LookupError(call.op_type)
    ends = [call.run(each)[0] for each in (x.low, x.high)]
    low = np.where((x.low < place + 0.01) & (x.high > place - 0.01), least, np.minimum(*ends))
    made = Interval.between(low, np.maximum(*ends), x.error * slope)
    return Interval(made.low, made.high, made.error + call.rounded(x.reach, ULPS))


RULES.update(dict.fromkeys(_DIPS, _dip))


@rule("Sin", "Cos")
def _wave(call: SpanCall) -> Interval:
    x = call.span(0)
    middle, radius = (x.low + x.high) / 2, (x.high - x.low) / 2
    found = call.run(np.where(np.isfinite(middle), middle, 0.0))[0]
    low, high = np.maximum(found - radius, -1), np.minimum(found + radius, 1)
    return Interval.between(low, high, np.minimum(x.error + call.rounded(np.ones_like(low), ULPS), 2.0))


@rule("Selu", "Celu")
def _elu_of_scale(call: SpanCall) -> Interval:
    x, alpha, gamma = call.span(0), float(call.attrs["alpha"]), float(call.attrs.get("gamma", 1.0))
    inner = alpha if call.op_type == "Celu" else 1.0
    if alpha < 0 or gamma < 0 or not inner:
        raise Unbounded("a function that falls")
    low, high = (
        gamma * np.where(each > 0, each, alpha * np.expm1(np.minimum(each, 0) / inner)) for each in (x.low, x.high)
    )
    made = Interval.between(low, high, x.error * gamma * max(alpha / inner, 1.0))
    return Interval(made.low, made.high, made.error + call.rounded(made.size + gamma * alpha, ULPS))


@rule("PRelu")
def _prelu(call: SpanCall) -> Interval:
    """``x``, and its product with a slope below 0."""
    x, slope = call.span(0), call.span(1)
    below = Interval(np.minimum(x.low, 0), np.minimum(x.high, 0), x.error)
    part = product_of(call, below, slope)
    low = np.where(x.low >= 0, x.low, np.minimum(part.low, np.maximum(x.low, 0)))
    high = np.where(x.high <= 0, part.high, np.maximum(part.high, x.high))
    return Interval.between(low, high, x.error + part.error)


@rule("Cosh")
def _cosh(call: SpanCall) -> Interval:
    x = call.span(0)
    low = np.where((x.low < 0) & (x.high > 0), 0.0, np.minimum(np.abs(x.low), np.abs(x.high)))
    made = Interval.between(np.cosh(low), np.cosh(x.size), x.error * np.sinh(np.minimum(x.reach, 700)))
    return Interval(made.low, made.high, made.error + call.rounded(made.size, ULPS))


@rule("Tan")
def _tan(call: SpanCall) -> Interval:
    """Bounded where no pole is between the ends."""
    x = call.span(0)
    ends = x.low - x.error - 1e-9, x.high + x.error + 1e-9
    branch = [np.floor(each / math.pi + 0.5) for each in ends]
    is_open = ~((branch[0] == branch[1]) & (x.reach < 1e6))
    slopes = [1 + np.tan(np.where(is_open, 0.0, each)) ** 2 for each in ends]
    low, high = (np.tan(np.where(is_open, 0.0, each)) for each in (x.low, x.high))
    slope = np.maximum(*slopes)
    error = x.error * slope + call.rounded(np.maximum(np.abs(low), np.abs(high)) + slope, ULPS)
    return Interval.between(
        *(np.where(is_open, end, each) for end, each in ((-np.inf, low), (np.inf, high), (np.inf, error)))
    )


@rule("Acos", "Asin", "Acosh", "Atanh")
def _inverse(call: SpanCall) -> Interval:
    """At an end of the domain numbers that are off by e move the result by up to ``2.23 * sqrt(e)``, that of Atanh without bounds."""
    x = call.span(0)
    least, most = (1.0, np.inf) if call.op_type == "Acosh" else (-1.0, 1.0)
    ends = [call.run(np.clip(each, least, most))[0] for each in (x.low, x.high)]
    error = np.where(x.error == 0, 0.0, 2.23 * np.sqrt(x.error) + x.error)
    if call.op_type == "Atanh":
        far = np.minimum(x.reach, 1.0)
        error = np.where(x.error == 0, 0.0, x.error / np.maximum(1 - far * far, 0))
    made = Interval.between(np.minimum(*ends), np.maximum(*ends), error)
    return Interval(made.low, made.high, made.error + call.rounded(made.size + 1, ULPS))
