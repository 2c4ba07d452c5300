"""The modules of ``onnxruntime.capi`` that packages import."""

from fx2onnx.runner.capi import _pybind_state, onnxruntime_pybind11_state

__all__ = ["_pybind_state", "onnxruntime_pybind11_state"]
