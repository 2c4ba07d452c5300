"""The steps of ``torch.optim`` as functions of tensors: parameter, gradient and state in, parameter and state out;
and which rule and learning rate each parameter of a group has.

Scalars that PyTorch keeps in Python are computed in float64 from the inputs ``step`` and ``learning_rate``, so that a step
differs from PyTorch's by rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public_methods

State: TypeAlias = dict[str, torch.Tensor]
Group: TypeAlias = Mapping[str, object]


@dataclass(frozen=True)
class Moment:
    """The moment of a step: the learning rate, and the number of steps before (both float64 scalars)."""

    learning_rate: torch.Tensor
    step: torch.Tensor

    @property
    def number(self) -> torch.Tensor:
        """1 in the first step."""
        return self.step + 1

    def rate_for(self, parameter: torch.Tensor) -> torch.Tensor:
        """The learning rate as a factor of ``parameter``."""
        return as_factor(self.learning_rate, parameter)


def as_factor(number: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A float64 scalar as PyTorch's operators on tensors of the parameter's type take it: those of float32 in float32."""
    return number.float() if parameter.dtype == torch.float32 else number


Update: TypeAlias = Callable[[torch.Tensor, torch.Tensor, State, Moment], tuple[torch.Tensor, State]]


@public_methods
@dataclass(frozen=True)
class UpdateRule:
    """An optimizer of the user's own.

    update: ``(parameter, gradient, state, moment) -> (new parameter, new state)`` in tensors; ``moment.learning_rate`` and
        ``moment.step`` are float64 scalars.
    state: the number that each tensor of the state begins with; they have the parameter's shape.
    learning_rate: what the manifest gives as its first value.
    """

    update: Update
    state: Mapping[str, float] = field(default_factory=dict)
    learning_rate: float = 1e-3
    uses_step: bool = True
    is_by_element: ClassVar[bool] = True
    """True if the rule uses no property of a parameter as a whole: several parameters in one tensor are updated
    alike."""

    def first_state(self, parameter: torch.Tensor) -> State:
        """The state before the first step."""
        return {name: torch.full_like(parameter, number) for name, number in self.state.items()}

    def slots(self, parameter: torch.Tensor) -> tuple[str, ...]:
        """The names of ``first_state``."""
        return tuple(self.state)


def _number(options: Group, name: str) -> float:
    value = options[name]
    return float(value.item() if isinstance(value, torch.Tensor) else value)  # type: ignore[arg-type]


def _minimised(gradient: torch.Tensor, options: Group) -> torch.Tensor:
    return -gradient if options.get("maximize") else gradient


def _decayed(gradient: torch.Tensor, parameter: torch.Tensor, options: Group) -> torch.Tensor:
    decay = _number(options, "weight_decay")
    return gradient.add(parameter, alpha=decay) if decay else gradient


def sgd(options: Group) -> UpdateRule:
    """Source: torch/optim/sgd.py, _single_tensor_sgd. In the first step the buffer is the gradient, undampened."""
    momentum, dampening = _number(options, "momentum"), _number(options, "dampening")

    def update(
        parameter: torch.Tensor, gradient: torch.Tensor, state: State, moment: Moment
    ) -> tuple[torch.Tensor, State]:
        direction = _decayed(_minimised(gradient, options), parameter, options)
        new: State = {}
        if momentum:
            buffer = state["momentum_buffer"] * momentum
            buffer = buffer + (direction * (1 - dampening) if dampening else direction)
            if dampening:
                buffer = torch.where(moment.step == 0, direction, buffer)
            new["momentum_buffer"] = buffer
            direction = direction + momentum * buffer if options["nesterov"] else buffer
        return parameter - moment.rate_for(parameter) * direction, new

    return UpdateRule(update, {"momentum_buffer": 0.0} if momentum else {}, uses_step=bool(momentum and dampening))


def adam(options: Group, *, decoupled: bool = False) -> UpdateRule:
    """Source: torch/optim/adam.py, _single_tensor_adam."""
    first, second = (float(beta) for beta in options["betas"])  # type: ignore[attr-defined]
    decay, epsilon = _number(options, "weight_decay"), _number(options, "eps")
    is_decoupled = decoupled or bool(options.get("decoupled_weight_decay"))

    def update(
        parameter: torch.Tensor, gradient: torch.Tensor, state: State, moment: Moment
    ) -> tuple[torch.Tensor, State]:
        gradient, rate = _minimised(gradient, options), moment.learning_rate
        if decay and is_decoupled:
            parameter = parameter * as_factor(1 - rate * decay, parameter)
        elif decay:
            gradient = gradient.add(parameter, alpha=decay)
        mean = torch.lerp(state["exp_avg"], gradient, 1 - first)
        square = state["exp_avg_sq"] * second + gradient * gradient * (1 - second)
        new = {"exp_avg": mean, "exp_avg_sq": square}
        if options["amsgrad"]:
            square = new["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], square)
        step_size = as_factor(rate / (1 - first**moment.number), parameter)
        scale = as_factor((1 - second**moment.number).sqrt(), parameter)
        return parameter - step_size * (mean / (square.sqrt() / scale + epsilon)), new

    names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if options["amsgrad"] else [])]
    return UpdateRule(update, dict.fromkeys(names, 0.0))


