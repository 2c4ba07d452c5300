"""One export as data, and what becomes of it: what ``fx2onnx export`` does for a model, here or in another process."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.base.notices import ExportWarning, warn
from fx2onnx.cli.options import resolve_source

if TYPE_CHECKING:
    from fx2onnx.exporting.options import ExportOptions
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.judge.verdict import Verdict
    from fx2onnx.sizes.assumptions import Specialization
    from fx2onnx.sources import Source

Result = TypeVar("Result")


def engines_for(target: str | None) -> list[str] | None:
    """The engines to verify in: None where the file is for none in particular, so that one may lack a kernel; a file for
    onnxruntime has to run in all that are installed.
    """
    if target is None:
        return None
    from fx2onnx.judge.engines import chosen_engines

    return ["runner"] if target == "runner" else chosen_engines(None)


def _verified() -> ExportOptions:
    from fx2onnx.exporting.options import ExportOptions

    return ExportOptions(verify=True)


@dataclass(frozen=True)
class Job:
    """A source, the file to write, the options of the export, and what has a say in them or in the source."""

    source: str
    output: str
    options: ExportOptions = field(default_factory=_verified)
    dynamic: tuple[str, ...] = ("default",)
    bake: tuple[str, ...] = ()
    """The constant inputs beside those of the source; ``auto`` alone leaves the choice to the capture."""
    source_options: Mapping[str, Any] = field(default_factory=dict)
    """The options that ``fx2onnx.sources.resolve`` takes."""
    strict: bool = False
    """Warnings are errors, and nothing is written."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types: two jobs with equal ones ask for the same file."""
        job, options, capture = (
            {found.name: getattr(each, found.name) for found in fields(each)}
            for each in (self, self.options, self.options.capture)
        )
        asked = options | capture | job | dict(self.source_options)
        asked |= {"opset": asked.pop("opset_version"), "capture": asked.pop("strategy")}
        del asked["options"], asked["source_options"]
        as_json: dict[str, Any] = json.loads(json.dumps(asked, default=_as_data))
        return as_json


def _as_data(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


class StageDisplay(Protocol):
    """A display of the stages: a ``Stages`` on the terminal, or the pipe of a worker to one."""

    def stage(self, title: str) -> AbstractContextManager[None]: ...

    def call(self, title: str, function: Callable[[], Result]) -> Result: ...


@dataclass
class Done:
    """A finished export: the summary as JSON types, and the verdict where one was asked for."""

    summary: dict[str, Any]
    verdict: Verdict | None


def run(job: Job, display: StageDisplay) -> Done:
    """Build, export, verify. A file that differs from eager PyTorch is kept; every other failure leaves none.

    Raises:   Fx2OnnxError; ExportWarning where the job is strict and there is a warning.
    """
    with warnings.catch_warnings():
        if job.strict:
            warnings.simplefilter("error", ExportWarning)
        return _run(job, display)


def _run(job: Job, display: StageDisplay) -> Done:
    from fx2onnx.cli.feeds import dynamic_shapes_of, parse_dynamic
    from fx2onnx.cli.verify import check_model

    wanted = parse_dynamic(list(job.dynamic))
    with display.stage(f"build {job.source}"):
        model = resolve_source(job.source, **job.source_options)
        shapes = dynamic_shapes_of(model, wanted)
    result = display.call("export", lambda: _export(job, model, shapes))
    verdict = None
    asked = job.options
    if asked.verify and model.has_weights:
        engines = engines_for(asked.target)
        verdict = display.call(
            "verify against eager PyTorch",
            lambda: check_model(Path(job.output), model, engines, result.report.baked, asked.effort),
        )
    if asked.attest and (verdict is None or verdict.ok):
        from fx2onnx.exporting.attested import attest_module
        from fx2onnx.proof.attest import source_files

        source: dict[str, Any] = {"spec": job.source, "name": model.name, "options": dict(job.source_options)}
        source["files"] = source_files(checkpoint_files(job.source, job.source_options.get("weights")))
        command = {"name": "fx2onnx export", "options": job.as_dict()}
        display.call("attest", lambda: attest_module(result, model.module, verdict, command=command, source=source))
    return Done(_summary(job, model, result, verdict), verdict)


def checkpoint_files(source: str, weights: str | None) -> list[Path]:
    """The files of a source's checkpoint or code that its statement names."""
    from fx2onnx.sources.inputs import input_files

    return [path for path in input_files(source, weights) if path.is_file()]


def _export(job: Job, model: Source, shapes: Any) -> ExportResult:
    from fx2onnx.exporting import pipeline

    def run(shapes: Any) -> ExportResult:
        options = _options(job, model, shapes)
        file = None if job.strict else path
        return pipeline.run(model.module, model.args, model.kwargs or None, file, options)

    path = os.path.abspath(job.output)  # forward may change the working directory
    result = run(shapes)
    fixed = _fixed_sizes(result, shapes)
    if (required := _required(shapes, fixed)) != shapes:
        with contextlib.suppress(Fx2OnnxError), warnings.catch_warnings(action="ignore", category=ExportWarning):
            result = run(required)
            fixed = {}
    result.report.warnings += [f"the size {name} is fixed: {assumed}" for name, assumed in fixed.items()]
    if job.strict:
        warn(result.report.warnings)
        result.save(path, external_data=job.options.external_data)
    return result


def _options(job: Job, model: Source, shapes: Any) -> ExportOptions:
    """The options of the export itself, with the sizes ``shapes`` dynamic."""
    asked = job.options.capture
    capture = replace(
        asked,
        output_names=asked.output_names or list(model.output_names) or None,
        dynamic_shapes=shapes,
        bake="auto" if job.bake == ("auto",) else (*model.bake, *job.bake),
        data_branches="error" if asked.data_branches == "error" else model.data_branches,
    )
    return replace(
        job.options,
        capture=capture,
        export_params=model.has_weights,
        weight_files=model.weight_files,
        properties={**model.metadata, **(job.options.properties or {})} or None,
        verify=False,  # the file is, and attested: stages of their own
        attest=False,
    )


def _fixed_sizes(result: ExportResult, shapes: Any) -> dict[str, Specialization]:
    """The sizes that were to be dynamic and became a number, with what fixed them, in the order of ``shapes``."""
    from fx2onnx.sizes.assumptions import Specialization

    named = shapes if isinstance(shapes, dict) else {}
    wanted = dict.fromkeys(str(name) for axes in named.values() for name in axes.values())
    fixed = {
        str(assumed.size.as_symbol()): assumed
        for assumed in result.report.assumptions
        if isinstance(assumed, Specialization) and isinstance(assumed.value, int)
    }
    return {name: fixed[name] for name in wanted if name in fixed}


def _required(shapes: Any, fixed: Collection[str]) -> Any:
    """``shapes`` with the proposed sizes among ``fixed`` as required ones, for which a capture tries more."""
    from fx2onnx.capture.shapes.dynamic import Proposed

    if not fixed:
        return shapes
    return {
        name: {axis: dim.name if isinstance(dim, Proposed) and dim.name in fixed else dim for axis, dim in axes.items()}
        for name, axes in shapes.items()
    }


def _summary(job: Job, model: Source, result: ExportResult, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "ok": verdict is None or verdict.ok,
        "source": job.source,
        "origin": model.origin,
        "file": job.output,
        "report": result.report.as_dict(),
        "verify": None if verdict is None else verdict.as_dict(),
    }
