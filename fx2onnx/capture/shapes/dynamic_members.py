"""Dynamic sizes of tensors inside of arguments: of members of dicts, lists, dataclasses and caches, of ``*args`` and ``**kwargs``."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Arguments, Leaf
from fx2onnx.capture.shapes.dynamic import Place, Requested, assign, assign_tensor, members_of
from fx2onnx.torchcompat.pytrees import pytree
from fx2onnx.torchcompat.shape_specs import Members, Sizes, Spec

_PLAIN = (dict, OrderedDict, defaultdict, list, tuple)
"""Structures whose members dynamic_shapes names as they are named there."""


def assign_members(leaves: list[Leaf], value: object, spec: object, place: Place, asked: Requested) -> None:
    """Give ``spec`` to ``value``, which is not one tensor: to each of the tensors ``leaves`` that it holds."""
    path, _ = place
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
    elif isinstance(spec, Sizes):
        raise _other_structure(leaves, path, f"{path} is a {type(value).__name__}, not one tensor")
    elif type(value) in _PLAIN:
        _assign_members(leaves, value, spec, place, asked)
    elif isinstance(spec, Mapping) and not _is_tensor_spec(spec) and all(leaf.place for leaf in leaves):
        _assign_inside(leaves, spec, path, asked)
    else:
        _assign_flat(leaves, spec, path, asked)


def _is_tensor_spec(part: object) -> bool:
    return part is None or (isinstance(part, Mapping) and all(isinstance(key, int) for key in part))


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


def not_passed(name: str, arguments: Arguments) -> UserError:
    return UserError(
        "E105",
        f"dynamic_shapes names {name!r}, which forward does not get",
        why=f"its tensors are {', '.join(leaf.path for leaf in arguments.leaves)}",
        next="name arguments that are passed",
    )


def spread_variadic(name: str, spec: object, by_name: dict[str, object], arguments: Arguments) -> None:
    """``*args`` and ``**kwargs`` are named by their parameter in dynamic_shapes, their members by position or key."""
    passed = members_of(name, by_name)
    if isinstance(spec, tuple | list) and passed:
        if len(spec) != len(passed):
            raise UserError(
                "E105",
                f"dynamic_shapes has {len(spec)} entries for {name}, forward gets {len(passed)} arguments there",
                next="give one for each, None where static",
            )
        by_name.update(zip(passed, spec, strict=True))
    elif isinstance(spec, Mapping) and spec and set(spec) <= set(by_name):
        by_name.update(spec)
    elif passed:
        raise UserError(
            "E105",
            f"dynamic_shapes for {name} is {spec!r:.80}, not a tuple",
            next=f"give a tuple with an entry for each of {', '.join(passed)}",
        )
    else:
        raise not_passed(name, arguments)
