"""From a module to an ATen graph, without computing anything of the model. Never imports onnx."""
