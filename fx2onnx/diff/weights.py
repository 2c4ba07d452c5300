"""The differences between the weights of two files: by the nodes that read them, by name, and by content."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from fx2onnx.diff.matching import Side
from fx2onnx.diff.opened import Tensor
from fx2onnx.irx.values import dtype_name
from fx2onnx.judge.arrays import BLOCK_ELEMENTS, Array, bits_of, largest_difference

Weights: TypeAlias = dict[ir.Value, Tensor]

FEW_ELEMENTS = 8
"""The largest weight whose elements are shown one by one: sizes, axes, scales."""
MOST_AXES = 5
"""The largest number of axes of a weight for which every order of them is tried."""


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """A weight of one file alone."""

    name: str
    dtype: str
    shape: list[int]


@dataclass(frozen=True, slots=True)
class ChangedWeight:
    """A weight of both files with other numbers. ``perm`` is set where the second is the first transposed, exactly;
    ``largest`` and ``scale`` (the largest magnitude in the first) are None where shapes differ or there are no numbers.
    """

    name: str
    other_name: str
    dtype: str
    other_dtype: str
    shape: list[int]
    other_shape: list[int]
    read_by: str
    """A node of the first file."""
    perm: list[int] | None = None
    largest: float | None = None
    scale: float | None = None
    before: Any = None
    after: Any = None
    """The numbers, where they are few."""


@dataclass(slots=True)
class WeightDifferences:
    """``equal`` and ``renamed`` are no differences."""

    equal: int = 0
    renamed: list[tuple[str, str]] = field(default_factory=list)
    changed: list[ChangedWeight] = field(default_factory=list)
    added: list[WeightFacts] = field(default_factory=list)
    removed: list[WeightFacts] = field(default_factory=list)


def compare_weights(one: Side, other: Side, used: Mapping[tuple[ir.Value, ir.Value], str]) -> WeightDifferences:
    """``used``: pairs that paired nodes read at the same input, and the first such node. What computes decides; weights that
    no paired node reads are paired by name, content and shape.
    """
    found = WeightDifferences()
    left, right = dict(one.weights), dict(other.weights)
    for pair, node in used.items():
        _compare(one, other, *pair, found, node)
        left.pop(pair[0], None)
        right.pop(pair[1], None)
    for key in (_name_and_content, _content, _name_and_shape, _elements):
        for value, same in _pairs(one, other, left, right, key):
            if key is not _elements or _permutation(one, other, value, same) is not None:
                _compare(one, other, value, same, found)
                del left[value], right[same]
    found.removed = [_facts(one, value) for value in left]
    found.added = [_facts(other, value) for value in right]
    return found


def _name_and_content(side: Side, value: ir.Value) -> Hashable:
    return value.name, _content(side, value)


def _content(side: Side, value: ir.Value) -> Hashable:
    return side.weight(side.weights[value], with_content=True)


def _name_and_shape(side: Side, value: ir.Value) -> Hashable:
    return value.name, tuple(side.weights[value].shape.numpy())


def _elements(side: Side, value: ir.Value) -> Hashable:
    """The same for the same elements in any order: how many there are, and the sum of their bytes."""
    array = side.opened.array(side.weights[value])
    if array.dtype.kind == "O":
        return None
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize)
    sums = [int(flat[:, index].sum(dtype=np.uint64)) for index in range(array.dtype.itemsize)]
    return array.dtype.name, array.size, *sums


def _pairs(
    one: Side, other: Side, left: Weights, right: Weights, key: Callable[[Side, ir.Value], Hashable]
) -> list[tuple[ir.Value, ir.Value]]:
    """The pairs of weights of one key in order, each at most once."""
    waiting: dict[Hashable, list[ir.Value]] = {}
    for value in right:
        waiting.setdefault(key(other, value), []).append(value)
    for values in waiting.values():
        values.reverse()
    keys = {value: key(one, value) for value in left}
    return [(value, waiting[k].pop()) for value, k in keys.items() if k is not None and waiting.get(k)]


def _compare(
    one: Side, other: Side, value: ir.Value, same: ir.Value, found: WeightDifferences, read_by: str = ""
) -> None:
    before, after = one.weights[value], other.weights[same]
    name, other_name = value.name or "", same.name or ""
    if one.weight(before, with_content=True) == other.weight(after, with_content=True):
        if name == other_name:
            found.equal += 1
        else:
            found.renamed.append((name, other_name))
        return
    first, second = _facts(one, value), _facts(other, same)
    perm = _permutation(one, other, value, same)
    arrays = one.opened.array(before), other.opened.array(after)
    largest, scale = None, None
    if first.shape == second.shape and perm is None:
        largest, scale = largest_difference(*arrays)
    few = (array.tolist() if array.size <= FEW_ELEMENTS else None for array in arrays)
    types = (first.dtype, second.dtype, first.shape, second.shape)
    found.changed.append(ChangedWeight(name, other_name, *types, read_by, perm, largest, scale, *few))


def _facts(side: Side, value: ir.Value) -> WeightFacts:
    tensor = side.weights[value]
    return WeightFacts(value.name or "", dtype_name(tensor.dtype), [int(dim) for dim in tensor.shape.numpy()])


def _permutation(one: Side, other: Side, value: ir.Value, same: ir.Value) -> list[int] | None:
    """The order of axes that makes the second of the first, element for element."""
    first, second = _facts(one, value), _facts(other, same)
    rank = len(first.shape)
    if first.dtype != second.dtype or sorted(first.shape) != sorted(second.shape) or not 2 <= rank <= MOST_AXES:
        return None
    before, after = one.opened.array(one.weights[value]), other.opened.array(other.weights[same])
    for perm in itertools.permutations(range(rank)):
        if [first.shape[axis] for axis in perm] == second.shape and _equal(before.transpose(perm), after):
            return list(perm)
    return None


def _equal(before: Array, after: Array) -> bool:
    """Element for element; NaN is NaN. The first row of each is looked at first, since that mostly decides it."""
    rows = max(1, BLOCK_ELEMENTS // max(1, math.prod(before.shape[1:])))
    starts = [0, *range(1, len(before), rows)]
    for start, end in itertools.pairwise([*starts, len(before)]):
        if not np.array_equal(bits_of(before[start:end]), bits_of(after[start:end])):
            return False
    return True
