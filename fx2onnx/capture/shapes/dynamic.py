"""Which axes of the arguments are dynamic: every spelling that PyTorch users know."""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Arguments, Leaf
from fx2onnx.capture.shapes.requested import Proposed, Requested
from fx2onnx.capture.torch_private.pytrees import pytree


def set_dynamic_axes(arguments: Arguments, dynamic_shapes: object, dynamic_axes: Mapping[str, Any] | None) -> Requested:
    """Fill ``Leaf.axes`` from the user's ``dynamic_shapes`` or ``dynamic_axes``. Raises UserError E105."""
    if dynamic_shapes is not None and dynamic_axes is not None:
        raise UserError("E105", "dynamic_shapes and dynamic_axes are both given", next="give dynamic_shapes only")
    asked = Requested()
    if dynamic_axes is not None:
        _from_dynamic_axes(arguments, dynamic_axes, asked)
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
    name = f"{leaf.name}_dim_{axis}".replace(".", "_")
    optional.add(name)
    return Dim.symbol(name)


def _from_dynamic_axes(arguments: Arguments, dynamic_axes: Mapping[str, Any], asked: Requested) -> None:
    if not isinstance(dynamic_axes, Mapping):
        raise UserError("E105", "dynamic_axes is not a dict", next='write {"input": {0: "batch"}}')
    by_name = {leaf.name: leaf for leaf in arguments.leaves}
    for name, axes in dynamic_axes.items():
        leaf = by_name.get(name)
        if leaf is None:
            continue  # names of outputs are allowed and follow from the inputs
        if isinstance(axes, Mapping):
            pairs = [(_axis(leaf, axis), size) for axis, size in axes.items()]
        elif isinstance(axes, list | tuple | set | frozenset):
            places = [_axis(leaf, axis) for axis in axes]
            pairs = [(axis, f"{name}_dim_{axis}".replace(".", "_")) for axis in places]
        else:
            raise UserError(
                "E105",
                f"dynamic_axes for {name} is {axes!r:.80}, no dict and no list",
                next='write {0: "batch"} or [0]',
            )
        _refuse_twice(leaf, [axis for axis, _ in pairs])
        for axis, size in pairs:
            place = f"axis {axis} of {leaf.path}"
            leaf.axes[axis] = _declared(size, asked, place) if _is_dim(size) else asked.symbol(size, place)


