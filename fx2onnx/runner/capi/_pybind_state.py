"""``onnxruntime_pybind11_state`` under the name that onnxruntime's own package imports it by."""

from typing import Any

from fx2onnx.runner.capi import onnxruntime_pybind11_state
from fx2onnx.runner.capi.onnxruntime_pybind11_state import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime_pybind11_state, name)
