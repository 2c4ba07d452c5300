"""Runs a Program: step by step the first time, which is recorded; by a plan when the same shapes come again."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.runner.arena import own, owned_bytes, size_bytes
from fx2onnx.runner.plan import Plan, shaped
from fx2onnx.runner.trace import Trace
from fx2onnx.semantics.limits import check_bytes, check_shape, limit_bytes
from fx2onnx.semantics.reading.program import (
    KERNEL_FAULTS,
    Program,
    Step,
    check_operands,
    node_line,
    reason,
    with_node,
)
from fx2onnx.semantics.registry import Prepared, outputs_of
from fx2onnx.semantics.types import Spec, Value, as_value, is_tensor_type, shape_of

Signature: TypeAlias = tuple[Any, ...]
MAX_PLANS = 4
"""Plans kept per program: each holds an arena, and endless new shapes must not fill the memory."""

Observer = Callable[[Program, Step, int, int, Sequence[Value]], None]
"""Called after each step with its program, start and end in ns, and its outputs."""


class Executor:
    """Runs one program, again and again; bodies of control flow have executors of their own."""

    def __init__(self, program: Program, use_plans: bool = True) -> None:
        self.program = program
        self.feeds = [*program.inputs, *(inner for _, inner in program.captures)]
        self.bodies = {
            step.index: {name: Executor(body, use_plans) for name, body in step.bodies.items()}
            for step in program.steps
            if step.bodies
        }
        self.constants: list[Value] = [slot.const for slot in program.slots]
        self.plans: dict[Signature, Plan | Trace] = {}
        self.lock = threading.Lock()
        self.use_plans = use_plans

    @functools.cached_property
    def dying(self) -> list[list[int]]:
        """The slots that nothing reads after each step."""
        return dying_slots(self.program, set(self.feeds))

    def run(self, feeds: Sequence[Value], observer: Observer | None = None) -> list[Value]:
        """The outputs for ``feeds``, which come in the order of ``self.feeds``; they share memory with nothing."""
        if observer is not None or not self.use_plans:
            return [own(value, False) for value in self.interpret(feeds, observer=observer)]
        signature = tuple(
            (value.shape, value.dtype) if isinstance(value, np.ndarray) else type(value) for value in feeds
        )
        known = self.plans.get(signature)
        if isinstance(known, Trace):
            known = Plan(self.program, self.feeds, known)
            self.remember(signature, known)
        if known is not None:
            return self.execute(known, feeds)
        trace = Trace(self.program, self.feeds, feeds)
        outputs = [own(value, False) for value in self.interpret(feeds, trace)]
        self.remember(signature, trace)
        return outputs

    def remember(self, signature: Signature, plan: Plan | Trace) -> None:
        with self.lock:
            while len(self.plans) >= MAX_PLANS and signature not in self.plans:
                self.plans.pop(next(iter(self.plans)))
            self.plans[signature] = plan

    def execute(self, plan: Plan, feeds: Sequence[Value]) -> list[Value]:
        """Run by plan; a step that fails is run again by itself for its message."""
        state = plan.take_state()
        try:
            return state.run(feeds, self.call)
        except (Fx2OnnxError, *KERNEL_FAULTS) as error:
            step = state.current_step()
            raise explained(error, step, [state.registers[i] if i >= 0 else None for i in step.inputs]) from error
        finally:
            plan.give_back(state)

    def interpret(
        self, feeds: Sequence[Value], trace: Trace | None = None, observer: Observer | None = None
    ) -> list[Value]:
        """Run step by step, writing down in ``trace`` what a plan needs."""
        trace = trace or Trace(self.program, self.feeds, feeds)
        values = self.constants.copy()
        for index, value in zip(self.feeds, feeds, strict=True):
            values[index] = value
        alive_bytes = 0
        for step in self.program.steps:
            start_ns = time.perf_counter_ns() if observer is not None else 0
            is_static = trace.is_static(step)
            args = [values[index] if index >= 0 else None for index in step.inputs]
            check_operands(step, args)
            results = self.call(step, args, observer, trace if is_static else None)
            for index, result in zip(step.outputs, results, strict=False):
                if index >= 0:
                    values[index] = result
                    alive_bytes += owned_bytes(result)
            if alive_bytes > limit_bytes():
                check_alive(alive_bytes, step, args)
            if observer is not None:
                observer(self.program, step, start_ns, time.perf_counter_ns(), results)
            if is_static:
                trace.observe(step, results)
            for index in self.dying[step.index]:
                alive_bytes -= owned_bytes(values[index])
                values[index] = None
        outputs = [values[index] for index in self.program.outputs]
        check_bytes(sum(size_bytes(value) for value in outputs), "what the graph gives out")
        return outputs

    def call(
        self, step: Step, args: list[Value], observer: Observer | None = None, trace: Trace | None = None
    ) -> list[Value]:
        """One step on the given values.

        Raises: UserError E403 (or E404) with the node's line.
        """
        try:
            return self.compute(step, args, observer, trace)
        except (Fx2OnnxError, *KERNEL_FAULTS) as error:
            raise explained(error, step, args) from error

    def compute(
        self, step: Step, args: list[Value], observer: Observer | None = None, trace: Trace | None = None
    ) -> list[Value]:
        kernel, attrs = step.kernel, step.attrs
        if step.bodies:
            attrs = {**attrs, **self.bound_bodies(step, args[step.n_inputs :], observer)}
            args = args[: step.n_inputs]
        if kernel.infer is not None:
            specs = kernel.infer(args, attrs)
            for shape, dtype in specs:
                check_shape(shape, dtype)
            prepared = trace.prepare(step, specs) if trace is not None else None
            if prepared is not None:
                return _call_prepared(prepared, specs, args)
            out: list[Value] = [np.empty(shape, dtype) for shape, dtype in specs]
            kernel.fn(out, *args, **attrs)
            return out
        return [as_value(result) for result in outputs_of(kernel.fn(*args, **attrs))]

    def bound_bodies(
        self, step: Step, captured: Sequence[Value], observer: Observer | None
    ) -> Mapping[str, Callable[..., list[Value]]]:
        """The step's bodies as functions of their own inputs."""
        by_slot = dict(zip(step.inputs[step.n_inputs :], captured, strict=True))
        bound: dict[str, Callable[..., list[Value]]] = {}
        for name, executor in self.bodies[step.index].items():
            extra = [by_slot[outer] for outer, _ in executor.program.captures]
            bound[name] = BoundBody(executor, extra, observer)
        return bound


