"""The comparison of training graphs with eager PyTorch: losses, gradients, and every next value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch

from fx2onnx.base.errors import VerificationError
from fx2onnx.base.stack_frames import public
from fx2onnx.capture.driver import as_module
from fx2onnx.judge.verdict import Verdict
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.manifest.training import read_training
from fx2onnx.training.options import Training
from fx2onnx.training.plan import plan_of
from fx2onnx.training.program import GraphKind, TrainingPlan
from fx2onnx.training.reference import Reference, random_gradients, sample_after
from fx2onnx.verify.compare import verify
from fx2onnx.verify.interface import as_file
from fx2onnx.verify.module_state import put_back

STEPS_BEFORE = 2
"""Steps that were made before: a state of zeros hides what is wrong with it."""


@public
def verify_training(
    model: Any,
    module: Any,
    args: Any,
    training: Training,
    kwargs: Mapping[str, Any] | None = None,
    *,
    engines: Sequence[str] | None = None,
) -> dict[str, Verdict]:
    """Compare a training graph, or a folder of them, with eager PyTorch: autograd, and the optimizer itself.

    ``model`` is a folder that ``export_training`` wrote, an ONNX file, or an ``ExportResult``; the module, its arguments and
    ``training`` are those of the export. Returns a verdict for each file, by name. Dynamic sizes are tried at others, too.
    """
    root = as_module(module)
    plan = plan_of(root, args, kwargs, training, None)
    if not (isinstance(model, str | os.PathLike) and Path(model).is_dir()):
        kind = GraphKind.GRADIENTS if plan.groups is None else GraphKind.STEP
        name = Path(model).name if isinstance(model, str | os.PathLike) else "the graph"
        return {name: verify_graph(model, root, plan, kind, engines)}
    folder = Path(model)
    manifest = read_training(folder)
    buffers = plan.untrained(root)
    plan = replace(plan, buffers={slot.name: buffers[slot.name] for slot in manifest.buffers if slot.name in buffers})
    verdicts = {
        file: verify_graph(folder / file, root, plan, GraphKind(kind), engines) for kind, file in manifest.files.items()
    }
    verdicts[MODEL_FILE] = verify_model(folder / MODEL_FILE, root, plan, engines)
    return verdicts


def verify_model(
    path: Path, module: torch.nn.Module, plan: TrainingPlan, engines: Sequence[str] | None = None
) -> Verdict:
    """Compare the model for inference."""
    args, kwargs = plan.sample.call(plan.sample.batch)
    with put_back(module, plan.buffers):
        return verify(path, module, args, kwargs, engines=engines)


def verify_graph(
    model: Any, module: torch.nn.Module, plan: TrainingPlan, kind: GraphKind, engines: Sequence[str] | None = None
) -> Verdict:
    """Compare one graph, a path or an ``ExportResult``, some steps on."""
    with as_file(model) as path:
        graph = onnx.load(path, load_external_data=False).graph
        kept = {value.name for value in graph.initializer}
        wanted = [value.name for value in graph.input if value.name not in kept]
        reference = Reference(module, plan, kind, [value.name for value in graph.output])
        buffers = {name: value for name, value in reference.own_by_name.items() if name in wanted}
        given = {**plan.inputs(kind), **buffers}
        sample = random_gradients({name: value for name, value in given.items() if name in wanted})
        if kind in (GraphKind.STEP, GraphKind.UPDATE):
            sample = sample_after(reference, sample, STEPS_BEFORE)
        return verify(path, reference, (), sample, engines=engines, seeds=())


def raise_if_any_failed(verdicts: Mapping[str, Verdict]) -> None:
    """Raises VerificationError E501 that names the file."""
    for file, verdict in verdicts.items():
        if not verdict.ok:
            raise VerificationError(
                "E501",
                f"{file} does not compute what eager PyTorch does",
                why=verdict.describe(),
                next="report it with the model",
            )
