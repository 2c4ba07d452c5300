"""Assumptions that a graph makes: about sizes (``Condition``, ``Guard``, ``Specialization``), of data and of libraries (``Assumption``).

Plain data. ``str()`` of each is a line for people, which nothing reads back; code asks for ``relation``, ``size``, ``value``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from fx2onnx.base.source import SourceLocation
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import SizeSet

MOST_CHARS = 160
"""The longest relation that is shown to people in the place of the sizes at which it holds."""


def _in_short(self: object) -> str:
    return f"<{type(self).__name__} {self}>"


@dataclass(frozen=True, slots=True)
class Guard:
    """A relation of sizes that the example's sizes made true, and that the graph holds for."""

    kind: ClassVar[str] = "guard"

    relation: Relation
    where: SourceLocation | None = None
    by_user: bool = False
    """True if a decision of the user's Python is the reason, and not one of torch."""
    during: str = ""
    """The overload that decided by it."""
    ends_run: bool = False
    """True if eager PyTorch ends the run where the relation is false."""

    @property
    def is_stated(self) -> bool:
        """True if the file states the guard. A Python decision by 0 or 1 is not stated: the example's size stands for all others."""
        return self.ends_run or (self.by_user and not self.relation.compares_with_zero_or_one())

    @property
    def expression(self) -> str:
        return put_shortly(self.relation, 2 * MOST_CHARS)

    def __str__(self) -> str:
        return _line(self.expression, self.where)

    __repr__ = _in_short


@dataclass(frozen=True, slots=True)
class Specialization:
    """A dynamic size that became a number or another size."""

    kind: ClassVar[str] = "specialization"

    size: Dim
    value: DimLike
    where: SourceLocation | None = None
    is_turns: bool = field(default=False, compare=False)
    """True if Python loops as many times as the size says."""
    is_numpys: bool = field(default=False, compare=False)
    """True if NumPy asks for the number."""

    @property
    def relation(self) -> Relation:
        return Relation("eq", (self.size, self.value))

    @property
    def expression(self) -> str:
        return str(self.relation)

    def __str__(self) -> str:
        return _line(self.expression, self.where)

    __repr__ = _in_short


@dataclass(frozen=True, slots=True)
class Condition:
    """The need of a graph for some sizes of one symbol, such as a multiple of 8: solved from a relation that has to hold."""

    kind: ClassVar[str] = "condition"

    name: str
    sizes: SizeSet
    relation: Relation
    """True where ``sizes`` has the size."""
    where: SourceLocation | None = None

    @property
    def expression(self) -> str:
        text = self.sizes.described(self.name)
        stated = str(self.relation)
        return stated if text.endswith(", ...)") and len(stated) <= MOST_CHARS else text

    def __str__(self) -> str:
        return _line(self.expression, self.where)

    __repr__ = _in_short


@dataclass(frozen=True, slots=True)
class Assumption:
    """A statement that eager PyTorch checks and the file does not (``assertion``), or another remark on the file (``note``)."""

    what: str
    where: SourceLocation | None = None
    kind: Literal["assertion", "note"] = "note"

    @property
    def expression(self) -> str:
        return self.what

    def __str__(self) -> str:
        return _line(f"asserted: {self.what}" if self.kind == "assertion" else self.what, self.where)

    __repr__ = _in_short


Assumed: TypeAlias = Condition | Guard | Specialization | Assumption


def is_limit(assumed: Assumed) -> bool:
    """Return whether ``assumed`` may limit the file. By which sizes PyTorch's operators chose between equal ways, the file does not."""
    return not isinstance(assumed, Guard) or assumed.by_user or assumed.ends_run


def described(assumed: Assumed) -> dict[str, Any]:
    """The parts of ``assumed`` as JSON types."""
    where = assumed.where
    return {
        "kind": assumed.kind,
        "is_limit": is_limit(assumed),
        "expression": assumed.expression,
        "where": None if where is None else where.as_dict(),
    }


def put_shortly(asked: Dim | Relation, most: int = MOST_CHARS // 2) -> str:
    """An expression or a comparison of sizes in a sentence; a long one by the sizes in it."""
    text, names = str(asked), ", ".join(sorted(asked.symbols()))
    kind = "a long comparison" if isinstance(asked, Relation) else "a long expression"
    return text if len(text) <= most else f"{kind} of {names}"


def _line(text: str, where: SourceLocation | None) -> str:
    return f"{text}   ({where})" if where else text
