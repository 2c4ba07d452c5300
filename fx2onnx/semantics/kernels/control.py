"""If, Loop, Scan, and sequences and optionals. A sequence is a Python list, an empty optional is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.limits import check_bytes, count_iteration
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, Array, Value, shape_of


class Body(Protocol):
    """A graph as a function from its inputs to its outputs."""

    def __call__(self, inputs: Sequence[Value], /) -> list[Value]: ...

    def none_stacked(self, index: int, shapes: Sequence[tuple[int, ...]], /) -> Any:
        """Output ``index`` of no run at all, stacked; ``shapes`` are those that its inputs would have."""


def flag(value: Array) -> bool:
    """A condition: one boolean."""
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or value.size != 1:
        raise TypeError("a condition must be one boolean")
    return bool(value.reshape(()))


@kernel("If", shape_inputs=None)
def if_(condition: Array, *, then_branch: Body, else_branch: Body, n_outputs: int) -> tuple[Value, ...]:
    """The outputs of one of the two bodies."""
    outputs = then_branch([]) if flag(condition) else else_branch([])
    if len(outputs) < n_outputs:
        raise ValueError(f"the branch has {len(outputs)} outputs, the node {n_outputs}")
    return tuple(outputs)


@kernel("Loop", shape_inputs=None)
def loop(
    trip_count: Array | None = None,
    condition: Array | None = None,
    *carried: Value,
    body: Body,
    n_outputs: int,
) -> tuple[Value, ...]:
    """The body again and again; carried values, then what each iteration gave, stacked."""
    state = list(carried)
    limit = None if trip_count is None else int(trip_count.reshape(()))
    running = True if condition is None else flag(condition)
    scans: list[list[Array]] = [[] for _ in range(n_outputs - len(state))]
    iteration, kept_bytes = 0, 0
    while running and (limit is None or iteration < limit):
        count_iteration()
        outputs = body([np.array(iteration, INT64), np.array(True), *state])
        if len(outputs) != 1 + len(state) + len(scans):
            raise ValueError(f"the body has {len(outputs)} outputs, the node needs {1 + len(state) + len(scans)}")
        running = flag(outputs[0])
        state = outputs[1 : 1 + len(state)]
        for collected, item in zip(scans, outputs[1 + len(state) :], strict=True):
            collected.append(np.array(item))
            kept_bytes += item.nbytes
        check_bytes(kept_bytes, "what a Loop collects")
        iteration += 1
    shapes = [(), (), *map(shape_of, state)]
    last = enumerate(scans, 1 + len(state))
    return (*state, *(np.stack(items) if items else body.none_stacked(index, shapes) for index, items in last))


def scan_layout(
    sequences: Sequence[Array], n_inputs: int, num_scan_inputs: int, scan_input_axes: Sequence[int] | None
) -> tuple[list[int], int]:
    """The scanned axis of each sequence, and how long they are. Raises: ValueError where that does not fit."""
    if not 1 <= num_scan_inputs <= n_inputs:
        raise ValueError(f"num_scan_inputs is {num_scan_inputs} for {n_inputs} inputs")
    axes = [check_axis(a, s.ndim) for a, s in zip(scan_input_axes or [0] * len(sequences), sequences, strict=True)]
    lengths = {sequence.shape[axis] for sequence, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise ValueError(f"the scanned inputs have different lengths: {sorted(lengths)}")
    return axes, lengths.pop()


@kernel("Scan", 9, shape_inputs=None)
def scan(
    *inputs: Value,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Value, ...]:
    """The body over slices of the last ``num_scan_inputs`` inputs; the others are carried."""
    n_state = max(len(inputs) - num_scan_inputs, 0)
    state, sequences = list(inputs[:n_state]), inputs[n_state:]
    axes, length = scan_layout(sequences, len(inputs), num_scan_inputs, scan_input_axes)
    backward = scan_input_directions or [0] * len(sequences)
    n_scans = n_outputs - n_state
    collected: list[list[Array]] = [[] for _ in range(n_scans)]
    kept_bytes = 0
    for step in range(length):
        count_iteration()
        slices = [
            np.take(sequence, length - 1 - step if back else step, axis=axis)
            for sequence, axis, back in zip(sequences, axes, backward, strict=True)
        ]
        outputs = body([*state, *map(np.asarray, slices)])
        if len(outputs) != n_outputs:
            raise ValueError(f"the body has {len(outputs)} outputs, the node needs {n_outputs}")
        state = outputs[:n_state]
        for items, item in zip(collected, outputs[n_state:], strict=True):
            items.append(np.array(item))
            kept_bytes += item.nbytes
        check_bytes(kept_bytes, "what a Scan collects")
    out_axes = scan_output_axes or [0] * n_scans
    out_backward = scan_output_directions or [0] * n_scans
    of_slices = [(*s.shape[:axis], *s.shape[axis + 1 :]) for s, axis in zip(sequences, axes, strict=True)]
    shapes = [*map(shape_of, state), *of_slices]
    results = []
    for index, (items, axis, back) in enumerate(zip(collected, out_axes, out_backward, strict=True), n_state):
        if items:
            results.append(np.stack(items[::-1] if back else items, axis=axis))
        else:
            results.append(np.moveaxis(body.none_stacked(index, shapes), 0, axis))
    return (*state, *results)


@kernel("Scan", 8, shape_inputs=None)
def scan_8(
    lengths: Array | None,
    *inputs: Value,
    body: Body,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
    n_outputs: int,
) -> tuple[Value, ...]:
    """Scan of opset 8: every input has a batch axis first, then the scanned axis."""
    batch = inputs[0].shape[0]
    longest = inputs[-1].shape[1]
    rows = []
    for index in range(batch):
        size = longest if lengths is None else int(lengths[index])
        n_state = len(inputs) - num_scan_inputs
        row = [value[index] for value in inputs[:n_state]] + [value[index][:size] for value in inputs[n_state:]]
        outputs = scan(
            *row, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions, n_outputs=n_outputs
        )
        rows.append([_grown(item, longest) if position >= n_state else item for position, item in enumerate(outputs)])
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


def _grown(item: Array, length: int) -> Array:
    if item.shape[0] == length:
        return item
    y = np.zeros((length, *item.shape[1:]), item.dtype)
    y[: item.shape[0]] = item
    return y


ARRAY_BYTES = 256
"""The bytes that an array takes beside its elements."""


def _position(position: Array, length: int, is_insert: bool) -> int:
    index = int(position.reshape(()))
    if not -length <= index < length + is_insert:
        raise IndexError(f"position {index} is out of range for a sequence of {length}")
    return index + length if index < 0 else index


def _is_sequence(value: Value) -> list[Value]:
    if not isinstance(value, list):
        raise TypeError("the input is not a sequence")
    return value


def _sequence(items: list[Value]) -> list[Value]:
    """The items. Raises: TypeError where their dtypes differ, UserError E404 where they take too much."""
    arrays = {id(item): item for item in items if isinstance(item, np.ndarray)}.values()
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1:
        raise TypeError(f"the items of a sequence differ in dtype: {', '.join(sorted(map(str, dtypes)))}")
    check_bytes(sum(array.nbytes for array in arrays), f"a sequence of {len(items)} items")
    return items


@kernel("SequenceConstruct", 11, kind="view", shape_inputs=None)
def sequence_construct(*items: Value) -> Any:
    """The items as a sequence."""
    return (_sequence(list(items)),)


@kernel("SequenceEmpty", 11, kind="view", shape_inputs=None)
def sequence_empty(*, dtype: int = 1) -> Any:
    """An empty sequence."""
    return ([],)


@kernel("SequenceAt", 11, kind="view", shape_inputs=None)
def sequence_at(sequence: Value, position: Array) -> Value:
    """One item."""
    items = _is_sequence(sequence)
    return items[_position(position, len(items), False)]


@kernel("SequenceLength", 11, kind="view", shape_inputs=None)
def sequence_length(sequence: Value) -> Array:
    """The number of items."""
    return np.array(len(_is_sequence(sequence)), INT64)


@kernel("SequenceInsert", 11, kind="view", shape_inputs=None)
def sequence_insert(sequence: Value, item: Value, position: Array | None = None) -> Any:
    """A copy with ``item`` put in, at the end by default."""
    items = list(_is_sequence(sequence))
    items.insert(len(items) if position is None else _position(position, len(items), True), item)
    return (_sequence(items),)


@kernel("SequenceErase", 11, kind="view", shape_inputs=None)
def sequence_erase(sequence: Value, position: Array | None = None) -> Any:
    """A copy without one item, the last by default."""
    items = list(_is_sequence(sequence))
    del items[len(items) - 1 if position is None else _position(position, len(items), False)]
    return (items,)


@kernel("ConcatFromSequence", 11, kind="view", shape_inputs=None)
def concat_from_sequence(sequence: Value, *, axis: int, new_axis: int = 0) -> Array:
    """The items joined along ``axis``, an existing one or a new one."""
    items = _is_sequence(sequence)
    check_bytes(sum(item.nbytes for item in items), "the result of ConcatFromSequence")
    return np.stack(items, axis=axis) if new_axis else np.concatenate(items, axis=axis)


@kernel("SplitToSequence", 11, kind="view", shape_inputs=None)
def split_to_sequence(x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    """x cut along ``axis``: into single slices, into parts of one size, or of given sizes."""
    axis = check_axis(axis, x.ndim)
    length = x.shape[axis]
    if split is None:
        sizes = [1] * length
    elif split.ndim == 0:
        size = int(split)
        if size < 1:
            raise ValueError(f"the size of a part is {size}")
        sizes = [size] * (length // size) + ([length % size] if length % size else [])
    else:
        sizes = [int(size) for size in split]
    if sum(sizes) != length or any(size < 0 for size in sizes):
        raise ValueError(f"the parts {sizes[:8]} do not add up to {length}")
    check_bytes(x.nbytes + len(sizes) * ARRAY_BYTES, f"a sequence of {len(sizes)} parts")
    parts = np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis) if sizes else []
    if split is None and not keepdims:
        parts = [part.squeeze(axis) for part in parts]
    return ([np.array(part) for part in parts],)


@kernel("SequenceMap", 17, kind="view", shape_inputs=None)
def sequence_map(
    first: Value, *others: Value, body: Callable[[Sequence[Value]], list[Value]], n_outputs: int
) -> tuple[Value, ...]:
    """The body over the items of all sequences at once; tensors are given to each call as they are."""
    items = _is_sequence(first)
    for other in others:
        if isinstance(other, list) and len(other) != len(items):
            raise ValueError(f"sequences of {len(items)} and {len(other)} items")
    results: list[list[Value]] = [[] for _ in range(n_outputs)]
    kept_bytes = 0
    for index, item in enumerate(items):
        row = body([item, *(other[index] if isinstance(other, list) else other for other in others)])
        for collected, value in zip(results, row, strict=True):
            collected.append(value)
            kept_bytes += getattr(value, "nbytes", 0)
        check_bytes(kept_bytes, "what a SequenceMap collects")
    return tuple(results)


@kernel("Optional", 15, kind="view", shape_inputs=None)
def optional(value: Value = None, *, type: Any = None) -> Any:
    """The value, or an empty optional."""
    return (value,)


@kernel("OptionalHasElement", 15, kind="view", shape_inputs=None)
def optional_has_element(value: Value = None) -> Array:
    """Return whether the optional holds a value."""
    return np.array(value is not None)


@kernel("OptionalGetElement", 15, kind="view", shape_inputs=None)
def optional_get_element(value: Value) -> Any:
    """The value in the optional. Raises: ValueError for an empty one."""
    if value is None:
        raise ValueError("the optional is empty")
    return (value,)
