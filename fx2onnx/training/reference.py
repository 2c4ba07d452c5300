"""The reference for a training graph, by eager PyTorch: autograd, ``torch.optim`` and the module's own buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fx2onnx.capture.captured import NEXT, RETURNS_STATE
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.reference import narrowed
from fx2onnx.training.optimizers import UpdateRule
from fx2onnx.training.options import Training
from fx2onnx.training.program import FINITE, GRADIENT, OWN, STEP, GraphKind, Tensors, TrainingPlan, TrainingProgram
from fx2onnx.training.randomness import without_dropout


class Reference(torch.nn.Module):
    """``forward(**tensors)`` takes the inputs of a graph by name, what forward changes among them, and gives its ``outputs``."""

    def __init__(self, module: torch.nn.Module, plan: TrainingPlan, kind: GraphKind, outputs: Sequence[str]) -> None:
        super().__init__()
        setattr(self, RETURNS_STATE, True)
        self.program = _EagerProgram(module, plan, kind)
        taken = plan.inputs(kind, with_state=False)
        self.own_by_name = {
            name: value for name, value in plan.untrained(module).items() if name in plan.buffers or name not in taken
        }
        self.outputs = list(outputs)

    def forward(self, **tensors: torch.Tensor) -> Tensors:
        own = {name: tensors.pop(name) for name in list(tensors) if name in self.own_by_name}
        written = {name: value for name, value in self.own_by_name.items() if name + NEXT in self.outputs}
        state = {OWN + name: value.detach().clone() for name, value in (written | own).items()}
        if self.program.kind is GraphKind.EVAL:
            tensors |= {name: own.get(name, self.own_by_name[name]) for name in self.program.plan.buffers}
            state = {}
        results = called_with(self.program, state, (), tensors)
        if self.program.kind is GraphKind.EVAL:  # by place: a file may have to call an output otherwise
            results = dict(zip(self.outputs, results.values(), strict=False))
        results |= {name.removeprefix(OWN) + NEXT: value for name, value in state.items()}
        results = {name + NEXT: value for name, value in self.program.leaves.items()} | results
        return {name: results[name].detach() for name in self.outputs}


def called_with(module: torch.nn.Module, tensors: Tensors, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``module(*args, **kwargs)`` with these tensors for its own of the names, tied ones too.

    Each is put into each module once: ``functional_call``, left to tie them, leaves the new tensor in a module that has two
    names.
    """
    names: dict[int, list[str]] = {}
    for path, part in module.named_modules():
        for key, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None:
                names.setdefault(id(tensor), []).append(f"{path}.{key}" if path else key)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    everywhere = {name: value for first, value in tensors.items() for name in names[id(own[first])]}
    return torch.func.functional_call(module, everywhere, args, kwargs, tie_weights=False)


