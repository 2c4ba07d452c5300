"""What a training graph has to compute, by eager PyTorch: autograd, ``torch.optim`` and the module's own buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch

from fx2onnx.training.optimizers import UpdateRule
from fx2onnx.training.options import Training
from fx2onnx.training.program import FINITE, GRADIENT, NEXT, OWN, STEP, Kind, Plan, Tensors, TrainingProgram
from fx2onnx.training.randomness import without_dropout


class Reference(torch.nn.Module):
    """``forward(**tensors)`` takes the inputs of a graph by name, buffers among them, and gives its ``outputs``."""

    def __init__(self, module: torch.nn.Module, plan: Plan, kind: Kind, outputs: Sequence[str]) -> None:
        super().__init__()
        self.program = _EagerProgram(module, plan, kind)
        self.buffers_by_name = dict(module.named_buffers())
        self.outputs = list(outputs)

    def forward(self, **tensors: torch.Tensor) -> Tensors:
        own = {name: tensors.pop(name) for name in list(tensors) if name in self.buffers_by_name}
        state = {OWN + name: value.clone() for name, value in own.items()}
        if self.program.kind is Kind.EVAL:
            tensors |= {name: own.get(name, self.buffers_by_name[name]) for name in self.program.plan.buffers}
            state = {}
        results = torch.func.functional_call(self.program, state, (), tensors, strict=False)
        results |= {name.removeprefix(OWN) + NEXT: value for name, value in state.items()}
        return {name: results[name].detach() for name in self.outputs}


class _EagerProgram(TrainingProgram):
    """The step is that of the optimizer itself."""

    def _draws(self, tensors: Mapping[str, torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        return without_dropout() if self.plan.training.dropout == "off" else super()._draws(tensors)

    def _stepped(self, tensors: Mapping[str, torch.Tensor], gradients: Tensors, results: Tensors) -> Tensors:
        training, groups = self.plan.training, self.plan.groups
        if groups is None or isinstance(training.optimizer, UpdateRule):
            return super()._stepped(tensors, gradients, results)
        parameters = {name: tensors[name].detach().clone().requires_grad_() for name in self.plan.parameters}
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].detach().clone()
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
        return {label: optimizer.state[parameter][slot].detach() for label, (parameter, slot) in found.items()}


def _clip(parameters: list[torch.Tensor], training: Training) -> None:
    if training.clip_value is not None:
        torch.nn.utils.clip_grad_value_(parameters, training.clip_value)
    if training.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)


def sample_after(reference: Reference, sample: Tensors, steps: int) -> Tensors:
    """``sample`` with parameters, state and buffers as they are ``steps`` steps later."""
    for _ in range(steps):
        with torch.no_grad():
            results = reference(**dict(sample))
        nexts = {name.removesuffix(NEXT): value for name, value in results.items() if name.endswith(NEXT)}
        sample = {name: nexts.get(name, value) for name, value in sample.items()}
    return sample


def random_gradients(sample: Tensors) -> Tensors:
    """``sample`` with numbers of their own for the gradients, which are inputs of an update alone."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(value.shape, generator=generator).to(value.dtype) if name.startswith(GRADIENT) else value
        for name, value in sample.items()
    }
