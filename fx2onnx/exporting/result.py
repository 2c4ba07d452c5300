"""``ExportResult``: what ``fx2onnx.export`` returns."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import Shown
from fx2onnx.base.stack_frames import public_methods
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


@public_methods
@dataclass(repr=False)
class ExportedFolder(Shown):
    """The result of ``export_folder``: the folder, and by file name what became a model."""

    MOST_SHOWN = 300
    path: Path
    files: list[str] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        """For ``pickle``: all but the sources, whose modules belong to this process."""
        return vars(self) | {"sources": {}}

    def __fspath__(self) -> str:
        """The result in the place of its folder: ``fx2onnx.load(result)``."""
        return str(self.path)

    def _shown(self) -> dict[str, Any]:
        return _shown_folder(self.path, self.reports, self.verdicts) | {"notes": self.notes}


@public_methods
@dataclass(repr=False)
class TrainingFolder(Shown):
    """The result of ``fx2onnx.export_training``: the folder, its manifest, and by file name each export."""

    MOST_SHOWN = 300
    path: Path
    manifest: TrainingManifest
    results: dict[str, ExportResult] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """The verdicts by file name, where the export was verified."""

    def _shown(self) -> dict[str, Any]:
        reports = {name: result.report for name, result in self.results.items()}
        return _shown_folder(self.path, reports, self.verdicts)


def _shown_folder(path: Path, reports: Mapping[str, Report], verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    files = ", ".join(f"{name} {report.nodes_onnx} nodes" for name, report in reports.items())
    agree = all(verdict.ok for verdict in verdicts.values())
    return {"path": repr(str(path)), "files": files, "verified": ("yes" if agree else "no") if verdicts else ""}


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


@public_methods
class ExportResult(Shown):
    """A finished export. ``model`` is the onnx_ir model; its weights share the module's memory.

    It can be pickled and copied, and a notebook shows it as a table.
    """

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
        """The options of the export."""
        self.path: str | None = None
        self.statement: dict[str, Any] | None = None
        """With ``attest=True``: the in-toto statement that lies beside the file (docs/attestation.md)."""
        self.initial_state: dict[str, Any] = {}
        """With ``state="io"``: the value of every buffer that is an input, before the first call."""
        self.measured: Measured | None = None
        """The measurements for ``profile``."""
        self._restore = restore
        self.exported_program: Any = None
        """The ``torch.export.ExportedProgram`` that was exported; None where a module was."""
        self._session: Any = None

    @property
    def model(self) -> ir.Model:
        """The onnx_ir model."""
        self.owned.is_shared = True
        return self.owned.model

    @functools.cached_property
    def profile(self) -> Profile | None:
        """The cost of the export, with ``export(..., profile=True)``: ``.table()``, ``.to_json(path)``, ``.to_chrome_trace(path)``,
        ``.to_speedscope(path)``, ``.to_html(path)`` (docs/profiling.md).
        """
        return None if self.measured is None else self.measured.profile(self.owned.model, self.report)

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as protobuf, weights inside."""
        return io.to_proto(self.owned.model)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model on arguments of the module, in onnxruntime or, where that is not installed, in the runner.

        Returns:  the outputs in order, as tensors on the CPU. Raises UserError E401 for arguments that do not fit.
        """
        from fx2onnx.exporting.as_program import as_tensors
        from fx2onnx.judge.engines import run_session

        session = self.initialize_inference_session()
        return as_tensors(run_session(session, self._feeds(args, kwargs, [each.name for each in session.get_inputs()])))

    def call_reference(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model as a call does, in ONNX's reference evaluator, which is slow."""
        from fx2onnx.exporting.as_program import as_tensors
        from fx2onnx.judge.engines import ENGINES

        feeds = self._feeds(args, kwargs, [str(value.name) for value in self.owned.model.graph.inputs])
        return as_tensors(ENGINES["reference"](self.model_proto.SerializeToString())(feeds))

    def compute_values(
        self, value_names: Sequence[str], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> tuple[Any, ...]:
        """Values inside the model's main graph, by name, as tensors on the CPU, for arguments of the module.

        Raises:   UserError E001 for a name that the graph does not have, E401 for arguments that do not fit.
        """
        from fx2onnx.exporting.as_program import as_tensors, opened, with_outputs
        from fx2onnx.judge.engines import run_session

        feeds = self._feeds(args, kwargs or {}, [str(value.name) for value in self.owned.model.graph.inputs])
        model = with_outputs(self.owned.model, value_names)
        return as_tensors(run_session(opened(io.to_proto(model).SerializeToString()), feeds))

    def _feeds(self, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Arguments of the module under ``names``: inputs of ``model`` may have been renamed since the export."""
        from fx2onnx.exporting.as_program import feeds_of

        feeds = feeds_of(self.report.input_names, self.initial_state, args, kwargs)
        renamed = dict(zip(self.report.input_names, names, strict=False))
        return {renamed.get(name, name): array for name, array in feeds.items()}

    def initialize_inference_session(self, initializer: Callable[[bytes], Any] | None = None) -> Any:
        """The model as an ``InferenceSession`` of onnxruntime or, where that is not installed, of the runner; ``initializer`` makes
        another of the model's bytes. Calls of the result use it; it stays open until ``release``.
        """
        from fx2onnx.exporting.as_program import opened

        if self._session is None or initializer is not None:
            self._session = (initializer or opened)(self.model_proto.SerializeToString())
        return self._session

    def release(self) -> None:
        """Let go of what calls have opened."""
        self._session = None

    def optimize(self) -> None:
        """Nothing: the model is optimized, unless ``optimize=False`` was asked for. For files: ``fx2onnx.optimize``."""

    def rename_axes(self, rename_mapping: Mapping[Any, str]) -> None:
        """Rename dynamic sizes, also where others are computed from them. Keys: names, or ``onnx_ir.SymbolicDim`` of the model's
        inputs. Raises UserError E001 for a name that the model does not have.
        """
        from fx2onnx.exporting.interface import rename_sizes

        new = {str(getattr(old, "value", old)): name for old, name in rename_mapping.items()}
        rename_sizes(self.owned.model, new)
        self.release()

    def apply_weights(self, state_dict: Mapping[str, Any]) -> None:
        """Give the module's weights in the model other numbers: tensors by the names that the module has for them.

        Raises:   UserError E001 for one of another shape or dtype, and where weights were quantized or are 16 bits. A name that the
        model does not have is a warning.
        """
        from fx2onnx.exporting.as_program import apply_weights

        if self.report.quantized or self.report.precision:
            raise UserError("E001", "the weights of this export were made coarser", next="export the module again")
        apply_weights(self.owned.model, state_dict)
        self.release()

    def save(
        self,
        destination: str | os.PathLike[str] | BinaryIO | None = None,
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: bool | None = None,
        durable: bool = False,
        path: Any = None,
    ) -> None:
        """Write the model to a path (and its weights beside it where they are large; never a part), or whole into an open
        binary file. ``include_initializers=False`` leaves the weights out, ``keep_initializers_as_inputs`` has them as inputs,
        too. ``path`` is the former name of ``destination``. Raises UserError E301.
        """
        if path is not None:
            warnings.warn("ExportResult.save(path=) is destination= now", DeprecationWarning, stacklevel=3)
        target: Any = path if destination is None else destination
        if target is None:
            raise UserError("E001", "save needs a destination", next="save('model.onnx')")
        model = self.owned.model
        if keep_initializers_as_inputs or not include_initializers:
            model = _with_weights_as_inputs(model, keeps=include_initializers)
        is_referenced = reference.is_referenced(model)
        file = open_file(target, has_own_data=external_data or is_referenced)
        if file is not None:
            self.report.file_bytes = io.write_into(model, file)
            return
        if is_referenced:
            written = reference.save(model, target, durable=durable)
        else:
            written = io.save(model, target, external_data=external_data, durable=durable)
        self.path = written.path
        self.report.file_bytes = written.model_bytes + written.data_bytes

    def restore_outputs(self, outputs: Sequence[Any]) -> Any:
        """The structure that forward returns, from the flat list of the model's outputs."""
        return self._restore(list(outputs)) if self._restore is not None else list(outputs)

    def __getstate__(self) -> dict[str, Any]:
        """For ``pickle``: the model as bytes with its weights, less what belongs to this process."""
        kept = ("report", "path", "initial_state")
        return {name: getattr(self, name) for name in kept} | {"model": self.model_proto.SerializeToString()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        model = OwnedModel(ir.from_proto(onnx.load_from_string(state["model"])))
        self.__init__(model, state["report"], None)  # type: ignore[misc]
        self.path, self.initial_state = state["path"], state["initial_state"]

    def _shown(self) -> dict[str, Any]:
        report = self.report
        return {
            "opset": report.opset,
            "nodes": report.nodes_onnx,
            "inputs": report.input_names,
            "outputs": report.output_names,
            "file": self.path,
            "warnings": len(report.warnings) or "",
        }


def _with_weights_as_inputs(model: ir.Model, *, keeps: bool) -> ir.Model:
    """A copy that has its weights as inputs; ``keeps``: and as their defaults."""
    copy = model.clone()
    for name, value in [*copy.graph.initializers.items()]:
        if value not in copy.graph.inputs:
            copy.graph.inputs.append(value)
        if not keeps:
            del copy.graph.initializers[name]
            value.const_value = None
    return copy
