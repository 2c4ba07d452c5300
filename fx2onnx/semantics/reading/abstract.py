"""Abstract values, known before the run: the values of constants, and the shape and dtype of everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.semantics.kernels.control import scan_layout
from fx2onnx.semantics.limits import MAX_RANK
from fx2onnx.semantics.reading.program import Program, Slot, Step
from fx2onnx.semantics.types import INT64, Array, DataType, Value, abstract_array, is_abstract, is_tensor_type

MAX_DIM = 1 << 31
"""Shapes with larger dims are left to the run."""


def holds_values(arg: Value) -> bool:
    """Return whether the operand is no abstract array, so that its elements may decide."""
    return isinstance(arg, np.ndarray) and bool(arg.size) and (arg.ndim == 0 or any(arg.strides))


@dataclass(frozen=True, slots=True)
class AbstractValue:
    """The facts that are known of one value: all of it, or its shape and dtype."""

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
    """The facts that are known of the slots of one program, where each size that is not known has been given a number."""

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
        """The facts that are known of the step's own inputs."""
        return [self.value(index) for index in step.inputs[: step.n_inputs]]

    def note(self, indices: Sequence[int], values: AbstractValues) -> None:
        for index, value in zip(indices, values, strict=False):
            if value is not None and index >= 0:
                (self.known if value.is_value else self.abstract)[index] = value.array

    def operands(self, step: Step) -> list[Value] | None:
        """The values that the step reads, or None where something of it is not known at all."""
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


@dataclass(frozen=True, slots=True)
class AbstractEntry:
    """A body that a step runs: surely at least once, or perhaps."""

    body: str
    inputs: AbstractValues
    is_sure: bool
    length: int | None = None
    """The number of iterations, where it is known if the condition stays true."""


def entries_of(step: Step, state: AbstractState) -> list[AbstractEntry]:
    """The bodies that the step may run. Raises: ValueError for operands of Scan that do not fit."""
    kernel = step.kernel
    found = (
        _ENTRIES.get(kernel.op_type) if not kernel.domain and (kernel.op_type, kernel.since) != ("Scan", 8) else None
    )
    return found(step, state) if found is not None else []


def outcome_of(step: Step, entries: Sequence[AbstractEntry], results: Sequence[AbstractValues]) -> AbstractValues:
    """The facts that are known of the step's outputs, given those on its bodies' outputs."""
    return _OUTCOMES[step.op_type](step, entries, results)


def _scalar(value: AbstractValue | None) -> int | None:
    """The one number that a trip count or condition is."""
    if value is None or not value.is_value or not isinstance(value.array, np.ndarray):
        return None
    return int(value.array.reshape(())) if value.array.size == 1 and value.array.dtype.kind in "biu" else None


def _if_entries(step: Step, state: AbstractState) -> list[AbstractEntry]:
    condition = _scalar(state.values(step)[0])
    if condition is None:
        return [AbstractEntry(name, (), False) for name in ("then_branch", "else_branch")]
    return [AbstractEntry("then_branch" if condition else "else_branch", (), True)]


def _if_outcome(step: Step, entries: Sequence[AbstractEntry], results: Sequence[AbstractValues]) -> AbstractValues:
    if len(entries) == 1:
        return results[0]
    return [
        one.shape_only() if one is not None and other is not None and _same_shape(one, other) else None
        for one, other in zip(*results, strict=False)
    ]


def _same_shape(one: AbstractValue, other: AbstractValue) -> bool:
    first, second = one.array, other.array
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return False
    return bool(first.shape == second.shape and first.dtype == second.dtype)


def _loop_entries(step: Step, state: AbstractState) -> list[AbstractEntry]:
    trip_count, condition, *carried = [*state.values(step), None, None][: max(2, step.n_inputs)]
    has_count, has_condition = (step.n_inputs > place and step.inputs[place] >= 0 for place in (0, 1))
    length, keeps_on = _scalar(trip_count), _scalar(condition)
    is_counted = not has_count or (length is not None and length > 0)
    starts = not has_condition or keeps_on == 1
    inputs = [
        AbstractValue(abstract_array((), INT64), False),
        AbstractValue(np.array(True), True),
        *map(_shape_only, carried),
    ]
    return [AbstractEntry("body", inputs, is_counted and starts, length if starts else None)]


def _shape_only(value: AbstractValue | None) -> AbstractValue | None:
    return None if value is None else value.shape_only()


