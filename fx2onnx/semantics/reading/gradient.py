"""``ai.onnx.preview.training::Gradient``: reverse-mode differentiation of steps, written as more steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import find_kernel
from fx2onnx.semantics.schemas import NEWEST_OPSET

Rule = Callable[["Tape", Step, int], Sequence[int]]
"""A function of the step and the gradient of its output that gives the gradients of its inputs."""


class Tape:
    """Adds steps to a program."""

    def __init__(self, program: Program, line: str) -> None:
        self.program = program
        self.line = line

    def emit(self, op_type: str, *inputs: int, domain: str = "", **attrs: Any) -> int:
        """One step; returns the slot of its result."""
        kernel = find_kernel(domain, op_type, NEWEST_OPSET)
        if kernel is None:
            raise UserError("E402", f"the runner has no kernel for {op_type}", node=self.line)
        slot = self.program.new_slot(f"_gradient_{len(self.program.slots)}")
        slot.producer = len(self.program.steps)
        step = Step(slot.producer, kernel, kernel.since, tuple(inputs), (slot.index,), dict(attrs))
        step.n_inputs, step.origin = len(inputs), self.line
        self.program.steps.append(step)
        return slot.index

    def like(self, gradient: int, value: int) -> int:
        """The gradient summed over the axes along which ``value`` was broadcast."""
        return self.emit("SumTo", gradient, value, domain="fx2onnx")


def _mul(tape: Tape, step: Step, g: int) -> Sequence[int]:
    a, b = step.inputs
    return tape.like(tape.emit("Mul", g, b), a), tape.like(tape.emit("Mul", g, a), b)


def _div(tape: Tape, step: Step, g: int) -> Sequence[int]:
    a, b = step.inputs
    share = tape.emit("Div", g, b)
    return tape.like(share, a), tape.like(tape.emit("Neg", tape.emit("Mul", share, step.outputs[0])), b)


def _matmul(tape: Tape, step: Step, g: int) -> Sequence[int]:
    a, b = step.inputs
    left = tape.emit("MatMul", g, tape.emit("SwapLast", b, domain="fx2onnx"))
    right = tape.emit("MatMul", tape.emit("SwapLast", a, domain="fx2onnx"), g)
    return tape.like(left, a), tape.like(right, b)


def _tanh(tape: Tape, step: Step, g: int) -> Sequence[int]:
    y = step.outputs[0]
    return (tape.emit("Sub", g, tape.emit("Mul", g, tape.emit("Mul", y, y))),)


def _sigmoid(tape: Tape, step: Step, g: int) -> Sequence[int]:
    y = step.outputs[0]
    share = tape.emit("Mul", g, y)
    return (tape.emit("Sub", share, tape.emit("Mul", share, y)),)


RULES: dict[str, Rule] = {
    "Add": lambda t, s, g: (t.like(g, s.inputs[0]), t.like(g, s.inputs[1])),
    "Sub": lambda t, s, g: (t.like(g, s.inputs[0]), t.like(t.emit("Neg", g), s.inputs[1])),
    "Mul": _mul,
    "Div": _div,
    "MatMul": _matmul,
    "Neg": lambda t, s, g: (t.emit("Neg", g),),
    "Identity": lambda t, s, g: (g,),
    "Exp": lambda t, s, g: (t.emit("Mul", g, s.outputs[0]),),
    "Log": lambda t, s, g: (t.emit("Div", g, s.inputs[0]),),
    "Sin": lambda t, s, g: (t.emit("Mul", g, t.emit("Cos", s.inputs[0])),),
    "Cos": lambda t, s, g: (t.emit("Neg", t.emit("Mul", g, t.emit("Sin", s.inputs[0]))),),
    "Relu": lambda t, s, g: (t.emit("Mul", g, t.emit("Sign", s.outputs[0])),),
    "Tanh": _tanh,
    "Sigmoid": _sigmoid,
}


def _copied(program: Program, path: Sequence[Step], moved: Mapping[int, int]) -> tuple[list[Step], dict[int, int]]:
    """The steps of ``path`` once more, reading ``moved`` slots in place of the original ones."""
    place = dict(moved)
    copies = []
    for step in path:
        outputs = tuple(program.new_slot(f"_at_{program.slots[target].name}").index for target in step.outputs)
        place.update(zip(step.outputs, outputs, strict=True))
        inputs = tuple(place.get(source, source) for source in step.inputs)
        copy = Step(len(program.steps), step.kernel, step.version, inputs, outputs, step.attrs)
        copy.n_inputs, copy.origin = step.n_inputs, step.origin
        for target in outputs:
            program.slots[target].producer = copy.index
        program.steps.append(copy)
        copies.append(copy)
    return copies, place


def add_gradient(program: Program, inputs: Sequence[int], attrs: Mapping[str, Any], line: str) -> list[int]:
    """Add the steps of d ``y`` / d ``xs`` at the point ``inputs`` (the values of xs, then of zs).

    Raises: UserError E303 for names that do not exist, E402 for an operator without a rule.
    """
    names = {slot.name: slot.index for slot in program.slots if slot.name}
    points = [*attrs["xs"], *attrs.get("zs", ())]
    for name in (*points, attrs["y"]):
        if name not in names:
            raise UserError("E303", f"Gradient names the value {name!r}, which does not exist", node=line)
    if len(points) != len(inputs):
        raise UserError("E303", f"Gradient names {len(points)} values and has {len(inputs)} inputs", node=line)
    sources = {names[name] for name in points}
    needed, path = {names[attrs["y"]]}, []
    for step in reversed(program.steps):
        if needed & set(step.outputs) and not sources & set(step.outputs):
            path.append(step)
            needed.update(source for source in step.inputs if source >= 0)
    path.reverse()
    moved = {names[name]: slot for name, slot in zip(points, inputs, strict=True)}
    target = names[attrs["y"]]
    if any(source != slot for source, slot in moved.items()):
        path, place = _copied(program, path, moved)
        target = place[target]
    tape = Tape(program, line)
    gradients = {target: tape.emit("OnesLike", target, domain="fx2onnx")}
    for step in reversed(path):
        if step.outputs[0] not in gradients:
            continue
        if step.op_type not in RULES:
            raise UserError(
                "E402", f"Gradient has no rule for {step.op_type}", node=line, why=f"it knows {', '.join(RULES)}"
            )
        for source, gradient in zip(
            step.inputs, RULES[step.op_type](tape, step, gradients[step.outputs[0]]), strict=True
        ):
            gradients[source] = tape.emit("Add", gradients[source], gradient) if source in gradients else gradient
    return [
        gradients[slot] if slot in gradients else tape.emit("ZerosLike", slot, domain="fx2onnx")
        for slot in inputs[: len(attrs["xs"])]
    ]
