"""Arrays of texts as ``onnxruntime.OrtValue``, which its ``ortvalue_from_numpy`` refuses to make."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

OPSET = 13


def text_value(array: npt.NDArray[Any]) -> Any:
    """What a file gives out that has nothing but the texts."""
    import onnxruntime

    tensor = onnx.numpy_helper.from_array(np.asarray(array, dtype=object), "texts")
    node = onnx.helper.make_node("Constant", [], ["texts"], value=tensor)
    output = onnx.helper.make_tensor_value_info("texts", onnx.TensorProto.STRING, array.shape)
    graph = onnx.helper.make_graph([node], "texts", [], [output])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run_with_ort_values(None, {})[0]
