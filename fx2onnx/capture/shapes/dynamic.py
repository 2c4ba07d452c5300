"""The dynamic axes of the arguments: requests about the sizes of inputs, and their names at the axes of tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Arguments, Leaf
from fx2onnx.capture.rare_roads import road
from fx2onnx.sizes.assumptions import Condition
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.text import UNBACKED, root_of
from fx2onnx.torchcompat import shape_specs
from fx2onnx.torchcompat.shape_specs import Members, Sizes, Spec


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
    """A ``Dim`` for a name, or what torch.export has for one; None for static."""
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
    if isinstance(size, Proposed) and not is_multiple(size.name):
        symbol = asked.symbol(size.name, place)
        asked.optional.add(str(symbol))
        return symbol
    if isinstance(size, str | Proposed):
        return named_size(size if isinstance(size, str) else size.name, asked, place)
    of_object: DimLike | None = road("other spellings of dynamic sizes").of_object(leaf, axis, size, asked)
    return of_object


def axis_of(leaf: Leaf, axis: object) -> int:
    rank = leaf.tensor.dim()
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        is_text = isinstance(axis, str) and rank
        raise UserError(
            "E105",
            f"{leaf.path} has no axis {axis!r:.80}",
            why=f"its sample is {list(leaf.tensor.shape)}",
            next=[
                *(["the axis is a number and comes first, then the name: {0: 'batch'}"] if is_text else []),
                f"axes go from 0 to {rank - 1}" if rank else "a scalar has no axes: leave it out",
            ],
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


def shapes_of(forward: object, dynamic_shapes: object, dynamic_axes: object) -> object:
    """The dynamic shapes of a call, else those that ``@dynamic_spec`` declares at ``forward``."""
    is_given = dynamic_shapes is not None or dynamic_axes is not None
    return dynamic_shapes if is_given else getattr(forward, shape_specs.DECORATED, None)


def is_plain(dynamic_shapes: object) -> bool:
    """Return whether dynamic shapes are of Python's own types, and none of torch.export's objects."""
    return dynamic_shapes is None or type(dynamic_shapes) in (dict, list, tuple, str)


def set_dynamic_axes(
    arguments: Arguments, dynamic_shapes: object, dynamic_axes: Mapping[str, Spec] | None
) -> Requested:
    """Fill ``Leaf.axes`` from the user's ``dynamic_shapes`` or ``dynamic_axes``. Raises UserError E001, E105."""
    if dynamic_shapes is not None and dynamic_axes is not None:
        raise UserError("E001", "dynamic_shapes and dynamic_axes are both given", next="give dynamic_shapes only")
    asked = Requested()
    if dynamic_axes is not None:
        road("other spellings of dynamic sizes").from_dynamic_axes(arguments, dynamic_axes, asked)
    elif isinstance(dynamic_shapes, str):
        if dynamic_shapes != "auto":
            raise UserError("E105", f"dynamic_shapes={dynamic_shapes!r} is not known", next='the only word is "auto"')
        for leaf in arguments.leaves:
            leaf.axes = {axis: fresh_size(leaf, axis, asked.optional) for axis in range(leaf.tensor.dim())}
    elif not is_plain(dynamic_shapes):
        road("other spellings of dynamic sizes").from_object(arguments, dynamic_shapes, asked)
    elif dynamic_shapes is not None:
        from_dynamic_shapes(arguments, dynamic_shapes, asked)
    if asked.ranges or asked.relations:
        road("other spellings of dynamic sizes").check_ranges(arguments, asked)
    return asked


def unknown_names(dynamic_axes: Mapping[str, Spec] | None, known: Collection[str]) -> list[str]:
    """A line for each key of ``dynamic_axes`` that is not among ``known``, the names of inputs and outputs."""
    return [
        f"dynamic_axes names {name!r}, which is neither an input nor an output; these are {', '.join(known)}"
        for name in dynamic_axes or {}
        if name not in known
    ]


