"""The dynamic axes of the arguments, in every spelling that PyTorch users know."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Arguments, Leaf
from fx2onnx.capture.rare_roads import road
from fx2onnx.capture.shapes.requested import (
    Requested,
    assign_tensor,
    fresh_size,
)
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat import shape_specs
from fx2onnx.torchcompat.pytrees import pytree
from fx2onnx.torchcompat.shape_specs import Members, Sizes, Spec


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
    _check_ranges(arguments, asked)
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
                road("other spellings of dynamic sizes").spread_variadic(name, shapes[name], by_name, arguments)
    elif isinstance(shapes, tuple | list):
        entries: Sequence[object] = shapes
        if arguments.variadic:
            entries = road("other spellings of dynamic sizes").with_variadic_spread(shapes, arguments)
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


_PLAIN = (dict, OrderedDict, defaultdict, list, tuple)
"""Structures whose members dynamic_shapes names as they are named there."""
Place: TypeAlias = tuple[str, int]
"""The text of a place in the arguments, and the number of keys that lead to it."""


def assign(leaves: list[Leaf], value: object, spec: object, place: Place, asked: Requested) -> None:
    """Give ``spec`` to ``value``, an argument or a part of one, which holds the tensors ``leaves``."""
    path, depth = place
    if spec is None or (isinstance(spec, Mapping | tuple | list) and not isinstance(spec, Sizes) and not spec):
        return
    if not leaves:
        if isinstance(value, int) and isinstance(spec, int) and value == spec:
            return
        if any(part is not None for part in pytree.tree_leaves(spec)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            raise UserError(
                "E105",
                f"dynamic_shapes names {path}, which holds no tensor",
                why=f"it is {value!r:.60}",
                next=[
                    *(["pass a tensor, such as torch.tensor(NUMBER): a number is a constant of the file"] * is_number),
                    "leave it out, or give None for it",
                ],
            )
    elif isinstance(spec, Members):
        _assign_named(leaves, value, spec, place, asked)
    elif len(leaves) == 1 and len(leaves[0].keys) == depth:
        assign_tensor(leaves[0], spec, path, asked)
    elif isinstance(spec, Sizes):
        raise _other_structure(leaves, path, f"{path} is a {type(value).__name__}, not one tensor")
    elif type(value) in _PLAIN:
        _assign_members(leaves, value, spec, place, asked)
    elif isinstance(spec, Mapping) and not _is_tensor_spec(spec) and all(leaf.place for leaf in leaves):
        _assign_inside(leaves, spec, path, asked)
    else:
        _assign_flat(leaves, spec, path, asked)


def _assign_inside(leaves: list[Leaf], spec: object, path: str, asked: Requested) -> None:
    """Assign the sizes of tensors in an object by their names there, which ``spec`` may nest. Raises UserError E105 for another name."""
    names = {_inside(leaf, path): leaf for leaf in leaves}
    pending: list[tuple[str, object]] = [("", spec)]
    while pending:
        name, part = pending.pop()
        if name in names:
            if part is not None:
                assign_tensor(names[name], part, names[name].path, asked)
        elif isinstance(part, Mapping | list | tuple) and not (name and _is_tensor_spec(part)):
            inner = part.items() if isinstance(part, Mapping) else enumerate(part)
            pending += [(f"{name}.{key}".lstrip("."), each) for key, each in inner]
        elif part is not None:
            raise _other_structure(leaves, path, f"there is no {path}.{name}")


def _inside(leaf: Leaf, path: str) -> str:
    """The name of a tensor in an object: ``h`` for ``state.h``, ``0.key`` for ``past_key_values.0.key``."""
    return leaf.name.removeprefix(path)[1:] if leaf.place else ""


def _assign_members(leaves: list[Leaf], value: Spec, spec: object, place: Place, asked: Requested) -> None:
    path, depth = place
    inside = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
    if isinstance(spec, Mapping) and isinstance(value, Mapping):
        members = dict(spec)
    elif isinstance(spec, tuple | list) and isinstance(value, tuple | list):
        members = dict(enumerate(spec))
    else:
        raise _other_structure(leaves, path, f"{path} is a {type(value).__name__}, not {_kind(spec)}")
    missing = [key for key in dict.fromkeys(leaf.keys[depth] for leaf in leaves) if key not in members]
    if missing:
        raise _other_structure(leaves, path, f"it says nothing of {path}[{missing[0]!r}]")
    for key, part in members.items():
        if key not in inside and part is not None:
            keys = ", ".join(f"{path}[{known!r}]" for known in inside)
            raise _other_structure(leaves, path, f"it has {path}[{key!r}]; there are {keys}")
        inner = [leaf for leaf in leaves if leaf.keys[depth] == key]
        assign(inner, inside.get(key), part, (f"{path}[{key!r}]", depth + 1), asked)


def _assign_named(leaves: list[Leaf], value: object, spec: Members, place: Place, asked: Requested) -> None:
    """The members of a dict, a sequence or an object that ``spec`` names; the others are static."""
    path, depth = place
    keys = list(dict.fromkeys(leaf.keys[depth] for leaf in leaves if len(leaf.keys) > depth))
    for key, part in spec.items():
        inside = _member(value, key)
        inner = [leaf for leaf in leaves if len(leaf.keys) > depth and leaf.keys[depth] == key]
        if not inner and inside is _NONE:
            held = ", ".join(f"{path}[{known!r}]" for known in keys)
            why = f"it has {path}[{key!r}]; " + (f"there are {held}" if held else f"{path} is one tensor")
            raise _other_structure(leaves, path, why)
        assign(inner, inside, part, (f"{path}[{key!r}]", depth + 1), asked)


_NONE = object()


def _member(value: Spec, key: Spec) -> Spec:
    """The member of a container or an object under ``key``; ``_NONE`` for nothing."""
    if isinstance(value, torch.Tensor):
        return _NONE
    try:
        return value[key]
    except (TypeError, LookupError):
        return getattr(value, key, _NONE) if isinstance(key, str) else _NONE


def _kind(spec: object) -> str:
    if isinstance(spec, Mapping):
        return "one tensor with axes" if _is_tensor_spec(spec) else "a dict"
    return "a list or tuple" if isinstance(spec, tuple | list) else f"{spec!r:.60}"


def _other_structure(leaves: list[Leaf], path: str, why: str) -> UserError:
    return UserError(
        "E105",
        f"dynamic_shapes for {path} does not have its structure",
        why=f"{why}; its tensors: {', '.join(leaf.path for leaf in leaves)}",
        next="nest dictionaries, tuples and lists as the argument does, with {axis: name} at each tensor",
    )


def _assign_flat(leaves: list[Leaf], spec: object, path: str, asked: Requested) -> None:
    """Assign one specification to each tensor, in order, of another structure (a cache, a model output)."""
    specs = pytree.tree_leaves(spec, is_leaf=_is_tensor_spec)
    if len(leaves) != len(specs):
        raise _other_structure(leaves, path, f"it has {len(specs)} entries for {len(leaves)} tensors")
    for leaf, part in zip(leaves, specs, strict=True):
        if part is not None:
            assign_tensor(leaf, part, path, asked)


def _is_tensor_spec(part: object) -> bool:
    return part is None or (isinstance(part, Mapping) and all(isinstance(key, int) for key in part))


def _check_ranges(arguments: Arguments, asked: Requested) -> None:
    """Raises UserError E105 where a sample is outside of the bounds that its size is declared with."""
    sizes = hints_of(arguments) if asked.ranges or asked.relations else {}
    for name, declared in asked.ranges.items():
        if name in sizes and sizes[name] not in declared.sizes:
            raise UserError(
                "E105",
                f"{name} is {sizes[name]} in the example inputs, which its declaration excludes",
                why=f"it is declared with {declared.expression}",
                next="widen the bounds, or give example inputs within them",
            )
    for relation in asked.relations:
        if not relation.is_true_at(sizes):
            raise UserError(
                "E105",
                f"the example inputs break what is declared of their sizes, {relation}",
                why=", ".join(f"{name} is {sizes[name]}" for name in sorted(relation.symbols()) if name in sizes),
                next="give example inputs for which it holds, or leave it out",
            )


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
        _solve(dim, size, place, hints)
    return hints


def _solve(dim: Dim, size: int, place: str, hints: dict[str, int]) -> None:
    """Find (or check) the root of a derived size such as ``2*s + 1``."""
    missing = [name for name in dim.symbols() if name not in hints]
    if len(missing) == 1 and len(dim.terms) == 1:
        (factor,) = dim.terms.values()
        hints[missing[0]] = int((size - dim.constant) // factor)
    if (
        any(hints.get(name, 0) < 0 for name in dim.symbols())
        or any(name not in hints for name in dim.symbols())
        or dim.evaluate(hints) != size
    ):
        raise UserError(
            "E105",
            f"{place} is said to be {dim}, its sample is {size}",
            why=", ".join(f"{name} is {hints[name]}" for name in sorted(dim.symbols()) if name in hints),
            next="make the samples agree with the relation",
        )
