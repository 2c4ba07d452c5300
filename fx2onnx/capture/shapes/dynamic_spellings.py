"""Dynamic sizes as ``dynamic_axes``, as objects of ``torch.export`` that declare them, and for members of ``*args`` and ``**kwargs``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.shapes.dynamic import assign, from_dynamic_shapes
from fx2onnx.capture.shapes.requested import (
    Requested,
    assign_tensor,
    axis_of,
    declared_size,
    fresh_name,
    is_dim,
    named_size,
    refuse_twice,
)
from fx2onnx.torchcompat import shape_specs
from fx2onnx.torchcompat.shape_specs import Spec


def from_object(arguments: Arguments, dynamic_shapes: object, asked: Requested) -> None:
    """Fill ``Leaf.axes`` from one of torch.export's objects, or from a mapping or sequence of another class."""
    by_tensor = shape_specs.of_tensors(dynamic_shapes)
    if by_tensor is not None:
        _from_tensors(arguments, by_tensor, asked)
    elif shape_specs.is_spec(dynamic_shapes):
        _from_spec(arguments, dynamic_shapes, asked)
    elif shape_specs.calls(dynamic_shapes) is None:
        from_dynamic_shapes(arguments, dynamic_shapes, asked)


def from_dynamic_axes(arguments: Arguments, dynamic_axes: Mapping[str, Spec], asked: Requested) -> None:
    """Fill ``Leaf.axes`` from ``dynamic_axes`` of ``torch.onnx.export``."""
    if not isinstance(dynamic_axes, Mapping):
        raise UserError("E105", "dynamic_axes is not a dict", next='write {"input": {0: "batch"}}')
    by_name = {leaf.name: leaf for leaf in arguments.leaves}
    for name, axes in dynamic_axes.items():
        leaf = by_name.get(name)
        if leaf is None:
            continue  # names of outputs are allowed and follow from the inputs
        if isinstance(axes, Mapping):
            pairs = [(axis_of(leaf, axis), size) for axis, size in axes.items()]
        elif isinstance(axes, list | tuple | set | frozenset):
            places = [axis_of(leaf, axis) for axis in axes]
            pairs = [(axis, fresh_name(leaf, axis)) for axis in places]
        else:
            raise UserError(
                "E105",
                f"dynamic_axes for {name} is {axes!r:.80}, no dict and no list",
                next='write {0: "batch"} or [0]',
            )
        refuse_twice(leaf, [axis for axis, _ in pairs])
        for axis, size in pairs:
            place = f"axis {axis} of {leaf.path}"
            leaf.axes[axis] = declared_size(size, asked, place) if is_dim(size) else named_size(size, asked, place)


def _from_spec(arguments: Arguments, spec: object, asked: Requested) -> None:
    """``ShapesSpec`` or ``ParamsSpec``. What it declares besides is a condition of the file."""
    by_name = shape_specs.of_parameters(spec, arguments.variadic)
    unknown = next((name for name in by_name if name not in arguments.values), None)
    if unknown is not None:
        raise _not_passed(unknown, arguments)
    for name, value in arguments.values.items():
        leaves = [leaf for leaf in arguments.leaves if leaf.keys[0] == name]
        assign(leaves, value, by_name.get(name), (name, 1), asked)
    for relation in shape_specs.assumptions(spec):
        try:
            asked.assume(shape_specs.expression(relation, asked.variables.__getitem__))
        except (KeyError, ValueError) as cause:
            raise UserError(
                "E105",
                f"the assumption {relation} is none about the sizes of arguments",
                why=f"{cause} is no size of one" if isinstance(cause, KeyError) else str(cause),
                next="compare ShapeVars that tensors among the arguments have",
            ) from cause


def _from_tensors(arguments: Arguments, by_tensor: Mapping[int, Spec], asked: Requested) -> None:
    """``ShapesCollection``, whose keys are the tensors themselves."""
    ids = {id(leaf.tensor) for leaf in arguments.leaves}
    lost = sum(key not in ids for key in by_tensor)
    if lost:
        raise UserError(
            "E105",
            f"{lost} of the {len(by_tensor)} values that the ShapesCollection gives sizes for are not among the tensors of the arguments",
            why=f"these are {', '.join(leaf.path for leaf in arguments.leaves) or 'none'}; a copy of one is another tensor",
            next="index the collection with the very tensors that are passed",
        )
    for leaf in arguments.leaves:
        if by_tensor.get(id(leaf.tensor)):
            assign_tensor(leaf, by_tensor[id(leaf.tensor)], leaf.path, asked)


def _not_passed(name: str, arguments: Arguments) -> UserError:
    return UserError(
        "E105",
        f"dynamic_shapes names {name!r}, which forward does not get",
        why=f"its tensors are {', '.join(leaf.path for leaf in arguments.leaves)}",
        next="name arguments that are passed",
    )


def _members_of(name: str, names: Iterable[str]) -> list[str]:
    return [member for member in names if re.fullmatch(rf"{re.escape(str(name))}_\d+", member)]


def with_variadic_spread(shapes: Sequence[object], arguments: Arguments) -> Sequence[object]:
    """A tuple for all arguments has one entry for ``*args``, a tuple, as in torch.export; it may also have one for each of them."""
    names = list(arguments.values)
    passed = _members_of(arguments.variadic, names)
    place = names.index(passed[0]) if passed else 0
    spec = shapes[place] if passed and len(shapes) == len(names) - len(passed) + 1 else None
    if not isinstance(spec, tuple | list) or len(spec) != len(passed):
        return shapes
    is_spec_of_each = all(part is None or isinstance(part, Mapping | tuple | list) for part in spec)
    return [*shapes[:place], *spec, *shapes[place + 1 :]] if is_spec_of_each else shapes


def spread_variadic(name: str, spec: object, by_name: dict[str, object], arguments: Arguments) -> None:
    """``*args`` and ``**kwargs`` are named by their parameter in dynamic_shapes, their members by position or key."""
    passed = _members_of(name, by_name)
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
        raise _not_passed(name, arguments)
