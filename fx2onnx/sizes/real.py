"""Sums, products and quotients of real sizes, rounded as Python rounds them: ``n * 0.57 * 100`` is not ``n * 57.0``.

A polynomial with real coefficients is computed term by term. That is what Python does for one product and for a sum of two
such terms; what goes into further arithmetic is kept as one number. Small binary fractions such as ``0.5*n + 0.25`` are exact
in any order.
"""

from __future__ import annotations

import math

from fx2onnx.sizes.expr import Dim, Scalar, apply, is_real_number, is_small_fraction


def added(one: Scalar, two: Scalar) -> Scalar:
    """``one + two``."""
    if not is_real_number(one) and not is_real_number(two):
        return one + two
    if is_small_fraction(one) and is_small_fraction(two):
        return one + two
    if _is_negative_of(one, two):
        return 0.0
    left, right = _one_term(one), _one_term(two)
    total = left + right
    is_apart = isinstance(total, Dim) and len(total.terms) + (total.constant != 0) == 2
    return total if is_apart or not isinstance(left, Dim) else _kept(left) + right


def multiplied(one: Scalar, two: Scalar) -> Scalar:
    """``one * two``."""
    if not is_real_number(one) and not is_real_number(two):
        return one * two
    if is_small_fraction(one) and is_small_fraction(two):
        return one * two
    if isinstance(one, Dim) and isinstance(two, Dim):
        return _unit(one) * _unit(two)
    value, factor = (one, two) if isinstance(one, Dim) else (two, one)
    assert isinstance(value, Dim)
    assert not isinstance(factor, Dim)
    is_exact = len(value.terms) == 1 and not value.constant and abs(math.frexp(factor)[0]) == 0.5
    return value * factor if is_exact else _unit(value) * factor


def _is_negative_of(one: Scalar, two: Scalar) -> bool:
    return isinstance(one, Dim) and isinstance(two, Dim) and one == -two


def _one_term(value: Scalar) -> Scalar:
    """A product of a number and an atom, or a number."""
    is_sum = isinstance(value, Dim) and len(value.terms) + (value.constant != 0) > 1
    return _kept(value) if is_sum else value


def _unit(value: Dim) -> Scalar:
    """An atom, or less one: a factor of it is the only one."""
    return value if value.only_atom() is not None or (-value).only_atom() is not None else _kept(value)


def _kept(value: Scalar) -> Scalar:
    return value if isinstance(value, Dim) and value.only_atom() is not None else apply("real", value)


def divided_down(top: Scalar, bottom: Scalar) -> Scalar | None:
    """``top // bottom`` of real numbers, which Python finds from the remainder: ``1 // 0.1`` is 9. None of integers."""
    if not is_real_number(top) and not is_real_number(bottom):
        return None
    return apply("floordiv", apply("float", top), apply("float", bottom))


def divided_down_by(bottom: Scalar, top: Scalar) -> Scalar | None:
    """The same for ``__rfloordiv__``."""
    return divided_down(top, bottom)
