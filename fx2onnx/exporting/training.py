"""``fx2onnx.export(..., training=Training(...))`` and ``fx2onnx.export_training``: graphs that train, alone or as a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import WeakMethod

import onnx_ir as ir
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.notices import warn
from fx2onnx.base.targets import path_text
from fx2onnx.capture.driver import as_module
from fx2onnx.exporting import pipeline
from fx2onnx.exporting.attested import attest_module
from fx2onnx.exporting.folder import staging
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.result import ExportResult, TrainingFolder
from fx2onnx.exporting.training_files import (
    errors_of_own_module,
    manifest_of,
    refer_to_weights,
    take_names,
    write_weights,
)
from fx2onnx.files.folder_commit import commit_folder
from fx2onnx.files.staging import check_folder
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.manifest.training import EVAL_FILE, GRADIENTS_FILE, STEP_FILE, UPDATE_FILE
from fx2onnx.proof.attest import require_path
from fx2onnx.training.forms import DROPOUT_OFF, FORMS
from fx2onnx.training.history import PathsNoted
from fx2onnx.training.options import Training
from fx2onnx.training.plan import plan_of
from fx2onnx.training.program import GraphKind, TrainingPlan, TrainingProgram

if TYPE_CHECKING:
    from fx2onnx.judge.verdict import Verdict

FILES = {
    GraphKind.STEP: STEP_FILE,
    GraphKind.GRADIENTS: GRADIENTS_FILE,
    GraphKind.UPDATE: UPDATE_FILE,
    GraphKind.EVAL: EVAL_FILE,
}


def export_one(
    model: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    f: str | os.PathLike[str] | BinaryIO | None,
    training: Training,
    options: ExportOptions,
) -> ExportResult:
    """One file: a step where there is an optimizer, else loss and gradients."""
    if options.attest:
        require_path(f)
    target = pipeline.output_of(f, options)
    report = pipeline.report_path_of(options, target)
    if options.capture.samples:
        raise UserError(
            "E001",
            "samples= has no meaning with training=Training(...)",
            next="name the dynamic sizes in dynamic_shapes: {'x': {0: 'batch'}}",
        )
    module = as_module(model)
    plan = plan_of(module, args, kwargs, training, options.capture.dynamic_shapes)
    result = graph_of(module, plan, GraphKind.GRADIENTS if plan.groups is None else GraphKind.STEP, options)
    warn(result.report.warnings)
    verdict = _verify(result, module, plan) if options.verify else None
    if target is not None:
        result.save(target, external_data=options.external_data, durable=options.durable)
    if options.attest:
        attest_module(result, module, verdict)
    if report is not None:
        pipeline.write_report(report, result)
    return result


def _verify(result: ExportResult, module: torch.nn.Module, plan: TrainingPlan) -> Verdict:
    from fx2onnx.verify.training import raise_if_any_failed, verify_graph

    kind = GraphKind.GRADIENTS if plan.groups is None else GraphKind.STEP
    verdict = verify_graph(result, module, plan, kind)
    result.report.verdict = verdict.summary()
    raise_if_any_failed({"the graph": verdict})
    return verdict


def graph_of(module: torch.nn.Module, plan: TrainingPlan, kind: GraphKind, options: ExportOptions) -> ExportResult:
    """The graph of that kind, under the names of the user's own module."""
    is_differentiated = kind in (GraphKind.STEP, GraphKind.GRADIENTS)
    paths = PathsNoted()
    program = TrainingProgram(module, plan, kind, WeakMethod(paths.note))  # else they would be put back after each run
    samples = plan.inputs(kind, with_state=False)
    capture = replace(
        options.capture,
        strategy="fake",
        dynamic_shapes={name: axes for name, axes in plan.sample.dynamic.items() if name in samples} or None,
        training=False,
        gradients=is_differentiated,
    )
    is_off = is_differentiated and plan.training.dropout == "off"
    forms = FORMS if is_differentiated else {}
    translations = {**forms, **(DROPOUT_OFF if is_off else {}), **(options.custom_translations or {})}
    asked = replace(
        options,
        capture=capture,
        state="io",
        custom_translations=translations or None,
        verify=False,
        report=False,
        attest=False,
    )
    with errors_of_own_module(plan):
        result = pipeline.run(program, (), samples, None, asked, warns=False)
        paths.check()
    result.report.warnings += paths.warnings()
    take_names(result)
    _drop_unused(result, plan)
    return result


