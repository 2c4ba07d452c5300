"""``ExportOptions``: what an export is asked to do, as one value from ``fx2onnx.export`` down. Imports no torch, no onnx."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.opsets import check_opset
from fx2onnx.capture.options import CaptureOptions, check_choice
from fx2onnx.targets.find import chosen_opset

if TYPE_CHECKING:
    from fx2onnx.base.weight_file import WeightFile

DEFAULT_OPSET = 20
"""Newest opset whose operators onnxruntime runs at least as fast as their older spellings (benchmarks/)."""

STATES = ("warn", "error", "drop", "io")
METADATA = ("none", "light", "full")

TORCH_ONLY = frozenset(
    [
        "dump_exported_program",
        "artifacts_dir",
        "fallback",
        "do_constant_folding",
        "keep_initializers_as_inputs",
        "operator_export_type",
        "autograd_inlining",
        "export_modules_as_functions",
        "custom_opsets",
        "custom_translation_table",
        "strict",
        "inline",
    ]
)
"""Keywords of torch.onnx.export that have no meaning here and are taken so that calls keep working."""


@dataclass(frozen=True)
class ExportOptions:
    """The options of ``fx2onnx.export``, which says what each of them means. Checked when made. Raises UserError E001."""

    capture: CaptureOptions = field(default_factory=CaptureOptions)
    opset_version: int | None = None
    target: str | None = None
    metadata: str = "light"
    state: str = "warn"
    custom_translations: Mapping[Any, Callable[..., Any]] | None = None
    optimize: bool = True
    export_params: bool = True
    weight_files: Sequence[WeightFile] = ()
    keep_weights: bool = False
    external_data: bool | None = None
    durable: bool = False
    verify: bool = False
    profile: bool | str | os.PathLike[str] = False
    verbose: bool | None = None

    def __post_init__(self) -> None:
        check_choice("state", self.state, STATES)
        check_choice("metadata", self.metadata, METADATA)
        if self.opset_version is not None:
            check_opset(self.opset_version)
        if self.target is not None:
            chosen_opset(self.target, self.opset_version, DEFAULT_OPSET)

    @classmethod
    def of(cls, *, capture: str = "auto", training: Any = None, **keywords: Any) -> ExportOptions:
        """The options from keywords as ``fx2onnx.export`` takes them. Raises UserError E001 for one that nobody knows."""
        unknown = sorted(set(keywords) - _OWN - _OF_CAPTURE - TORCH_ONLY)
        if unknown:
            raise UserError("E001", f"export has no argument {unknown[0]!r}", next="see help(fx2onnx.export)")
        of_capture = {name: value for name, value in keywords.items() if name in _OF_CAPTURE}
        own = {name: value for name, value in keywords.items() if name in _OWN}
        return cls(CaptureOptions(rung=capture, training=_is_training(training), **of_capture), **own)

    @property
    def opset(self) -> int:
        """The opset that the file has."""
        return chosen_opset(self.target, self.opset_version, DEFAULT_OPSET)


_OWN = frozenset(found.name for found in fields(ExportOptions)) - {"capture", "keep_weights"}
_OF_CAPTURE = frozenset(found.name for found in fields(CaptureOptions)) - {"rung", "training", "gradients"}


def _is_training(flag: Any) -> bool:
    """torch.onnx.TrainingMode, a bool or None as a bool."""
    name = getattr(flag, "name", None)
    return name == "TRAINING" if name is not None else bool(flag)
