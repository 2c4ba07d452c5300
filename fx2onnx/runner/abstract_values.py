"""What is known before the run: the values of constants, and the shape and dtype of everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.runner.element_types import DataType
from fx2onnx.runner.limits import MAX_RANK
from fx2onnx.runner.program import Program, Slot, Step
from fx2onnx.runner.types import Array, Value, abstract_array, is_abstract, is_tensor_type

MAX_DIM = 1 << 31
"""Shapes with larger dims are left to the run."""


def holds_values(arg: Value) -> bool:
    """Whether the operand is no abstract array, so that its elements may decide."""
    return isinstance(arg, np.ndarray) and bool(arg.size) and (arg.ndim == 0 or any(arg.strides))


@dataclass(frozen=True, slots=True)
class AbstractValue:
    """What is known of one value: all of it, or its shape and dtype."""

    array: Value
    is_value: bool

    def shape_only(self) -> AbstractValue | None:
        """The same without its elements; None for what is no array."""
        if not isinstance(self.array, np.ndarray):
            return None
        return AbstractValue(abstract_array(self.array.shape, self.array.dtype), False)


AbstractValues: TypeAlias = Sequence[AbstractValue | None]

DimKey: TypeAlias = str | tuple[int, int]
"""A dim that is not known: its name, or the input and axis of one without a name."""


def declared_dims(program: Program, fixed: Mapping[str, int]) -> list[int | DimKey]:
    """The dims of all inputs of which the rank is known."""
    return [dim for index in program.inputs for dim in _dims(program.slots[index], fixed)]


def _dims(slot: Slot, fixed: Mapping[str, int]) -> list[int | DimKey]:
    return [
        dim if isinstance(dim, int) else fixed.get(dim, dim) if dim else (slot.index, axis)
        for axis, dim in enumerate(slot.shape or ())
    ]


class AbstractState:
    """What is known of the slots of one program, where each size that is not known has been given a number."""

    def __init__(
        self, program: Program, fixed: Mapping[str, int] | None = None, sizes: Mapping[Any, int] | None = None
    ) -> None:
        self.program = program
        self.known: dict[int, Value] = {}
        self.abstract: dict[int, Array] = {}
        for slot in program.slots:
            if slot.is_const:
                (self.abstract if is_abstract(slot.const) else self.known)[slot.index] = slot.const
        if sizes is not None:
            for index in program.inputs:
                self.take_input(program.slots[index], fixed or {}, sizes)

    def take_input(self, slot: Slot, fixed: Mapping[str, int], sizes: Mapping[Any, int]) -> None:
        """An abstract array for an input, by the shape that the model declares."""
        if is_tensor_type(slot.type) and slot.shape is not None and slot.type.dtype is not DataType.UNDEFINED:
            shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in _dims(slot, fixed))
            if len(shape) <= MAX_RANK and all(0 <= dim < MAX_DIM for dim in shape):
                self.abstract[slot.index] = abstract_array(shape, slot.type.dtype.numpy())

    def value(self, index: int) -> AbstractValue | None:
        if index in self.known:
            return AbstractValue(self.known[index], True)
        return AbstractValue(self.abstract[index], False) if index in self.abstract else None

    def values(self, step: Step) -> AbstractValues:
        """What is known of the step's own inputs."""
        return [self.value(index) for index in step.inputs[: step.n_inputs]]

    def note(self, indices: Sequence[int], values: AbstractValues) -> None:
        for index, value in zip(indices, values, strict=False):
            if value is not None and index >= 0:
                (self.known if value.is_value else self.abstract)[index] = value.array

    def operands(self, step: Step) -> list[Value] | None:
        """What the step reads, or None where something of it is not known at all."""
        args: list[Value] = []
        for index in step.inputs:
            if index < 0:
                args.append(None)
            elif index in self.known:
                args.append(self.known[index])
            elif index in self.abstract:
                args.append(self.abstract[index])
            else:
                return None
        return args

    def inside(self, body: Program, inputs: AbstractValues) -> AbstractState:
        """The state of a body that is given ``inputs``, with what it captures from this one."""
        inner = AbstractState(body)
        inner.note(body.inputs, inputs)
        inner.note([index for _, index in body.captures], [self.value(outer) for outer, _ in body.captures])
        return inner

    def results(self) -> AbstractValues:
        return [self.value(index) for index in self.program.outputs]

    def forget(self, step: Step) -> None:
        for index in step.outputs:
            self.known.pop(index, None)
            self.abstract.pop(index, None)
