"""``ExportResult``: what ``fx2onnx.export`` returns."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import onnx
import onnx_ir as ir

from fx2onnx.base.targets import open_file
from fx2onnx.irx import io, reference
from fx2onnx.irx.values import let_go
from fx2onnx.manifest.training import TrainingManifest

if TYPE_CHECKING:
    from fx2onnx.exporting.options import ExportOptions
    from fx2onnx.exporting.report import Measured, Report
    from fx2onnx.judge.verdict import Verdict
    from fx2onnx.report.profile import Profile
    from fx2onnx.sources import Source


@dataclass
class ExportedFolder:
    """What ``export_folder`` wrote: the folder, and by file name what became a model."""

    path: Path
    files: list[str] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class TrainingFolder:
    """What ``fx2onnx.export_training`` wrote: the folder, what its manifest says, and by file name each export."""

    path: Path
    manifest: TrainingManifest
    results: dict[str, ExportResult] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """By file name, where the export was verified."""

    def __repr__(self) -> str:
        files = ", ".join(f"{name} {result.report.nodes_onnx} nodes" for name, result in self.results.items())
        return f"<fx2onnx.TrainingFolder {str(self.path)!r}, {files}{', verified' if self.verdicts else ''}>"


class OwnedModel:
    """A model whose weights are let go when its owners are gone, unless others hold it.

    Its nodes and values refer to each other, so that the weights would else stay until the collector comes by.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.is_shared = False

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self.is_shared and not ends():  # at the end of Python, functions of modules are gone
            let_go(self.model.graph.initializers.values())


class ExportResult:
    """A finished export. ``model`` is the onnx_ir model; its weights share the module's memory."""

    def __init__(
        self,
        owned: OwnedModel,
        report: Report,
        restore: Callable[[list[Any]], Any] | None,
        options: ExportOptions | None = None,
    ) -> None:
        self.owned = owned
        """For fx2onnx's own code, which reads ``owned.model`` and keeps it no longer than this result."""
        self.report = report
        self.options = options
        """What was asked for."""
        self.path: str | None = None
        self.initial_state: dict[str, Any] = {}
        """With ``state="io"``: the value of every buffer that is an input, before the first call."""
        self.measured: Measured | None = None
        """What ``profile`` is made from."""
        self._restore = restore

    @property
    def model(self) -> ir.Model:
        """The onnx_ir model."""
        self.owned.is_shared = True
        return self.owned.model

    @functools.cached_property
    def profile(self) -> Profile | None:
        """What the export cost, with ``export(..., profile=True)``: ``.table()``, ``.to_json(path)``,
        ``.to_chrome_trace(path)``, ``.to_speedscope(path)``, ``.to_html(path)`` (docs/profiling.md).
        """
        return None if self.measured is None else self.measured.profile(self.owned.model, self.report)

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as protobuf, weights inside."""
        return io.to_proto(self.owned.model)

    def save(
        self, path: str | os.PathLike[str] | BinaryIO, *, external_data: bool | None = None, durable: bool = False
    ) -> None:
        """Write the model to a path (and its weights beside it where they are large; never a part), or whole into an open
        binary file. Raises UserError E301.
        """
        model = self.owned.model
        is_referenced = reference.is_referenced(model)
        file = open_file(path, has_own_data=external_data or is_referenced)
        if file is not None:
            self.report.file_bytes = io.write_into(model, file)
            return
        target: Any = path
        if is_referenced:
            written = reference.save(model, target, durable=durable)
        else:
            written = io.save(model, target, external_data=external_data, durable=durable)
        self.path = written.path
        self.report.file_bytes = written.model_bytes + written.data_bytes

    def restore_outputs(self, outputs: Sequence[Any]) -> Any:
        """The structure that forward returns, from the flat list of the model's outputs."""
        return self._restore(list(outputs)) if self._restore is not None else list(outputs)

    def __repr__(self) -> str:
        report = self.report
        return (
            f"<fx2onnx.ExportResult opset {report.opset}, {report.nodes_onnx} nodes, inputs {report.input_names}, "
            f"outputs {report.output_names}>"
        )
