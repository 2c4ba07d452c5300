"""Arguments of forward: binding, flattening, names, and which of their axes are dynamic."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.base.errors import UserError
from fx2onnx.capture.torch_private import pytree


@dataclass(slots=True)
class Leaf:
    """One tensor among the arguments."""

    name: str
    path: str
    tensor: torch.Tensor
    position: int
    """Index among all flat leaves."""
    axes: dict[int, DimLike] = field(default_factory=dict)
    """Dynamic axes and their sizes, as symbols or expressions over symbols."""


@dataclass(slots=True)
class Arguments:
    """Flat arguments of one call, the tensors among them named."""

    flat: list[Any]
    spec: Any
    leaves: list[Leaf]

    def rebuilt(self, replacements: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` with the tensors replaced, in order of ``leaves``."""
        flat = list(self.flat)
        for leaf, value in zip(self.leaves, replacements, strict=True):
            flat[leaf.position] = value
        args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return tuple(args), kwargs


def normalise_args(args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``args`` as torch.onnx.export takes it (a tensor, a tuple, a dict, a tuple ending in a dict of keywords)."""
    named = dict(kwargs or {})
    if isinstance(args, Mapping) and not named:
        return (), dict(args)
    if isinstance(args, torch.Tensor) or not isinstance(args, tuple | list):
        return (args,), named
    positional = tuple(args)
    if positional and isinstance(positional[-1], dict) and not named and _all_strings(positional[-1]):
        return positional, named
    return positional, named


def _all_strings(mapping: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in mapping)


def bind(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], input_names: Sequence[str] | None
) -> Arguments:
    """Check the call against the signature and flatten it.

    Raises: UserError E101 where the arguments do not fit, E001 where ``input_names`` has too many names.
    """
    try:
        signature: inspect.Signature | None = inspect.signature(forward)
    except (TypeError, ValueError):
        signature = None
    names = _argument_names(forward, signature, args, kwargs)
    flat_paths, spec = pytree.tree_flatten_with_path((args, kwargs))
    leaves, flat = [], []
    taken: set[str] = set()
    for position, (path, value) in enumerate(flat_paths):
        flat.append(value)
        if not isinstance(value, torch.Tensor):
            continue
        part, place = _key_text(path[0]), _key_text(path[1])
        first = names[int(place)] if part == "0" else place
        keys = [_key_text(key) for key in path[2:]]
        name = "_".join([first, *keys])
        while name in taken:
            name += "_"
        taken.add(name)
        leaves.append(Leaf(name, first + "".join(map(str, map(_key_path, path[2:]))), value, position))
    if input_names is not None:
        if len(input_names) > len(leaves):
            raise UserError(
                "E001",
                f"input_names has {len(input_names)} names, forward gets {len(leaves)} tensors",
                why=f"the tensors are {', '.join(leaf.path for leaf in leaves) or 'none'}",
                next="give one name for each tensor",
            )
        for leaf, name in zip(leaves, input_names, strict=False):
            leaf.name = name
    return Arguments(flat, spec, leaves)


def _argument_names(
    forward: Callable[..., Any], signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """The parameter name of each positional argument."""
    if signature is None:
        return [f"input_{index}" for index in range(len(args))]
    try:
        signature.bind(*args, **kwargs)
    except TypeError as cause:
        text = re.sub(r"\s+", " ", str(signature))
        raise UserError(
            "E101",
            f"the arguments do not fit forward{text if len(text) < 200 else text[:200] + '...'}",
            why=f"{cause}; given: {_given(args, kwargs)}",
            next="pass the arguments that you would call the module with: args=(...), kwargs={...}",
        ) from cause
    names: list[str] = []
    variadic = 0
    parameters = [p for p in signature.parameters.values() if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    for index in range(len(args)):
        parameter = parameters[min(index, len(parameters) - 1)]
        if parameter.kind == parameter.VAR_POSITIONAL:
            names.append(f"{parameter.name}_{variadic}")
            variadic += 1
        else:
            names.append(parameter.name)
    return names


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    parts = [f"{len(args)} positional"] if args else []
    parts += [f"{name}=" for name in kwargs]
    return ", ".join(parts) or "nothing"


def _key_text(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _key_path(key: Any) -> str:
    return str(pytree.keystr((key,)))


# -- dynamic axes ----------------------------------------------------------------------------------------------------


def set_dynamic_axes(
    arguments: Arguments, forward: Callable[..., Any], dynamic_shapes: Any, dynamic_axes: Any
) -> set[str]:
    """Fill ``Leaf.axes`` from the user's ``dynamic_shapes`` or ``dynamic_axes``.

    Returns the symbols that may turn out static (``"auto"``, ``Dim.AUTO``). Raises UserError E105.
    """
    if dynamic_shapes is not None and dynamic_axes is not None:
        raise UserError("E105", "dynamic_shapes and dynamic_axes are both given", next="give dynamic_shapes only")
    optional: set[str] = set()
    if dynamic_axes is not None:
        _from_dynamic_axes(arguments, dynamic_axes)
    elif isinstance(dynamic_shapes, str):
        if dynamic_shapes != "auto":
            raise UserError("E105", f"dynamic_shapes={dynamic_shapes!r} is not known", next='the only word is "auto"')
        for leaf in arguments.leaves:
            leaf.axes = {axis: _fresh(leaf, axis, optional) for axis in range(leaf.tensor.dim())}
    elif dynamic_shapes is not None:
        _from_dynamic_shapes(arguments, forward, dynamic_shapes, optional)
    return optional


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


def _axis(leaf: Leaf, axis: Any) -> int:
    rank = leaf.tensor.dim()
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise UserError(
            "E105",
            f"{leaf.path} has no axis {axis}",
            why=f"its sample is {list(leaf.tensor.shape)}",
            next=f"axes go from 0 to {rank - 1}",
        )
    return axis % rank


def _symbol_name(text: Any) -> str:
    name = re.sub(r"\W", "_", str(text))
    return f"d{name}" if not name or name[0].isdigit() else name


def _from_dynamic_shapes(arguments: Arguments, forward: Callable[..., Any], shapes: Any, optional: set[str]) -> None:
    args, kwargs = pytree.tree_unflatten(arguments.flat, arguments.spec)
    names = _argument_names(forward, _signature(forward), tuple(args), kwargs)
    values = dict(zip(names, args, strict=True)) | kwargs
    if isinstance(shapes, Mapping):
        variadic = {name: shapes[name] for name in shapes if name not in values}
        by_name = {name: shapes.get(name) for name in values}
        for name, spec in variadic.items():
            _spread_variadic(name, spec, names, by_name, arguments)
    elif isinstance(shapes, tuple | list):
        by_name = dict(zip(values, shapes, strict=False))
        if len(shapes) != len(values):
            raise UserError(
                "E105",
                f"dynamic_shapes has {len(shapes)} entries, forward gets {len(values)} arguments",
                next=f"give one for each of {', '.join(values)}, None where static",
            )
    else:
        raise UserError("E105", "dynamic_shapes is neither a dict nor a tuple", next='write {"x": {0: "batch"}}')
    leaves = {id(leaf.tensor): leaf for leaf in arguments.leaves}
    for name, value in values.items():
        _assign(value, by_name.get(name), name, leaves, optional)


def _signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):
        return None


def _spread_variadic(name: str, spec: Any, names: list[str], by_name: dict[str, Any], arguments: Arguments) -> None:
    """``*args`` and ``**kwargs`` are named by their parameter in dynamic_shapes, their members by position or key."""
    if isinstance(spec, tuple | list) and f"{name}_0" in names:
        for index, member in enumerate(spec):
            by_name[f"{name}_{index}"] = member
    elif isinstance(spec, Mapping) and set(spec) <= set(by_name):
        by_name.update(spec)
    else:
        known = ", ".join(leaf.path for leaf in arguments.leaves)
        raise UserError(
            "E105", f"dynamic_shapes names {name!r}, which forward does not get", why=f"its tensors are {known}"
        )


def _assign(value: Any, spec: Any, path: str, leaves: dict[int, Leaf], optional: set[str]) -> None:
    if spec is None or spec == {} or spec == ():
        return
    if isinstance(value, torch.Tensor):
        _assign_tensor(leaves[id(value)], spec, path, optional)
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, part in spec.items():
            if key not in value:
                raise UserError("E105", f"dynamic_shapes names {path}[{key!r}], which is not there")
            _assign(value[key], part, f"{path}[{key!r}]", leaves, optional)
    elif isinstance(value, tuple | list) and isinstance(spec, tuple | list) and len(value) == len(spec):
        for index, part in enumerate(spec):
            _assign(value[index], part, f"{path}[{index}]", leaves, optional)
    elif dataclasses.is_dataclass(value) and isinstance(spec, Mapping):
        for key, part in spec.items():
            _assign(getattr(value, key), part, f"{path}.{key}", leaves, optional)
    else:
        _assign_flat(value, spec, path, leaves, optional)


def _assign_flat(value: Any, spec: Any, path: str, leaves: dict[int, Leaf], optional: set[str]) -> None:
    """Any other pytree (caches, model outputs): one spec for each of its tensors, in order."""
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    specs = pytree.tree_leaves(spec, is_leaf=lambda part: _is_tensor_spec(part))
    if not tensors or len(tensors) != len(specs):
        raise UserError(
            "E105",
            f"dynamic_shapes for {path} does not have its structure",
            why=f"{path} is a {type(value).__name__} with {len(tensors)} tensors",
            next="nest dictionaries, tuples and lists as the argument does, with {axis: name} at each tensor",
        )
    for tensor, part in zip(tensors, specs, strict=True):
        _assign_tensor(leaves[id(tensor)], part, path, optional)


def _is_tensor_spec(part: Any) -> bool:
    return part is None or (isinstance(part, Mapping) and all(isinstance(key, int) for key in part))


def _assign_tensor(leaf: Leaf, spec: Any, path: str, optional: set[str]) -> None:
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
        dim = _as_dim(leaf, place, size, optional)
        if dim is not None:
            leaf.axes[place] = dim


def _as_dim(leaf: Leaf, axis: int, size: Any, optional: set[str]) -> DimLike | None:
    """A ``Dim`` for a name, a torch.export.Dim (also derived, as ``2 * s``), AUTO or DYNAMIC; None for static."""
    if size is None or isinstance(size, int):
        sample = leaf.tensor.shape[axis]
        if isinstance(size, int) and size != sample:
            raise UserError(
                "E105", f"dynamic_shapes says {size} for axis {axis} of {leaf.path}, the sample has {sample}"
            )
        return None
    if isinstance(size, str):
        return Dim.symbol(_symbol_name(size))
    hint = getattr(size, "type", None)
    if hint is not None and hasattr(hint, "name"):
        if hint.name == "STATIC":
            return None
        dim = _fresh(leaf, axis, optional)
        if hint.name == "DYNAMIC":
            optional.discard(str(dim))
        return dim
    root = getattr(size, "root", None)
    if root is not None:
        derived: DimLike = size.fn(Dim.symbol(_symbol_name(root.__name__)))
        return derived
    if hasattr(size, "__name__"):
        return Dim.symbol(_symbol_name(size.__name__))
    raise UserError("E105", f"{size!r} is no dynamic size", next="use a name, torch.export.Dim, or None")


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
