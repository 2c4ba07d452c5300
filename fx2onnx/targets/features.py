"""What a node asks of an operator beyond its dtypes: attributes that are not at their defaults, optional inputs and outputs.

A table's ``lacks`` names those that a runtime does not have: ``{"::Resize": ["antialias=1", "input roi"]}``.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from fx2onnx.semantics.schemas import onnx_schema

MODE = onnx.defs.OpSchema.AttrType
OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional
NEUTRAL = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
"""Numbers that lists have where nothing is asked for."""
FLAGS = (0, 1)
DYNAMIC = "dynamic sizes"
"""The feature of a node none of whose input sizes is known before the run."""


def features_of(node: ir.Node, version: int) -> frozenset[str]:
    """Of a node of the standard domain, in that opset: ``mode=cubic``, ``alpha`` where any number is meant, ``input roi``,
    ``output Indices``.
    """
    schema = onnx_schema(node.op_type, version)
    if schema is None:
        return frozenset()
    found = {
        f"{kind} {formal.name}"
        for kind, values, formals in (("input", node.inputs, schema.inputs), ("output", node.outputs, schema.outputs))
        for value, formal in zip(values, formals, strict=False)
        if value is not None and value.name and formal.option == OPTIONAL
    }
    for name, attribute in node.attributes.items():
        if isinstance(attribute, ir.Attr) and not attribute.is_ref() and name in schema.attributes:
            feature = _of_attribute(name, attribute.value, schema.attributes[name])
            found |= {feature} if feature else set()
    shapes = [value.shape for value in node.inputs if value is not None and value.const_value is None]
    if shapes and all(shape and not any(isinstance(size, int) for size in shape) for shape in shapes):
        found.add(DYNAMIC)
    return frozenset(found)


def _of_attribute(name: str, value: Any, formal: Any) -> str | None:
    default = onnx.helper.get_attribute_value(formal.default_value) if formal.default_value.name else None
    default = default.decode() if isinstance(default, bytes) else default
    if value == default or formal.type in (MODE.TENSOR, MODE.GRAPH, MODE.TYPE_PROTO):
        return None
    if isinstance(value, str):
        return None if formal.required else f"{name}={value}"  # one of a few words, but for Einsum's equation
    if isinstance(value, int):
        return f"{name}={value}" if value in FLAGS and default in FLAGS else name
    if isinstance(value, (list, tuple)) and name in NEUTRAL and set(value) <= {NEUTRAL[name]}:
        return None
    return name
