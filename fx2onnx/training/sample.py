"""The example call of a module that is to be trained: its inputs and targets by name, and which sizes are dynamic."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.python.inputs import Arguments, bind, normalise_args, refuse_objects
from fx2onnx.capture.shapes.dynamic import set_dynamic_axes
from fx2onnx.torchcompat.pytrees import is_built_otherwise
from fx2onnx.torchcompat.shape_specs import calls
from fx2onnx.training.options import Training

Axes = dict[str, dict[int, str]]


@dataclass(frozen=True)
class TrainingSample:
    """``batch`` and ``targets`` are tensors by name; ``dynamic`` the names of their dynamic sizes by axis."""

    arguments: Arguments
    batch: dict[str, torch.Tensor]
    targets: dict[str, torch.Tensor]
    dynamic: Axes
    shapes: Any = None
    """``dynamic_shapes`` of the module alone, as the user gave them."""

    def call(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the module's forward, with ``tensors`` in the place of the example's; a constant one
        stays."""
        args, kwargs = self.arguments.rebuilt([tensors.get(name, own) for name, own in self.batch.items()])
        return args, kwargs


def sample_of(
    module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any] | None, training: Training, dynamic_shapes: Any
) -> TrainingSample:
    """Raises UserError E101 where arguments do not fit, E001 where targets do not, E105 for sizes."""
    positional, named = normalise_args(module, args, kwargs)
    arguments = bind(module.forward, positional, named, None, is_leaf=is_built_otherwise)
    refuse_objects(arguments, "a training export")
    targets = _targets(training.loss, training.targets)
    batch = {leaf.name: leaf.tensor for leaf in arguments.leaves}
    for name in targets:
        if name in batch:
            raise UserError(
                "E001",
                f"{name} is an input of the module and a target",
                next="give the targets names of their own: targets={'labels': ...}",
            )
    own, of_targets = _apart(arguments, targets, dynamic_shapes)
    unknown = (
        [name for name in own or () if name not in {*arguments.values, *batch}] if isinstance(own, Mapping) else []
    )
    if unknown and targets:
        raise UserError(
            "E105",
            f"dynamic_shapes names {unknown[0]!r}, which is no argument of forward and no target",
            why=f"the targets are {', '.join(targets)}",
            next=f"name it so, or name the target: targets={{{unknown[0]!r}: ...}}",
        )
    return TrainingSample(arguments, batch, targets, _dynamic(arguments, own, of_targets), own)


def _targets(loss: Callable[..., torch.Tensor], given: object) -> dict[str, torch.Tensor]:
    """Targets by the names of the loss's parameters after the first. Raises UserError E001."""
    if isinstance(given, Mapping):
        found = dict(given)
    else:
        values = list(given) if isinstance(given, tuple | list) else [given]
        found = dict(zip(_parameter_names(loss, len(values)), values, strict=True))
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise UserError(
                "E001",
                f"the target {name} is a {type(value).__name__}, no tensor",
                next="give sample tensors: targets=(labels,), or bind other arguments with functools.partial",
            )
    return found


def _parameter_names(loss: Callable[..., torch.Tensor], count: int) -> list[str]:
    function = loss.forward if isinstance(loss, torch.nn.Module) else loss
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        parameters = []
    names = [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_POSITIONAL]
    if any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters) or not parameters:
        return [f"target_{place}" for place in range(count)] if count > 1 else ["target"][:count]
    if count > len(names):
        raise UserError(
            "E001",
            f"targets has {count} tensors, the loss takes {len(names)}",
            why=f"after the outputs it takes {', '.join(names) or 'nothing'}",
            next="give as many targets as the loss takes",
        )
    return names[:count]


def _apart(arguments: Arguments, targets: Mapping[str, torch.Tensor], shapes: Any) -> tuple[Any, dict[str, Any]]:
    """``dynamic_shapes`` of the module, and those of the targets by name."""
    if isinstance(shapes, Mapping):
        own = {name: spec for name, spec in shapes.items() if name not in targets}
        return own or None, {name: spec for name, spec in shapes.items() if name in targets}
    if isinstance(shapes, tuple | list) and targets and len(shapes) == len(arguments.values) + len(targets):
        count = len(arguments.values)
        return tuple(shapes[:count]), dict(zip(targets, shapes[count:], strict=True))
    if shapes == "auto":
        return shapes, {name: [f"{name}_dim_{axis}" for axis in range(value.dim())] for name, value in targets.items()}
    return shapes, {}


def _dynamic(arguments: Arguments, own: Any, of_targets: Mapping[str, Any]) -> Axes:
    if calls(own) is not None:
        what = "a training export learns no sizes from further calls"
        raise UserError("E105", what, next="name the dynamic sizes in dynamic_shapes: {'x': {0: 'batch'}}")
    set_dynamic_axes(arguments, own, None)
    axes = {leaf.name: {axis: str(size) for axis, size in leaf.axes.items()} for leaf in arguments.leaves if leaf.axes}
    for name, spec in of_targets.items():
        pairs = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        axes[name] = {
            axis: size if isinstance(size, str) else getattr(size, "__name__", f"{name}_dim_{axis}")
            for axis, size in pairs
            if size is not None
        }
    return {name: found for name, found in axes.items() if found}


def refuse_names(names: Sequence[str], taken: Mapping[str, str]) -> None:
    """Raises UserError E001 where an input of the training graph would be called as another is."""
    for name in names:
        if name in taken:
            raise UserError(
                "E001",
                f"two inputs of the training graph would be called {name}",
                why=f"one is {taken[name]}",
                next="rename the module's input or the target",
            )
