"""The plan: a Program bound to the shapes of its feeds. Known values are folded, buffers share one arena."""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import call, length_hint
from typing import Any

import numpy as np

from fx2onnx.runner.arena import ALIGN_BYTES, Buffer, assign_offsets, is_held_once, own
from fx2onnx.runner.trace import Trace, is_plain, plain_call
from fx2onnx.semantics.limits import check_bytes
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import Prepared, bind, outputs_of
from fx2onnx.semantics.types import Array, Spec, Value

MAX_IDLE_STATES = 2
"""Arenas kept for concurrent runs of one plan; further ones are freed after use."""


COPIED_BYTES = 1 << 15
"""Feeds, outputs and results of ``alloc`` kernels up to this size have a place in the arena and are copied: a copy costs less than
what steps save whose memory stays where it is.
"""

COPIED_BYTES_OF_LONG = 1 << 22
"""The same for operands and results of a ``Prepared`` that ``is_long``."""

MAX_BASES = 64
"""Buffers in which one value may lie; those of a value with more are never used again, which keeps planning linear."""


@dataclass(slots=True)
class Action:
    """One step of a plan, before it is bound to memory."""

    step: Step
    kind: str
    prepared: Prepared | None = None
    outs: tuple[int, ...] = ()
    scratch: list[int] = field(default_factory=list)


class Plan:
    """Steps, buffers and their offsets for one signature of feeds."""

    def __init__(self, program: Program, feeds: Sequence[int], trace: Trace) -> None:
        self.program = program
        self.feeds = list(feeds)
        self.trace = trace
        self.buffers: list[Buffer] = []
        self.buffer_of: dict[int, int] = {}
        self.scratch_specs: dict[int, Spec] = {}
        self.actions: list[Action] = []
        self._bases: dict[int, frozenset[int]] = {}
        self._longest: dict[int, list[tuple[int, int]]] = {}
        self.last_use = _last_uses(program)
        self._of_long = {
            index
            for step in program.steps
            if (prepared := trace.prepared.get(step.index)) is not None and prepared.is_long
            for index in (*step.inputs, *step.outputs)
        }
        self._large_outputs = {index for index in program.outputs if not self._is_copied(index)}
        for index in filter(self._is_copied, self.feeds):
            self._give_buffer(index, 0)
        for step in program.steps:
            self._add(step)
        for index in program.outputs:
            for base in self._bases.get(index, ()):
                self.buffers[base].end = len(self.actions)
        self.arena_bytes = assign_offsets(self.buffers)
        check_bytes(self.arena_bytes, "the arena of activations")
        self._idle: list[State] = []
        self._lock = threading.Lock()

    def _is_copied(self, index: int) -> bool:
        """Return whether the value is of plain numbers, and so small that it is copied where its memory would be another each time."""
        shape, dtype = self.trace.specs.get(index, ((), _OBJECT))
        most = COPIED_BYTES_OF_LONG if index in self._of_long else COPIED_BYTES
        return not dtype.hasobject and math.prod(shape) * dtype.itemsize <= most

    def _give_buffer(self, index: int, position: int) -> None:
        shape, dtype = self.trace.specs[index]
        number = self.buffer_of[index] = len(self.buffers)
        self.buffers.append(Buffer(math.prod(shape) * dtype.itemsize, position, position))
        self._share([index], frozenset((number,)))

    def _add(self, step: Step) -> None:
        outputs = [index for index in step.outputs if index >= 0]
        if all(index in self.trace.known for index in outputs):
            return
        position = len(self.actions)
        bases = self._bases_of(step.inputs)
        for base in bases:
            self.buffers[base].end = max(self.buffers[base].end, position)
        action = Action(step, "alloc")
        kernel = step.kernel
        if kernel.kind == "view" or step.bodies:
            if not step.bodies and all(index in self.trace.specs for index in outputs):
                action.kind = "view"
            self._share(outputs, bases if not step.bodies else self._bases_of(step.inputs[: step.n_inputs]))
        elif len(outputs) == len(step.outputs) and all(
            index in self.trace.specs and not self.trace.specs[index][1].hasobject for index in outputs
        ):
            action.prepared = self.trace.prepared.get(step.index)
            if action.prepared is None and kernel.infer is not None:
                action.prepared = Prepared(plain_call(kernel.fn, step.attrs))
            if action.prepared is not None or all(map(self._is_copied, outputs)):
                action.kind = "into" if action.prepared is not None else "copied"
                self._place(action, position)
        self.actions.append(action)

    def _bases_of(self, slots: Sequence[int]) -> frozenset[int]:
        """The buffers in which the slots may lie."""
        return frozenset().union(*(self._bases[index] for index in slots if index in self._bases))

    def _share(self, slots: Sequence[int], buffers: frozenset[int]) -> None:
        """The slots lie in one or more of the buffers. Of each buffer, the two slots that are read last are kept."""
        longest = sorted(((self.last_use.get(index, -1), index) for index in slots), reverse=True)[:2]
        if len(buffers) > MAX_BASES:
            longest = [(len(self.program.steps), -1)]
            for number in buffers:
                self.buffers[number].end = len(self.program.steps)
        else:
            self._bases.update(dict.fromkeys(slots, buffers))
        for number in buffers:
            self._longest[number] = sorted([*self._longest.get(number, ()), *longest], reverse=True)[:2]

    def _place(self, action: Action, position: int) -> None:
        """Buffers for outputs and scratch."""
        action.outs = action.step.outputs
        for number, index in enumerate(action.outs):
            if index in self._large_outputs:
                continue
            shared = self._inplace_buffer(action, index) if number == 0 else None
            if shared is None:
                self._give_buffer(index, position)
            else:
                self.buffer_of[index] = shared
                self._share([index], frozenset((shared,)))
        for shape, dtype in action.prepared.scratch if action.prepared is not None else ():
            number = len(self.buffers)
            self.buffers.append(Buffer(math.prod(shape) * dtype.itemsize, position, position))
            self.scratch_specs[number] = (shape, dtype)
            action.scratch.append(number)

    def _inplace_buffer(self, action: Action, out: int) -> int | None:
        """The buffer of an input that may be overwritten: it is one operand, dies here, alone owns its buffer, and looks like ``out``."""
        if action.prepared is None or math.prod(self.trace.specs[out][0]) == 1:  # one number takes NumPy twice as long
            return None
        step = action.step
        allowed = step.kernel.inplace if action.prepared.inplace is None else action.prepared.inplace
        for place in allowed:
            if place >= len(step.inputs) or step.inputs[place] < 0:
                continue
            index = step.inputs[place]
            buffer = self.buffer_of.get(index)
            if buffer is None or self.last_use.get(index) != step.index or step.inputs.count(index) > 1:
                continue  # as two operands: a kernel may write before it has read both
            if any(other != index and last_use >= step.index for last_use, other in self._longest[buffer]):
                continue
            if self.trace.specs[index] != self.trace.specs[out]:
                continue
            if (index in self.trace.channels_last) == (out in self.trace.channels_last):
                return buffer
        return None

    def take_state(self) -> State:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return State(self)

    def give_back(self, state: State) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE_STATES:
                self._idle.append(state)


