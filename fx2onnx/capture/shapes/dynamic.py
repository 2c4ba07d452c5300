"""Which axes of the arguments are dynamic: every spelling that PyTorch users know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fx2onnx.base.assumptions import Condition
from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.base.errors import UserError
from fx2onnx.base.relations import Relation
from fx2onnx.base.size_sets import interval
from fx2onnx.capture.python.inputs import Arguments, Leaf
from fx2onnx.capture.torch_private.pytrees import pytree


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

    def declare(self, name: str, low: Any, high: Any) -> None:
        """``low <= name <= high``. Raises UserError E105 where nothing is left."""
        least, most = (int(low) if isinstance(low, int) else 0), (high if isinstance(high, int) else None)
        if most is not None and most >= _UNBOUNDED:
            most = None
        if least <= 0 and most is None:
            return
        if most is not None and most < least:
            raise UserError("E105", f"the bounds of {name} leave no size", why=f"they are {least} and {most}")
        sizes, symbol = interval(least, most), Dim.symbol(name)
        relation = Relation("ge", (symbol, least))
        if most is not None:
            relation = Relation("and", (relation, Relation("le", (symbol, most))))
        self.ranges[name] = Condition(name, sizes, relation)


_UNBOUNDED = 1 << 31


def set_dynamic_axes(arguments: Arguments, dynamic_shapes: object, dynamic_axes: Mapping[str, Any] | None) -> Requested:
    """Fill ``Leaf.axes`` from the user's ``dynamic_shapes`` or ``dynamic_axes``. Raises UserError E105."""
    if dynamic_shapes is not None and dynamic_axes is not None:
        raise UserError("E105", "dynamic_shapes and dynamic_axes are both given", next="give dynamic_shapes only")
    asked = Requested()
    if dynamic_axes is not None:
        _from_dynamic_axes(arguments, dynamic_axes)
    elif isinstance(dynamic_shapes, str):
        if dynamic_shapes != "auto":
            raise UserError("E105", f"dynamic_shapes={dynamic_shapes!r} is not known", next='the only word is "auto"')
        for leaf in arguments.leaves:
            leaf.axes = {axis: _fresh(leaf, axis, asked.optional) for axis in range(leaf.tensor.dim())}
    elif dynamic_shapes is not None:
        _from_dynamic_shapes(arguments, dynamic_shapes, asked)
    _check_ranges(arguments, asked)
    return asked


def _fresh(leaf: Leaf, axis: int, optional: set[str]) -> Dim:
    name = f"{leaf.name}_dim_{axis}"
    optional.add(name)
    return Dim.symbol(name)


def _from_dynamic_axes(arguments: Arguments, dynamic_axes: Mapping[str, Any]) -> None:
    if not isinstance(dynamic_axes, Mapping):
        raise UserError("E105", "dynamic_axes is not a dict", next='write {"input": {0: "batch"}}')
    by_name = {leaf.name: leaf for leaf in arguments.leaves}
    for name, axes in dynamic_axes.items():
        leaf = by_name.get(name)
        if leaf is None:
            continue  # names of outputs are allowed and follow from the inputs
        pairs = axes.items() if isinstance(axes, Mapping) else ((axis, f"{name}_dim_{axis}") for axis in axes)
        for axis, size in pairs:
            leaf.axes[_axis(leaf, axis)] = Dim.symbol(_symbol_name(size))


def _axis(leaf: Leaf, axis: object) -> int:
    rank = leaf.tensor.dim()
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise UserError(
            "E105",
            f"{leaf.path} has no axis {axis}",
            why=f"its sample is {list(leaf.tensor.shape)}",
            next=f"axes go from 0 to {rank - 1}",
        )
    return axis % rank


def _symbol_name(text: object) -> str:
    name = re.sub(r"\W", "_", str(text))
    return f"d{name}" if not name or name[0].isdigit() else name


