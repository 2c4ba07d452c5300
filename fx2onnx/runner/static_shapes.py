"""Shape errors that can be known before anything runs, by ONNX's own shape inference on a copy without weights."""

from __future__ import annotations

import onnx

from fx2onnx.base.errors import UserError

SMALL_BYTES = 1024
"""Initializers up to this size are kept: they are shapes, axes and pads, which inference reads."""


def skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the elements of its weights, and without claims about inner shapes."""
    light = onnx.ModelProto()
    light.ir_version = max(proto.ir_version, 4)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = proto.graph.name or "main"
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    known = {info.name for info in graph.input}
    for tensor in proto.graph.initializer:
        is_small = not tensor.external_data and tensor.ByteSize() <= SMALL_BYTES + 256
        if is_small:
            graph.initializer.append(tensor)
        elif tensor.name not in known:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    for info in proto.graph.output:
        untyped = graph.output.add()
        untyped.name = info.name
    return light


def check_static_shapes(proto: onnx.ModelProto) -> None:
    """Raises: UserError E303 where ONNX's shape inference finds operands that cannot fit."""
    try:
        onnx.shape_inference.infer_shapes(skeleton(proto), check_type=False, strict_mode=True, data_prop=False)
    except onnx.shape_inference.InferenceError as error:
        if str(error).count("Inference error(s)") > 1:
            return  # in a function's body, where inference also refuses bodies that ONNX itself ships
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise UserError(
            "E303",
            "shapes or types inside the model do not fit",
            node=lines[-1][:300] if lines else "",
            why="found by ONNX's shape inference, before anything ran",
        ) from error
