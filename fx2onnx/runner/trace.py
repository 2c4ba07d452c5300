"""The trace of one run: specs and values that follow from the feeds' shapes, and how each step is computed.

A plan repeats what the trace recorded, in the same memory layouts: the first run and all later ones give the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.cast import in_floats, is_by_floats
from fx2onnx.semantics.reading.program import Program, Step
from fx2onnx.semantics.registry import Facts, Prepared
from fx2onnx.semantics.types import Array, Spec, Value

FOLD_BYTES = 1 << 22
"""Results of constants are kept up to this size; larger ones are computed at each run, or memory would double."""


class Trace:
    """Specs of values whose shape follows from the feeds' shapes, known values, layouts, and prepared callables."""

    def __init__(self, program: Program, feeds: Sequence[int], values: Sequence[Value]) -> None:
        self.program = program
        self.specs: dict[int, Spec] = {}
        self.known: dict[int, Value] = {}
        self.channels_last: set[int] = set()
        self.prepared: dict[int, Prepared] = {}
        for slot in program.slots:
            if slot.is_const:
                self.known[slot.index] = slot.const
                if isinstance(slot.const, np.ndarray):
                    self.specs[slot.index] = (slot.const.shape, slot.const.dtype)
        for index, value in zip(feeds, values, strict=True):
            if isinstance(value, np.ndarray):
                self.specs[index] = (value.shape, value.dtype)

    @functools.cached_property
    def wanted_last(self) -> set[int]:
        """Slots that a step working in channels-last memory reads, itself or by element-wise steps."""
        wanted: set[int] = set()
        for step in reversed(self.program.steps):
            if _works_channels_last(self.program, step):
                wanted.add(step.inputs[0])
            elif step.kernel.elementwise and not wanted.isdisjoint(step.outputs):
                wanted.update(step.inputs)
        return wanted

    @functools.cached_property
    def has_halves(self) -> bool:
        """True if the program has values of float16, by what is known of their types."""
        return any(slot.type_name == "tensor(float16)" for slot in self.program.slots)

    def is_static(self, step: Step) -> bool:
        """Return whether the shapes of the step's outputs follow from the shapes of the feeds."""
        kernel, specs = step.kernel, self.specs
        if kernel.shape_inputs is None or step.bodies:
            return False
        for index in step.inputs:
            if index >= 0 and index not in specs:
                return False
        for position in kernel.shape_inputs:
            if position < len(step.inputs) and step.inputs[position] >= 0 and step.inputs[position] not in self.known:
                return False
        return True

    def prepare(self, step: Step, specs: Sequence[Spec]) -> Prepared | None:
        """The prepared computation of a static step with ``infer``; None if it is simply its kernel."""
        kernel, last = step.kernel, self.channels_last
        if kernel.prepare is None and not (
            (self.has_halves and is_by_floats(kernel)) or (kernel.elementwise and not last.isdisjoint(step.inputs))
        ):
            return None
        if -1 in step.outputs or len(step.outputs) != len(specs):
            return None
        facts = Facts(
            [self.specs.get(index) for index in step.inputs],
            [self.known.get(index) if index >= 0 else None for index in step.inputs],
            list(specs),
            [index in last for index in step.inputs],
            step.attrs,
            step.kept,
            not self.wanted_last.isdisjoint(step.outputs),
        )
        made: Prepared | None = kernel.prepare(facts) if kernel.prepare is not None else None
        if made is None and self.has_halves:
            made = in_floats(kernel, facts, kernel.prepare)
        if made is None and kernel.elementwise and _follows(facts):
            made = Prepared(plain_call(kernel.fn, step.attrs), channels_last=True)
        if made is None:
            return None
        self.prepared[step.index] = made
        if made.channels_last:
            last.update(index for index, (shape, _) in zip(step.outputs, specs, strict=True) if len(shape) > 2)
        return made

    def observe(self, step: Step, results: Sequence[Value]) -> None:
        """Note what a static step gave."""
        kernel, known = step.kernel, self.known
        foldable = not kernel.is_random and all(index < 0 or index in known for index in step.inputs)
        is_shape = kernel.op_type in ("Shape", "Size") and not kernel.domain
        for index, value in zip(step.outputs, results, strict=False):
            if index < 0 or not isinstance(value, np.ndarray):
                continue
            self.specs[index] = (value.shape, value.dtype)
            if is_shape or (foldable and (value.nbytes <= FOLD_BYTES or kernel.kind == "view")):
                known[index] = value


def _works_channels_last(program: Program, step: Step) -> bool:
    """Return whether it is a convolution or a pooling of images that reads and writes channels-last memory."""
    if step.op_type not in ("Conv", "FusedConv", "MaxPool") or step.kernel.prepare is None:
        return False
    weight = program.slots[step.inputs[1]].const if len(step.inputs) > 1 else None
    if step.op_type == "MaxPool" or not isinstance(weight, np.ndarray):
        return step.op_type == "MaxPool"
    return weight.ndim == 4 and (step.attrs.get("group", 1) == 1 or weight.shape[1] == 1)


def _follows(facts: Facts) -> bool:
    """Return whether the output lies as its inputs do: an input of its shape (or rank, for Concat) is channels-last."""
    shape = facts.outputs[0][0]
    return len(shape) > 2 and any(
        last and spec is not None and len(spec[0]) == len(shape)
        for last, spec in zip(facts.channels_last, facts.inputs, strict=True)
    )


def plain_call(fn: Callable[..., Any], attrs: Mapping[str, Any]) -> Callable[..., None]:
    """A kernel of kind ``into`` with the signature of prepared callables."""
    return functools.partial(_call, fn, attrs)


def is_plain(fn: Callable[..., None]) -> bool:
    """Return whether it is a ``plain_call``, so that the kernel can be called without one more frame."""
    return isinstance(fn, functools.partial) and fn.func is _call


def _call(
    fn: Callable[..., Any], attrs: Mapping[str, Any], outs: list[Array], scratch: list[Array], *inputs: Array
) -> None:
    fn(outs, *inputs, **attrs)
