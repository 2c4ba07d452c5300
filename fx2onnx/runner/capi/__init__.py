"""Where onnxruntime scripts look for exceptions."""

from fx2onnx.runner.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