_OBJECT = np.dtype(object)


def _last_uses(program: Program) -> dict[int, int]:
    last = {index: step.index for step in program.steps for index in step.inputs if index >= 0}
    last.update(dict.fromkeys(program.outputs, len(program.steps)))
    return last


def shaped(raw: Array, shape: Sequence[int], dtype: Any, channels_last: bool) -> Array:
    """Bytes as an array; channels-last memory shows the logical axes [N, C, *dims]."""
    flat: Array = raw.view(dtype)
    if not channels_last:
        return flat.reshape(tuple(shape))
    turned = flat.reshape((shape[0], *shape[2:], shape[1]))
    return turned.transpose((0, len(shape) - 1, *range(1, len(shape) - 1)))


class State:
    """One arena with all steps bound to it; serves one run at a time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        raw = np.empty(plan.arena_bytes + ALIGN_BYTES, np.uint8)
        skip = -raw.ctypes.data % ALIGN_BYTES
        self.arena = raw[skip : skip + plan.arena_bytes]
        program, specs = plan.program, plan.trace.specs
        self.registers: list[Value] = [None] * len(program.slots)
        for index, value in plan.trace.known.items():
            self.registers[index] = value
        self.fixed = set(plan.trace.known)
        made: dict[Any, Array] = {}  # values in one buffer are one object: kernels see that they compute in place
        for index, number in plan.buffer_of.items():
            buffer, form = plan.buffers[number], (*specs[index], index in plan.trace.channels_last)
            if (number, form) not in made:
                made[number, form] = shaped(self.arena[buffer.offset : buffer.offset + buffer.size_bytes], *form)
            self.registers[index] = made[number, form]
            self.fixed.add(index)
        written = {index for action in plan.actions for index in action.outs}
        self.fresh = [
            (index, *specs[index], index in plan.trace.channels_last)
            for index in dict.fromkeys(program.outputs)
            if index in written and index not in self.fixed
        ]
        self.steps: list[tuple[Callable[[], None], Step]] = []
        kept = {*plan.feeds, *program.outputs}
        for action in plan.actions:
            step = action.step
            bound = self._bind(action)
            if not bound:
                continue
            self.steps += [(each, step) for each in bound]
            dead = [
                index
                for index in dict.fromkeys((*step.inputs, *step.outputs))
                if index >= 0
                and index not in self.fixed
                and index not in kept
                and plan.last_use.get(index, step.index) == step.index
            ]
            if dead:
                self.steps.append((functools.partial(_forget, self.registers, dead), step))
        self.position = 0
        self.calls = [each for each, _ in self.steps]
        self.copied = [(place, self.registers[index]) for place, index in enumerate(plan.feeds) if index in self.fixed]
        self.given = [(place, index) for place, index in enumerate(plan.feeds) if index not in self.fixed]
        self.owned = {index for index, *_ in self.fresh}
        self.volatile = [index for index in range(len(program.slots)) if index not in self.fixed]
        self.run_step: Callable[[Step, list[Value]], list[Value]] | None = None

    def _bind(self, action: Action) -> Sequence[Callable[[], Any]]:
        """The calls of a step: none for a view of memory that stays where it is."""
        step, registers = action.step, self.registers
        inputs = step.inputs
        if not all(index in self.fixed or index < 0 for index in (*inputs, *action.outs)):
            return [self._late(action)]
        args = [registers[index] if index >= 0 else None for index in inputs]
        outs: list[Any] = [registers[index] for index in action.outs]
        if action.prepared is not None:
            fn, operands, attrs = action.prepared.fn, (outs, self._scratch(action), *args), {}
            if is_plain(fn):
                fn, operands, attrs = step.kernel.fn, (outs, *args), step.attrs
            return bind(fn, *operands, **attrs)
        compute = functools.partial(step.kernel.fn, *args, **step.attrs)
        if action.kind == "view":
            results = outputs_of(compute()) if all(i < 0 or i in self.plan.trace.known for i in inputs[1:]) else ()
            if not results or not all(isinstance(result, np.ndarray) for result in results):
                return [self._late(action)]
            outs = [result if _is_view(result, args) else np.empty_like(result) for result in results]
            if sum(out.nbytes for out, result in zip(outs, results, strict=True) if out is not result) > COPIED_BYTES:
                return [self._late(action)]
            for index, out in zip(step.outputs, outs, strict=False):
                if index >= 0:
                    registers[index] = out
                    self.fixed.add(index)
            if all(out is result for out, result in zip(outs, results, strict=True)):
                return []
        elif action.kind != "copied":
            return [self._late(action)]
        return [functools.partial(_compute_and_copy, compute, outs)]

    def _scratch(self, action: Action) -> list[Array]:
        made = []
        for number in action.scratch:
            buffer = self.plan.buffers[number]
            part = self.arena[buffer.offset : buffer.offset + buffer.size_bytes]
            made.append(shaped(part, *self.plan.scratch_specs[number], False))
        return made

    def _late(self, action: Action) -> Callable[[], None]:
        """The call of a step that finds its operands in the registers at each run."""
        if action.prepared is None:
            return functools.partial(self._call_step, action.step, action.outs)
        arguments = self.registers, action.outs, action.step.inputs, self._scratch(action)
        return functools.partial(_call_into, action.prepared.fn, *arguments)

    def _call_step(self, step: Step, copied: Sequence[int]) -> None:
        assert self.run_step is not None
        registers = self.registers
        results = self.run_step(step, [registers[index] if index >= 0 else None for index in step.inputs])
        for index, result in zip(step.outputs, results, strict=False):
            if index in copied:
                np.copyto(registers[index], result)
            elif index >= 0:
                registers[index] = result

    def current_step(self) -> Step:
        """The step that runs, or that failed."""
        return self.steps[self.position][1]

    def run(self, feeds: Sequence[Value], run_step: Callable[[Step, list[Value]], list[Value]]) -> list[Value]:
        """The outputs; they share memory with nothing."""
        registers = self.registers
        self.run_step = run_step
        for place, memory in self.copied:
            np.copyto(memory, feeds[place])
        for place, index in self.given:
            registers[index] = feeds[place]
        for index, shape, dtype, channels_last in self.fresh:
            registers[index] = shaped(
                np.empty(math.prod(shape) * dtype.itemsize, np.uint8), shape, dtype, channels_last
            )
        steps = iter(self.calls)
        try:
            deque(map(call, steps), 0)
        finally:
            self.position = len(self.calls) - length_hint(steps) - 1
        outputs: list[Value] = []
        given: set[int] = set()
        for index in self.plan.program.outputs:
            owned = index not in given and (index in self.owned or is_held_once(registers, index))
            value = registers[index]
            outputs.append(value if owned and not isinstance(value, np.ndarray) else own(value, owned))
            given.add(index)
        for index in self.volatile:
            registers[index] = None
        return outputs


def _is_view(result: Array, args: Sequence[Value]) -> bool:
    return result.size == 0 or any(isinstance(arg, np.ndarray) and np.may_share_memory(result, arg) for arg in args)


def _compute_and_copy(compute: Callable[[], Any], outs: Sequence[Array]) -> None:
    for out, result in zip(outs, outputs_of(compute()), strict=False):
        np.copyto(out, result)


def _forget(registers: list[Value], slots: Sequence[int]) -> None:
    """Drop the values that no later step reads, now and not at the end of the run."""
    for index in slots:
        registers[index] = None


def _call_into(
    fn: Callable[..., None], registers: list[Value], outs: Sequence[int], inputs: Sequence[int], scratch: list[Array]
) -> None:
    fn([registers[index] for index in outs], scratch, *[registers[i] if i >= 0 else None for i in inputs])
