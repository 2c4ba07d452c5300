"""From ``AttributeProto`` to what kernels get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onnx import AttributeProto

from fx2onnx.base.errors import UserError
from fx2onnx.runner.nodes import NodeText
from fx2onnx.runner.typing_protos import type_and_dims
from fx2onnx.runner.weights import WeightStore, dense_array


def resolved(attributes: Iterable[Any], of_caller: Mapping[str, Any], text: NodeText) -> dict[str, Any]:
    """Attributes by name. A reference to a function's attribute becomes the caller's, or nothing if it gave none.

    Raises: UserError E303 for a name that occurs twice, and for a reference to an attribute of another type.
    """
    result: dict[str, Any] = {}
    count = 0
    for attribute in attributes:
        name = attribute.name
        count += 1
        reference = attribute.ref_attr_name
        if reference:
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
    """What a kernel gets. Raises: UserError E303 for a tensor that contradicts itself, and for several graphs."""
    read = _VALUES.get(attribute.type)
    if read is not None:
        return read(attribute)
    what = f"attribute {attribute.name!r} of {text.op_type} -> {text.outputs[0] if text.outputs else ''!r}"
    if attribute.type == AttributeProto.TENSOR:
        return weights.array(attribute.t, what)
    if attribute.type == AttributeProto.TENSORS:
        return tuple(weights.array(tensor, what) for tensor in attribute.tensors)
    raise UserError("E303", f"the {what} has a type that no operator takes", node=str(text))
