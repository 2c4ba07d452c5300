"""The semantics of ONNX: schemas, types, kernels, and files that are checked. Runs without torch."""
