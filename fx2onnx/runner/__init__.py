"""Run ONNX models with NumPy; ``import fx2onnx.runner as ort`` serves ordinary onnxruntime scripts."""

from __future__ import annotations

from fx2onnx.runner.feeds import NodeArg
from fx2onnx.runner.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from fx2onnx.runner.ort_value import OrtValue
from fx2onnx.runner.registry import kernel
from fx2onnx.runner.session import LOG_LEVELS, PROVIDER, InferenceSession, ModelMetadata, logger

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "kernel",
    "set_default_logger_severity",
]


def get_available_providers() -> list[str]:
    return [PROVIDER]


def get_all_providers() -> list[str]:
    return [PROVIDER]


def set_default_logger_severity(severity: int) -> None:
    """0 verbose to 4 fatal, for messages of sessions made afterwards."""
    logger.setLevel(LOG_LEVELS[severity])


def get_device() -> str:
    return "CPU"
