"""What a file says of nodes that compute in fewer digits than their values have."""

METADATA_KEY = "fx2onnx.narrowed"
"""Of the model: JSON, ``{"double Conv in float": 53}``. A verifier allows the rounding of float32 there."""
