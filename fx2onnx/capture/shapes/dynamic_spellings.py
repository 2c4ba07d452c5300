"""Dynamic sizes as ``dynamic_axes``, and as objects of ``torch.export`` that declare them, with their bounds and relations."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Arguments, Leaf
from fx2onnx.capture.shapes.dynamic import (
    Requested,
    assign,
    assign_tensor,
    axis_of,
    fresh_name,
    fresh_size,
    from_dynamic_shapes,
    hints_of,
    named_size,
    refuse_twice,
)
from fx2onnx.capture.shapes.dynamic_members import not_passed
from fx2onnx.sizes.assumptions import Condition
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import LARGEST, interval, where_true
from fx2onnx.torchcompat import shape_specs
from fx2onnx.torchcompat.shape_specs import Expr, Spec, expression


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
            leaf.axes[axis] = _declared_size(size, asked, place) if _is_dim(size) else named_size(size, asked, place)


def _from_spec(arguments: Arguments, spec: object, asked: Requested) -> None:
    """``ShapesSpec`` or ``ParamsSpec``. What it declares besides is a condition of the file."""
    by_name = shape_specs.of_parameters(spec, arguments.variadic)
    unknown = next((name for name in by_name if name not in arguments.values), None)
    if unknown is not None:
        raise not_passed(unknown, arguments)
    for name, value in arguments.values.items():
        leaves = [leaf for leaf in arguments.leaves if leaf.keys[0] == name]
        assign(leaves, value, by_name.get(name), (name, 1), asked)
    for relation in shape_specs.assumptions(spec):
        try:
            _assume(asked, shape_specs.expression(relation, asked.variables.__getitem__))
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


def of_object(leaf: Leaf, axis: int, size: Spec, asked: Requested) -> DimLike | None:
    """A ``Dim`` for a torch.export.Dim (also derived, as ``2 * s``), AUTO, DYNAMIC or a ``ShapeVar``; None for static. Raises UserError E105."""
    if isinstance(size, torch.SymInt):
        return _of_variables(leaf, axis, size, asked)
    place = f"axis {axis} of {leaf.path}"
    hint = getattr(size, "type", None)
    if hint is not None and hasattr(hint, "name"):
        return _hinted(leaf, axis, size, asked)
    root = getattr(size, "root", None)
    if root is not None and callable(getattr(size, "fn", None)):
        derived: DimLike = size.fn(_declared_size(root, asked, place))
        return derived
    if _is_dim(size):
        return _declared_size(size, asked, place)
    raise UserError(
        "E105",
        f"{size!r:.80} is no dynamic size",
        why=f"it is given for {place}",
        next="use a name, torch.export.Dim, or None",
    )


def _declare(asked: Requested, name: str, low: object, high: object) -> None:
    """``low <= name <= high``; an upper bound from ``LARGEST`` on, which few tensors reach, is none.

    Raises:   UserError E105 where not two sizes are left, or the size is declared with other bounds already.
    """
    least, most = (min(int(low), LARGEST) if isinstance(low, int) else 0), (high if isinstance(high, int) else None)
    if most is not None and most >= LARGEST:
        most = None
    declared = None if least <= 0 and most is None else _range(name, least, most)
    if name in asked.declared and asked.ranges.get(name) != declared:
        both = [each.expression if each is not None else "no bounds" for each in (asked.ranges.get(name), declared)]
        raise UserError(
            "E105", f"{name} is declared twice", why=f"with {both[0]} and with {both[1]}", next="use one Dim for both"
        )
    asked.declared.add(name)
    if declared is not None:
        asked.ranges[name] = declared


def _assume(asked: Requested, relation: Relation) -> None:
    """``relation`` of sizes, which the file is to be for. Raises UserError E105 where not two sizes are left."""
    names = sorted(relation.symbols())
    sizes = where_true(relation) if len(names) == 1 else None
    if sizes is None:
        asked.relations.append(relation)
        return
    (name,) = names
    known = asked.ranges.get(name)
    if known is not None:
        sizes, relation = sizes & known.sizes, Relation("and", (known.relation, relation))
    if len(sizes.first(2)) < 2:
        raise UserError("E105", f"the declarations of {name} leave no two sizes", why=f"they are {relation}")
    asked.ranges[name] = Condition(name, sizes, relation)


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
            _declare(asked, str(dim), *(int(end) if end.is_Integer else None for end in (bounds.lower, bounds.upper)))
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
    _declare(asked, str(dim), low, high)
    asked.declared.discard(str(dim))  # it may turn out to be another one
    if not is_auto:
        asked.optional.discard(str(dim))
    return dim


def _is_dim(size: Spec) -> bool:
    """Return whether the size is a ``torch.export.Dim`` of its own, not a derived one, which has a root."""
    return isinstance(getattr(size, "__name__", None), str) and isinstance(getattr(size, "min", None), int)


def _declared_size(size: Spec, asked: Requested, place: str) -> Dim:
    """A ``torch.export.Dim``, with the bounds that it has."""
    symbol = asked.symbol(size.__name__, place)
    _declare(asked, str(symbol), size.min, size.max)
    return symbol


def check_ranges(arguments: Arguments, asked: Requested) -> None:
    """Raises UserError E105 where a sample is outside of the bounds that its size is declared with."""
    sizes = hints_of(arguments)
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


def solve(dim: Dim, size: int, place: str, hints: dict[str, int]) -> None:
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
