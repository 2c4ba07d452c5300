"""A package that adds one of each kind to fx2onnx; its entry points are in pyproject.toml."""
