"""The plan: a Program bound to the shapes of its feeds. Known values are folded, buffers share one arena."""

from __future__ import annotations

import bisect
import functools
import heapq
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from fx2onnx.runner.trace import Trace, is_plain, plain_call
from fx2onnx.semantics.limits import check_bytes
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import Prepared
from fx2onnx.semantics.types import Array, Spec, Value

MAX_IDLE_STATES = 2
"""Arenas kept for concurrent runs of one plan; further ones are freed after use."""


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
        self._outputs = frozenset(program.outputs)
        for step in program.steps:
            self._add(step)
        for index in program.outputs:
            for base in self._bases.get(index, ()):
                self.buffers[base].end = len(self.actions)
        self.arena_bytes = assign_offsets(self.buffers)
        check_bytes(self.arena_bytes, "the arena of activations")
        self._idle: list[State] = []
        self._lock = threading.Lock()

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
        elif len(outputs) == len(step.outputs) and all(index in self.trace.specs for index in outputs):
            action.prepared = self.trace.prepared.get(step.index)
            if action.prepared is None and kernel.infer is not None:
                action.prepared = Prepared(plain_call(kernel.fn, step.attrs))
            if action.prepared is not None:
                action.kind = "into"
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
        prepared = action.prepared
        assert prepared is not None
        action.outs = action.step.outputs
        for number, index in enumerate(action.outs):
            shape, dtype = self.trace.specs[index]
            if index in self._outputs:
                continue
            shared = self._inplace_buffer(action, index) if number == 0 else None
            if shared is None:
                shared = len(self.buffers)
                self.buffers.append(Buffer(math.prod(shape) * dtype.itemsize, position, position))
            self.buffer_of[index] = shared
            self._share([index], frozenset((shared,)))
        for shape, dtype in prepared.scratch:
            number = len(self.buffers)
            self.buffers.append(Buffer(math.prod(shape) * dtype.itemsize, position, position))
            self.scratch_specs[number] = (shape, dtype)
            action.scratch.append(number)

    def _inplace_buffer(self, action: Action, out: int) -> int | None:
        """The buffer of an input that may be overwritten: it dies here, alone owns its buffer, and looks like ``out``."""
        assert action.prepared is not None
        step = action.step
        allowed = step.kernel.inplace if action.prepared.inplace is None else action.prepared.inplace
        for place in allowed:
            if place >= len(step.inputs) or step.inputs[place] < 0:
                continue
            index = step.inputs[place]
            buffer = self.buffer_of.get(index)
            if buffer is None or self.last_use.get(index) != step.index:
                continue
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
        for index, number in plan.buffer_of.items():
            buffer = plan.buffers[number]
            part = self.arena[buffer.offset : buffer.offset + buffer.size_bytes]
            self.registers[index] = shaped(part, *specs[index], index in plan.trace.channels_last)
            self.fixed.add(index)
        written = {index for action in plan.actions for index in action.outs}
        self.fresh = [
            (index, *specs[index], index in plan.trace.channels_last)
            for index in dict.fromkeys(program.outputs)
            if index in written
        ]
        self.steps: list[tuple[Callable[[], None], Step]] = []
        kept = {*plan.feeds, *program.outputs}
        for action in plan.actions:
            bound = self._bind(action)
            if bound is None:
                continue
            step = action.step
            self.steps.append((bound, step))
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
        self.calls = [call for call, _ in self.steps]
        self.owned = {index for index, *_ in self.fresh}
        self.volatile = [index for index in range(len(program.slots)) if index not in self.fixed]
        self.run_step: Callable[[Step, list[Value]], list[Value]] | None = None

    def _bind(self, action: Action) -> Callable[[], None] | None:
        step, registers = action.step, self.registers
        inputs = step.inputs
        if action.kind == "into":
            prepared = action.prepared
            assert prepared is not None
            scratch = []
            for number in action.scratch:
                buffer = self.plan.buffers[number]
                part = self.arena[buffer.offset : buffer.offset + buffer.size_bytes]
                scratch.append(shaped(part, *self.plan.scratch_specs[number], False))
            if all(index in self.fixed or index < 0 for index in (*inputs, *action.outs)):
                outs = [registers[index] for index in action.outs]
                args = [registers[index] if index >= 0 else None for index in inputs]
                if not scratch and is_plain(prepared.fn):
                    return functools.partial(step.kernel.fn, outs, *args, **step.attrs)
                return functools.partial(prepared.fn, outs, scratch, *args)
            return functools.partial(_call_into, prepared.fn, registers, action.outs, inputs, scratch)
        if action.kind == "view" and all(index in self.fixed or index < 0 for index in inputs):
            args = [registers[index] if index >= 0 else None for index in inputs]
            results = step.kernel.fn(*args, **step.attrs)
            results = results if isinstance(results, tuple) else (results,)
            if all(_is_view(result, args) for result in results):
                for index, result in zip(step.outputs, results, strict=False):
                    if index >= 0:
                        registers[index] = result
                        self.fixed.add(index)
                return None
        return functools.partial(self._call_step, step)

    def _call_step(self, step: Step) -> None:
        assert self.run_step is not None
        registers = self.registers
        results = self.run_step(step, [registers[index] if index >= 0 else None for index in step.inputs])
        for index, result in zip(step.outputs, results, strict=False):
            if index >= 0:
                registers[index] = result

    def current_step(self) -> Step:
        """The step that runs, or that failed."""
        return self.steps[self.position][1]

    def run(self, feeds: Sequence[Value], run_step: Callable[[Step, list[Value]], list[Value]]) -> list[Value]:
        """The outputs; they share memory with nothing."""
        registers = self.registers
        self.run_step = run_step
        for index, value in zip(self.plan.feeds, feeds, strict=True):
            registers[index] = value
        for index, shape, dtype, channels_last in self.fresh:
            registers[index] = shaped(
                np.empty(math.prod(shape) * dtype.itemsize, np.uint8), shape, dtype, channels_last
            )
        position = 0
        try:
            for position, call in enumerate(self.calls):  # noqa: B007
                call()
        finally:
            self.position = position
        outputs: list[Value] = []
        given: set[int] = set()
        for index in self.plan.program.outputs:
            value = registers[index]
            owned = index in self.owned and index not in given
            outputs.append(value if owned and not isinstance(value, np.ndarray) else own(value, owned))
            given.add(index)
        for index in self.volatile:
            registers[index] = None
        return outputs