def adamw(options: Group) -> UpdateRule:
    """Adam with a weight decay of its own."""
    return adam(options, decoupled=True)


def rmsprop(options: Group) -> UpdateRule:
    """Source: torch/optim/rmsprop.py, _single_tensor_rmsprop."""
    alpha, epsilon, momentum = (_number(options, name) for name in ("alpha", "eps", "momentum"))

    def update(
        parameter: torch.Tensor, gradient: torch.Tensor, state: State, moment: Moment
    ) -> tuple[torch.Tensor, State]:
        gradient = _decayed(_minimised(gradient, options), parameter, options)
        square = state["square_avg"] * alpha + gradient * gradient * (1 - alpha)
        new, root = {"square_avg": square}, square
        if options["centered"]:
            new["grad_avg"] = torch.lerp(state["grad_avg"], gradient, 1 - alpha)
            root = square - new["grad_avg"] * new["grad_avg"]
        direction = gradient / (root.sqrt() + epsilon)
        if momentum:
            direction = new["momentum_buffer"] = state["momentum_buffer"] * momentum + direction
        return parameter - moment.rate_for(parameter) * direction, new

    names = ["square_avg", *(["grad_avg"] if options["centered"] else []), *(["momentum_buffer"] if momentum else [])]
    return UpdateRule(update, dict.fromkeys(names, 0.0), uses_step=False)


def adagrad(options: Group) -> UpdateRule:
    """Source: torch/optim/adagrad.py, _single_tensor_adagrad."""
    lr_decay, epsilon = _number(options, "lr_decay"), _number(options, "eps")

    def update(
        parameter: torch.Tensor, gradient: torch.Tensor, state: State, moment: Moment
    ) -> tuple[torch.Tensor, State]:
        gradient = _decayed(_minimised(gradient, options), parameter, options)
        rate = moment.learning_rate / (1 + moment.step * lr_decay) if lr_decay else moment.learning_rate
        total = state["sum"] + gradient * gradient
        return parameter - as_factor(rate, parameter) * (gradient / (total.sqrt() + epsilon)), {"sum": total}

    return UpdateRule(update, {"sum": _number(options, "initial_accumulator_value")}, uses_step=bool(lr_decay))


@dataclass(frozen=True)
class _Factored(UpdateRule):
    """Adafactor's state: of a matrix the means of its rows and columns alone."""

    is_by_element = False

    def first_state(self, parameter: torch.Tensor) -> State:
        if parameter.dim() > 1:
            return {
                "row_var": parameter.new_zeros(*parameter.shape[:-1], 1),
                "col_var": parameter.new_zeros(*parameter.shape[:-2], 1, parameter.shape[-1]),
            }
        return {"variance": torch.zeros_like(parameter)}

    def slots(self, parameter: torch.Tensor) -> tuple[str, ...]:
        return ("row_var", "col_var") if parameter.dim() > 1 else ("variance",)


def _pair(value: object) -> tuple[float | None, float]:
    """Adafactor's two epsilons; the first may be that of the parameter's dtype."""
    first, second = value if isinstance(value, tuple | list) else (None, value)
    return first, float(second)


def adafactor(options: Group) -> UpdateRule:
    """Source: torch/optim/_adafactor.py, _single_tensor_adafactor."""
    first, second = _pair(options["eps"])
    beta_decay, threshold, decay = (_number(options, name) for name in ("beta2_decay", "d", "weight_decay"))

    def update(
        parameter: torch.Tensor, gradient: torch.Tensor, state: State, moment: Moment
    ) -> tuple[torch.Tensor, State]:
        gradient = _minimised(gradient, options)
        smallest = torch.finfo(parameter.dtype).eps if first is None else first
        weight = moment.number**beta_decay
        rho = torch.minimum(moment.learning_rate, 1 / moment.number.sqrt())
        rms = torch.linalg.vector_norm(parameter) / math.sqrt(parameter.numel())
        alpha = rms.clamp(min=second) * rho
        if decay:
            parameter = parameter * (1 - moment.learning_rate * decay)
        weight = weight.to(parameter.dtype)
        if gradient.dim() > 1:
            row = torch.lerp(state["row_var"], (gradient * gradient).mean(-1, keepdim=True), weight)
            column = torch.lerp(state["col_var"], (gradient * gradient).mean(-2, keepdim=True), weight)
            variance = (row @ column) / row.mean(-2, keepdim=True).clamp(min=smallest)
            new = {"row_var": row, "col_var": column}
        else:
            variance = torch.lerp(state["variance"], gradient * gradient, weight)
            new = {"variance": variance}
        direction = gradient * variance.clamp(min=smallest * smallest).rsqrt()
        size = torch.linalg.vector_norm(direction) / (math.sqrt(direction.numel()) * threshold)
        return parameter - (alpha / size.clamp(min=1.0)) * direction, new

    return _Factored(update)


RULES: dict[type[torch.optim.Optimizer], Callable[[Group], UpdateRule]] = {
    torch.optim.SGD: sgd, torch.optim.Adam: adam, torch.optim.AdamW: adamw, torch.optim.RMSprop: rmsprop,
    torch.optim.Adagrad: adagrad, torch.optim.Adafactor: adafactor,
}  # fmt: skip
"""The rule of each optimizer, by exact class: a subclass may do anything."""


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
