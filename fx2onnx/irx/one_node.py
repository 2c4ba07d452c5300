"""The result of one node of a graph on arrays, by the kernels of ONNX's operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from fx2onnx.semantics import folding
from fx2onnx.semantics.folding import LAST_BIT, Function, Inputs
from fx2onnx.semantics.types import Array


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Attributes as kernels take them: tensors as arrays."""
    return {
        name: item.as_tensor().numpy() if item.type == ir.AttributeType.TENSOR else item.value
        for name, item in node.attributes.items()
    }


def folded(node: ir.Node, inputs: Inputs, opset: int, functions: Mapping[str, Function] = LAST_BIT) -> Array | None:
    """The node's one output with the bits of every runtime, or None (``semantics.folding.fold``)."""
    if node.domain or len(node.outputs) != 1:
        return None
    return folding.fold(node.op_type, opset, inputs, attributes_of(node), functions)


def computed(node: ir.Node, inputs: Inputs, opset: int) -> Array | None:
    """The node's first output as its kernel computes it, or None (``semantics.folding.compute``)."""
    return None if node.domain else folding.compute(node.op_type, opset, inputs, attributes_of(node))
