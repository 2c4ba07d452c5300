"""``fx2onnx.export``: capture, translate, write, verify."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from fx2onnx.base.assumptions import Assumed, described
from fx2onnx.base.changes import before_change, undone
from fx2onnx.base.errors import UserError
from fx2onnx.base.events import Recorder, active_as_now, record, recording
from fx2onnx.base.recursion import make_room_to_recurse
from fx2onnx.base.targets import check_target
from fx2onnx.base.tracebacks import frames_emptied
from fx2onnx.base.weight_file import WeightFile
from fx2onnx.irx import io, reference
from fx2onnx.irx.values import let_go

if TYPE_CHECKING:
    from fx2onnx.base.memory import MemoryReader
    from fx2onnx.report.profile import Profile
    from fx2onnx.verify import Verdict

DEFAULT_OPSET = 20
"""Newest opset whose operators onnxruntime runs at least as fast as their older spellings (benchmarks/)."""


@dataclass
class Report:
    """What happened: which rung captured, seconds by phase, sizes, what was assumed."""

    rung: str = ""
    rung_reason: str = ""
    opset: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase, in order."""
    seconds: float = 0.0
    nodes_captured: int = 0
    nodes_onnx: int = 0
    file_bytes: int = 0
    """Bytes on disk, weights included; 0 where nothing was written."""
    input_names: list[str] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    assumptions: list[Assumed] = field(default_factory=list)
    """What the file takes for true, of dynamic sizes above all, with the line; ``str()`` of each says it."""
    mutations: list[str] = field(default_factory=list)
    """Buffers and inputs that forward changes and the file does not."""
    baked: list[str] = field(default_factory=list)
    """Inputs whose sample values are constants of the file."""
    warnings: list[str] = field(default_factory=list)
    resorts: dict[str, str] = field(default_factory=dict)
    """Overloads without an entry in the table, and what took its place: ``decomposition`` or ``torchlib``."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; ``assumption_details`` has the parts of each of ``assumptions``."""
        return asdict(replace(self, assumptions=[])) | {
            "assumptions": [str(assumed) for assumed in self.assumptions],
            "assumption_details": [described(assumed) for assumed in self.assumptions],
        }


