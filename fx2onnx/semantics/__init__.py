"""What ONNX says: schemas, types, kernels, and files that are checked. Runs without torch."""
