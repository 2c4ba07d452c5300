"""What differs between two ONNX files, whoever wrote them."""

from fx2onnx.diff.compare import Difference, diff

__all__ = ["Difference", "diff"]
