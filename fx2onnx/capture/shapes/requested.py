"""What is asked of the sizes of inputs: which are declared, with what bounds, and which may turn out static."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.sizes.assumptions import Condition
from fx2onnx.sizes.expr import OF_DATA, Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import LARGEST, interval, where_true


class Proposed(str):
    """The name of a size that is dynamic without the user's request: it is where the module allows it, and else static."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Requested:
    """What is asked of the symbols, besides being sizes."""

    optional: set[str] = field(default_factory=set)
    """Those that may turn out static (``"auto"``, ``Dim.AUTO``, ``Proposed``)."""
    ranges: dict[str, Condition] = field(default_factory=dict)
    """Of those that are declared with bounds (``Dim("n", min=6)``)."""

    declared: set[str] = field(default_factory=set)
    """Those that are declared by a ``torch.export.Dim``: two of them are two sizes."""
    spelled: dict[str, str] = field(default_factory=dict)
    """How the user wrote each name; in the file it is an identifier."""
    variables: dict[object, Dim] = field(default_factory=dict)
    """The sizes for the variables of a ``ShapesSpec``, by their symbols."""
    relations: list[Relation] = field(default_factory=list)
    """Relations that the user declares between sizes."""

    def symbol(self, text: object, place: str) -> Dim:
        """The size of that name. Raises UserError E105 for what is no name."""
        if not isinstance(text, str) or not text.strip():
            raise UserError(
                "E105", f"{place} is named {text!r:.80}, which is no name of a size", next='give a text such as "batch"'
            )
        name = re.sub(r"\W", "_", text)
        name = f"d{name}" if name[0].isdigit() else f"{name}_" if OF_DATA.fullmatch(name) else name
        if self.spelled.setdefault(name, str(text)) != text:
            raise UserError(
                "E105",
                f"the sizes {self.spelled[name]!r} and {text!r} have one name in the file, {name}",
                next="give them names that differ in letters, digits or underscores",
            )
        return Dim.symbol(name)

    def declare(self, name: str, low: Any, high: Any) -> None:
        """``low <= name <= high``; an upper bound from ``LARGEST`` on, which few tensors reach, is none.

        Raises:   UserError E105 where not two sizes are left, or the size is declared with other bounds already.
        """
        least, most = (min(int(low), LARGEST) if isinstance(low, int) else 0), (high if isinstance(high, int) else None)
        if most is not None and most >= LARGEST:
            most = None
        declared = None if least <= 0 and most is None else _range(name, least, most)
        if name in self.declared and self.ranges.get(name) != declared:
            both = [each.expression if each is not None else "no bounds" for each in (self.ranges.get(name), declared)]
            raise UserError(
                "E105",
                f"{name} is declared twice",
                why=f"with {both[0]} and with {both[1]}",
                next="use one Dim for both",
            )
        self.declared.add(name)
        if declared is not None:
            self.ranges[name] = declared

    def assume(self, relation: Relation) -> None:
        """``relation`` of sizes, which the file is to be for. Raises UserError E105 where not two sizes are left."""
        names = sorted(relation.symbols())
        sizes = where_true(relation) if len(names) == 1 else None
        if sizes is None:
            self.relations.append(relation)
            return
        (name,) = names
        known = self.ranges.get(name)
        if known is not None:
            sizes, relation = sizes & known.sizes, Relation("and", (known.relation, relation))
        if len(sizes.first(2)) < 2:
            raise UserError("E105", f"the declarations of {name} leave no two sizes", why=f"they are {relation}")
        self.ranges[name] = Condition(name, sizes, relation)


def _range(name: str, least: int, most: int | None) -> Condition:
    """``least <= name <= most``. Raises UserError E105 where not two sizes are left."""
    if most is not None and most <= least:
        left = "no size" if most < least else f"one size, {least}"
        raise UserError(
            "E105",
            f"the bounds of {name} leave {left}",
            why=f"they are {least} and {most}",
            next="leave it out of dynamic_shapes, or widen the bounds",
        )
    symbol = Dim.symbol(name)
    relation = Relation("ge", (symbol, least))
    if most is not None:
        relation = Relation("and", (relation, Relation("le", (symbol, most))))
    return Condition(name, interval(least, most), relation)


def of_size(name: str, declared: Condition) -> Condition:
    """The same range for another size."""
    relation = declared.relation.at({declared.name: Dim.symbol(name)})
    assert isinstance(relation, Relation)
    return Condition(name, declared.sizes, relation)
