"""One node as a model of its own, to be computed on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

_IR_VERSION = 10
"""That of opset 21 and 22; the runner takes any opset with it, and onnx from 1.16 on knows it."""

Array = np.ndarray[Any, Any]


def model_of(node: ir.Node, operands: Sequence[Array | None], opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of ``node`` with one output ``y``, and what to feed it for these inputs; None: the input is left out."""
    feeds = {f"x{index}": array for index, array in enumerate(operands) if array is not None}
    names = [f"x{index}" if array is not None else "" for index, array in enumerate(operands)]
    proto = onnx.helper.make_node(node.op_type, names, ["y"])
    for attribute in node.attributes.values():
        ir.serde.serialize_attribute_into(proto.attribute.add(), attribute)
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = onnx.helper.make_graph([proto], "one", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION), feeds
