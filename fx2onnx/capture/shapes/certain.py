"""What is certain of a comparison of sizes whatever the sizes are: every symbol is >= 0."""

from __future__ import annotations

from typing import Any

from fx2onnx.base.dims import Dim, Scalar, without_remainders
from fx2onnx.base.relations import COMPARE


def certain(op: str, lhs: Any, rhs: Any) -> bool | None:
    """The truth of a comparison whatever the sizes are (all symbols >= 0), or None."""
    gap = lhs - rhs
    known = known_sign(op, gap)
    if known is not None or not isinstance(gap, Dim):
        return known
    whole = without_remainders(gap)
    return None if whole is gap else known_sign(op, whole)


def known_sign(op: str, gap: Any) -> bool | None:
    """The truth of ``gap`` compared with 0."""
    if not isinstance(gap, Dim):
        return COMPARE[op](gap, 0)
    low, high = _bounds(gap)
    if low is not None and low > 0:
        return op in ("ne", "gt", "ge")
    if high is not None and high < 0:
        return op in ("ne", "lt", "le")
    if low == 0 and op in ("ge", "lt"):
        return op == "ge"
    if high == 0 and op in ("le", "gt"):
        return op == "le"
    return None


def _bounds(dim: Dim) -> tuple[float | None, float | None]:
    """Lower and upper bound where every symbol is >= 0 and atoms of unknown sign say nothing."""
    low: float | None = dim.constant
    high: float | None = dim.constant
    for monomial, factor in dim.terms.items():
        if not all(_nonnegative(atom) for atom in monomial):
            return None, None
        if factor > 0:
            high = None
        else:
            low = None
    return low, high


DEEPEST = 50
"""Operations inside each other, of whose sign nothing is said: that needs a look at all of them."""


def _nonnegative(atom: Any) -> bool:
    if atom.op == "symbol":
        return True
    if atom.depth > DEEPEST:
        return False
    if atom.op in _NEVER_NEGATIVE:
        return True
    if atom.op == "max":
        return any(map(_is_nonnegative, atom.args))
    if atom.op == "mod" and type(atom.args[1]) is int:
        return atom.args[1] > 0
    return atom.op in _KEEPS_SIGN and all(map(_is_nonnegative, atom.args))


_NEVER_NEGATIVE = frozenset({"abs", "bit_length", "exp", "sqrt"})
_KEEPS_SIGN = frozenset({"floordiv", "truediv", "mod", "min", "float", "floor", "ceil", "trunc", "round", "pow"})
"""Functions whose value is >= 0 where their arguments are."""


def _is_nonnegative(arg: Scalar) -> bool:
    low = _bounds(arg)[0] if isinstance(arg, Dim) else arg
    return low is not None and low >= 0
