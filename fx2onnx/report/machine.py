"""The conditions of a measurement besides the code."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("fx2onnx", "torch", "onnx", "onnx_ir", "onnxscript", "numpy")


def machine() -> dict[str, Any]:
    """CPU count, threads, platform, Python, and the versions of the packages that do the work."""
    result: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            continue
    return result
