"""The modules that are captured: a user's module with its loss, gradients and the optimizer's step around it.

Parameters and the optimizer's state are arguments, so that the file takes them as inputs; gradients are those of
``torch.autograd.grad``, whose calls are recorded as any others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fx2onnx.base.code_patch import THREAD
from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import NEXT, RETURNS_STATE
from fx2onnx.capture.recording.below_autograd import constants_read, is_one_of_several_paths, repeated, stand_for
from fx2onnx.capture.run import output_name
from fx2onnx.torchcompat.pytrees import flatten
from fx2onnx.training.history import check_constants, check_gradients, check_loss, check_tracked
from fx2onnx.training.optimizers import Groups, Moment, UpdateRule
from fx2onnx.training.options import Training
from fx2onnx.training.randomness import is_drop_path, seeded, unseeded
from fx2onnx.training.sample import TrainingSample, refuse_names
from fx2onnx.training.whole import decided_by_python, kept_whole, run_once

Tensors = dict[str, torch.Tensor]
STEP, SEED, LOSS_SCALE, LOSS, FINITE = "step", "seed", "loss_scale", "loss", "gradients_finite"
GRADIENT = "grad."
EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)
"""With ``sparse=True`` their gradients would be sparse tensors, which are no values of a graph."""

DROPOUTS = (
    *(torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d),
    *(torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout, torch.nn.RReLU),
)
OWN = "module."
"""The prefix of the user's own names in the captured program."""


class GraphKind(Enum):
    """The kind of a graph: what it computes."""

    STEP = "step"
    GRADIENTS = "gradients"
    UPDATE = "update"
    EVAL = "eval"


@dataclass(frozen=True)
class TrainingPlan:
    """The plan of a training: the parameters, the loss and the optimizer."""

    training: Training
    sample: TrainingSample
    parameters: Tensors
    groups: Groups | None
    held: Tensors = field(default_factory=dict)
    """Parameters that are inputs, and stay as they are."""
    buffers: Tensors = field(default_factory=dict)
    """The buffers that a step changes, and parameters that forward itself does."""

    def inputs(self, kind: GraphKind, *, with_state: bool = True) -> Tensors:
        """A sample of every input of the graph, by name; ``with_state`` also the numbers of the optimizer's state, which is
        as large as the parameters. Raises UserError E001 where two have one name.
        """
        training, groups = self.training, self.groups
        found: Tensors = {}
        parts: list[tuple[str, Tensors]] = []
        if kind is not GraphKind.UPDATE:
            parts += [("an input of the module", self.sample.batch), ("a target", self.sample.targets)]
        if kind in (GraphKind.STEP, GraphKind.UPDATE) and groups is not None:
            rates = {group.rate_name: torch.tensor(group.learning_rate) for group in groups.members}
            parts += [("a learning rate", rates)]
            parts += [("the number of steps", {STEP: torch.tensor(groups.step)} if groups.uses_step else {})]
        if kind in (GraphKind.STEP, GraphKind.GRADIENTS):
            parts += [("the seed of dropout", {SEED: torch.tensor(0)} if training.dropout == "seeded" else {})]
            parts += [("the scale of the loss", {LOSS_SCALE: torch.tensor(1.0)} if training.loss_scale else {})]
        if kind is GraphKind.UPDATE:
            parts += [("a gradient", {GRADIENT + name: value for name, value in self.parameters.items()})]
        parts += [("a parameter", self.parameters if kind is GraphKind.UPDATE else self.parameters | self.held)]
        if kind in (GraphKind.STEP, GraphKind.UPDATE):
            parts += [("the optimizer's state", self.first_state() if with_state else self.state_types())]
        if kind is GraphKind.EVAL:
            parts += [("a buffer", self.buffers)]
        taken: dict[str, str] = {}
        for what, tensors in parts:
            refuse_names(list(tensors), taken)
            taken |= dict.fromkeys(tensors, what)
            found |= {name: tensor.detach() for name, tensor in tensors.items()}
        return found

    def untrained(self, module: torch.nn.Module) -> Tensors:
        """The tensors that forward may change: buffers, and parameters without a gradient, such as a teacher's that follow others."""
        stays = {name: value for name, value in module.named_parameters() if name not in self.parameters | self.held}
        return {name: value.detach() for name, value in (stays | dict(module.named_buffers())).items()}

    def first_state(self) -> Tensors:
        """The optimizer's state by ``PARAMETER.SLOT``: what it has of earlier steps, else what it begins with."""
        groups = self.groups
        if groups is None:
            return {}
        begun = {
            f"{name}.{slot}": value
            for group in groups.members
            for name in group.parameters
            for slot, value in group.first_state(self.parameters[name].detach()).items()
        }
        return begun | {name: value for name, value in groups.state.items() if name in begun}

    def state_types(self) -> Tensors:
        """``first_state`` with whatever is in the memory: none of it is touched."""
        groups = self.groups
        if groups is None:
            return {}
        begun: Tensors = {}
        for group in groups.members:
            shown: dict[object, Tensors] = {}
            for name in group.parameters:
                parameter = self.parameters[name].detach()
                kind = (parameter.shape, parameter.dtype, parameter.stride(), parameter.device)
                if kind not in shown:
                    first = group.first_state(parameter.to("meta"))
                    shown[kind] = {
                        slot: torch.empty_like(value, device=parameter.device) for slot, value in first.items()
                    }
                begun |= {f"{name}.{slot}": torch.empty_like(value) for slot, value in shown[kind].items()}
        return begun | {name: value for name, value in groups.state.items() if name in begun}


