"""Sequences and optionals. A sequence is a Python list, an empty optional is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.softmax import check_axis
from fx2onnx.semantics.limits import check_bytes
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import INT64, Array, Value

ARRAY_BYTES = 256
"""What an array takes beside its elements."""


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