class _EagerProgram(TrainingProgram):
    """The step is that of the optimizer itself. The module gets the parameters that are given, which may be wider than its
    own; its own, which a closure may have, have their numbers.
    """

    def __init__(self, module: torch.nn.Module, plan: TrainingPlan, kind: GraphKind) -> None:
        super().__init__(module, plan, kind)
        self.own: Tensors = {}
        self.leaves: Tensors = {}

    @contextlib.contextmanager
    def _given(self, tensors: Tensors) -> Iterator[Tensors]:
        self.own = self.own_tensors(tensors)
        self.leaves = {name: self._leaf(name, tensor) for name, tensor in tensors.items()}
        with no_dispatch():
            before = {name: tensor.detach().clone() for name, tensor in self.own.items()}
        try:
            self._write({name: narrowed(tensor) for name, tensor in tensors.items()})
            yield self.leaves
        finally:
            self._write(before)

    def _leaf(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in of a tensor of the module: a parameter where that is one, which `ParameterList` would make of it else."""
        is_trained = name in self.plan.parameters
        if isinstance(self.own.get(name), torch.nn.Parameter):
            return torch.nn.Parameter(tensor.detach(), requires_grad=is_trained)
        return tensor.detach().requires_grad_(is_trained)

    def _write(self, values: Tensors) -> None:
        """Into the memory that the module's own tensors have: others may show it, too."""
        with no_dispatch(), torch.no_grad():
            for name, value in values.items():
                self.own[name].data.copy_(value)

    def _outputs(self, tensors: Mapping[str, torch.Tensor]) -> object:
        args, kwargs = self.plan.sample.call(tensors)
        return called_with(self.module, self.leaves, args, kwargs)

    def is_path(self) -> bool:
        return True

    def _gradients(self, loss: torch.Tensor, wanted: Tensors) -> dict[str, torch.Tensor | None]:
        """The gradients of the given tensors and of the module's own."""
        own = [(name, tensor) for name, tensor in self.own.items() if tensor.requires_grad and name in wanted]
        found = torch.autograd.grad(loss, [*wanted.values(), *(tensor for _, tensor in own)], allow_unused=True)
        gradients: dict[str, torch.Tensor | None] = dict(zip(wanted, found, strict=False))
        for (name, _), more in zip(own, found[len(wanted) :], strict=True):
            one = gradients[name]
            gradients[name] = one if more is None else more if one is None else one + more
        return gradients

    def _draws(self, tensors: Mapping[str, torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        return without_dropout() if self.plan.training.dropout == "off" else super()._draws(tensors)

    def _stepped(self, tensors: Mapping[str, torch.Tensor], gradients: Tensors, results: Tensors) -> Tensors:
        training, groups = self.plan.training, self.plan.groups
        if groups is None or isinstance(training.optimizer, UpdateRule):
            return super()._stepped(tensors, gradients, results)
        parameters = {name: tensors[name].detach().clone().requires_grad_() for name in self.plan.parameters}
        for name, gradient in gradients.items():
            parameters[name].grad = gradient.detach().clone()
        _clip(list(parameters.values()), training)
        is_finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())
        slots = self._stepped_in_place(tensors, parameters)
        nexts = {name: parameter.detach() for name, parameter in parameters.items()} | slots
        if training.loss_scale:
            results[FINITE] = torch.tensor(is_finite)
            nexts = nexts if is_finite else {name: tensors[name] for name in nexts}
        results |= {name + NEXT: value for name, value in nexts.items()}
        if groups.uses_step:
            results[STEP + NEXT] = tensors[STEP] + (1 if is_finite or not training.loss_scale else 0)
        return results

    def _stepped_in_place(self, tensors: Mapping[str, torch.Tensor], parameters: Tensors) -> Tensors:
        """Let the optimizer change ``parameters``. Returns its state afterwards, by ``PARAMETER.SLOT``."""
        groups = self.plan.groups
        own = self.plan.training.optimizer
        assert groups is not None
        assert isinstance(own, torch.optim.Optimizer)
        made = [
            {
                **options,
                "params": [parameters[name] for name in group.parameters],
                "lr": float(tensors[group.rate_name]),
            }
            for options, group in zip(own.param_groups, groups.members, strict=True)
        ]
        optimizer = type(own)(made)  # type: ignore[call-arg]
        steps = int(tensors[STEP]) if groups.uses_step else 1
        found: dict[str, tuple[torch.Tensor, str]] = {}
        for group in groups.members:
            for name in group.parameters:
                slots = group.slots(tensors[name])
                found |= {f"{name}.{slot}": (parameters[name], slot) for slot in slots}
                state = optimizer.state[parameters[name]]
                if steps or not isinstance(own, torch.optim.SGD):  # whose first step has no buffer yet
                    state |= {slot: tensors[f"{name}.{slot}"].clone() for slot in slots}
                if not isinstance(own, torch.optim.SGD):
                    state["step"] = torch.tensor(float(steps if groups.uses_step else 0))
        optimizer.step()
        after = {
            label: optimizer.state[parameter].get(slot, tensors[label]) for label, (parameter, slot) in found.items()
        }
        return {label: value.detach() for label, value in after.items()}


def _clip(parameters: list[torch.Tensor], training: Training) -> None:
    if training.clip_value is not None:
        torch.nn.utils.clip_grad_value_(parameters, training.clip_value)
    if training.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)


def sample_after(reference: Reference, sample: Tensors, steps: int) -> Tensors:
    """``sample`` with parameters, state and buffers as they are ``steps`` steps later."""
    for _ in range(steps):
        with torch.no_grad():
            results = reference(**{name: value.clone() for name, value in sample.items()})
        nexts = {name.removesuffix(NEXT): value for name, value in results.items() if name.endswith(NEXT)}
        sample = {name: nexts.get(name, value) for name, value in sample.items()}
    return sample


def random_gradients(sample: Tensors) -> Tensors:
    """``sample`` with numbers of their own for the gradients, which are inputs of an update alone."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(value.shape, generator=generator).to(value) if name.startswith(GRADIENT) else value
        for name, value in sample.items()
    }