class TrainingProgram(torch.nn.Module):
    """``forward(**tensors)`` takes every input by name and returns a dict of outputs.

    What ``note_path`` gives, a weak reference, gets what has a gradient, and what has none, on each of several paths.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        plan: TrainingPlan,
        kind: GraphKind,
        note_path: Callable[[], Callable[[Set[str], Set[str]], None] | None] = lambda: None,
    ) -> None:
        super().__init__()
        setattr(self, RETURNS_STATE, True)
        self.module = module
        self.plan = plan
        self.kind = kind
        if isinstance(plan.training.loss, torch.nn.Module):
            self.loss = plan.training.loss
        self.note_path = note_path
        is_training = module.training
        self.modes = [(part, (part.training if is_training else True)) for part in module.modules()]

    def forward(self, **tensors: torch.Tensor) -> Tensors:
        plan = self.plan
        if self.kind is GraphKind.EVAL:
            return self._evaluated(tensors)
        if self.kind is GraphKind.UPDATE:
            gradients = {name: tensors[GRADIENT + name] for name in plan.parameters}
            return self._stepped(tensors, gradients, {})
        with self._training_modes(), self._draws(tensors):
            results, gradients = self._differentiated(tensors)
        if self.kind is GraphKind.GRADIENTS:
            for name in (*plan.parameters, *plan.training.inputs):
                gradient = gradients.get(name)
                results[GRADIENT + name] = torch.zeros_like(tensors[name]) if gradient is None else gradient
            return results
        of_inputs = {
            GRADIENT + name: gradients.pop(name) if name in gradients else torch.zeros_like(tensors[name])
            for name in plan.training.inputs
        }
        return self._stepped(tensors, gradients, results | of_inputs)

    @contextlib.contextmanager
    def _training_modes(self) -> Iterator[None]:
        """Every part in the mode that it has when the whole is trained; what draws at random is off unless it is seeded, and
        gradients of embeddings are dense.
        """
        is_off = self.plan.training.dropout == "off"
        changed = [(part, part.training) for part, _ in self.modes]
        rates: list[tuple[torch.nn.RNNBase, float]] = []
        sparse = [part for part, _ in self.modes if isinstance(part, EMBEDDINGS) and part.sparse]
        try:
            for part, mode in self.modes:
                is_dropout = isinstance(part, DROPOUTS) or is_drop_path(part)
                part.training = mode and not (is_off and is_dropout)
                if isinstance(part, torch.nn.RNNBase) and is_off:
                    rates.append((part, part.dropout))
                    part.dropout = 0.0
            for table in sparse:
                table.sparse = False
            yield
        finally:
            for part, mode in changed:
                part.training = mode
            for layer, rate in rates:
                layer.dropout = rate
            for table in sparse:
                table.sparse = True

    def _draws(self, tensors: Mapping[str, torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        """The context in which dropout draws from the seed, or is off, while the module runs."""
        if self.plan.training.dropout == "seeded":
            return seeded(tensors[SEED], self.module)
        return unseeded()

    def own_tensors(self, names: Iterable[str]) -> Tensors:
        """Parameters and buffers of the module."""
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: own[name] for name in names}

    @contextlib.contextmanager
    def _given(self, tensors: Tensors) -> Iterator[Tensors]:
        """Inside, what the module has under these names are the inputs. Gives what gradients are taken for: its own tensors.

        They stay the objects that they are: a closure, a hook or a ``backward`` of the user's may have them, too.
        """
        own = self.own_tensors(tensors)
        flags = {name: tensor.requires_grad for name, tensor in own.items()}
        for name, tensor in own.items():
            stand_for(tensor, tensors[name])
            if flags[name] != (name in self.plan.parameters):
                tensor.requires_grad_(not flags[name])
        try:
            yield own
        finally:
            for name, tensor in own.items():
                if tensor.requires_grad != flags[name]:
                    tensor.requires_grad_(flags[name])

    def _outputs(self, tensors: Mapping[str, torch.Tensor]) -> object:
        args, kwargs = self.plan.sample.call(tensors)
        return self.module(*args, **kwargs)

    def _results(self, outputs: object, tensors: Mapping[str, torch.Tensor], *, with_outputs: bool) -> Tensors:
        training = self.plan.training
        targets = [tensors.get(name, own) for name, own in self.plan.sample.targets.items()]
        loss = loss_of(training, outputs, targets)
        check_loss(loss, training.loss)
        results = {LOSS: loss} | {name: metric(outputs, *targets) for name, metric in training.metrics.items()}
        if with_outputs:
            leaves = (leaf for leaf in flatten(outputs)[0] if isinstance(leaf.value, torch.Tensor))
            results |= {output_name(leaf.keys): leaf.value for leaf in leaves}
        return results

    def _evaluated(self, tensors: Mapping[str, torch.Tensor]) -> Tensors:
        names = (*self.plan.parameters, *self.plan.held, *self.plan.buffers)
        with self._given({name: tensors[name] for name in names}):
            return self._results(self._outputs(tensors), tensors, with_outputs=True)

    def _differentiated(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Tensors, Tensors]:
        """The results, and the gradients of parameters and inputs by name."""
        training = self.plan.training
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), run_once(), kept_whole(), decided_by_python():
            names = (*self.plan.parameters, *self.plan.held)
            inputs = {name: _leaf(tensors[name]) for name in training.inputs}
            with self._given({name: tensors[name] for name in names}) as own:

                def run() -> Tensors:
                    outputs = self._outputs({**tensors, **inputs})
                    return self._results(outputs, tensors, with_outputs=training.returns_outputs)

                results = run()
                loss = results[LOSS] * tensors[LOSS_SCALE] if training.loss_scale else results[LOSS]
                wanted = {name: own[name] for name in self.plan.parameters} | inputs
                gradients = self._reached(loss, wanted, run)
                check_constants(constants_read(), self.module, training.optimizer)
        for leaf in inputs.values():
            leaf.requires_grad_(False)
        with torch.no_grad():
            if training.loss_scale:
                gradients = {name: gradient / tensors[LOSS_SCALE] for name, gradient in gradients.items()}
            return {name: value.detach() for name, value in results.items()}, gradients

    def _reached(self, loss: torch.Tensor, wanted: Tensors, run: Callable[[], object]) -> Tensors:
        """The gradients of ``wanted`` by name: of all, unless this is one of several paths through forward.

        Raises UserError E108 where it is the only one, and the loss does not depend on some of them.
        """
        is_path = self.is_path()
        if not is_path:
            check_tracked(loss, bool(wanted), run)
        gradients = self._gradients(loss, wanted) if loss.requires_grad else dict.fromkeys(wanted)
        if not is_path:
            return check_gradients(gradients, run)
        reached = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        if note := self.note_path():
            note(reached.keys(), gradients.keys() - reached.keys())
        return reached

    def is_path(self) -> bool:
        """Return whether another run of forward may depend on other parameters."""
        return is_one_of_several_paths()

    def _gradients(self, loss: torch.Tensor, wanted: Tensors) -> dict[str, torch.Tensor | None]:
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        return dict(zip(wanted, found, strict=True))

    def _stepped(self, tensors: Mapping[str, torch.Tensor], gradients: Tensors, results: Tensors) -> Tensors:
        """``results`` with the next value of every parameter, of the optimizer's state and of ``step``. A parameter without a
        gradient, as on one of several paths, stays what it is, and so does its state.
        """
        training, groups = self.plan.training, self.plan.groups
        assert groups is not None
        with torch.no_grad():
            is_finite = None
            if training.loss_scale:
                flags = [torch.isfinite(gradient).all() for gradient in gradients.values()]
                is_finite = results[FINITE] = torch.stack(flags or [torch.ones(1, dtype=torch.bool)]).all()
            gradients = clipped(gradients, training) if gradients else {}
            counted = tensors[STEP].double() if groups.uses_step else torch.zeros((), dtype=torch.float64)
            for place, group in enumerate(groups.members):
                moment = Moment(tensors[group.rate_name].double(), counted)
                nexts: Tensors = {}
                for names in group.joined({name: tensors[name] for name in group.parameters if name in gradients}):
                    slots = group.slots(tensors[names[0]])
                    update = partial(_updated, group.rule, names[0], slots, moment, is_finite)
                    states = [{name: tensors[f"{name}.{slot}"] for name in names} for slot in slots]
                    given = [_together(of, names) for of in (tensors, gradients, *states)]
                    new = repeated(update, (place, *slots), *given) if group.is_known else update(*given)
                    for suffix, value in zip(("", *(f".{slot}" for slot in slots)), new, strict=True):
                        parts = _apart(value, [tensors[name].numel() for name in names])
                        nexts |= {f"{name}{suffix}": part for name, part in zip(names, parts, strict=True)}
                for name in group.parameters:
                    labels = (name, *(f"{name}.{slot}" for slot in group.slots(tensors[name])))
                    results |= {label + NEXT: nexts[label] if label in nexts else tensors[label] for label in labels}
            if groups.uses_step:
                step = tensors[STEP]
                results[STEP + NEXT] = step + 1 if is_finite is None else step + is_finite.to(step.dtype)
        return results


def loss_of(training: Training, outputs: object, targets: Sequence[torch.Tensor]) -> torch.Tensor:
    """The loss, in a function of its own, by which errors know what of the program they come from."""
    return training.loss(outputs, *targets)


def _together(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> torch.Tensor:
    """Vectors in one; a tensor alone as it is."""
    return torch.cat([tensors[name] for name in names]) if len(names) > 1 else tensors[names[0]]


def _apart(value: torch.Tensor, sizes: list[int]) -> Sequence[torch.Tensor]:
    """The tensors that ``_together`` joined."""
    return torch.split(value, sizes) if len(sizes) > 1 else [value]


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that gradients are taken for: a captured input itself, which nobody else has, without a call that is recorded."""
    return (tensor if THREAD.captures else tensor.detach()).requires_grad_()


