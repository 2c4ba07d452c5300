"""The public names of ``fx2onnx``: where each is defined, the packages that are called as a function of the same name, and old names."""

from __future__ import annotations

import inspect
import sys
import warnings
from types import ModuleType
from typing import Any

from fx2onnx.base.packages import import_part
from fx2onnx.base.stack_frames import public

PLACES = {
    "Difference": "fx2onnx.diff.compare",
    "ExportResult": "fx2onnx.exporting.result",
    "ExportedFolder": "fx2onnx.exporting.result",
    "Finding": "fx2onnx.targets.lint",
    "FirstWrong": "fx2onnx.verify.locating.first_wrong",
    "LoadedModel": "fx2onnx.generation",
    "LoadedPipeline": "fx2onnx.generation",
    "OptimizeResult": "fx2onnx.steps.result",
    "Precision": "fx2onnx.precision.options",
    "Profile": "fx2onnx.report.profile",
    "Quantize": "fx2onnx.quantize.options",
    "Report": "fx2onnx.exporting.report",
    "Training": "fx2onnx.training.options",
    "TokenVerdict": "fx2onnx.cli.agreement",
    "TrainingFolder": "fx2onnx.exporting.result",
    "UpdateRule": "fx2onnx.training.optimizers",
    "Verdict": "fx2onnx.judge.verdict",
    "Certificate": "fx2onnx.proof.certify",
    "ValueRanges": "fx2onnx.proof.domains",
    "attest": "fx2onnx.functions",
    "certify": "fx2onnx.proof.certify",
    "diff": "fx2onnx.diff.compare",
    "export": "fx2onnx.api",
    "export_folder": "fx2onnx.api",
    "export_training": "fx2onnx.api",
    "inspect": "fx2onnx.functions",
    "lint": "fx2onnx.functions",
    "load": "fx2onnx.generation",
    "locate": "fx2onnx.verify.locating.locate",
    "optimize": "fx2onnx.steps.pipeline:optimize_model",
    "profile": "fx2onnx.functions",
    "quantize": "fx2onnx.functions",
    "testcase": "fx2onnx.functions",
    "translates": "fx2onnx.aten_map",
    "value_ranges": "fx2onnx.proof.ranges",
    "verify": "fx2onnx.verify.compare",
    "verify_generation": "fx2onnx.cli.agreement",
    "verify_training": "fx2onnx.verify.training",
}
"""The module of each name, and the name there where it is another."""
PARTS = frozenset({"runner", "sources", "verify", "diff", "optimize", "quantize"})
"""Packages of the public interface. Those that ``PLACES`` has, too, are called: ``fx2onnx.verify(...)``."""
OLD = {
    "fx2onnx": {"optimize_model": "fx2onnx.optimize"},
    "fx2onnx.diff": {name: f"fx2onnx.{name}" for name in ("Difference", "diff")},
    "fx2onnx.verify": {
        "Row": "fx2onnx.judge.verdict.Row",
        **{name: f"fx2onnx.{name}" for name in ("FirstWrong", "Verdict", "locate", "verify", "verify_training")},
    },
}
"""The old names of each package, and how each is spelled now."""


def public_object(name: str) -> Any:
    """Return the object that ``fx2onnx.NAME`` stands for. Raises UserError E602 where it needs a package that is missing."""
    if name in PARTS:
        return import_part(f"fx2onnx.{name}")
    return _object(name)


def _object(name: str) -> Any:
    module, _, other = PLACES[name].partition(":")
    return getattr(import_part(module), other or name)


def old_name(package: str, name: str) -> Any:
    """The object of an old name, with a DeprecationWarning. Raises AttributeError for a name that nothing ever had."""
    if name not in OLD[package]:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    new = OLD[package][name]
    warnings.warn(f"{package}.{name} is {new} now", DeprecationWarning, stacklevel=3)
    module, _, last = new.rpartition(".")
    return _object(last) if module == "fx2onnx" else getattr(import_part(module), last)


class CallablePackage(ModuleType):
    """A package that is called as the function of its name."""

    @public
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, known = self._function(), self.__signature__.parameters
        if kwargs.keys() - known and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            import_part("fx2onnx.exporting.options").refuse_unknown(
                self.__name__.removeprefix("fx2onnx."), kwargs, known
            )
        return function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Any:
        return _object(self.__name__.removeprefix("fx2onnx."))


def make_callable(package: str) -> None:
    """Let ``package`` be called, whether it was imported as an attribute of ``fx2onnx`` or by its own name."""
    sys.modules[package].__class__ = CallablePackage
