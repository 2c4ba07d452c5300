"""The truth of a comparison of sizes that follows from other comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from fx2onnx.sizes.expr import Atom, Dim, Scalar, apply, rewritten
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.solve import NO_EQUALITIES, Equalities

_SIGNS = {"eq": {0}, "ne": {-1, 1}, "lt": {-1}, "le": {-1, 0}, "gt": {1}, "ge": {0, 1}}
_ANY = {-1, 0, 1}


def follows_from(known: Iterable[Relation], relation: Relation) -> bool | None:
    """The truth of a comparison that is known, in this form or another: ``n > 7`` where ``n + 1 == 9`` is, and ``a == c`` where
    ``a == b`` and ``b == c`` are.
    """
    asked, known = _gap_and_signs(relation), tuple(known)
    found = None if asked is None else _by_one(known, *asked)
    equal = tuple(each for each in known if each.op == "eq" and _gap_and_signs(each))
    if asked is None or found is not None or not equal or len(known) < 2:
        return found
    equalities = _equalities(equal)
    gap = _reduced(asked[0], equalities)
    if not isinstance(gap, Dim):
        return ((gap > 0) - (gap < 0)) in asked[1]
    forms = ((each.op, _gap_and_signs(each)) for each in known)
    reduced = (Relation(op, (_reduced(form[0], equalities), 0)) for op, form in forms if form)
    return _by_one(reduced, gap, asked[1])


def _reduced(value: Dim, equalities: Equalities) -> Scalar:
    def rule(atom: Atom) -> Scalar | None:
        args = tuple(arg if isinstance(arg, str) else equalities.reduced(arg) for arg in atom.args)
        return None if args == tuple(atom.args) else apply(atom.op, *args)  # type: ignore[arg-type]

    return equalities.reduced(rewritten(value, rule))


@lru_cache(maxsize=256)
def _equalities(relations: tuple[Relation, ...]) -> Equalities:
    found = NO_EQUALITIES
    for each in relations:
        one, other = each.args
        found = found.adding(one, other, frozenset())
    return found


def _by_one(known: Iterable[Relation], gap: Dim, signs: set[int]) -> bool | None:
    """True if one of the relations says that ``gap`` has one of ``signs``, False if it says that it has none of them."""
    for each in known:
        possible = _signs_given(gap, each)
        if possible <= signs:
            return True
        if not possible & signs:
            return False
    return None


def _gap_and_signs(relation: Relation) -> tuple[Dim, set[int]] | None:
    """The difference of its sides, and which signs that may have."""
    if relation.op not in _SIGNS or any(isinstance(arg, Relation) for arg in relation.args):
        return None
    gap = relation.args[0] - relation.args[1]
    return (gap, _SIGNS[relation.op]) if isinstance(gap, Dim) else None


def _signs_given(gap: Dim, supposed: Relation) -> set[int]:
    """The signs that ``gap`` may have where ``supposed`` holds, whose own difference is the same up to a number."""
    known = _gap_and_signs(supposed)
    if known is None:
        return _ANY
    for turn in (1, -1):
        more = gap - known[0] * turn
        if isinstance(more, Dim):
            continue
        signs = {sign * turn for sign in known[1]}
        if more == 0:
            return signs
        if isinstance(more, int) and not gap.is_real and signs != {-1, 1}:
            return _shifted(signs, more)
    return _ANY


def _shifted(signs: set[int], more: int) -> set[int]:
    """The signs that an integer of one of ``signs`` may have after adding ``more``."""
    low = -math.inf if -1 in signs else min(signs)
    high = math.inf if 1 in signs else max(signs)
    return {
        sign
        for sign, is_met in ((-1, low + more < 0), (0, low + more <= 0 <= high + more), (1, high + more > 0))
        if is_met
    }