def _from_dynamic_shapes(arguments: Arguments, shapes: object, asked: Requested) -> None:
    values = arguments.values
    if isinstance(shapes, Mapping):
        by_name = {name: shapes.get(name) for name in values}
        for name in shapes:
            if name not in values:
                _spread_variadic(name, shapes[name], by_name, arguments)
    elif isinstance(shapes, tuple | list):
        if len(shapes) != len(values):
            raise UserError(
                "E105",
                f"dynamic_shapes has {len(shapes)} entries, forward gets {len(values)} arguments",
                next=f"give one for each of {', '.join(values)}, None where static",
            )
        by_name = dict(zip(values, shapes, strict=True))
    else:
        raise UserError("E105", "dynamic_shapes is neither a dict nor a tuple", next='write {"x": {0: "batch"}}')
    for name, spec in by_name.items():
        _assign([leaf for leaf in arguments.leaves if leaf.keys[0] == name], 1, spec, name, asked)


def _spread_variadic(name: str, spec: object, by_name: dict[str, object], arguments: Arguments) -> None:
    """``*args`` and ``**kwargs`` are named by their parameter in dynamic_shapes, their members by position or key."""
    if isinstance(spec, tuple | list) and f"{name}_0" in by_name:
        by_name.update({f"{name}_{index}": member for index, member in enumerate(spec)})
    elif isinstance(spec, Mapping) and spec and set(spec) <= set(by_name):
        by_name.update(spec)
    else:
        known = ", ".join(leaf.path for leaf in arguments.leaves)
        raise UserError(
            "E105",
            f"dynamic_shapes names {name!r}, which forward does not get",
            why=f"its tensors are {known}",
            next="name arguments that are passed",
        )


def _assign(leaves: list[Leaf], depth: int, spec: object, path: str, asked: Requested) -> None:
    """Give ``spec`` to the tensors below one argument; ``leaves`` have ``depth`` keys in common."""
    if spec is None or (isinstance(spec, Mapping | tuple | list) and not spec):
        return
    if len(leaves) == 1 and len(leaves[0].keys) == depth:
        _assign_tensor(leaves[0], spec, path, asked)
        return
    children = dict.fromkeys(leaf.keys[depth] for leaf in leaves if len(leaf.keys) > depth)
    if isinstance(spec, Mapping) and not _is_tensor_spec(spec):
        members = dict(spec)
    elif isinstance(spec, tuple | list) and all(isinstance(key, int) for key in children):
        members = dict(enumerate(spec))
    else:
        members = {}
    if members and set(children) <= set(members):
        for key, part in members.items():
            inner = [leaf for leaf in leaves if leaf.keys[depth] == key]
            if inner:
                _assign(inner, depth + 1, part, f"{path}[{key!r}]", asked)
            elif part is not None:
                raise UserError(
                    "E105", f"dynamic_shapes names {path}[{key!r}], which holds no tensor", next="leave it out"
                )
        return
    _assign_flat(leaves, spec, path, asked)


def _assign_flat(leaves: list[Leaf], spec: object, path: str, asked: Requested) -> None:
    """Another structure (caches, model outputs): one spec for each of its tensors, in order."""
    specs = pytree.tree_leaves(spec, is_leaf=_is_tensor_spec)
    if not leaves or len(leaves) != len(specs):
        raise UserError(
            "E105",
            f"dynamic_shapes for {path} does not have its structure",
            why=f"{path} holds {len(leaves)} tensors: {', '.join(leaf.path for leaf in leaves)}",
            next="nest dictionaries, tuples and lists as the argument does, with {axis: name} at each tensor",
        )
    for leaf, part in zip(leaves, specs, strict=True):
        if part is not None:
            _assign_tensor(leaf, part, path, asked)


def _is_tensor_spec(part: object) -> bool:
    return part is None or (isinstance(part, Mapping) and all(isinstance(key, int) for key in part))


