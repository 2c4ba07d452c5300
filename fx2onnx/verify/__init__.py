"""Is the exported file right, and where is it wrong? Eager PyTorch beside the engines, over several inputs and sizes."""

from fx2onnx.verify.compare import verify
from fx2onnx.verify.locating.first_wrong import FirstWrong
from fx2onnx.verify.locating.locate import locate
from fx2onnx.verify.training import verify_training
from fx2onnx.verify.verdict import Row, Verdict

__all__ = ["FirstWrong", "Row", "Verdict", "locate", "verify", "verify_training"]
