"""The files of a training folder beside its graphs: the file of weights that they share, the manifest, and the names of the user's
own module.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir
import torch

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.capture.captured import NEXT
from fx2onnx.capture.reasons import baking_step
from fx2onnx.capture.recording.values import tensor_info
from fx2onnx.exporting.result import ExportResult
from fx2onnx.files import safetensors
from fx2onnx.files.safetensors import TensorEntry, TensorPlace
from fx2onnx.irx.edit import graphs_of
from fx2onnx.manifest.training import WEIGHTS_FILE, OptimizerSlot, Rate, TrainedParameter, TrainingManifest
from fx2onnx.training.program import GRADIENT, LOSS, LOSS_SCALE, OWN, SEED, STEP, TrainingPlan, loss_of

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""PyTorch's dtypes in the words of the safetensors format."""


def _entry(name: str, tensor: torch.Tensor) -> TensorEntry:
    plain = tensor.detach().cpu().contiguous()
    content = plain.reshape(-1).view(torch.uint8).numpy()
    return TensorEntry(name, DTYPES[plain.dtype], tuple(plain.shape), content.data)


def stored(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, tied ones once; those that no file of weights can hold are left out."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor for name, tensor in named if tensor.dtype in DTYPES and tensor.layout == torch.strided}


def write_weights(module: torch.nn.Module, plan: TrainingPlan, folder: Path) -> dict[str, TensorPlace]:
    """Every parameter and buffer, and what the optimizer has of earlier steps. Returns the places by name."""
    kept = {} if plan.groups is None else dict(plan.groups.state)
    tensors = stored(module) | kept
    return safetensors.write(folder / WEIGHTS_FILE, [_entry(*item) for item in tensors.items()], {"format": "pt"})


def refer_to_weights(model: ir.Model, module: torch.nn.Module, places: Mapping[str, TensorPlace], folder: Path) -> None:
    """Let every initializer that is a tensor of the module refer to the file, whose place in the folder stays."""
    by_address = {tensor.data_ptr(): name for name, tensor in stored(module).items() if tensor.is_contiguous()}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        raw = getattr(tensor, "raw", None)
        name = by_address.get(raw.data_ptr()) if isinstance(raw, torch.Tensor) and raw.is_contiguous() else None
        if name is None or tensor is None or tensor.nbytes != places[name].length:
            continue
        value.const_value = ir.ExternalTensor(
            WEIGHTS_FILE,
            places[name].offset,
            places[name].length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=value.name or "",
            base_dir=str(folder),
        )


def _begun(plan: TrainingPlan) -> dict[str, float]:
    """The number that each tensor of the optimizer's state begins with."""
    found: dict[str, float] = {}
    for group in () if plan.groups is None else plan.groups.members:
        for name in group.parameters:
            one = plan.parameters[name].detach().new_zeros([1] * plan.parameters[name].dim())
            found |= {f"{name}.{slot}": float(value.reshape(-1)[0]) for slot, value in group.first_state(one).items()}
    return found


def manifest_of(plan: TrainingPlan, files: Mapping[str, str], results: Mapping[str, ExportResult]) -> TrainingManifest:
    """The manifest of the folder: the role of each input, and the output with its next value."""
    training, groups = plan.training, plan.groups
    inputs = {name for result in results.values() for name in result.report.input_names}
    state, begun = plan.state_types(), _begun(plan)
    rates = {} if groups is None else {name: group for group in groups.members for name in group.parameters}
    earlier = set() if groups is None else set(groups.state)

    def slot(name: str, tensor: torch.Tensor, initial: float = 0.0) -> OptimizerSlot:
        return OptimizerSlot(name, name + NEXT, tuple(tensor.shape), DTYPES[tensor.dtype], initial)

    def number(name: str, tensor: torch.Tensor) -> float:
        return 0.0 if name in earlier or not tensor.numel() else begun[name]

    parameters = tuple(
        TrainedParameter(
            name,
            GRADIENT + name,
            name + NEXT,
            tuple(tensor.shape),
            DTYPES[tensor.dtype],
            rates[name].rate_name if name in rates else None,
            tuple(slot(key, state[key], number(key, state[key])) for key in state if key.rpartition(".")[0] == name),
        )
        for name, tensor in plan.parameters.items()
    )
    return TrainingManifest(
        files=dict(files),
        weights=WEIGHTS_FILE,
        batch=tuple(plan.sample.batch),
        targets=tuple(plan.sample.targets),
        loss=LOSS,
        metrics=tuple(training.metrics),
        parameters=parameters,
        buffers=tuple(slot(name, tensor) for name, tensor in plan.buffers.items()),
        held=tuple(plan.held),
        learning_rates=() if groups is None else tuple(Rate(g.rate_name, g.learning_rate) for g in groups.members),
        step=slot(STEP, torch.tensor(0)) if groups is not None and groups.uses_step else None,
        first_step=0 if groups is None else groups.step,
        seed=SEED if SEED in inputs else None,
        loss_scale=LOSS_SCALE if LOSS_SCALE in inputs else None,
    )


ROOT = OWN.removesuffix(".")


def own_path(path: str) -> str:
    """The path of a module within the user's."""
    return "" if path == ROOT else path.removeprefix(OWN)


@contextlib.contextmanager
def errors_of_own_module(plan: TrainingPlan) -> Iterator[None]:
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
            _advise(error, plan)
        error.args = (error.render(),)
        raise


def _came_from_loss(cause: BaseException | None) -> bool:
    """Return whether an exception was raised while the user's loss ran, not in the module."""
    frames = traceback.walk_tb(None if cause is None else cause.__traceback__)
    return any(frame.f_code is loss_of.__code__ for frame, _ in frames)


def _advise(error: UserError, plan: TrainingPlan) -> None:
    """Instead of baking a parameter, which cannot be, advise that it may be frozen."""
    if not error.inputs:
        return
    batch = [name for name in error.inputs if name in plan.sample.batch or name in plan.sample.targets]
    names = [name for name in error.inputs if name in plan.parameters or name in plan.held]
    instead = [baking_step(batch)] if batch else []
    if names:
        instead.append(f"frozen={names} where they need not be trained, which fixes their numbers in the file")
    before = baking_step(error.inputs)
    error.next = tuple(new for step in error.next for new in (instead if step == before else [step]))
    error.inputs = tuple(batch)


def take_names(result: ExportResult) -> None:
    """Parameters, buffers and nodes are called as in the user's module. A buffer that nothing changes keeps a longer name where
    another value has its own.

    Raises:   UserError E001 where a buffer that forward changes is called as an input, an output or the number of steps.
    """
    graph = result.owned.model.graph
    values = [*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)]
    taken = {value.name for value in values if value.name and not value.name.startswith(OWN)}
    for value in [*graph.inputs, *graph.outputs]:
        if value.name and value.name.startswith(OWN):
            own = value.name.removeprefix(OWN)
            if own in taken:
                raise UserError(
                    "E001",
                    f"forward changes the tensor {own} of the module, and another value of the file is called {own}",
                    next=f"give {own} of the module another name",
                )
            value.name = own
    for name in [name for name in graph.initializers if name.startswith(OWN)]:
        if name.removeprefix(OWN) not in taken:
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
