"""The table of rules by which operations of sizes are said more simply, each where it is exact at every size.

A rule takes the operands and gives an expression, or None where it does not apply. Rules call ``apply`` for what is left,
which goes through the table again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

from fx2onnx.sizes.bounds import bounds, known_sign
from fx2onnx.sizes.expr import (
    RULES,
    Atom,
    Dim,
    Monomial,
    Number,
    Scalar,
    apply,
    dim_of,
    dyadic,
    is_real_number,
    without_remainders,
)

Reduced: TypeAlias = tuple[Scalar, Scalar, Scalar, Scalar, Scalar]
"""``whole, top, bottom, times, left``: a quotient is ``whole + top // bottom``, its remainder ``times * (top % bottom) + left``."""


def _exact_real(top: Scalar, bottom: Scalar) -> Scalar | None:
    """``(4*s) / 2 -> float(2*s)``."""
    quotient = _exact_quotient(top, bottom)
    return apply("float", quotient) if isinstance(quotient, Dim) else None


def _reduced_quotient(top: Scalar, bottom: Scalar) -> Scalar | None:
    for reduction in _REDUCTIONS:
        found = reduction(top, bottom)
        if found is not None:
            whole, top, bottom, _, _ = found
            return whole + apply("floordiv", top, bottom)
    return None


def _reduced_remainder(top: Scalar, bottom: Scalar) -> Scalar | None:
    for reduction in _REDUCTIONS:
        found = reduction(top, bottom)
        if found is not None:
            _, top, bottom, times, left = found
            return times * apply("mod", top, bottom) + left
    return None


def _no_remainder(top: Scalar, bottom: Scalar) -> Scalar | None:
    """``(4*s) % 2 -> 0``."""
    return 0 if top == 0 or _exact_quotient(top, bottom) is not None else None


