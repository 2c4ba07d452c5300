"""Requests about the sizes of inputs: which are declared, with what bounds, which may turn out static, in every spelling of an axis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Leaf
from fx2onnx.sizes.assumptions import Condition
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import LARGEST, interval, where_true
from fx2onnx.sizes.text import UNBACKED, root_of
from fx2onnx.torchcompat.shape_specs import Expr, Members, Spec, expression


@dataclass(frozen=True, slots=True)
class Proposed:
    """A size that is dynamic without the user's request: it is where the module allows it, and else static."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Requested:
    """Requests about symbols, besides being sizes."""

    optional: set[str] = field(default_factory=set)
    """Symbols that may turn out static (``"auto"``, ``Dim.AUTO``, ``Proposed``)."""
    ranges: dict[str, Condition] = field(default_factory=dict)
    """The ranges of symbols that are declared with bounds (``Dim("n", min=6)``)."""

    declared: set[str] = field(default_factory=set)
    """Symbols that are declared by a ``torch.export.Dim``: two of them are two sizes."""
    spelled: dict[str, str] = field(default_factory=dict)
    """The user's spelling of each name; in the file it is an identifier."""
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
        name = f"d{name}" if name[0].isdigit() else f"{name}_" if UNBACKED.fullmatch(name) else name
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
    """The declared range for the size of another name."""
    relation = declared.relation.at({declared.name: Dim.symbol(name)})
    assert isinstance(relation, Relation)
    return Condition(name, declared.sizes, relation)


def assign_tensor(leaf: Leaf, spec: object, path: str, asked: Requested) -> None:
    if isinstance(spec, Mapping) and not isinstance(spec, Members):
        pairs = list(spec.items())
    elif isinstance(spec, tuple | list):
        if len(spec) != leaf.tensor.dim():
            raise UserError(
                "E105",
                f"dynamic_shapes for {path} has {len(spec)} entries, the example input is {list(leaf.tensor.shape)}",
                next="give one entry an axis, None where static, or a dict {axis: name}",
            )
        pairs = list(enumerate(spec))
    else:
        raise UserError(
            "E105",
            f"dynamic_shapes for {path} is neither a dict nor a tuple",
            why=f"it is {spec!r:.80}",
            next='write {axis: name}, such as {0: "batch"}',
        )
    named = [(axis_of(leaf, axis), size) for axis, size in pairs]
    refuse_twice(leaf, [axis for axis, _ in named])
    for axis, size in named:
        dim = _as_dim(leaf, axis, size, asked)
        if dim is not None:
            leaf.axes[axis] = dim


def is_multiple(text: object) -> bool:
    """Return whether a text says a multiple of a size, as ``2*h`` does. Sums of names are names in many scripts."""
    root = root_of(text) if isinstance(text, str) else None
    return root is not None and root.factor > 1


def named_size(text: str, asked: Requested, place: str) -> Dim:
    """The size of a name, or a multiple of one."""
    root = root_of(text) if is_multiple(text) else None
    size = asked.symbol(text, place) if root is None else root.factor * asked.symbol(root.name, place) + root.constant
    assert isinstance(size, Dim)
    return size


def _as_dim(leaf: Leaf, axis: int, size: Spec, asked: Requested) -> DimLike | None:
    """A ``Dim`` for a name, a torch.export.Dim (also derived, as ``2 * s``), AUTO or DYNAMIC; None for static."""
    place = f"axis {axis} of {leaf.path}"
    if size is None or (isinstance(size, int) and not isinstance(size, bool)):
        sample = leaf.tensor.shape[axis]
        if size is not None and size != sample:
            raise UserError(
                "E105",
                f"dynamic_shapes says {size} for {place}, the example input has {sample}",
                next="give the name of a size, None for a static one, or an example input of that size",
            )
        return None
    if isinstance(size, Dim):
        return size
    if isinstance(size, torch.SymInt):
        return _of_variables(leaf, axis, size, asked)
    if isinstance(size, Proposed) and not is_multiple(size.name):
        symbol = asked.symbol(size.name, place)
        asked.optional.add(str(symbol))
        return symbol
    if isinstance(size, str | Proposed):
        return named_size(size if isinstance(size, str) else size.name, asked, place)
    hint = getattr(size, "type", None)
    if hint is not None and hasattr(hint, "name"):
        return _hinted(leaf, axis, size, asked)
    root = getattr(size, "root", None)
    if root is not None and callable(getattr(size, "fn", None)):
        derived: DimLike = size.fn(declared_size(root, asked, place))
        return derived
    if is_dim(size):
        return declared_size(size, asked, place)
    raise UserError(
        "E105",
        f"{size!r:.80} is no dynamic size",
        why=f"it is given for {place}",
        next="use a name, torch.export.Dim, or None",
    )


