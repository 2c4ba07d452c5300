"""The machine and the versions on which a measurement depends."""

from __future__ import annotations

import os
import platform
import sys


def unpinned() -> None:
    """Start again without the variables that pin NumPy's BLAS to slow kernels; call before NumPy is imported."""
    pins = [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ]
    if pins:
        for name in pins:
            del os.environ[name]
        os.execv(sys.executable, [sys.executable, "-m", sys.modules["__main__"].__spec__.name, *sys.argv[1:]])  # type: ignore[union-attr]


def describe() -> str:
    """CPU count, Python, versions, and the BLAS kernels that NumPy chose."""
    from importlib.metadata import version

    packages = ("torch", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}, BLAS core {blas_core()}"


def blas_core() -> str:
    """Name of the kernels in NumPy's bundled OpenBLAS, or ``unknown``."""
    import ctypes
    import glob

    import numpy as np

    folder = os.path.join(os.path.dirname(os.path.dirname(np.__file__)), "numpy.libs")
    for path in glob.glob(os.path.join(folder, "*openblas*")):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            function = getattr(library, name, None)
            if function is not None:
                function.restype = ctypes.c_char_p
                return str(function().decode())
    return "unknown"


def cpu_name() -> str:
    """The processor's name, where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown processor"
