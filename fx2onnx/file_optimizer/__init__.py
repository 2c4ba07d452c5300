"""Any ONNX file made smaller and faster, whoever wrote it: read, brought into one form, rewritten, compared with itself."""

from fx2onnx.file_optimizer.pipeline import optimize_model
from fx2onnx.file_optimizer.result import OptimizeResult

__all__ = ["OptimizeResult", "optimize_model"]