def check_names(dynamic_axes: Mapping[str, Any] | None, inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Raises UserError E105 where ``dynamic_axes`` names neither an input nor an output."""
    known = [*inputs, *outputs]
    for name in dynamic_axes or {}:
        if name not in known:
            raise UserError(
                "E105",
                f"dynamic_axes names {name!r}, which is neither an input nor an output",
                why=f"these are {', '.join(known)}",
                next="name one of them; input_names and output_names say how they are called",
            )


def _axis(leaf: Leaf, axis: object) -> int:
    rank = leaf.tensor.dim()
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise UserError(
            "E105",
            f"{leaf.path} has no axis {axis!r:.80}",
            why=f"its sample is {list(leaf.tensor.shape)}",
            next=f"axes go from 0 to {rank - 1}" if rank else "a scalar has no axes: leave it out",
        )
    return axis % rank


def _refuse_twice(leaf: Leaf, axes: list[int]) -> None:
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice is not None:
        raise UserError(
            "E105",
            f"axis {twice} of {leaf.path} is named twice",
            why=f"axis {twice - leaf.tensor.dim()} is the same",
            next="name it once",
        )


def _from_dynamic_shapes(arguments: Arguments, shapes: object, asked: Requested) -> None:
    values = arguments.values
    if isinstance(shapes, Mapping):
        by_name = {name: shapes.get(name) for name in values}
        held = {leaf.name: leaf for leaf in arguments.leaves if leaf.places}
        for name in shapes:
            if name in held and name not in values:
                _assign_tensor(held[name], shapes[name], name, asked)
            elif name not in values:
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
        _assign([leaf for leaf in arguments.leaves if leaf.keys[0] == name], values[name], spec, (name, 1), asked)


def _spread_variadic(name: str, spec: object, by_name: dict[str, object], arguments: Arguments) -> None:
    """``*args`` and ``**kwargs`` are named by their parameter in dynamic_shapes, their members by position or key."""
    passed = [member for member in by_name if re.fullmatch(rf"{re.escape(str(name))}_\d+", member)]
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
        known = ", ".join(leaf.path for leaf in arguments.leaves)
        raise UserError(
            "E105",
            f"dynamic_shapes names {name!r}, which forward does not get",
            why=f"its tensors are {known}",
            next="name arguments that are passed",
        )


_PLAIN = (dict, OrderedDict, defaultdict, list, tuple)
"""Structures whose members dynamic_shapes names as they are named there."""
Place: TypeAlias = tuple[str, int]
"""How a part of an argument is written, and how many keys lead to it."""


def _assign(leaves: list[Leaf], value: object, spec: object, place: Place, asked: Requested) -> None:
    """Give ``spec`` to ``value``, an argument or a part of one, which holds the tensors ``leaves``."""
    path, depth = place
    if spec is None or (isinstance(spec, Mapping | tuple | list) and not spec):
        return
    if not leaves:
        if any(part is not None for part in pytree.tree_leaves(spec)):
            raise UserError(
                "E105",
                f"dynamic_shapes names {path}, which holds no tensor",
                why=f"it is {value!r:.60}",
                next="leave it out, or give None for it",
            )
    elif len(leaves) == 1 and len(leaves[0].keys) == depth:
        _assign_tensor(leaves[0], spec, path, asked)
    elif type(value) in _PLAIN:
        _assign_members(leaves, value, spec, place, asked)
    elif isinstance(spec, Mapping) and spec.keys() <= {_inside(leaf, path) for leaf in leaves}:
        for leaf in leaves:
            if spec.get(_inside(leaf, path)) is not None:
                _assign_tensor(leaf, spec[_inside(leaf, path)], leaf.path, asked)
    else:
        _assign_flat(leaves, spec, path, asked)


def _inside(leaf: Leaf, path: str) -> str:
    """The name of a tensor in an object: ``h`` for ``state.h``, ``0.key`` for ``past_key_values.0.key``."""
    return leaf.name.removeprefix(path)[1:] if leaf.places else ""


def _assign_members(leaves: list[Leaf], value: Any, spec: object, place: Place, asked: Requested) -> None:
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
        _assign(inner, inside.get(key), part, (f"{path}[{key!r}]", depth + 1), asked)


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
    """Another structure (caches, model outputs): one spec for each of its tensors, in order."""
    specs = pytree.tree_leaves(spec, is_leaf=_is_tensor_spec)
    if len(leaves) != len(specs):
        raise _other_structure(leaves, path, f"it has {len(specs)} entries for {len(leaves)} tensors")
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
        raise UserError(
            "E105",
            f"dynamic_shapes for {path} is neither a dict nor a tuple",
            why=f"it is {spec!r:.80}",
            next='write {axis: name}, such as {0: "batch"}',
        )
    named = [(_axis(leaf, axis), size) for axis, size in pairs]
    _refuse_twice(leaf, [axis for axis, _ in named])
    for axis, size in named:
        dim = _as_dim(leaf, axis, size, asked)
        if dim is not None:
            leaf.axes[axis] = dim


def _as_dim(leaf: Leaf, axis: int, size: Any, asked: Requested) -> DimLike | None:
    """A ``Dim`` for a name, a torch.export.Dim (also derived, as ``2 * s``), AUTO or DYNAMIC; None for static."""
    place = f"axis {axis} of {leaf.path}"
    if size is None or (isinstance(size, int) and not isinstance(size, bool)):
        sample = leaf.tensor.shape[axis]
        if size is not None and size != sample:
            raise UserError(
                "E105",
                f"dynamic_shapes says {size} for {place}, the sample has {sample}",
                next="give the name of a size, None for a static one, or a sample of that size",
            )
        return None
    if isinstance(size, Dim):
        return size
    if isinstance(size, str):
        symbol = asked.symbol(size, place)
        if isinstance(size, Proposed):
            asked.optional.add(str(symbol))
        return symbol
    hint = getattr(size, "type", None)
    if hint is not None and hasattr(hint, "name"):
        return _hinted(leaf, axis, size, asked)
    root = getattr(size, "root", None)
    if root is not None and callable(getattr(size, "fn", None)):
        derived: DimLike = size.fn(_declared(root, asked, place))
        return derived
    if _is_dim(size):
        return _declared(size, asked, place)
    raise UserError(
        "E105",
        f"{size!r:.80} is no dynamic size",
        why=f"it is given for {place}",
        next="use a name, torch.export.Dim, or None",
    )


def _hinted(leaf: Leaf, axis: int, size: Any, asked: Requested) -> Dim | None:
    """The size for ``Dim.AUTO``, ``DYNAMIC`` or ``STATIC``, which may have bounds."""
    low, high = getattr(size, "min", None), getattr(size, "max", None)
    is_auto = size.type.name == "AUTO"
    if size.type.name == "STATIC" or (is_auto and low is not None and low == high):
        return None
    dim = _fresh(leaf, axis, asked.optional)
    asked.declare(str(dim), low, high)
    asked.declared.discard(str(dim))  # it may turn out to be another one
    if not is_auto:
        asked.optional.discard(str(dim))
    return dim


def _is_dim(size: Any) -> bool:
    """Whether it is a ``torch.export.Dim`` of its own, not a derived one: that has a root."""
    return isinstance(getattr(size, "__name__", None), str) and isinstance(getattr(size, "min", None), int)


def _declared(size: Any, asked: Requested, place: str) -> Dim:
    """A ``torch.export.Dim``, with the bounds that it has."""
    symbol = asked.symbol(size.__name__, place)
    asked.declare(str(symbol), size.min, size.max)
    return symbol


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
