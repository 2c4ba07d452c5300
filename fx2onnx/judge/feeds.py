"""Random inputs for a file of which nothing is known but its inputs: sizes and integers are tried until an engine takes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 by name then
import numpy as np

if TYPE_CHECKING:  # imported where they are needed: ``fx2onnx run`` starts without
    import onnx_ir as ir

    from fx2onnx.sizes.expr import Dim
    from fx2onnx.sizes.stated import SizeCondition

Array: TypeAlias = np.ndarray[Any, Any]
SIZES = (2, 3, 1, 5, 8, 16, 32, 64, 128, 224)
"""Sizes of dynamic dims, in the order in which they are tried."""
LENGTHS = (512, 2048, 16000)
"""Lengths of signals (samples), tried where a file takes no shorter ones."""
INTEGER_LIMITS = (1000, 50, 8, 2, 1)
"""Random integers stay below; of the largest range that the file takes. Ids of a vocabulary, token types and masks differ in it."""
SWITCHES = 2
"""A limit below which ids, token types and masks all accept what is drawn."""
MOST_ELEMENTS = 1 << 24
_WORDS = ("a", "b", "cat", "dog", "", "7")


@dataclass(frozen=True)
class InputType:
    """An input: its dtype (``object`` for texts, None where it is no tensor), and its dims as numbers, names or unknown; None
    for an unknown rank.
    """

    name: str
    dtype: np.dtype[Any] | None
    dims: tuple[int | str | None, ...] | None
    rows: int | None = None
    """For an input that picks rows of tables, the number of rows of the smallest table."""
    words: tuple[str, ...] = _WORDS
    """The words from which random strings are drawn."""


def inputs_of(model: ir.Model) -> list[InputType]:
    """The inputs that have to be fed."""
    import onnx_ir as ir

    found = []
    words = _words(model)
    for value in model.graph.inputs:
        if value.is_initializer():
            continue
        tensor = (isinstance(value.type, ir.TensorType) or value.type is None) and value.dtype is not None
        dtype = np.dtype(value.dtype.numpy()) if tensor and value.dtype is not None else None
        dims = None if value.shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        found.append(InputType(value.name or "", dtype, dims, _rows(value), words))
    return found


def _words(model: ir.Model) -> tuple[str, ...]:
    """The strings that the file's own operators know."""
    import onnx_ir as ir

    found: dict[str, None] = {}
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.STRINGS and node.domain == "ai.onnx.ml":
                found.update(dict.fromkeys(attribute.as_strings()))
    return tuple(found) or _WORDS


def _rows(value: ir.Value) -> int | None:
    """The rows of the smallest table that the numbers of an input pick from, through operators that move or shift them."""
    from fx2onnx.irx.schema import ELEMENTWISE, MOVES

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
    """The conditions on sizes that the file states."""
    from fx2onnx.sizes.stated import METADATA_KEY, read

    return read(model.metadata_props.get(METADATA_KEY, "[]"))


@dataclass(frozen=True, slots=True)
class Taken:
    """Inputs that an engine takes, and what it gave: at these sizes, with integers below ``limit``."""

    sizes: dict[str, int]
    limit: int
    feeds: dict[str, Array]
    results: list[Any]


def taken_feeds(
    inputs: Sequence[InputType],
    run: Callable[[dict[str, Array]], list[Any]],
    conditions: Sequence[SizeCondition] = (),
    given: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Iterator[Taken]:
    """Inputs that ``run`` takes, for each of the candidate sizes with integers of the largest range that it takes.

    Raises:   what ``run`` raised last where it took none.
    """
    has_integers = any(each.dtype is not None and _is_integer(each.dtype) for each in inputs)
    last: Exception | None = None
    is_taken = False
    for sizes in candidate_sizes(inputs, conditions, given):
        for limit in INTEGER_LIMITS if has_integers else INTEGER_LIMITS[:1]:
            feeds = make_feeds(inputs, sizes, limit, seed)
            if feeds is None:
                continue
            try:
                results = run(feeds)
            except Exception as error:  # engines have classes of their own
                last = error
                continue
            is_taken = True
            yield Taken(sizes, limit, feeds, results)
            break
    if last is not None and not is_taken:
        raise last


def candidate_sizes(
    inputs: Sequence[InputType], conditions: Sequence[SizeCondition] = (), given: Mapping[str, int] | None = None
) -> Iterator[dict[str, int]]:
    """Sizes of all dynamic dims: first each another one, then all the same, then the dims of images; in the place of those that the
    conditions exclude, the nearest that they allow. Those ``given`` stay.
    """
    from fx2onnx.sizes.stated import sizes_near

    seen: list[dict[str, int]] = []
    fixed = given or {}
    for sizes in _usual_sizes(inputs):
        wanted = {**sizes, **{name: size for name, size in fixed.items() if name in sizes}}
        allowed = sizes_near(wanted, conditions, unlike=seen[-1] if seen else {})
        if allowed is None or any(allowed.get(name, size) != size for name, size in fixed.items()):
            continue
        if allowed not in seen:
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
        known = _expression(dim)
        found += [dim or f"{each.name}:{axis}"] if known is None else sorted(known.symbols())
    return found


def make_feeds(inputs: Sequence[InputType], sizes: Mapping[str, int], limit: int, seed: int) -> dict[str, Array] | None:
    """One array for each input, integers below ``limit``; None where that cannot be (a sequence, an unknown rank, sizes that are
    none).
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for each in inputs:
        shape = _shape(each, sizes)
        if shape is None or each.dtype is None or math.prod(shape) > MOST_ELEMENTS:
            return None
        most = limit if each.rows is None else min(each.rows, limit)
        feeds[each.name] = _random(each.dtype, shape, most, rng, each.words)
    return feeds


def _expression(dim: str | None) -> Dim | None:
    """The expression that the text of a dim is; None where it is none."""
    from fx2onnx.sizes.expr import Dim
    from fx2onnx.sizes.text import parse_dim

    found = parse_dim(dim) if dim else None
    return found if isinstance(found, Dim) else None


def _shape(each: InputType, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    if each.dims is None:
        return None
    found = []
    for axis, dim in enumerate(each.dims):
        size: Any = dim
        if not isinstance(dim, int):
            known = None if dim in sizes else _expression(dim)
            try:
                size = sizes[dim or f"{each.name}:{axis}"] if known is None else known.evaluate(sizes)
            except (KeyError, ArithmeticError):
                return None
        if int(size) != size or size < 0:
            return None
        found.append(int(size))
    return tuple(found)


def _random(
    dtype: np.dtype[Any], shape: tuple[int, ...], limit: int, rng: np.random.Generator, words: Sequence[str]
) -> Array:
    if dtype.kind == "O":
        return np.asarray(np.array(words, dtype=object)[rng.integers(0, len(words), shape)])
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if _is_integer(dtype):
        most = min(limit, int(np.iinfo(dtype).max)) if dtype.kind in "iu" else min(limit, 7)
        return np.asarray(rng.integers(0, max(most, 1), shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return "int" in dtype.name