def _updated(
    rule: UpdateRule,
    name: str,
    slots: tuple[str, ...],
    moment: Moment,
    is_finite: torch.Tensor | None,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    *state: torch.Tensor,
) -> list[torch.Tensor]:
    """The next values of a parameter and of its state, which stay as they are where a gradient of the step is not finite."""
    old = dict(zip(slots, state, strict=True))
    new, new_state = rule.update(parameter, gradient, old, moment)
    check_state(name, old, new_state)
    nexts = [(parameter, new), *((old[slot], new_state[slot]) for slot in slots)]
    nexts = [(before, value.to(before.dtype)) for before, value in nexts]
    return [value if is_finite is None else torch.where(is_finite, value, before) for before, value in nexts]


def clipped(gradients: Tensors, training: Training) -> Tensors:
    """Source: torch.nn.utils.clip_grad_value_, clip_grad_norm_."""
    if training.clip_value is not None:
        limit = training.clip_value
        gradients = {name: gradient.clamp(-limit, limit) for name, gradient in gradients.items()}
    if training.clip_norm is not None:
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients.values()])
        factor = (training.clip_norm / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
        gradients = {name: gradient * factor.to(gradient.dtype) for name, gradient in gradients.items()}
    return gradients


def check_state(name: str, old: Tensors, new: Tensors) -> None:
    """Raises UserError E001 where an update rule gives another state than it begins with."""
    if set(old) != set(new):
        raise UserError(
            "E001",
            f"the update rule gives the state {sorted(new)} for {name}, its first state is {sorted(old)}",
            next="return a tensor for each name of UpdateRule.state",
        )
