"""Packages that an installation may lack: the runner and the tools on files need few, the exporter needs torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from fx2onnx.base.errors import UserError

EXTRAS = {
    "torch": "torch",
    "onnxruntime": "ort",
    "transformers": "hf",
    "torchvision": "zoo",
    "timm": "zoo",
    "sklearn": "zoo",
}
"""The extra of fx2onnx that brings a package, by the name that Python imports."""


def require(name: str) -> None:
    """Raises UserError E602, with the command that installs it, where the package is missing."""
    if sys.modules.get(name) is None and importlib.util.find_spec(name) is None:
        raise _missing(name)


def missing_package(error: BaseException) -> UserError | None:
    """The same for an import that failed for want of a package of ``EXTRAS``."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return _missing(name) if name in EXTRAS and importlib.util.find_spec(name) is None else None


def _missing(name: str) -> UserError:
    return UserError(
        "E602",
        f"the package {name} is not installed, which this needs",
        next=f"pip install 'fx2onnx[{EXTRAS[name]}]'",
    )


def import_part(module: str) -> ModuleType:
    """``importlib.import_module`` for a part of fx2onnx that may need more packages. Raises UserError E602."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        raise (error if missing is None else missing) from error
