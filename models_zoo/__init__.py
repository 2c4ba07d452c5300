"""Our own model definitions, and the registry of the models that fx2onnx promises to export."""
