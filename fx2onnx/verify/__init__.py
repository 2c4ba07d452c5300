"""Is the exported file right? Eager PyTorch beside the runner and onnxruntime, over several inputs and sizes."""

from fx2onnx.verify.compare import verify
from fx2onnx.verify.verdict import Row, Verdict

__all__ = ["Row", "Verdict", "verify"]
