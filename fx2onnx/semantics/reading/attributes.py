"""Attributes as kernels get them, from ``AttributeProto``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onnx import AttributeProto

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.reading.nodes import NodeText
from fx2onnx.semantics.reading.program import type_and_dims
from fx2onnx.semantics.reading.weights import WeightStore, dense_array

_FIELDS = {
    number: AttributeProto.DESCRIPTOR.fields_by_name[name].number
    for number, name in {
        AttributeProto.FLOAT: "f",
        AttributeProto.INT: "i",
        AttributeProto.STRING: "s",
        AttributeProto.TENSOR: "t",
        AttributeProto.GRAPH: "g",
        AttributeProto.SPARSE_TENSOR: "sparse_tensor",
        AttributeProto.TYPE_PROTO: "tp",
        AttributeProto.FLOATS: "floats",
        AttributeProto.INTS: "ints",
        AttributeProto.STRINGS: "strings",
        AttributeProto.TENSORS: "tensors",
        AttributeProto.GRAPHS: "graphs",
        AttributeProto.SPARSE_TENSORS: "sparse_tensors",
        AttributeProto.TYPE_PROTOS: "type_protos",
    }.items()
}
"""The number of the field that holds the value of an attribute of each type."""

_MESSAGES = frozenset(
    {AttributeProto.TENSOR, AttributeProto.GRAPH, AttributeProto.SPARSE_TENSOR, AttributeProto.TYPE_PROTO}
)
"""Types whose value is never empty: where the field is not there, the attribute has none."""

_NOT_VALUES = frozenset(
    AttributeProto.DESCRIPTOR.fields_by_name[name].number for name in ("name", "ref_attr_name", "doc_string", "type")
)


def resolved(attributes: Iterable[Any], of_caller: Mapping[str, Any] | None, text: NodeText) -> dict[str, Any]:
    """Attributes by name. A reference to a function's attribute becomes the caller's, or nothing if it gave none.

    ``of_caller``: the attributes of the function's call, None outside of functions.

    Raises: UserError E303 for a name that occurs twice, a value that is not of the attribute's type, a reference to an
    attribute of another type, and for any reference outside of functions.
    """
    result: dict[str, Any] = {}
    count = 0
    for attribute in attributes:
        name = attribute.name
        count += 1
        fields = attribute.ListFields()
        if len(fields) == 3 and fields[1][0].number == _FIELDS.get(attribute.type):
            result[name] = attribute  # a name, one value, its type
            continue
        _check_fields(attribute, {field.number for field, _ in fields} - _NOT_VALUES, text)
        reference = attribute.ref_attr_name
        if reference:
            if of_caller is None:
                raise UserError(
                    "E303",
                    f"the attribute {name!r} of {text.op_type} refers to {reference!r}, an attribute of a function",
                    node=str(text),
                    why="outside of a model-local function there is nothing to refer to",
                )
            caller = of_caller.get(reference)
            if caller is None:
                count -= 1
                continue
            if attribute.type not in (0, caller.type):
                raise UserError("E303", f"the attribute {reference!r} has the wrong type", node=str(text))
            attribute = caller
        result[name] = attribute
    if len(result) < count:
        raise UserError("E303", f"an attribute of {text.op_type} occurs twice", node=str(text))
    return result


def _check_fields(attribute: Any, values: set[int], text: NodeText) -> None:
    """``values``: the numbers of the fields with a value. Raises: UserError E303 for others than the one of the type."""
    what = f"the attribute {attribute.name!r} of {text.op_type}"
    type_ = AttributeProto.AttributeType.Name(attribute.type)
    if attribute.ref_attr_name:
        if values:
            raise UserError("E303", f"{what} refers to another attribute and has a value, too", node=str(text))
    elif values - {_FIELDS.get(attribute.type)}:
        raise UserError("E303", f"{what} has a value that is not of its type, {type_}", node=str(text))
    elif attribute.type in _MESSAGES and not values:
        raise UserError("E303", f"{what} is {type_} and has no value", node=str(text))


def _text(item: bytes) -> str:
    return item.decode("utf-8", "surrogateescape")


_VALUES: dict[int, Callable[[Any], Any]] = {
    AttributeProto.FLOAT: lambda attribute: attribute.f,
    AttributeProto.INT: lambda attribute: attribute.i,
    AttributeProto.STRING: lambda attribute: _text(attribute.s),
    AttributeProto.FLOATS: lambda attribute: tuple(attribute.floats),
    AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    AttributeProto.STRINGS: lambda attribute: tuple(map(_text, attribute.strings)),
    AttributeProto.SPARSE_TENSOR: lambda attribute: dense_array(attribute.sparse_tensor),
    AttributeProto.SPARSE_TENSORS: lambda attribute: tuple(map(dense_array, attribute.sparse_tensors)),
    AttributeProto.TYPE_PROTO: lambda attribute: type_and_dims(attribute.tp)[0],
    AttributeProto.TYPE_PROTOS: lambda attribute: tuple(type_and_dims(proto)[0] for proto in attribute.type_protos),
}


def attribute_value(attribute: Any, text: NodeText, weights: WeightStore) -> Any:
    """The value of an attribute for a kernel. Raises: UserError E303 for a tensor that contradicts itself, and for several
    graphs.
    """
    read = _VALUES.get(attribute.type)
    if read is not None:
        return read(attribute)
    what = f"attribute {attribute.name!r} of {text.op_type} -> {text.outputs[0] if text.outputs else ''!r}"
    if attribute.type == AttributeProto.TENSOR:
        return weights.array(attribute.t, what)
    if attribute.type == AttributeProto.TENSORS:
        return tuple(weights.array(tensor, what) for tensor in attribute.tensors)
    raise UserError("E303", f"the {what} has a type that no operator takes", node=str(text))