def _without_multiples(top: Scalar, bottom: Scalar) -> Reduced | None:
    """Without the terms that a plain number divides: ``(4*n + m + 5) // 4 -> n + 1 + (m + 1) // 4``."""
    if not isinstance(top, Dim) or not isinstance(bottom, int) or bottom <= 0 or is_real_number(top):
        return None
    divided = {monomial: factor for monomial, factor in top.terms.items() if factor % bottom == 0}
    whole = dim_of({m: f // bottom for m, f in divided.items()}, top.constant // bottom)
    rest = dim_of({m: f for m, f in top.terms.items() if m not in divided}, top.constant % bottom)
    return None if whole == 0 else (whole, rest, bottom, 1, 0)


def _without_common_factor(top: Scalar, bottom: Scalar) -> Reduced | None:
    """Without the atoms that stand in every term of both: ``(n*m) // (4*n) -> m // 4`` (unless it is a division by 0)."""
    if not isinstance(top, Dim) or not isinstance(bottom, Dim) or top.constant or bottom.constant:
        return None
    if top.is_real or bottom.is_real:
        return None
    first, *others = (*top.terms, *bottom.terms)
    shared = list(first)
    for monomial in others:
        left = list(monomial)
        kept = []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    common = tuple(shared)
    return (0, _over(top, common), _over(bottom, common), Dim({common: 1}), 0) if common else None


def _over(value: Scalar, common: Monomial) -> Scalar:
    """``value`` without the atoms of ``common``, which all of its terms have."""
    assert isinstance(value, Dim)
    total: Scalar = 0
    for monomial, factor in value.terms.items():
        rest = list(monomial)
        for atom in common:
            rest.remove(atom)
        total = total + (Dim({tuple(rest): factor}) if rest else factor)
    return total


def _without_common_sum(top: Scalar, bottom: Scalar) -> Reduced | None:
    """Without a sum that is in both: ``(m*n - m*k) // (4*n - 4*k) -> m // 4``."""
    if isinstance(top, Dim) and isinstance(bottom, Dim) and len(bottom.terms) + bool(bottom.constant) > 1:
        factors = [factor for _, factor in bottom.all_terms()]
        times = math.gcd(*factors) if all(type(factor) is int for factor in factors) else 1  # type: ignore[arg-type]
        shared = _quotient(bottom, times) if times > 1 else None
        quotient = None if shared is None or top.is_real else _quotient(top, shared)
        if isinstance(shared, Dim) and quotient is not None:
            return 0, quotient, times, shared, 0
    return None


def _without_common_number(top: Scalar, bottom: Scalar) -> Reduced | None:
    """Without what divides the factors of ``top`` and the number ``bottom``: ``(2*n + 5) // 8 -> (n + 2) // 4``."""
    if type(bottom) is not int or bottom < 2 or not isinstance(top, Dim) or type(top.constant) is not int:
        return None
    times = bottom
    for factor in top.terms.values():
        if type(factor) is not int:
            return None
        times = math.gcd(times, factor)
    if times == 1:
        return None
    quotient, left = divmod(top.constant, times)
    less = dim_of({monomial: factor // times for monomial, factor in top.terms.items()}, quotient)
    return 0, less, bottom // times, times, left


_REDUCTIONS: tuple[Callable[[Scalar, Scalar], Reduced | None], ...] = (
    _without_multiples,
    _without_common_factor,
    _without_common_sum,
    _without_common_number,
)


def _without_inner_remainders(top: Scalar, bottom: Scalar) -> Scalar | None:
    """The term that leaves the same remainder: ``(4 - n % 4) % 4 -> -n % 4``."""
    if not isinstance(top, Dim) or type(bottom) is not int or bottom == 0 or top.is_real:
        return None
    inner = [
        (atom, factor)
        for (atom, *others), factor in top.terms.items()
        if not others and atom.op == "mod" and type(atom.args[1]) is int and atom.args[1] % bottom == 0
    ]
    if not inner:
        return None
    value: Scalar = top
    for atom, factor in inner:
        value = value + factor * (atom.args[0] - Dim({(atom,): 1}))  # type: ignore[operator]
    constant = value.constant if isinstance(value, Dim) else value
    return apply("mod", value - constant + constant % bottom, bottom)


def _exact_quotient(top: Scalar, bottom: Scalar) -> Scalar | None:
    """``top / bottom`` where every term divides without remainder, whatever the sizes; else None."""
    if is_real_number(top) or is_real_number(bottom):
        return None
    quotient = _quotient(top, bottom)
    if quotient is None:
        pair = without_remainders(top), without_remainders(bottom)
        quotient = None if pair == (top, bottom) else _quotient(*pair)
    return quotient


def _quotient(top: Scalar, bottom: Scalar) -> Scalar | None:
    """The quotient by a sum, by long division: ``(2*s*s + 4*s + 2) // (2*s + 2) -> s + 1``."""
    if not isinstance(top, Dim) or bottom == 0:
        return None
    if not isinstance(bottom, Dim):
        divides = all(factor % bottom == 0 for _, factor in top.all_terms())
        return dim_of({m: f // bottom for m, f in top.terms.items()}, top.constant // bottom) if divides else None
    lead, lead_factor = max(bottom.terms.items(), key=_rank)
    quotient: Scalar = 0
    rest: Scalar = top
    while isinstance(rest, Dim):
        monomial, factor = max(rest.terms.items(), key=_rank)
        others = list(monomial)
        for atom in lead:
            if atom not in others:
                return None
            others.remove(atom)
        if factor % lead_factor:
            return None
        part: Scalar = Dim({tuple(others): factor // lead_factor}) if others else factor // lead_factor
        quotient, rest = quotient + part, rest - part * bottom
    return quotient if rest == 0 else None


def _rank(term: tuple[Monomial, Number]) -> tuple[int, list[str]]:
    """An order of monomials that products keep, so that each step of a division leaves lower ones."""
    return len(term[0]), [atom.text for atom in term[0]]


def _larger(one: Scalar, other: Scalar) -> Scalar | None:
    """``max(n + 1, n) -> n + 1``."""
    return _one_of(one, other, one - other)


def _smaller(one: Scalar, other: Scalar) -> Scalar | None:
    return _one_of(one, other, other - one)


def _one_of(one: Scalar, other: Scalar, gap: Scalar) -> Scalar | None:
    """``one`` where ``gap`` is never below 0, ``other`` where it is never above; None where that is not found."""
    if not isinstance(gap, Dim):
        return one if gap >= 0 else other
    low, high = bounds(_with_remainders(gap), dict.fromkeys(gap.unbacked_symbols()))
    return one if low is not None and low >= 0 else other if high is not None and high <= 0 else None


def _with_remainders(value: Scalar) -> Scalar:
    """``value`` with ``v - v % k`` for each ``k * (v // k)``: of ``n - 2*(n // 2)`` only ``n % 2`` is left."""
    for _ in range(_MOST_QUOTIENTS):
        terms = value.terms.items() if isinstance(value, Dim) and not value.is_real else ()
        found = next((item for item in terms if _is_quotient_of_number(*item)), None)
        if found is None:
            break
        monomial, factor = found
        top, bottom = monomial[0].args
        value = value - Dim({monomial: factor}) + factor // bottom * (top - apply("mod", top, bottom))  # type: ignore[arg-type, operator]
    return value


_MOST_QUOTIENTS = 8


def _is_quotient_of_number(monomial: Monomial, factor: Number) -> bool:
    """Return whether the term is a whole number of times ``k * (v // k)``, which is ``v`` less a remainder."""
    if len(monomial) != 1 or monomial[0].op != "floordiv" or type(factor) is not int:
        return False
    bottom = monomial[0].args[1]
    return type(bottom) is int and bottom > 0 and factor % bottom == 0


def _without_whole_part(op: str) -> Callable[[Scalar], Scalar | None]:
    """``floor(n + m / 2) -> n + floor(m / 2)``, and ``floor(n / 3 + 1.0) -> floor(n / 3) + 1``."""

    def rule(value: Scalar) -> Scalar | None:
        if not isinstance(value, Dim) or not value.is_real:
            return None
        whole, rest = _whole_part(value) if is_small_fraction(value) else _beside_quotient(value)
        return None if whole == 0 else whole + apply(op, rest)

    return rule


def _whole_part(value: Dim) -> tuple[Scalar, Scalar]:
    """``whole, rest`` with ``value == whole + rest``: the terms that are integers, and the others."""
    whole: dict[Monomial, Number] = {
        monomial: factor
        for monomial, factor in value.terms.items()
        if isinstance(factor, int) and not any(atom.is_real for atom in monomial)
    }
    rest = {monomial: factor for monomial, factor in value.terms.items() if monomial not in whole}
    is_whole = isinstance(value.constant, int)
    return dim_of(whole, value.constant if is_whole else 0), dim_of(rest, 0 if is_whole else value.constant)


def _beside_quotient(value: Dim) -> tuple[Scalar, Scalar]:
    """``whole, rest`` of a quotient of integers and a whole number: it is ``1 / bottom`` apart from an integer, or is one; rounding is less."""
    whole, rest = value.constant, value - value.constant
    bottom = fraction(rest)[1] if isinstance(rest, Dim) and abs(whole) <= MOST_DIVISOR and whole == int(whole) else None
    return (int(whole), rest) if type(bottom) is int and abs(bottom) <= MOST_DIVISOR else (0, value)


def _in_integers(op: str) -> Callable[[Scalar], Scalar | None]:
    """A rounded value without a real number in it: ``trunc(n / 4) -> n // 4``."""
    return lambda value: _rounded(op, value) if isinstance(value, Dim) else None


def _rounded(op: str, value: Dim) -> Scalar | None:
    if not value.is_real:
        return value
    inner = value.only_atom()
    if inner is not None and inner.op == "float":
        return inner.args[0]  # type: ignore[return-value]
    if op == "round":
        return None
    if inner is not None and inner.op == "log2" and not is_real_number(inner.args[0]):
        size: Scalar = inner.args[0]  # type: ignore[assignment]
        return apply("bit_length", size - 1 if op == "ceil" else apply("floordiv", size, 2))
    top, bottom = fraction(value)
    if bottom is None:
        top, bottom = _nearly_fraction(op, value)
    if bottom is None or (op == "trunc" and not (_is_never_negative(top) and _is_never_negative(bottom))):
        return None
    return apply("floordiv", top, bottom) if op != "ceil" else -apply("floordiv", -top, bottom)


def _nearly_fraction(op: str, value: Dim) -> tuple[Scalar, int | None]:
    """``top, bottom`` of a size times the real number nearest to a small fraction, such as ``n * 0.3``, where ``op`` rounds both alike.
    Errors are below ``1 / bottom``, and at whole numbers there are none where the real number is at most a 2**-54th of itself below
    the fraction (above it for ``ceil``). ``n * 0.29`` is less than 29 where ``n`` is 100.
    """
    ((monomial, factor),) = value.terms.items() if len(value.terms) == 1 else (((), math.inf),)
    inner = _dyadic_atom(monomial[0]) if len(monomial) == 1 else None
    if inner is None or value.constant or not 0 < factor < math.inf or not _is_never_negative(inner[0]):
        return value, None
    near = Fraction(factor).limit_denominator(MOST_DENOMINATOR)
    above = Fraction(factor) - near
    is_alike = float(near) == factor and (-above if op == "ceil" else above) * 2**54 >= -near
    return (inner[0] * near.numerator, inner[1] * near.denominator) if is_alike else (value, None)


def _is_never_negative(value: Scalar) -> bool:
    """Return whether the value is surely not below 0; numbers of data may be."""
    unbacked = value.unbacked_symbols() if isinstance(value, Dim) else ()
    return known_sign("ge", value, dict.fromkeys(unbacked)) is True


MOST_DENOMINATOR = 1 << 10
"""The largest denominator of a fraction: sizes times larger numbers might not be exact as real numbers."""


MOST_DIVISOR = 1 << 20
"""The largest number by which a fraction is divided."""


def fraction(value: Dim) -> tuple[Scalar, Scalar | None]:
    """``top, bottom`` of a quotient of integers, or of a polynomial with real coefficients that are exact fractions; None where
    they are not. ``0.5*n + 0.25`` is ``2*n + 1`` divided by 4, at every size and without a rounding error.
    """
    inner = value.only_atom()
    if inner is not None and inner.op == "truediv":
        top, bottom = inner.args
        if not is_real_number(top) and not is_real_number(bottom):
            return top, bottom  # type: ignore[return-value]
        return _real_fraction(value, top, bottom) if isinstance(bottom, int | float) else (value, None)  # type: ignore[arg-type]
    return _polynomial_fraction(value)


def _real_fraction(value: Dim, top: Scalar, divisor: Number) -> tuple[Scalar, int | None]:
    """Divided by a small fraction the quotient is rounded once, which brings it to no whole number that it is not:
    ``float(n + 1) / 0.5`` is ``2*n + 2`` divided by 1.
    """
    if not isinstance(top, Dim) or not divisor or not is_small_fraction(divisor):
        return value, None
    (above, below), (number, bottom) = dyadic(divisor), _polynomial_fraction(top)
    if bottom is None or abs(above) > MOST_DIVISOR:
        return value, None
    number, bottom = number * below, bottom * above
    return (-number, -bottom) if bottom < 0 else (number, bottom)


def is_small_fraction(value: Scalar) -> bool:
    """Return whether the expression is exact in float64 in any order of operations: its coefficients are small binary fractions."""
    if isinstance(value, Dim):
        return _polynomial_fraction(value)[1] is not None
    return isinstance(value, int) or (math.isfinite(value) and dyadic(value)[1] <= MOST_DENOMINATOR)


def _polynomial_fraction(value: Dim) -> tuple[Scalar, int | None]:
    terms: list[tuple[Scalar, int]] = [dyadic(value.constant)]
    for monomial, factor in value.terms.items():
        if isinstance(factor, float) and not math.isfinite(factor):
            return value, None
        above: Scalar
        above, below = dyadic(factor)
        for atom in monomial:
            inner = _dyadic_atom(atom)
            if inner is None:
                return value, None
            above, below = above * inner[0], below * inner[1]
        terms.append((above, below))
    bottom = math.lcm(*(below for _, below in terms))
    if bottom > MOST_DENOMINATOR:
        return value, None
    return sum((above * (bottom // below) for above, below in terms), start=0), bottom


def _dyadic_atom(atom: Atom) -> tuple[Scalar, int] | None:
    """``top, bottom`` of an atom that is an integer, as a real number or not, or one divided by a small power of two."""
    if atom.op == "float":
        return atom.args[0], 1  # type: ignore[return-value]
    if atom.op == "truediv":
        top, bottom = atom.args
        is_power = type(bottom) is int and 0 < bottom <= MOST_DENOMINATOR and bottom & (bottom - 1) == 0
        return (top, bottom) if is_power and not is_real_number(top) else None  # type: ignore[return-value]
    return None if atom.is_real else (Dim({(atom,): 1}), 1)


RULES.update(
    {
        "floordiv": (_exact_quotient, _reduced_quotient),
        "truediv": (_exact_real,),
        "mod": (_reduced_remainder, _without_inner_remainders, _no_remainder),
        "max": (_larger,),
        "min": (_smaller,),
        "floor": (_without_whole_part("floor"), _in_integers("floor")),
        "ceil": (_without_whole_part("ceil"), _in_integers("ceil")),
        "trunc": (_in_integers("trunc"),),
        "round": (_in_integers("round"),),
        "pow": (lambda base, exponent: apply("sqrt", base) if exponent == 0.5 else None,),
        "float": (lambda value: value if is_real_number(value) else None,),
    }
)
