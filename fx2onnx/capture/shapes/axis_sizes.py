"""The sizes of a tensor's axes, in every spelling: a name, ``torch.export.Dim``, AUTO and DYNAMIC, ``ShapeVar``, a number."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Leaf
from fx2onnx.capture.shapes.requested import Proposed, Requested
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.torchcompat.shape_specs import Expr, Members, Spec, expression


def assign_tensor(leaf: Leaf, spec: object, path: str, asked: Requested) -> None:
    if isinstance(spec, Mapping) and not isinstance(spec, Members):
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
    named = [(axis_of(leaf, axis), size) for axis, size in pairs]
    refuse_twice(leaf, [axis for axis, _ in named])
    for axis, size in named:
        dim = _as_dim(leaf, axis, size, asked)
        if dim is not None:
            leaf.axes[axis] = dim


def _as_dim(leaf: Leaf, axis: int, size: Spec, asked: Requested) -> DimLike | None:
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
    if isinstance(size, torch.SymInt):
        return _of_variables(leaf, axis, size, asked)
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
        raise UserError("E105", f"dynamic_shapes says {found} for {place}, the sample has {leaf.tensor.shape[axis]}")
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
    """Whether it is a ``torch.export.Dim`` of its own, not a derived one: that has a root."""
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


def fresh_size(leaf: Leaf, axis: int, optional: set[str]) -> Dim:
    name = f"{leaf.name}_dim_{axis}".replace(".", "_")
    optional.add(name)
    return Dim.symbol(name)
