"""Parameter groups of an optimizer: the update rule of each parameter, and the names of the groups' learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.training.optimizers import RULES, State, UpdateRule

RATE = "learning_rate"


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters, by name, that share a rule and the input ``rate_name``."""

    rule: UpdateRule
    parameters: tuple[str, ...]
    rate_name: str
    learning_rate: float
    is_known: bool = True
    """True if the rule is one of ours, which does nothing but compute."""

    def first_state(self, parameter: torch.Tensor) -> State:
        """The state of a parameter before the first step."""
        return self.rule.first_state(parameter)

    def slots(self, parameter: torch.Tensor) -> tuple[str, ...]:
        """The names of ``first_state``."""
        return self.rule.slots(parameter)

    def joined(self, tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, ...]]:
        """The parameters among ``tensors`` that are updated together: vectors of one dtype, which are many and short, where the
        rule allows it.
        """
        found: dict[object, list[str]] = {}
        for name, tensor in tensors.items():
            is_short = self.is_known and self.rule.is_by_element and tensor.dim() == 1
            found.setdefault(tensor.dtype if is_short else name, []).append(name)
        return [tuple(names) for names in found.values()]


@dataclass(frozen=True)
class Groups:
    """``state`` holds what the optimizer has of earlier steps, by ``PARAMETER.SLOT``; ``step`` how many they were."""

    members: tuple[ParameterGroup, ...]
    state: State
    step: int = 0

    @property
    def uses_step(self) -> bool:
        return any(group.rule.uses_step for group in self.members)


def groups_of(optimizer: object, parameters: Mapping[str, torch.Tensor]) -> Groups:
    """Raises UserError E001 for an optimizer that is not known, E108 where it does not have every parameter."""
    if isinstance(optimizer, UpdateRule):
        group = ParameterGroup(optimizer, tuple(parameters), RATE, optimizer.learning_rate, is_known=False)
        return Groups((group,), {})
    make = RULES.get(type(optimizer))  # type: ignore[arg-type]
    if make is None or not isinstance(optimizer, torch.optim.Optimizer):
        known = ", ".join(sorted(kind.__name__ for kind in RULES))
        name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise UserError(
            "E001",
            f"the optimizer {name} is not known",
            why="it is a class" if isinstance(optimizer, type) else f"known are {known}",
            next=("give an instance of one of them", "or fx2onnx.UpdateRule(update, state)"),
        )
    names = {id(tensor): name for name, tensor in parameters.items()}
    members: list[ParameterGroup] = []
    state: State = {}
    step = 0
    for place, options in enumerate(optimizer.param_groups):
        own = [(names[id(tensor)], tensor) for tensor in options["params"] if id(tensor) in names]
        several = len(optimizer.param_groups) > 1
        rate = float(options["lr"])
        rule = make(options)
        members.append(
            ParameterGroup(rule, tuple(name for name, _ in own), f"{RATE}.{place}" if several else RATE, rate)
        )
        for name, tensor in own:
            kept = optimizer.state.get(tensor, {})
            step = max(step, int(kept.get("step", bool(kept))))  # SGD counts none, and has a buffer after the first
            slots = rule.slots(tensor)
            found = {slot: kept[slot] for slot in slots if isinstance(kept.get(slot), torch.Tensor)}
            state |= {f"{name}.{slot}": value for slot, value in found.items()}
    left = set(parameters) - {name for member in members for name in member.parameters}
    if left:
        raise UserError(
            "E108",
            f"the optimizer does not have {', '.join(sorted(left)[:5])}",
            why="the module trains them, its optimizer was made for others",
            next="make the optimizer for all of them, or name them in frozen=",
        )
    return Groups(tuple(members), state, step)


def trained_parameters(module: torch.nn.Module, frozen: Sequence[str], held: Sequence[str] = ()) -> tuple[State, State]:
    """The parameters that get gradients, and those that are held, by name; tied ones once.

    Raises UserError E001 where ``frozen`` or ``held`` names none.
    """
    named = dict(module.named_parameters())
    for option, names in (("frozen", frozen), ("held", held)):
        if isinstance(names, str):
            raise UserError("E001", f"{option}={names!r} is not a list of parameters", next=f"{option}=[{names!r}]")
        for wanted in names:
            if not any(_is_among(name, (wanted,)) for name in named):
                raise UserError(
                    "E001",
                    f"{option} names {wanted!r}, which is no parameter",
                    next=f"such as {', '.join(list(named)[:5])}; 'encoder.' for all that begin so",
                )
    stays = (*frozen, *held)
    trained: State = {
        name: value for name, value in named.items() if value.requires_grad and not _is_among(name, stays)
    }
    return trained, {name: value for name, value in named.items() if _is_among(name, held)}


def _is_among(name: str, wanted: Sequence[str]) -> bool:
    return any(name == one or (one.endswith(".") and name.startswith(one)) for one in wanted)
