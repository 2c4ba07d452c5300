"""Export PyTorch modules to ONNX, and run and check the result.

``import fx2onnx`` is light: torch, onnx and NumPy load with the first use of what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import Fx2OnnxError, InternalError, UserError, VerificationError
from fx2onnx.base.metadata import VERSION as __version__
from fx2onnx.base.notices import ExportWarning

if TYPE_CHECKING:
    from fx2onnx import runner, sources
    from fx2onnx.api import export, export_folder, export_training
    from fx2onnx.aten_map.table.registry import translates
    from fx2onnx.cli.agreement import TokenVerdict, verify_generation
    from fx2onnx.diff.compare import Difference, diff
    from fx2onnx.exporting.report import Report
    from fx2onnx.exporting.result import ExportedFolder, ExportResult, TrainingFolder
    from fx2onnx.functions import attest, inspect, lint, profile, quantize, testcase
    from fx2onnx.generation import LoadedModel, LoadedPipeline, load
    from fx2onnx.judge.verdict import Verdict
    from fx2onnx.precision.options import Precision
    from fx2onnx.proof.certify import Certificate, certify
    from fx2onnx.proof.domains import ValueRanges
    from fx2onnx.proof.ranges import value_ranges
    from fx2onnx.quantize.options import Quantize
    from fx2onnx.report.profile import Profile
    from fx2onnx.steps.pipeline import optimize_model as optimize
    from fx2onnx.steps.result import OptimizeResult
    from fx2onnx.targets.lint import Finding
    from fx2onnx.training.optimizers import UpdateRule
    from fx2onnx.training.options import Training
    from fx2onnx.verify.compare import verify
    from fx2onnx.verify.locating.first_wrong import FirstWrong
    from fx2onnx.verify.locating.locate import locate
    from fx2onnx.verify.training import verify_training

__all__ = [
    "Certificate", "Difference", "ExportResult", "ExportWarning", "ExportedFolder", "Finding", "FirstWrong",
    "Fx2OnnxError", "InternalError", "LoadedModel", "LoadedPipeline", "OptimizeResult", "Precision", "Profile",
    "Quantize", "Report", "TokenVerdict", "Training", "TrainingFolder", "UpdateRule", "UserError", "ValueRanges", "Verdict",
    "VerificationError", "__version__", "attest", "certify", "diff", "export", "export_folder", "export_training",
    "inspect", "lint", "load", "locate", "optimize", "profile", "quantize", "runner", "sources", "testcase",
    "translates", "value_ranges", "verify", "verify_generation", "verify_training",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "optimize_model" or name in __all__:
        from fx2onnx.base import public_names

        if name not in __all__:
            return public_names.old_name(__name__, name)
        found = globals()[name] = public_names.public_object(name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
