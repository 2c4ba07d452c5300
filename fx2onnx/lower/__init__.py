"""From the captured ATen graph to an onnx_ir model."""
