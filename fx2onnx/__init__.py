"""Export PyTorch modules to ONNX, and run and check the result."""
