"""Calls at the edge: a drawn call with one or two arguments moved to another size, rank, dtype, or boundary number.

Eager PyTorch refuses many of them. An export has to refuse these, too, unless only the numbers of tensors are at fault.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.overload_values import DTYPES, FLOATS, STRINGS, weighted
from fx2onnx.aten_map.table.registry import fill_defaults

NUMBERS = [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1.0, 2.0]

KEPT = frozenset(
    [
        *("generator", "device", "layout", "memory_format", "pin_memory", "dtype", "output_dtype"),
        *("reduction", "interpolation_mode", "padding_mode", "mode", "normalization", "kernel_size"),
    ]
)
"""Arguments that are not moved: of members of enumerations that do not exist, and of kernels of another size than the weight,
eager PyTorch takes some for whatever it finds.
"""


def moved_calls(call: Any, rng: random.Random, tries: int) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments near those of ``call``."""
    overload, filled = call.overload, fill_defaults(call.overload, call.args, call.kwargs)
    kept = {"weight"} if "kernel_size" in filled else {"n"} if "polynomial" in str(overload) else set()
    arguments = [each for each in overload._schema.arguments if _is_moved(each.name, filled[each.name])]
    arguments = [each for each in arguments if each.name not in kept]  # read beyond its end; rounds without end
    extents = [size for leaf in pytree.tree_leaves(filled) if isinstance(leaf, torch.Tensor) for size in leaf.shape]
    if not arguments:
        return
    for _ in range(tries):
        given = dict(filled)
        for argument in rng.sample(arguments, min(len(arguments), rng.choice([1, 1, 1, 2]))):
            given[argument.name] = _moved(rng, argument.name, given[argument.name], extents)
        args = [given[each.name] for each in overload._schema.arguments if not each.kwarg_only]
        yield args, {each.name: given[each.name] for each in overload._schema.arguments if each.kwarg_only}


def _is_moved(name: str, value: Any) -> bool:
    return value is not None and name not in KEPT


def _moved(rng: random.Random, name: str, value: Any, extents: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor(rng, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        size = rng.choice([*extents, 1])
        return rng.choice([0, 1, -1, 2, -2, 4, -5, 7, size, size + 1, -size, -size - 1])
    if isinstance(value, float):
        return rng.choice(NUMBERS)
    if isinstance(value, str):
        return rng.choice([text for text in STRINGS.get(name, [""]) if text is not None] + ["other"])
    if isinstance(value, list | tuple) and value:
        items = list(value)
        place = rng.randrange(len(items))
        way = rng.random()
        if way < 0.15:
            del items[place]
        elif way < 0.3:
            items.insert(place, items[place])
        elif items[place] is not None:
            items[place] = _moved(rng, name, items[place], extents)
        return items
    return value


def _tensor(rng: random.Random, value: torch.Tensor) -> torch.Tensor:
    ways = (
        ["dtype", "wider", "numbers"]
        if not value.dim()
        else ["size", "size", "size", "rank", "wider", "dtype", "empty"]
    )
    way = rng.choice(ways)
    if way == "numbers" and value.dtype in FLOATS:
        return torch.full_like(value, rng.choice(NUMBERS))
    if way == "dtype":
        return value.to(weighted(rng, dict.fromkeys(DTYPES, 1)))
    if way in ("wider", "numbers"):
        return value.unsqueeze(rng.randint(0, value.dim())).clone()
    axis = rng.randrange(value.dim())
    size = value.shape[axis]
    if way == "rank":
        return value.select(axis, 0).clone() if size else value.sum(axis)
    wanted = 0 if way == "empty" else rng.choice([1, size + 1, max(size - 1, 0), 2 * size])
    if not size:
        return value.new_ones([*value.shape[:axis], wanted, *value.shape[axis + 1 :]])
    return value.index_select(axis, torch.arange(wanted) % size)


def with_other_numbers(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The call with tensors of the same dtypes and sizes that hold other numbers, most of which kernels take."""
    numbers = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if type(leaf) is int]
    sizes = {
        size for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) for size in leaf.shape[:1]
    }
    sums = [functools.partial(_first_alone, number=number) for number in numbers]
    sums += [functools.partial(_first_most, total=size) for size in sizes]
    for floats in (torch.zeros_like, torch.ones_like, _identity, lambda leaf: leaf):
        for integers in (torch.zeros_like, torch.ones_like, _rising, _first_alone, lambda leaf: leaf, *sums):

            def other(leaf: Any, floats: Any = floats, integers: Any = integers) -> Any:
                if not isinstance(leaf, torch.Tensor):
                    return leaf
                return floats(leaf) if leaf.is_floating_point() or leaf.is_complex() else integers(leaf)

            yield pytree.tree_map(other, (args, kwargs))


def _identity(leaf: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(leaf)
    if leaf.dim() > 1:
        made.diagonal(0, -2, -1).fill_(1)
    return made


def _first_alone(leaf: torch.Tensor, number: int | None = None) -> torch.Tensor:
    """The largest number, or ``number``, in the first place, as sizes of batches that end after one step."""
    made = torch.zeros_like(leaf)
    if leaf.numel():
        made.reshape(-1)[0] = leaf.max() if number is None else number
    return made


def _first_most(leaf: torch.Tensor, total: int) -> torch.Tensor:
    """Ones, but for the first number, that add up to ``total``, as sizes of batches."""
    made = torch.ones_like(leaf)
    if leaf.numel():
        made.reshape(-1)[0] = total - leaf.numel() + 1
    return made


def _rising(leaf: torch.Tensor) -> torch.Tensor:
    return torch.arange(leaf.numel()).reshape(leaf.shape).to(leaf.dtype)