def _loop_outcome(step: Step, entries: Sequence[AbstractEntry], results: Sequence[AbstractValues]) -> AbstractValues:
    entry, again, rest = entries[0], results[0][:1], results[0][1:]
    if len(rest) != len(step.outputs) or len(rest) < len(entry.inputs) - 2:
        return []
    carried, stacked = _carried(entry.inputs[2:], rest)
    always = _scalar(again[0]) == 1
    return [*carried, *(_stacked(value, entry.length if always else None) for value in stacked)]


def _scan_entries(step: Step, state: AbstractState) -> list[AbstractEntry]:
    values, attrs = state.values(step), step.attrs
    n_state = len(values) - attrs["num_scan_inputs"]
    sequences = [value for value in values[max(n_state, 0) :] if value is not None]
    if n_state >= 0 and len(sequences) < attrs["num_scan_inputs"]:
        return [AbstractEntry("body", [*map(_shape_only, values[:n_state]), *[None] * attrs["num_scan_inputs"]], False)]
    arrays = [value.array for value in sequences]
    axes, length = scan_layout(arrays, len(values), attrs["num_scan_inputs"], attrs.get("scan_input_axes"))
    slices = [
        AbstractValue(abstract_array((*array.shape[:axis], *array.shape[axis + 1 :]), array.dtype), False)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    inputs = [*map(_shape_only, values[:n_state]), *slices]
    _check_declared(step.bodies["body"], inputs)
    return [AbstractEntry("body", inputs, length > 0, length)]


def _check_declared(body: Program, inputs: AbstractValues) -> None:
    """Raises: ValueError for a body that declares an input of another shape than it is given. Loop's may change."""
    for index, value in zip(body.inputs, inputs, strict=False):
        slot = body.slots[index]
        if value is None or slot.shape is None or not isinstance(value.array, np.ndarray):
            continue
        given, declared = value.array.shape, slot.shape
        if len(given) != len(declared) or any(
            isinstance(dim, int) and dim >= 0 and dim != size for dim, size in zip(declared, given, strict=True)
        ):
            raise ValueError(f"the body declares {slot.name!r} of shape {list(declared)} and is given {list(given)}")


def _check_rank_of_results(body: Program, results: AbstractValues) -> None:
    """Raises: ValueError for a body that declares an output of another number of axes than it makes."""
    for index, value in zip(body.outputs, results, strict=False):
        slot = body.slots[index]
        if slot.shape is None or value is None or not isinstance(value.array, np.ndarray):
            continue
        if len(slot.shape) != value.array.ndim:
            what = f"{list(slot.shape)} and makes {list(value.array.shape)}"
            raise ValueError(f"the body declares {slot.name!r} of shape {what}")


def _scan_outcome(step: Step, entries: Sequence[AbstractEntry], results: Sequence[AbstractValues]) -> AbstractValues:
    _check_rank_of_results(step.bodies["body"], results[0])
    entry = entries[0]
    n_state = step.n_inputs - step.attrs["num_scan_inputs"]
    if len(results[0]) != len(step.outputs) or len(step.outputs) < n_state:
        return []
    carried, stacked = _carried(entry.inputs[:n_state], results[0])
    axes = step.attrs.get("scan_output_axes") or [0] * len(stacked)
    return [*carried, *(_stacked(value, entry.length, axis) for value, axis in zip(stacked, axes, strict=False))]


def _carried(before: AbstractValues, after: AbstractValues) -> tuple[AbstractValues, AbstractValues]:
    """The facts that hold of the carried values after any number of iterations, and the outputs that are stacked."""
    carried, stacked = after[: len(before)], after[len(before) :]
    pairs = list(zip(before, carried, strict=True))
    if all(old is None or (new is not None and _same_shape(old, new)) for old, new in pairs):
        return before, stacked
    return [None] * len(before), [None] * len(stacked)


def _stacked(value: AbstractValue | None, length: int | None, axis: int = 0) -> AbstractValue | None:
    """``length`` arrays like ``value`` along a new axis."""
    if value is None or not length or not isinstance(value.array, np.ndarray) or length >= MAX_DIM:
        return None
    shape = list(value.array.shape)
    if not -len(shape) - 1 <= axis <= len(shape):
        return None
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, length)
    return AbstractValue(abstract_array(tuple(shape), value.array.dtype), False)


_ENTRIES: dict[str, Callable[[Step, AbstractState], list[AbstractEntry]]] = {
    "If": _if_entries,
    "Loop": _loop_entries,
    "Scan": _scan_entries,
}
_OUTCOMES: dict[str, Callable[[Step, Sequence[AbstractEntry], Sequence[AbstractValues]], AbstractValues]] = {
    "If": _if_outcome,
    "Loop": _loop_outcome,
    "Scan": _scan_outcome,
}
