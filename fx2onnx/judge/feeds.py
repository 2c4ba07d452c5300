"""Random inputs for a file of which nothing is known but its inputs: sizes and integers are tried until the file takes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by name then
import numpy as np
import onnx_ir as ir

from fx2onnx.irx.facts import ELEMENTWISE, MOVES
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.stated import METADATA_KEY, SizeCondition, read, sizes_near
from fx2onnx.sizes.text import parse_dim

Array = np.ndarray[Any, Any]
SIZES = (2, 3, 1, 5, 8, 16, 32, 64, 128, 224)
"""Sizes of dynamic dims, in the order in which they are tried."""
LENGTHS = (512, 2048, 16000)
"""Lengths of signals (samples), tried where a file takes no shorter ones."""
INTEGER_LIMITS = (1000, 50, 8, 2, 1)
"""Random integers stay below; of the largest range that the file takes. Ids of a vocabulary, token types and masks differ in it."""
MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class InputType:
    """An input: its dtype, and its dims as numbers, names or unknown; None for an unknown rank."""

    name: str
    dtype: ir.DataType | None
    dims: tuple[int | str | None, ...] | None
    rows: int | None = None
    """Of an input that picks rows of tables: how many the smallest has."""
    words: tuple[str, ...] = ("a", "b", "cat", "dog", "", "7")
    """What random strings are drawn from."""


def inputs_of(model: ir.Model) -> list[InputType]:
    """The inputs that have to be fed."""
    found = []
    words = _words(model)
    for value in model.graph.inputs:
        if value.is_initializer():
            continue
        tensor = isinstance(value.type, ir.TensorType) or value.type is None
        dims = None if value.shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        found.append(InputType(value.name or "", value.dtype if tensor else None, dims, _rows(value), words))
    return found


def _words(model: ir.Model) -> tuple[str, ...]:
    """The strings that the file's own operators know."""
    found: dict[str, None] = {}
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.STRINGS and node.domain == "ai.onnx.ml":
                found.update(dict.fromkeys(attribute.as_strings()))
    return tuple(found) or InputType.words


def _rows(value: ir.Value) -> int | None:
    """The rows of the smallest table that the numbers of an input pick from, through operators that move or shift them."""
    found: int | None = None
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        for node, index in current.uses():
            table = node.inputs[0]
            if (
                node.op_type == "Gather"
                and index == 1
                and table is not None
                and table.shape is not None
                and len(table.shape)
            ):
                axis = node.attributes.get("axis")
                size = table.shape[0 if axis is None else axis.as_int()]
                if isinstance(size, int):
                    found = size if found is None else min(found, size)
            elif node.op_type in ELEMENTWISE or (node.op_type in MOVES and index == 0):
                pending += [result for result in node.outputs if result not in seen]
                seen.update(node.outputs)
    return found


def conditions_of(model: ir.Model) -> list[SizeCondition]:
    """What the file says of the sizes that it is right for."""
    return read(model.metadata_props.get(METADATA_KEY, "[]"))


def candidate_sizes(inputs: Sequence[InputType], conditions: Sequence[SizeCondition] = ()) -> Iterator[dict[str, int]]:
    """Sizes of all dynamic dims: first each another one, then all the same, then the dims of images; in the place of those that the
    conditions exclude, the nearest that they allow.
    """
    seen: list[dict[str, int]] = []
    for sizes in _usual_sizes(inputs):
        allowed = sizes_near(sizes, conditions, unlike=seen[-1] if seen else {})
        if allowed is not None and allowed not in seen:
            seen.append(allowed)
            yield allowed


def _usual_sizes(inputs: Sequence[InputType]) -> Iterator[dict[str, int]]:
    names = list(dict.fromkeys(name for each in inputs for name in dim_names(each)))
    if not names:
        yield {}
        return
    yield {name: (2, 3, 4, 5)[place % 4] for place, name in enumerate(names)}
    for size in SIZES:
        yield dict.fromkeys(names, size)
    for batch, size in itertools.product((1, 2), (16, 32, 64, 128, 224)):
        yield {name: batch if place == 0 else size for place, name in enumerate(names)}
    if len(names) <= 2:  # of sound; more axes of such sizes are too much work
        for size in LENGTHS:
            yield {name: 1 if place < len(names) - 1 else size for place, name in enumerate(names)}


def dim_names(each: InputType) -> list[str]:
    """The names that the sizes of an input hang on; a dim without one is called by its place."""
    found: list[str] = []
    for axis, dim in enumerate(each.dims or ()):
        if isinstance(dim, int):
            continue
        read = parse_dim(dim) if dim else None
        found += sorted(read.symbols()) if isinstance(read, Dim) else [dim or f"{each.name}:{axis}"]
    return found


def make_feeds(inputs: Sequence[InputType], sizes: Mapping[str, int], limit: int, seed: int) -> dict[str, Array] | None:
    """One array for each input; None where that cannot be (a sequence, an unknown rank, sizes that are none)."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for each in inputs:
        shape = _shape(each, sizes)
        if shape is None or each.dtype is None or int(np.prod(shape, dtype=np.int64)) > MOST_ELEMENTS:
            return None
        most = limit if each.rows is None else min(each.rows, limit)
        feeds[each.name] = _random(each.dtype, shape, most, rng, each.words)
    return feeds


def _shape(each: InputType, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    if each.dims is None:
        return None
    found = []
    for axis, dim in enumerate(each.dims):
        size: Any = dim
        if not isinstance(dim, int):
            read = parse_dim(dim) if dim else None
            try:
                size = read.evaluate(sizes) if isinstance(read, Dim) else sizes[dim or f"{each.name}:{axis}"]
            except (KeyError, ArithmeticError):
                return None
        if int(size) != size or size < 0:
            return None
        found.append(int(size))
    return tuple(found)


def _random(
    dtype: ir.DataType, shape: tuple[int, ...], limit: int, rng: np.random.Generator, words: Sequence[str]
) -> Array:
    if dtype == ir.DataType.STRING:
        return np.asarray(np.array(words, dtype=object)[rng.integers(0, len(words), shape)])
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    kind = dtype.numpy()
    if dtype.is_integer():
        most = min(limit, int(np.iinfo(kind).max)) if kind.kind in "iu" else min(limit, 7)
        return np.asarray(rng.integers(0, max(most, 1), shape)).astype(kind)
    numbers = rng.standard_normal(shape)
    return np.asarray(numbers).astype(kind)