def _of_variables(leaf: Leaf, axis: int, size: torch.SymInt, asked: Requested) -> DimLike:
    """The size for a ``ShapeVar``, or for arithmetic of some: each is a size of its own, whatever it is called."""
    place = f"axis {axis} of {leaf.path}"

    def named(symbol: Expr) -> Dim:
        if symbol not in asked.variables:
            name, _, number = str(symbol).partition("#")
            taken = {str(dim) for dim in asked.variables.values()}
            dim = fresh_size(leaf, axis, set()) if name == "anon" else asked.symbol(name, place)
            if str(dim) in taken:
                dim = asked.symbol(f"{dim}_{number}", place)
            bounds = size.node.shape_env.var_to_range[symbol]
            asked.variables[symbol] = dim
            asked.declare(str(dim), *(int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper)))
        return asked.variables[symbol]

    try:
        found: DimLike = expression(size, named)
    except (ValueError, AttributeError, KeyError) as cause:
        raise UserError(
            "E105",
            f"{size} is no dynamic size",
            why=f"it is given for {place}",
            next="use a ShapeVar, or sums, products and quotients of some",
        ) from cause
    if isinstance(found, int) and found != leaf.tensor.shape[axis]:
        raise UserError(
            "E105",
            f"dynamic_shapes says {found} for {place}, the example input has {leaf.tensor.shape[axis]}",
            next="give an example input of that size, or a name in the place of the number",
        )
    return found


def _hinted(leaf: Leaf, axis: int, size: Spec, asked: Requested) -> Dim | None:
    """The size for ``Dim.AUTO``, ``DYNAMIC`` or ``STATIC``, which may have bounds."""
    low, high = getattr(size, "min", None), getattr(size, "max", None)
    is_auto = size.type.name == "AUTO"
    if size.type.name == "STATIC" or (is_auto and low is not None and low == high):
        return None
    dim = fresh_size(leaf, axis, asked.optional)
    asked.declare(str(dim), low, high)
    asked.declared.discard(str(dim))  # it may turn out to be another one
    if not is_auto:
        asked.optional.discard(str(dim))
    return dim


def is_dim(size: Spec) -> bool:
    """Return whether the size is a ``torch.export.Dim`` of its own, not a derived one, which has a root."""
    return isinstance(getattr(size, "__name__", None), str) and isinstance(getattr(size, "min", None), int)


def declared_size(size: Spec, asked: Requested, place: str) -> Dim:
    """A ``torch.export.Dim``, with the bounds that it has."""
    symbol = asked.symbol(size.__name__, place)
    asked.declare(str(symbol), size.min, size.max)
    return symbol


def axis_of(leaf: Leaf, axis: object) -> int:
    rank = leaf.tensor.dim()
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise UserError(
            "E105",
            f"{leaf.path} has no axis {axis!r:.80}",
            why=f"its sample is {list(leaf.tensor.shape)}",
            next=f"axes go from 0 to {rank - 1}" if rank else "a scalar has no axes: leave it out",
        )
    return axis % rank


def refuse_twice(leaf: Leaf, axes: list[int]) -> None:
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice is not None:
        raise UserError(
            "E105",
            f"axis {twice} of {leaf.path} is named twice",
            why=f"axis {twice - leaf.tensor.dim()} is the same",
            next="name it once",
        )


def fresh_name(leaf: Leaf, axis: int) -> str:
    """The name of a dynamic size that the user gives none."""
    return f"{leaf.name}_dim_{axis}".replace(".", "_")


def is_fresh_name(name: str) -> bool:
    return re.search(r"_dim_\d+$", name) is not None


def fresh_size(leaf: Leaf, axis: int, optional: set[str]) -> Dim:
    name = fresh_name(leaf, axis)
    optional.add(name)
    return Dim.symbol(name)
