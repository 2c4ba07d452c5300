"""Reports on an export. Imports neither torch nor onnx."""
