"""What a graph takes for true: of sizes (``Guard``, ``Specialization``), of data and of libraries (``Assumption``).

Plain data. ``str()`` of each is a line for people, which nothing reads back; code asks for ``relation``, ``size``, ``value``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.base.source import SourceLocation

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
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

    def negated(self) -> Relation:
        """What is true where this is false."""
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


@dataclass(frozen=True, slots=True)
class Guard:
    """A relation of sizes that the sample's sizes made true, and that the graph holds for."""

    kind: ClassVar[str] = "guard"

    relation: Relation
    where: SourceLocation | None = None
    by_user: bool = False
    """Whether a decision of the user's Python is why, and not one of torch."""
    during: str = ""
    """The overload that decided by it."""

    @property
    def expression(self) -> str:
        return str(self.relation)

    def __str__(self) -> str:
        return _line(self.expression, self.where)


@dataclass(frozen=True, slots=True)
class Specialization:
    """A dynamic size that became a number or another size."""

    kind: ClassVar[str] = "specialization"

    size: Dim
    value: DimLike
    where: SourceLocation | None = None

    @property
    def relation(self) -> Relation:
        return Relation("eq", (self.size, self.value))

    @property
    def expression(self) -> str:
        return str(self.relation)

    def __str__(self) -> str:
        return _line(self.expression, self.where)


@dataclass(frozen=True, slots=True)
class Assumption:
    """What eager PyTorch checks and the file does not (``assertion``), or what else there is to know of it (``note``)."""

    what: str
    where: SourceLocation | None = None
    kind: Literal["assertion", "note"] = "note"

    @property
    def expression(self) -> str:
        return self.what

    def __str__(self) -> str:
        return _line(f"asserted: {self.what}" if self.kind == "assertion" else self.what, self.where)


Assumed: TypeAlias = Guard | Specialization | Assumption


def described(assumed: Assumed) -> dict[str, Any]:
    """The parts of ``assumed`` as JSON types."""
    where = assumed.where
    return {
        "kind": assumed.kind,
        "expression": assumed.expression,
        "where": None if where is None else where.as_dict(),
    }


def _line(text: str, where: SourceLocation | None) -> str:
    return f"{text}   ({where})" if where else text