def size_bytes(value: Value) -> int:
    """The bytes that a copy of the value takes."""
    if isinstance(value, list):
        return sum(map(size_bytes, value))
    return value.nbytes if isinstance(value, np.ndarray) else 0


def owned_bytes(value: Value) -> int:
    """The bytes that are freed with the value: a view takes nothing, and the content of a sequence is checked by its operators."""
    return value.nbytes if isinstance(value, np.ndarray) and value.base is None else 0


def own(value: Value, is_owned: bool) -> Value:
    """The value in memory of its own, in C order."""
    if isinstance(value, list):
        check_bytes(size_bytes(value), f"a sequence of {len(value)} items")
        return [own(item, False) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    return np.ascontiguousarray(value).reshape(value.shape) if is_owned else np.array(value, order="C")


def _is_view(result: Value, args: Sequence[Value]) -> bool:
    return isinstance(result, np.ndarray) and (
        result.size == 0 or any(isinstance(arg, np.ndarray) and np.may_share_memory(result, arg) for arg in args)
    )


def _forget(registers: list[Value], slots: Sequence[int]) -> None:
    """Drop the values that no later step reads, now and not at the end of the run."""
    for index in slots:
        registers[index] = None


def _call_into(
    fn: Callable[..., None], registers: list[Value], outs: Sequence[int], inputs: Sequence[int], scratch: list[Array]
) -> None:
    fn([registers[index] for index in outs], scratch, *[registers[i] if i >= 0 else None for i in inputs])


ALIGN_BYTES = 64
"""A cache line, and the widest vector register."""


@dataclass(slots=True)
class Buffer:
    """Memory that is in use from step ``start`` to step ``end``, both included."""

    size_bytes: int
    start: int
    end: int
    offset: int = -1


MAX_LOOKS = 4_000_000
"""Looks at buffers that were placed before, 0.3 s of them: their number grows by the square of that of the buffers, so the
offsets of a very large model are found by a faster rule."""


def assign_offsets(buffers: Sequence[Buffer]) -> int:
    """Give each buffer an offset; returns the arena's size in bytes."""
    total = _lowest_gaps(buffers)
    return _size_classes(buffers) if total is None else total


def _size_classes(buffers: Sequence[Buffer]) -> int:
    """By start, each in the memory of a dead buffer whose size has as many bits, or behind all others."""
    total = 0
    free: dict[int, list[int]] = {}
    alive: list[tuple[int, int, int]] = []
    for buffer in sorted(buffers, key=lambda b: b.start):
        while alive and alive[0][0] < buffer.start:
            _, bits, offset = heapq.heappop(alive)
            free.setdefault(bits, []).append(offset)
        bits = (max(buffer.size_bytes, ALIGN_BYTES) - 1).bit_length()
        if free.get(bits):
            buffer.offset = free[bits].pop()
        else:
            buffer.offset, total = total, total + (1 << bits)
        heapq.heappush(alive, (buffer.end, bits, buffer.offset))
    return total


def _lowest_gaps(buffers: Sequence[Buffer]) -> int | None:
    """The largest first, each in the lowest gap; None where that takes too long."""
    placed: list[Buffer] = []
    total, looks = 0, 0
    for buffer in sorted(buffers, key=lambda b: (-b.size_bytes, b.start)):
        size = -(-max(buffer.size_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES
        offset, seen = 0, len(placed)
        for place, other in enumerate(placed):  # sorted by offset
            if other.end < buffer.start or buffer.end < other.start:
                continue
            if offset + size <= other.offset:
                seen = place
                break
            offset = max(offset, other.offset + -(-max(other.size_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES)
        looks += seen
        if looks > MAX_LOOKS:
            return None
        buffer.offset = offset
        total = max(total, offset + size)
        bisect.insort_right(placed, buffer, key=_OFFSET)
    return total


_OFFSET = attrgetter("offset")
