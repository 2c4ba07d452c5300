"""A file in float64: what float32 computes without its rounding. The runner runs it as a judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from fx2onnx.judge.memory import weights_bytes

MOST_BYTES = 512 << 20
"""Larger weights are not widened: they would be in memory three times."""
_NARROW = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_DTYPE_ATTRIBUTES = ("to", "dtype", "stash_type")


def in_float64(source: str | bytes) -> bytes | None:
    """The model with float64 in the place of every narrower float; None where that is too large, or cannot be."""
    try:
        proto = onnx.load(source) if isinstance(source, str) else onnx.load_from_string(source)
        if weights_bytes(proto) > MOST_BYTES or proto.functions:
            return None
        _widen(proto.graph)
        return bytes(proto.SerializeToString())
    except Exception:  # damaged files: then there is no judge
        return None


def _widen(graph: Any) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen(attribute.g)
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i in _NARROW:
                attribute.i = onnx.TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                tensor = onnx.numpy_helper.from_array(np.array(numbers, np.float64))
                node.ClearField("attribute")
                node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)
                break


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type in _NARROW:
        wide = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
