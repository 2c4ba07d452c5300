"""Names of a training graph as in the user's own module, not as in the program that is around it."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.capture.baking import BakeAdvice
from fx2onnx.capture.recording.tensor_tracker import tensor_info
from fx2onnx.exporting.result import ExportResult
from fx2onnx.irx.edit import graphs_of
from fx2onnx.training.program import OWN, Plan, loss_of

ROOT = OWN.removesuffix(".")


def own_path(path: str) -> str:
    """The path of a module within the user's."""
    return "" if path == ROOT else path.removeprefix(OWN)


@contextlib.contextmanager
def errors_of_own_module(plan: Plan) -> Iterator[None]:
    """Errors inside name the user's modules, and advise what a training graph can do."""
    try:
        yield
    except Fx2OnnxError as error:
        error.module_path = own_path(error.module_path)
        error.what = error.what.replace(f": {OWN}", ": ")
        if isinstance(error, UserError) and error.code == "E101" and _came_from_loss(error.__cause__):
            given = ", ".join(f"{name} {tensor_info(tensor)}" for name, tensor in plan.sample.targets.items())
            error.what = "the loss failed while it was run on fake tensors (shapes only, no data)"
            error.next = (f"check that loss(outputs, *targets) runs in eager PyTorch; targets: {given or 'none'}",)
        if isinstance(error, UserError):
            error.next = tuple(advice for step in error.next for advice in _advice(step, plan))
        error.args = (error.render(),)
        raise


def _came_from_loss(cause: BaseException | None) -> bool:
    """Whether an exception was raised while the user's loss ran, not in the module."""
    frames = traceback.walk_tb(None if cause is None else cause.__traceback__)
    return any(frame.f_code is loss_of.__code__ for frame, _ in frames)


def _advice(step: str, plan: Plan) -> Iterator[str]:
    """``step``; of a parameter, which cannot be baked, that it may be frozen."""
    if not isinstance(step, BakeAdvice):
        yield step
        return
    batch = [name for name in step.names if name in plan.sample.batch or name in plan.sample.targets]
    if batch:
        yield BakeAdvice(batch)
    names = [name for name in step.names if name in plan.parameters or name in plan.held]
    if names:
        yield f"frozen={names} where they need not be trained, which fixes their numbers in the file"


def take_names(result: ExportResult) -> None:
    """Parameters, buffers and nodes are called as in the user's module."""
    graph = result.owned.model.graph
    for value in [*graph.inputs, *graph.outputs]:
        if value.name and value.name.startswith(OWN):
            value.name = value.name.removeprefix(OWN)
    for name in [name for name in graph.initializers if name.startswith(OWN)]:
        value = graph.initializers.pop(name)
        value.name = name.removeprefix(OWN)
        graph.initializers[value.name] = value
    _name_nodes(result)
    result.initial_state = {name.removeprefix(OWN): value for name, value in result.initial_state.items()}
    result.report.input_names = [value.name or "" for value in graph.inputs]
    result.report.output_names = [value.name or "" for value in graph.outputs]


def _name_nodes(result: ExportResult) -> None:
    taken: set[str] = set()
    for node in (node for graph in graphs_of(result.owned.model) for node in graph):
        scope, slash, operator = (node.name or "").rpartition("/")
        path = own_path(scope)
        name = f"{path}{slash if path else ''}{operator}"
        if name in taken:
            stem, number = name, 1
            while name in taken:
                number += 1
                name = f"{stem}_{number}"
        taken.add(name)
        node.name = name