class _Owned:
    """A model whose weights are let go when its owners are gone, unless somebody else got it.

    Its nodes and values refer to each other, so that the weights would else stay until the collector comes by.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.is_shared = False

    def __del__(self) -> None:
        if not self.is_shared:
            let_go(self.model.graph.initializers.values())


class ExportResult:
    """A finished export. ``model`` is the onnx_ir model; its weights share the module's memory."""

    def __init__(self, owned: _Owned, report: Report, restore: Callable[[list[Any]], Any] | None) -> None:
        self._owned = owned
        self._model = owned.model
        self.report = report
        self.path: str | None = None
        self.initial_state: dict[str, Any] = {}
        """With ``state="io"``: the value of every buffer that is an input, before the first call."""
        self._restore = restore
        self._measured: Measured | None = None

    @property
    def model(self) -> ir.Model:
        """The onnx_ir model."""
        self._owned.is_shared = True
        return self._model

    def _take_back(self) -> None:
        """Who asked for the model has it no more."""
        self._owned.is_shared = False

    @functools.cached_property
    def profile(self) -> Profile | None:
        """What the export cost, with ``export(..., profile=True)``: ``.table()``, ``.to_json(path)``,
        ``.to_chrome_trace(path)``, ``.to_speedscope(path)``, ``.to_html(path)`` (docs/profiling.md).
        """
        return None if self._measured is None else _profile_of(self, self._measured)

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as protobuf, weights inside."""
        return io.to_proto(self._model)

    def save(self, path: str | os.PathLike[str], *, external_data: bool | None = None, durable: bool = False) -> None:
        """Write the model (and its weights beside it where they are large). Raises UserError E301; never leaves a part."""
        if reference.is_referenced(self._model):
            written = reference.save(self._model, path, durable=durable)
        else:
            written = io.save(self._model, path, external_data=external_data, durable=durable)
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


def export(
    model: Any,
    args: Any = (),
    f: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    export_params: bool = True,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool | None = None,
    dynamic_shapes: Any = None,
    dynamic_axes: Mapping[str, Any] | None = None,
    verify: bool = False,
    training: Any = None,
    capture: str = "auto",
    metadata: str = "light",
    state: str = "warn",
    bake: Sequence[str] = (),
    data_branches: str = "error",
    custom_translations: Mapping[Any, Callable[..., Any]] | None = None,
    optimize: bool = True,
    durable: bool = False,
    weight_files: Sequence[WeightFile] = (),
    report: bool | str | os.PathLike[str] = False,
    profile: bool | str | os.PathLike[str] = False,
    **ignored: Any,
) -> ExportResult:
    """Export ``model(*args, **kwargs)`` to ONNX and write it to ``f``. Nothing of the model is computed.

    Keywords are those of ``torch.onnx.export``, so changing the import is enough.

    model: an ``nn.Module``, a function, or a ``torch.export.ExportedProgram``.
    args: sample arguments: a tensor, a tuple, or a dict of keywords. Only dtypes and shapes matter.
    f: path of the file, or None to write nothing.
    input_names, output_names: names in order; default: forward's parameter names, and the keys of what it returns.
    opset_version: 11 to 26; the file has exactly that opset (default 20).
    dynamic_shapes: as ``torch.export`` takes it, names instead of Dims allowed, or ``"auto"``.
    dynamic_axes: as the older exporter took it: ``{"x": {0: "batch"}}``.
    external_data: force (True) or forbid (False) weights in a file of their own, ``f.<digest>.data``; default: above 16 MiB.
    verify: run the result in the runner and in onnxruntime and compare with eager PyTorch.
    profile: record what the export costs, as ``result.profile``; a path (.html, .json, .trace.json, .speedscope.json,
        .txt) writes it as well.
    training: export in training mode where True or ``torch.onnx.TrainingMode.TRAINING``.
    capture: ``"auto"``, ``"symbolic"``, ``"fake"`` or ``"export"``.
    metadata: origin of each node in the file: ``"none"``, ``"light"`` (file:line) or ``"full"``.
    state: buffers or inputs that forward changes: ``"warn"`` in the report, ``"error"``, ``"drop"``, or ``"io"``: the file
        takes each buffer as an input and gives its new value as an output ``NAME.next``.
    bake: names of inputs whose sample values become constants of the file.
    data_branches: a Python decision by data is an ``"error"`` (E104), or ``"if"``: both branches are in the file.
    custom_translations: ``{torch.ops.my.op.default: function}`` for this call; ``{MyModule: function}`` for modules of a
        class, each call of which is then what ``function(op, module, *inputs, weights={name: value})`` emits.
    optimize: run the graph rewrites.
    durable: return only when the disk has the bytes.
    weight_files: mapped checkpoint files (``fx2onnx.sources.weight_files``) that the model refers to for the weights
        that lie in them, instead of copying them (docs/weights.md).

    Returns: ``ExportResult``. Raises: ``UserError`` with a code, the line and what to do; ``VerificationError``.
    """
    _check_arguments(state, metadata, ignored)
    target = None if f is None else check_target(f, inputs=[file.path for file in weight_files])
    read_or_written = [file.path for file in weight_files] + ([] if target is None else [target])
    profile_path = None if isinstance(profile, bool) else _checked_profile_path(profile, read_or_written)
    memory = _memory_reader() if profile else None

    def run() -> tuple[ExportResult, Recorder, Verdict | None]:
        verdict = None
        _pause_collector()
        before_change(active_as_now())
        make_room_to_recurse()
        with recording("export", detailed=bool(profile), memory=memory) as recorder:
            result = _export(
                model,
                args,
                kwargs,
                input_names=input_names,
                output_names=output_names,
                opset=DEFAULT_OPSET if opset_version is None else opset_version,
                dynamic_shapes=dynamic_shapes,
                dynamic_axes=dynamic_axes,
                training=_training_flag(training),
                rung=capture,
                metadata=metadata,
                state=state,
                bake=bake,
                data_branches=data_branches,
                custom_translations=custom_translations,
                optimize=optimize,
                export_params=export_params,
                weight_files=weight_files,
            )
            if target is not None:
                with record("save"):
                    result.save(target, external_data=external_data, durable=durable)
            if verify:
                from fx2onnx.verify import verify as verify_model

                with record("verify"):
                    flag = _training_flag(training)
                    verdict = verify_model(result, model, args, kwargs, training=flag, input_names=input_names)
                    verdict.raise_if_failed()
        return result, recorder, verdict

    with frames_emptied():
        result, recorder, verdict = undone(run)
    _finish_report(result.report, recorder)
    if profile:
        result._measured = Measured(type(model).__name__, recorder, memory, verdict)
        if profile_path is not None and result.profile is not None:
            result.profile.write(profile_path)
    if verbose:
        from fx2onnx.base.plain import plain
        from fx2onnx.report.text import summary

        print(plain(summary(result.report.as_dict())))
    return result


def _pause_collector() -> None:
    """No cyclic garbage collection until ``undone``: an export makes many objects that all live until its end, and a full
    collection over torch's and the model's objects takes longer than the graph work. Other threads' garbage waits, too.
    """
    if gc.isenabled():
        before_change(gc.enable)
        gc.disable()


_TORCH_ONLY = frozenset(
    [
        "report",
        "verify",
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


def _check_arguments(state: str, metadata: str, ignored: Mapping[str, Any]) -> None:
    unknown = sorted(set(ignored) - _TORCH_ONLY)
    if unknown:
        raise UserError("E001", f"export has no argument {unknown[0]!r}", next="see help(fx2onnx.export)")
    for name, value, known in (
        ("state", state, ("warn", "error", "drop", "io")),
        ("metadata", metadata, ("none", "light", "full")),
    ):
        if value not in known:
            raise UserError("E001", f"{name}={value!r} is not known", next=f"one of {', '.join(known)}")


def _training_flag(training: Any) -> bool:
    """torch.onnx.TrainingMode, a bool or None as a bool."""
    name = getattr(training, "name", None)
    return name == "TRAINING" if name is not None else bool(training)


def _export(
    module: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    *,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    opset: int,
    dynamic_shapes: Any,
    dynamic_axes: Mapping[str, Any] | None,
    training: bool,
    rung: str,
    metadata: str,
    state: str,
    bake: Sequence[str],
    data_branches: str,
    custom_translations: Mapping[Any, Callable[..., Any]] | None,
    optimize: bool,
    export_params: bool,
    weight_files: Sequence[WeightFile],
) -> ExportResult:
    with record("import"):
        import torch

        from fx2onnx.aten_map import TABLE
        from fx2onnx.aten_map.table.registry import MODULE_TRANSLATIONS, ModuleCalls, add_module_calls, is_module_class
        from fx2onnx.capture.driver import capture
        from fx2onnx.capture.recording.functionalize import is_decomposable
        from fx2onnx.lower.loop import lower
        from fx2onnx.model_patches.library import LibraryPatches
        from fx2onnx.optimize.pipelines import run_default

    custom = dict(custom_translations or {})
    of_modules = MODULE_TRANSLATIONS | {key: custom.pop(key) for key in list(custom) if is_module_class(key)}
    table = TABLE.extended(custom) if custom or of_modules else TABLE
    resorts: dict[str, str] = {}

    def keep(overload: Any) -> bool:
        if overload in table or not is_decomposable(overload):
            return True
        resorts[str(overload)] = "decomposition"
        return False

    calls: ModuleCalls = {}

    def called(overload: Any, number: int, part: torch.nn.Module, weights: Sequence[str]) -> None:
        calls[overload, number] = (part, weights)
        if overload not in table:
            kind = next(kind for kind in type(part).__mro__ if kind in of_modules)
            add_module_calls(table, of_modules[kind], overload, calls)

    with record("capture") as capturing:
        single_calls = None
        if of_modules and isinstance(module, torch.nn.Module):
            single_calls = (tuple(of_modules), called)
            rung = "fake" if rung == "auto" else rung
        captured = capture(
            module,
            args,
            kwargs,
            rung=rung,
            dynamic_shapes=dynamic_shapes,
            dynamic_axes=dynamic_axes,
            input_names=input_names,
            output_names=output_names,
            keep=keep,
            training=training,
            bake=bake,
            data_branches=data_branches,
            single_calls=single_calls,
            patches=LibraryPatches(),
        )
    if capturing is not None:
        capturing.args["rung"] = captured.rung
    mutations = [f"{m.kind} {m.name}" + (f"   ({m.where})" if m.where else "") for m in captured.mutations]
    if mutations and state == "error":
        first = captured.mutations[0]
        raise UserError(
            "E106",
            f"forward changes the {first.kind} {first.name}",
            where=first.where,
            why="an ONNX model keeps nothing between runs"
            + (f"; also: {', '.join(mutations[1:])}" if mutations[1:] else ""),
            next='export with state="warn" to leave the change out of the file',
        )
    with record("lower"):
        model = lower(captured, table, opset, metadata, lift_state=state == "io", resorts=resorts)
    owned = _Owned(model)
    if optimize:
        with record("optimize"):
            run_default(model, keep_weights=not export_params or bool(weight_files))
    attached = reference.attach(model, weight_files) if weight_files else None
    report = Report(
        rung=captured.rung,
        rung_reason=captured.rung_reason,
        opset=opset,
        nodes_captured=sum(node.op == "call_function" for node in captured.graph.nodes),
        nodes_onnx=len(model.graph),
        baked=list(bake),
        input_names=[value.name or "" for value in model.graph.inputs],
        output_names=[value.name or "" for value in model.graph.outputs],
        assumptions=captured.assumptions,
        mutations=mutations,
        warnings=list(captured.warnings),
        resorts=resorts,
    )
    if attached is not None:
        report.warnings += attached.notes()
    if mutations and state == "warn":
        report.warnings += [f"forward changes the {text}; the file does not" for text in mutations]
    if not export_params:
        _weights_to_inputs(model)
    result = ExportResult(owned, report, captured.restore)
    if state == "io":
        result.initial_state = {
            m.name: captured.weights[m.name].tensor.detach() for m in captured.mutations if m.kind != "input"
        }
    return result


def _weights_to_inputs(model: ir.Model) -> None:
    """Every weight becomes a graph input without data (``export_params=False``)."""
    for name in list(model.graph.initializers):
        value = model.graph.initializers[name]
        if value.const_value is not None and "." in name:
            del model.graph.initializers[name]
            value.const_value = None
            model.graph.inputs.append(value)


@dataclass(frozen=True)
class Measured:
    """What a profile is made from when somebody looks."""

    source: str
    recorder: Recorder
    memory: MemoryReader | None
    verdict: Verdict | None


def _memory_reader() -> MemoryReader:
    from fx2onnx.base.memory import MemoryReader

    return MemoryReader()


def _checked_profile_path(path: str | os.PathLike[str], inputs: Sequence[str]) -> str:
    from fx2onnx.report.profile import writer

    writer(path)
    return check_target(path, inputs=inputs, what="the profile")


def _profile_of(result: ExportResult, measured: Measured) -> Profile:
    from datetime import UTC, datetime

    from fx2onnx.irx.outline import graph_outline, weight_outline
    from fx2onnx.report.machine import machine
    from fx2onnx.report.profile import OURS, Export, Profile, events_of

    events, readings = events_of(measured.recorder.tree(), measured.memory)
    report = result.report
    return Profile(
        source=measured.source,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        exports=[Export(OURS, [events.seconds], events, readings, report.file_bytes, report.nodes_onnx)],
        weights=weight_outline(result._model),
        graph=graph_outline(result._model),
        verification=None if measured.verdict is None else measured.verdict.as_dict(),
        report=report.as_dict(),
    )


def _finish_report(report: Report, recorder: Recorder) -> None:
    root = recorder.close()
    report.phases = recorder.phases()
    report.seconds = root.seconds
