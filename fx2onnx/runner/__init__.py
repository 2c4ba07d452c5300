"""Run ONNX models with NumPy; ``import fx2onnx.runner as ort`` serves ordinary onnxruntime scripts."""

from __future__ import annotations

from fx2onnx.runner.feeds import NodeArg
from fx2onnx.runner.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from fx2onnx.runner.registry import kernel
from fx2onnx.runner.session import PROVIDER, InferenceSession, ModelMetadata

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "RunOptions",
    "SessionOptions",
    "get_available_providers",
    "get_device",
    "kernel",
]


def get_available_providers() -> list[str]:
    return [PROVIDER]


def get_device() -> str:
    return "CPU"