def from_dynamic_shapes(arguments: Arguments, shapes: object, asked: Requested) -> None:
    values = arguments.values
    if isinstance(shapes, Mapping):
        by_name = {name: shapes.get(name) for name in values}
        held = {leaf.name: leaf for leaf in arguments.leaves if leaf.place}
        for name in shapes:
            if name in held and name not in values:
                assign_tensor(held[name], shapes[name], name, asked)
            elif name not in values:
                road("members of arguments").spread_variadic(name, shapes[name], by_name, arguments)
    elif isinstance(shapes, tuple | list):
        entries: Sequence[object] = shapes
        if arguments.variadic:
            entries = _with_variadic_spread(shapes, arguments)
        if len(entries) != len(values):
            raise UserError(
                "E105",
                f"dynamic_shapes has {len(entries)} entries, forward gets {len(values)} arguments",
                next=f"give one for each of {', '.join(values)}, None where static",
            )
        by_name = dict(zip(values, entries, strict=True))
    else:
        raise UserError("E105", "dynamic_shapes is neither a dict nor a tuple", next='write {"x": {0: "batch"}}')
    for name, spec in by_name.items():
        assign([leaf for leaf in arguments.leaves if leaf.keys[0] == name], values[name], spec, (name, 1), asked)


def members_of(name: str, names: Iterable[str]) -> list[str]:
    return [member for member in names if re.fullmatch(rf"{re.escape(str(name))}_\d+", member)]


def _with_variadic_spread(shapes: Sequence[object], arguments: Arguments) -> Sequence[object]:
    """A tuple for all arguments has one entry for ``*args``, a tuple, as in torch.export; it may also have one for each of them."""
    names = list(arguments.values)
    passed = members_of(arguments.variadic, names)
    place = names.index(passed[0]) if passed else 0
    spec = shapes[place] if passed and len(shapes) == len(names) - len(passed) + 1 else None
    if not isinstance(spec, tuple | list) or len(spec) != len(passed):
        return shapes
    is_spec_of_each = all(part is None or isinstance(part, Mapping | tuple | list) for part in spec)
    return [*shapes[:place], *spec, *shapes[place + 1 :]] if is_spec_of_each else shapes


Place: TypeAlias = tuple[str, int]
"""The text of a place in the arguments, and the number of keys that lead to it."""


def assign(leaves: list[Leaf], value: object, spec: object, place: Place, asked: Requested) -> None:
    """Give ``spec`` to ``value``, an argument or a part of one, which holds the tensors ``leaves``."""
    path, depth = place
    if spec is None or (isinstance(spec, Mapping | tuple | list) and not isinstance(spec, Sizes) and not spec):
        return
    if len(leaves) == 1 and len(leaves[0].keys) == depth and not isinstance(spec, Members):
        assign_tensor(leaves[0], spec, path, asked)
    else:
        road("members of arguments").assign_members(leaves, value, spec, place, asked)


def hints_of(arguments: Arguments) -> dict[str, int]:
    """The example's size of every symbol. Raises UserError E105 where two samples disagree."""
    hints: dict[str, int] = {}
    origin: dict[str, str] = {}
    derived = []
    for leaf in arguments.leaves:
        for axis, dim in leaf.axes.items():
            if not isinstance(dim, Dim):
                continue
            size, place = int(leaf.tensor.shape[axis]), f"axis {axis} of {leaf.path}"
            name = dim.as_symbol()
            if name is None:
                derived.append((dim, size, place))
            elif hints.setdefault(name, size) != size:
                raise UserError(
                    "E105",
                    f"{name} has two sizes in the samples",
                    why=f"{hints[name]} at {origin[name]}, {size} at {place}",
                    next="give the two axes different names, or samples of one size",
                )
            else:
                origin.setdefault(name, place)
    for dim, size, place in derived:
        road("other spellings of dynamic sizes").solve(dim, size, place, hints)
    return hints
