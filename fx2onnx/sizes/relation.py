"""Comparisons of symbolic sizes, and what is made of them by ``and``, ``or`` and ``not``."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fx2onnx.sizes.expr import MOST_REMEMBERED, Dim

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of sizes whose truth depends on them; ``and``, ``or`` and ``not`` hold relations and bools."""

    op: str
    args: tuple[Any, ...]

    is_number = False
    is_Boolean = False

    def symbols(self) -> frozenset[str]:
        """The names of the sizes in it."""
        return frozenset().union(*(arg.symbols() for arg in self.args if isinstance(arg, Dim | Relation)))

    def has_reals(self) -> bool:
        """Return whether a real number is compared, here or inside."""
        return any(
            isinstance(arg, float)
            or (isinstance(arg, Dim) and arg.is_real)
            or (isinstance(arg, Relation) and arg.has_reals())
            for arg in self.args
        )

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """The truth where every symbol has the given size. Raises KeyError for an unbound symbol, ZeroDivisionError."""
        if self.op in COMPARE:
            one, other = self.args
            return COMPARE[self.op](_value(one, sizes), _value(other, sizes))
        parts = (_value(arg, sizes) for arg in self.args)
        return not next(parts) if self.op == "not" else all(parts) if self.op == "and" else any(parts)

    def is_true_at(self, sizes: Mapping[str, int]) -> bool:
        """As ``holds``; false where there are no such sizes, as something is divided by 0."""
        try:
            return self.holds(sizes)
        except ZeroDivisionError:
            return False

    def at(self, sizes: Mapping[str, Any]) -> Relation | bool:
        """The rest of the relation where some symbols have these sizes. Raises ZeroDivisionError."""
        parts = tuple(
            arg.at(sizes) if isinstance(arg, Relation) else arg.substitute(sizes) if isinstance(arg, Dim) else arg
            for arg in self.args
        )
        if not any(isinstance(part, Dim | Relation) for part in parts):
            return Relation(self.op, parts).holds({})
        if self.op == "not" or self.op in COMPARE:
            return Relation(self.op, parts)
        decided = self.op == "or"
        if any(part is decided for part in parts):
            return decided
        left = tuple(part for part in parts if isinstance(part, Relation))
        return left[0] if len(left) == 1 else Relation(self.op, left)

    def is_about_zero_or_one(self) -> bool:
        """Return whether the relation compares a sum of sizes with 0 or 1, also where they are computed: ``(H // 4) * (W // 4) > 1``."""
        return self._gap() is not None

    def is_bound(self) -> bool:
        """Return whether the relation bounds sizes, alone or with other bounds."""
        if self.op == "and":
            return all(isinstance(arg, Relation) and arg.is_bound() for arg in self.args)
        return self.op in COMPARE.keys() - {"eq"} and not any(isinstance(arg, Relation) for arg in self.args)

    def compares_with_zero_or_one(self) -> bool:
        """Return whether the relation compares a size with 0 or 1. At capture, the example's size stands for these."""
        gap = self._gap()
        return gap is not None and not any(atom.depth for atom in gap.atoms())

    def tells_several(self) -> bool:
        """Return whether the relation says that there are some of something, or more than one: ``(H // 4) * (W // 4) > 1``."""
        gap = self._gap()
        if gap is None or gap.constant == 0:
            return gap is not None and self.op in ("ne", "gt", "lt")
        turned = gap != self.args[0] - self.args[1]
        return self.op == "ne" or self.op == ("lt" if turned else "gt")

    def sizes_beside_none(self) -> frozenset[str]:
        """The sizes, of whose product the relation says that there is some, so that it is false where one of them is 0 and true where
        all are 1; none for other relations.
        """
        gap = self._gap()
        if gap is None or len(gap.terms) != 1 or any(atom.depth for atom in gap.atoms()):
            return frozenset()
        compared, names = Relation(self.op, (self.args[0] - self.args[1], 0)), gap.symbols()
        is_some = not compared.is_true_at(dict.fromkeys(names, 0)) and compared.is_true_at(dict.fromkeys(names, 1))
        return names if is_some else frozenset()

    def _gap(self) -> Dim | None:
        """The sum of sizes that is compared with 0, or 1 more than it; None for other comparisons."""
        if self.op not in COMPARE or any(isinstance(arg, Relation) for arg in self.args):
            return None
        gap = self.args[0] - self.args[1]
        if not isinstance(gap, Dim):
            return None
        gap = -gap if all(factor < 0 for factor in gap.terms.values()) else gap
        is_sum = all(factor > 0 for factor in gap.terms.values())
        return gap if is_sum and gap.constant in (0, -1) else None

    def negated(self) -> Relation:
        """The relation that is true where this is false."""
        if self.op == "not" and isinstance(self.args[0], Relation):
            return self.args[0]
        return Relation(NEGATED[self.op], self.args) if self.op in NEGATED else Relation("not", (self,))

    def __str__(self) -> str:
        if self.op in _SIGNS:
            left, right = (f"({arg})" if isinstance(arg, Relation) else str(arg) for arg in self.args)
            return f"{left} {_SIGNS[self.op]} {right}"
        if self.op == "not":
            return f"not ({self.args[0]})"
        return f" {self.op} ".join(f"({arg})" for arg in self.args)


@functools.lru_cache(MOST_REMEMBERED)
def holds_at_all(relation: Relation, names: tuple[str, ...], tried: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether the relation holds at all of these sizes; where something is divided by 0, there is no such size."""
    for sizes in tried:
        with contextlib.suppress(ZeroDivisionError):
            if not relation.holds(dict(zip(names, sizes, strict=True))):
                return False
    return True


def _value(arg: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(arg, Relation):
        return arg.holds(sizes)
    return arg.evaluate(sizes) if isinstance(arg, Dim) else arg
