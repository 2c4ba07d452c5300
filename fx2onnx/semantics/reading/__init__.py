"""From an ONNX file to a checked ``Program``: protobuf is read once, and everything in it is held against ONNX."""
