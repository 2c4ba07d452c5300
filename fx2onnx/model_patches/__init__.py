"""Library functions whose Python branches on data, put in tensors for as long as a module is captured."""

from fx2onnx.model_patches.missing_packages import stand_ins
from fx2onnx.model_patches.patching import patches

__all__ = ["patches", "stand_ins"]