def _drop_unused(result: ExportResult, plan: TrainingPlan) -> None:
    """Drop inputs that a graph does not need: the seed of a module that draws nothing, buffers that it does not read."""
    graph = result.owned.model.graph
    asked = {*plan.sample.batch, *plan.sample.targets}
    for value in [v for v in graph.inputs if not v.uses() and v not in graph.outputs and v.name not in asked]:
        graph.inputs.remove(value)
    result.report.input_names = [value.name or "" for value in graph.inputs]


def write_training(
    model: Any,
    args: Any,
    folder: str | os.PathLike[str],
    kwargs: Mapping[str, Any] | None,
    training: Training,
    options: ExportOptions,
) -> TrainingFolder:
    """``fx2onnx.export_training`` with its options as values."""
    target = check_folder(Path(path_text(folder, "the folder")).expanduser())
    module = as_module(model)
    plan = plan_of(module, args, kwargs, training, options.capture.dynamic_shapes)
    _check_no_complex(plan)
    first = GraphKind.GRADIENTS if plan.groups is None else GraphKind.STEP
    results = {first: graph_of(module, plan, first, options)}
    plan = replace(plan, buffers=results[first].initial_state)
    others = [GraphKind.GRADIENTS, GraphKind.UPDATE, GraphKind.EVAL] if plan.groups is not None else [GraphKind.EVAL]
    if training.inputs:
        others = [kind for kind in others if kind is not GraphKind.UPDATE]
    results |= {kind: graph_of(module, plan, kind, options) for kind in others}
    exported = {FILES[kind]: result for kind, result in results.items()}
    exported[MODEL_FILE] = _model(module, plan, options)
    manifest = manifest_of(plan, {kind.value: FILES[kind] for kind in results}, exported)
    warn(text for result in exported.values() for text in result.report.warnings)
    with staging(target) as stage:
        places = write_weights(module, plan, stage)
        for name, result in exported.items():
            refer_to_weights(result.owned.model, module, places, stage)
            (stage / name).write_bytes(ir.to_proto(result.owned.model).SerializeToString(deterministic=True))
        verdicts = _verified(stage, module, plan, results) if options.verify else {}
        commit_folder(stage, target, manifest.facts())
    return TrainingFolder(target, manifest, exported, verdicts)


def _check_no_complex(plan: TrainingPlan) -> None:
    """Raises: UserError E108. One file takes a complex parameter as pairs; a folder's weights are as the module has them."""
    for name, value in (plan.parameters | plan.held).items():
        if value.is_complex():
            raise UserError(
                "E108",
                f"the parameter {name} is {value.dtype}, which a folder's weights cannot hold",
                next=(
                    "hold it as real numbers with an axis of 2, and use torch.view_as_complex in forward",
                    "or write one file, which takes it as pairs: fx2onnx.export(..., training=...)",
                    f"or freeze it: frozen=[{name!r}]",
                ),
            )


def _verified(
    folder: Path, module: torch.nn.Module, plan: TrainingPlan, kinds: Iterable[GraphKind]
) -> dict[str, Verdict]:
    """A verdict for each file. Raises VerificationError E501, so that no folder is written."""
    from fx2onnx.verify.training import raise_if_any_failed, verify_graph, verify_model

    verdicts = {FILES[kind]: verify_graph(folder / FILES[kind], module, plan, kind) for kind in kinds}
    verdicts[MODEL_FILE] = verify_model(folder / MODEL_FILE, module, plan)
    raise_if_any_failed(verdicts)
    return verdicts


def _model(module: torch.nn.Module, plan: TrainingPlan, options: ExportOptions) -> ExportResult:
    """The module as it is used when it is trained; its weights stay as they are, so that new ones can take their place."""
    args, kwargs = plan.sample.call(plan.sample.batch)
    capture = replace(options.capture, training=False, dynamic_shapes=plan.sample.shapes)
    asked = replace(options, capture=capture, state="drop", verify=False, keep_weights=True)
    return pipeline.run(module, args, kwargs, None, asked, warns=False)