def _assign_tensor(leaf: Leaf, spec: object, path: str, asked: Requested) -> None:
    if isinstance(spec, Mapping):
        pairs = list(spec.items())
    elif isinstance(spec, tuple | list):
        if len(spec) != leaf.tensor.dim():
            raise UserError(
                "E105",
                f"dynamic_shapes for {path} has {len(spec)} entries, the sample is {list(leaf.tensor.shape)}",
                next="give one entry an axis, None where static, or a dict {axis: name}",
            )
        pairs = list(enumerate(spec))
    else:
        raise UserError("E105", f"dynamic_shapes for {path} is neither a dict nor a tuple", why=f"it is {spec!r}")
    for axis, size in pairs:
        place = _axis(leaf, axis)
        dim = _as_dim(leaf, place, size, asked)
        if dim is not None:
            leaf.axes[place] = dim


def _as_dim(leaf: Leaf, axis: int, size: Any, asked: Requested) -> DimLike | None:
    """A ``Dim`` for a name, a torch.export.Dim (also derived, as ``2 * s``), AUTO or DYNAMIC; None for static."""
    if size is None or isinstance(size, int):
        sample = leaf.tensor.shape[axis]
        if isinstance(size, int) and size != sample:
            raise UserError(
                "E105", f"dynamic_shapes says {size} for axis {axis} of {leaf.path}, the sample has {sample}"
            )
        return None
    if isinstance(size, Dim):
        return size
    if isinstance(size, str):
        name = _symbol_name(size)
        if isinstance(size, Proposed):
            asked.optional.add(name)
        return Dim.symbol(name)
    hint = getattr(size, "type", None)
    if hint is not None and hasattr(hint, "name"):
        if hint.name == "STATIC":
            return None
        dim = _fresh(leaf, axis, asked.optional)
        if hint.name == "DYNAMIC":
            asked.optional.discard(str(dim))
        return dim
    root = getattr(size, "root", None)
    if root is not None:
        derived: DimLike = size.fn(_declared(root, asked))
        return derived
    if hasattr(size, "__name__"):
        return _declared(size, asked)
    raise UserError("E105", f"{size!r} is no dynamic size", next="use a name, torch.export.Dim, or None")


def _declared(size: Any, asked: Requested) -> Dim:
    """A ``torch.export.Dim``, with the bounds that it has."""
    name = _symbol_name(size.__name__)
    asked.declare(name, getattr(size, "min", None), getattr(size, "max", None))
    return Dim.symbol(name)


def _check_ranges(arguments: Arguments, asked: Requested) -> None:
    """Raises UserError E105 where a sample is outside of the bounds that its size is declared with."""
    sizes = hints_of(arguments) if asked.ranges else {}
    for name, declared in asked.ranges.items():
        if name in sizes and sizes[name] not in declared.sizes:
            raise UserError(
                "E105",
                f"{name} is {sizes[name]} in the sample, which its declaration excludes",
                why=f"it is declared with {declared.expression}",
                next="widen the bounds, or give a sample within them",
            )


def hints_of(arguments: Arguments) -> dict[str, int]:
    """The sample's size of every symbol. Raises UserError E105 where two samples disagree."""
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
        _solve(dim, size, place, hints)
    return hints


def _solve(dim: Dim, size: int, place: str, hints: dict[str, int]) -> None:
    """Find (or check) the root of a derived size such as ``2*s + 1``."""
    missing = [name for name in dim.symbols() if name not in hints]
    if len(missing) == 1 and len(dim.terms) == 1:
        (factor,) = dim.terms.values()
        hints[missing[0]] = int((size - dim.constant) // factor)
    if any(name not in hints for name in dim.symbols()) or dim.evaluate(hints) != size:
        raise UserError(
            "E105",
            f"{place} is said to be {dim}, its sample is {size}",
            why=", ".join(f"{name} is {hints[name]}" for name in sorted(dim.symbols()) if name in hints),
            next="make the samples agree with the relation",
        )
