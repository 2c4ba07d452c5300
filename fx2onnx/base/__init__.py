"""What every layer may use: errors, source locations, dims, events. Imports neither torch nor onnx."""
