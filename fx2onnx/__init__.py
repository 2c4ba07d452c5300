"""Export PyTorch modules to ONNX, and run and check the result.

``import fx2onnx`` is light: torch, onnx and NumPy load with the first use of what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import ExportWarning, Fx2OnnxError, InternalError, UserError, VerificationError
from fx2onnx.base.metadata import VERSION as __version__

if TYPE_CHECKING:
    from fx2onnx.api import export, export_folder, export_training
    from fx2onnx.aten_map.table.registry import translates
    from fx2onnx.exporting.report import Report
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.generation import load
    from fx2onnx.precision.options import Precision
    from fx2onnx.quantize.options import Quantize
    from fx2onnx.steps.pipeline import optimize_model
    from fx2onnx.steps.result import OptimizeResult
    from fx2onnx.training.optimizers import UpdateRule
    from fx2onnx.training.options import Training

__all__ = [
    "ExportResult",
    "ExportWarning",
    "Fx2OnnxError",
    "InternalError",
    "OptimizeResult",
    "Precision",
    "Quantize",
    "Report",
    "Training",
    "UpdateRule",
    "UserError",
    "VerificationError",
    "__version__",
    "export",
    "export_folder",
    "export_training",
    "load",
    "optimize_model",
    "translates",
]

_LAZY = {
    "ExportResult": "fx2onnx.exporting.result",
    "OptimizeResult": "fx2onnx.steps.result",
    "Precision": "fx2onnx.precision.options",
    "Quantize": "fx2onnx.quantize.options",
    "Report": "fx2onnx.exporting.report",
    "Training": "fx2onnx.training.options",
    "UpdateRule": "fx2onnx.training.optimizers",
    "export": "fx2onnx.api",
    "export_folder": "fx2onnx.api",
    "export_training": "fx2onnx.api",
    "load": "fx2onnx.generation",
    "optimize_model": "fx2onnx.steps.pipeline",
    "translates": "fx2onnx.aten_map",
}


_PARTS = frozenset({"runner", "verify"})
"""Modules of the public interface; they come with the first use, too."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fx2onnx.base.packages import import_part

    return import_part(f"fx2onnx.{name}") if name in _PARTS else getattr(import_part(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_PARTS})
