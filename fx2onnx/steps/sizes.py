"""Sizes of inputs: dynamic ones fixed to numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.inference import infer_types
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.stated import METADATA_KEY, check_sizes, read
from fx2onnx.sizes.text import parse_dim
from fx2onnx.steps.stages import rewrite, stages_of


def parse_sizes(text: str, flag: str = "--fix") -> dict[str, int]:
    """``batch=1,x:2=224`` as names, or inputs with an axis, and numbers. Raises UserError E001."""
    found: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.replace(";", ",").split(","))):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not number.isdecimal():
            raise UserError("E001", f"cannot read {flag} '{part}'", next=f"write {flag} batch=1,x:2=224")
        if found.setdefault(name, int(number)) != int(number):
            raise UserError("E001", f"{flag} gives '{name}' two sizes: {found[name]} and {number}")
    return found


def axis_of(model: ir.Model, place: str) -> tuple[ir.Value, int] | None:
    """The input and axis that ``x:0`` names; None where the text is no such place. Raises UserError E001."""
    name, colon, axis_text = place.rpartition(":")
    value = next((value for value in model.graph.inputs if value.name == name), None)
    if not colon or value is None or not axis_text.lstrip("-").isdecimal():
        return None
    if value.shape is None:
        raise UserError("E001", f"the file does not say how many axes the input '{name}' has")
    axis, rank = int(axis_text), len(value.shape)
    if not -rank <= axis < rank:
        raise UserError("E001", f"the input '{name}' has {rank} axes; there is no axis {axis}")
    return value, axis % rank


def fix_sizes(model: ir.Model, wanted: Mapping[str, int]) -> dict[str, int]:
    """Fix sizes of inputs by the name of a dim or by ``input:axis``, in place. Returns the numbers of dims by name.

    Raises: UserError E001 for a name that no input has, or two sizes of one dim; E401 where the file says that it is not
    right for the size.
    """
    sizes: dict[str, int] = {}
    places: list[tuple[ir.Value, int, int]] = []
    names = dim_names(model)
    for name, size in wanted.items():
        place = None if name in names else axis_of(model, name)
        if name in names:
            _settle(sizes, name, size)
        elif place is None:
            close = difflib.get_close_matches(name, names, n=3)
            known = f"dims: {', '.join(names)}" if names else "all named sizes are fixed; write input:axis=N for others"
            raise UserError(
                "E001", f"no input has a dynamic dim '{name}'", next=f"did you mean {close[0]}?" if close else known
            )
        else:
            value, axis = place
            dim = value.shape[axis]  # type: ignore[index]
            if isinstance(dim, int) and dim != size:
                raise UserError(
                    "E001", f"axis {axis} of the input '{value.name}' is {dim} in the file, and cannot be {size}"
                )
            if not isinstance(dim, int) and dim.value is not None and str(dim.value) in names:
                _settle(sizes, str(dim.value), size)
            places.append((value, axis, size))
    stated = read(model.metadata_props.get(METADATA_KEY, "[]"))
    check_sizes("the file", stated, sizes, dict.fromkeys(sizes, "--fix"))
    for graph in graphs_of(model):
        _substitute((*graph.inputs, *graph.outputs), sizes)
    for value, axis, size in places:
        _set_dim(value, axis, size)
    return sizes


def dim_names(model: ir.Model) -> list[str]:
    """Names of the dims that the inputs hang on."""
    found: dict[str, None] = {}
    for value in model.graph.inputs:
        for dim in value.shape or ():
            if not isinstance(dim, int) and dim.value is not None:
                read_dim = parse_dim(str(dim.value))
                found.update(
                    dict.fromkeys(sorted(read_dim.symbols()) if isinstance(read_dim, Dim) else [str(dim.value)])
                )
    return list(found)


def _settle(sizes: dict[str, int], name: str, size: int) -> None:
    if sizes.setdefault(name, size) != size:
        raise UserError("E001", f"the dim '{name}' is to be {sizes[name]} and {size}", next="give it one size")


def _substitute(values: Iterable[ir.Value], sizes: Mapping[str, int]) -> None:
    for value in values:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, int) or dim.value is None:
                continue
            text = str(dim.value)
            found = sizes.get(text)
            read_dim = parse_dim(text)
            if found is None and isinstance(read_dim, Dim):
                left = read_dim.substitute(sizes)
                found = left if isinstance(left, int) else None
                if found is None and isinstance(left, Dim) and left != read_dim:
                    _set_dim(value, axis, str(left))
            if found is not None:
                _set_dim(value, axis, found)


def _set_dim(value: ir.Value, axis: int, dim: int | str) -> None:
    assert value.shape is not None
    value.shape = ir.Shape([dim if place == axis else old for place, old in enumerate(value.shape)])


def refuse_contradiction(
    faults: Iterable[InternalError], before: Iterable[InternalError], wanted: Mapping[str, object]
) -> None:
    """Raises UserError E105 for operands that fit without the wanted sizes and do not fit with them."""
    old = {fault.node for fault in before}
    for fault in faults:
        if fault.node not in old:
            text = ", ".join(f"{name}={size}" for name, size in wanted.items())
            raise UserError("E105", f"the file does not take {text}", node=fault.node, why=f"{fault.what}; {fault.why}")


def in_dead_branches(model: ir.Model, before: Iterable[InternalError], wanted: Mapping[str, int]) -> bool:
    """Return whether nothing contradicts the sizes but what they leave out: branches of an If that is decided by them. The model is
    changed.
    """
    fix_sizes(model, wanted)
    old = {fault.node for fault in before}
    try:
        rewrite(model, stages_of(1))
    except InternalError:
        return False
    return all(fault.node in old for fault in infer_types(model))