def _call_prepared(prepared: Prepared, specs: Sequence[Spec], args: list[Value]) -> list[Value]:
    out: list[Value] = []
    for shape, dtype in specs:
        raw = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        out.append(shaped(raw, shape, dtype, prepared.channels_last and len(shape) > 2))
    prepared.fn(out, [np.empty(shape, dtype) for shape, dtype in prepared.scratch], *args)
    return out


@dataclass(frozen=True, slots=True)
class BoundBody:
    """A body with what it captures, as a function of its own inputs."""

    executor: Executor
    captured: Sequence[Value]
    observer: Observer | None

    def __call__(self, inputs: Sequence[Value]) -> list[Value]:
        expected = len(self.executor.program.inputs)
        if len(inputs) != expected:
            raise UserError("E303", f"a body takes {expected} inputs and is given {len(inputs)}")
        return self.executor.run([*inputs, *self.captured], self.observer)

    def none_stacked(self, index: int, shapes: Sequence[tuple[int, ...]]) -> Value:
        """Output ``index`` of no run at all, stacked: zero rows of the type that the body declares; dims that it names are
        as large as in the inputs, whose ``shapes`` are given, and in what it captures, others 0.
        """
        program = self.executor.program
        sizes: dict[int | str | None, int] = {}
        for position, shape in zip(self.executor.feeds, [*shapes, *map(shape_of, self.captured)], strict=True):
            sizes.update(zip(program.slots[position].shape or (), shape, strict=False))
        slot = program.slots[program.outputs[index]]
        dtype = slot.type.dtype.numpy() if is_tensor_type(slot.type) else np.dtype(np.float32)
        return np.empty((0, *(dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in slot.shape or ())), dtype)


def check_alive(alive_bytes: int, step: Step, args: Sequence[Value]) -> None:
    """Raises: UserError E404 where the values that are still needed take more than the limit."""
    try:
        check_bytes(alive_bytes, "all that is alive after this step")
    except UserError as error:
        raise with_node(error, step, args) from None


def dying_slots(program: Program, feeds: set[int]) -> list[list[int]]:
    """For each step, the slots that nothing reads after it; constants and outputs never die."""
    kept = {*program.outputs, *(slot.index for slot in program.slots if slot.is_const)}
    last_use: dict[int, int] = {}
    for step in program.steps:
        for index in (*step.inputs, *step.outputs):
            if index >= 0 and index not in kept:
                last_use[index] = step.index
    dying: list[list[int]] = [[] for _ in program.steps]
    for index, position in last_use.items():
        dying[position].append(index)
    return dying


def explained(error: BaseException, step: Step, args: Sequence[Value]) -> Fx2OnnxError:
    """The error with its node, for a step that NumPy or Python refused or that is beyond a limit."""
    if isinstance(error, Fx2OnnxError):
        return error if error.node else with_node(error, step, args)
    if step.origin and step.origin.check:
        return UserError(
            "E403",
            f"the inputs break a condition of the file: {step.origin.check}",
            node=node_line(step, args),
            why="the export took it for true; eager PyTorch fails there, too, or would need other nodes",
            next="feed inputs for which it is true, or export with checks=False (--no-checks)",
        )
    return UserError(
        "E403",
        f"{step.op_type} failed",
        node=node_line(step, args),
        why=f"{type(error).__name__}: {reason(error)}",
        next="check the shapes and dtypes that reach this node; `fx2onnx run --dump-ir` lists them",
    )
