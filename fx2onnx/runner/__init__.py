"""Run ONNX models with NumPy; ``import fx2onnx.runner as ort`` serves ordinary onnxruntime scripts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fx2onnx.base.metadata import VERSION as __version__
from fx2onnx.runner import capi
from fx2onnx.runner.feeds import NodeArg, logger
from fx2onnx.runner.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from fx2onnx.runner.ort_value import IOBinding, OrtValue
from fx2onnx.runner.session import LOG_LEVELS, PROVIDER, InferenceSession, ModelMetadata
from fx2onnx.semantics.kernels.creation import set_seed
from fx2onnx.semantics.registry import kernel

if TYPE_CHECKING:
    from fx2onnx.runner.trainer import StatefulSession, Trainer

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata",
    "NodeArg", "OrtValue", "RunOptions", "SessionOptions", "StatefulSession", "Trainer", "__version__", "capi",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers",
    "get_device", "get_version_string", "kernel", "set_default_logger_severity", "set_default_logger_verbosity",
    "set_seed",
]  # fmt: skip


def get_available_providers() -> list[str]:
    return [PROVIDER]


def get_all_providers() -> list[str]:
    return [PROVIDER]


def set_default_logger_severity(severity: int) -> None:
    """0 verbose to 4 fatal, for messages of sessions made afterwards."""
    logger.setLevel(LOG_LEVELS[severity])


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    return __version__


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted for compatibility: ``set_default_logger_severity`` decides."""


def enable_telemetry_events() -> None:
    """Accepted for compatibility: nothing is ever sent."""


def disable_telemetry_events() -> None:
    """Accepted for compatibility: nothing is ever sent."""


_DEVICES = frozenset([
    "OrtAllocatorType", "OrtArenaCfg", "OrtCompileApiFlags", "OrtDevice", "OrtDeviceMemoryType", "OrtDeviceVendorId",
    "OrtEpDevice", "OrtExecutionProviderDevicePolicy", "OrtHardwareDevice", "OrtHardwareDeviceType", "OrtMemType",
    "OrtMemoryInfo", "OrtMemoryInfoDeviceType", "OrtSparseFormat", "OrtValueVector", "copy_tensors",
    "create_and_register_allocator", "create_and_register_allocator_v2", "get_build_info", "get_ep_devices",
    "has_collective_ops", "preload_dlls", "print_debug_info", "set_global_thread_pool_sizes",
])  # fmt: skip
package_name = "fx2onnx"
version = __version__
cuda_version = ""
SessionIOBinding = IOBinding


_LATER = {
    "AdapterFormat": "adapters",
    "LoraAdapter": "adapters",
    "StatefulSession": "trainer",
    "Trainer": "trainer",
    **dict.fromkeys(_DEVICES, "devices"),
}
"""The modules of names that few scripts use, which are imported with their first use."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"fx2onnx.runner.{_LATER[name]}"), name)
    if name[:1].isalpha():
        from fx2onnx.runner.options import REFUSED, refused

        if name in REFUSED:
            return refused(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from fx2onnx.runner.options import REFUSED

    return sorted({*globals(), *_LATER, *REFUSED})
