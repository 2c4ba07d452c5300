"""Calls at the edge: a table of moves of each argument of a drawn call, and of all its tensors together.

A move gives another size, rank, dtype, numbers that are not finite, an option that was not given, a number at a boundary. Eager
PyTorch refuses many of them. An export has to refuse these, too, unless only the numbers of tensors are at fault.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.overload_values import DTYPES, SPECIAL, STRINGS
from fx2onnx.aten_map.table.registry import fill_defaults

INF, NAN = float("inf"), float("nan")
FLOATS = [0.0, 1.0, -1.0, 2.0, 0.5, 1e-5, INF, -INF, NAN]
NUMBERS = [0, 1, -1, 2, 3, 300, 2**40, True, False, 1 + 2j, 2.5, -1.5, 1e-8, *FLOATS]
OTHERS = [*DTYPES, torch.int16, torch.int8]
KEPT = frozenset(
    [
        *("generator", "device", "layout", "memory_format", "pin_memory", "output_dtype"),
        *("interpolation_mode", "padding_mode", "normalization", "kernel_size"),
    ]
)
"""Arguments that are not moved: of members of enumerations that do not exist, and of kernels of another size than the weight,
eager PyTorch takes some for whatever it finds.
"""
Given = dict[str, Any]
"""The arguments of a call by their names."""
Move = Callable[[], Any]
"""Makes another value."""


def moved_calls(
    call: Any, seed: object, index: int, tries: int, more: Callable[[Any], Any]
) -> Iterator[tuple[Any, Any]]:
    """Arguments near those of ``call``. The kinds of moves come in one order for each seed, from the kind number ``index`` on; ``more``
    draws a value of a type, for options that were not given.
    """
    arguments = call.overload._schema.arguments
    filled = fill_defaults(call.overload, call.args, call.kwargs)
    kinds = list(_table(call.overload, filled, more).values())
    random.Random(f"{call.overload}/{seed}").shuffle(kinds)
    rng = random.Random(f"{call.overload}/{seed}/{index}")
    for moves in kinds:
        rng.shuffle(moves)
    place = index % max(len(kinds), 1)
    turns = itertools.zip_longest(*kinds[place:], *kinds[:place])
    for move in itertools.islice((move for turn in turns for move in turn if move is not None), tries):
        try:
            given = move(filled)
            if rng.random() < 0.2:
                given = rng.choice(rng.choice(kinds))(given)
        except Exception:  # no tensor of that dtype has such numbers, or not with these sizes
            continue
        yield (
            [given[each.name] for each in arguments if not each.kwarg_only],
            {each.name: given[each.name] for each in arguments if each.kwarg_only},
        )


def _table(overload: Any, filled: Given, more: Callable[[Any], Any]) -> dict[Any, list[Callable[[Given], Given]]]:
    """Moves of a call by their kinds: an argument and a way, or a way of all tensors."""
    kept = {"weight"} if "kernel_size" in filled else {"n"} if "polynomial" in str(overload) else set()
    tensors = [leaf for leaf in pytree.tree_leaves(filled) if isinstance(leaf, torch.Tensor)]
    extents = sorted({size for leaf in tensors for size in leaf.shape})
    rank = tensors[0].dim() if tensors else 2
    table: dict[Any, list[Callable[[Given], Given]]] = defaultdict(list)
    for argument in overload._schema.arguments:
        name = argument.name
        if name in KEPT or name in kept:  # read beyond its end; rounds without end
            continue
        for way, make in _moves(
            name, filled[name], str(argument.real_type), extents, rank, functools.partial(more, argument)
        ):
            table[name, way].append(functools.partial(_with, name, make))
    for way, change in _of_all(tensors, extents):
        table[way].append(functools.partial(pytree.tree_map, change))
    return dict(table)


def _with(name: str, make: Move, given: Given) -> Given:
    return {**given, name: make()}


def _moves(name: str, value: Any, kind: str, extents: list[int], rank: int, more: Move) -> Iterator[tuple[str, Move]]:
    """Ways to move one argument, and the values."""
    if kind.startswith("Optional["):
        if value is None:
            yield from (("given", more) for _ in range(3))
            return
        yield "left", lambda: None
        kind = kind[9:-1]
    choices: list[Any] = []
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(value)
    elif isinstance(value, bool):
        choices = [not value]
    elif kind == "ScalarType" or isinstance(value, torch.dtype):
        choices = list(OTHERS)
    elif kind in ("number", "Scalar"):
        choices = list(NUMBERS)
    elif isinstance(value, int):
        sizes = [way for size in extents for way in (size, size + 1, -size)]
        choices = list({*range(-rank - 1, rank + 1), 0, 1, -1, 2, -2, 3, 5, *sizes})
    elif isinstance(value, float):
        choices = list(FLOATS)
    elif isinstance(value, str):
        choices = [text for text in STRINGS.get(name, [""]) if text is not None] + ["other"]
    elif isinstance(value, list | tuple):
        yield from _of_list(name, list(value), extents, rank, more)
    yield from ((type(value).__name__, functools.partial(_same, choice)) for choice in choices)


def _same(value: Any) -> Any:
    return value


def _of_list(name: str, items: list[Any], extents: list[int], rank: int, more: Move) -> Iterator[tuple[str, Move]]:
    yield "list", list
    for place, item in enumerate(items):
        yield "list", functools.partial(_same, items[:place] + items[place + 1 :])
        yield "list", functools.partial(_same, [*items[:place], item, item, *items[place + 1 :]])
        kind = "number" if isinstance(item, float) else ""
        for way, make in () if item is None else _moves(name, item, kind, extents, rank, more):
            yield f"list {way}", functools.partial(_with_item, items, place, make)


def _with_item(items: list[Any], place: int, make: Move) -> list[Any]:
    return [*items[:place], make(), *items[place + 1 :]]


def _of_tensor(leaf: torch.Tensor) -> Iterator[tuple[str, Move]]:
    yield from (("dtype", functools.partial(leaf.to, dtype)) for dtype in OTHERS if dtype != leaf.dtype)
    for axis, size in enumerate(leaf.shape):
        for wanted in sorted({0, 1, size + 1, 2 * size, max(size - 1, 0)} - {size}):
            yield "size", functools.partial(_resized, leaf, axis, wanted)
        yield "rank", functools.partial(_without, leaf, axis)
    yield from (("wider", functools.partial(torch.clone, leaf.unsqueeze(axis))) for axis in range(leaf.dim() + 1))
    if leaf.is_floating_point():
        yield from (
            ("numbers", functools.partial(torch.full_like, leaf, number)) for number in (NAN, INF, -INF, 0.0, -1.0)
        )
        yield "special", functools.partial(_special, leaf)
    elif leaf.dtype != torch.bool:
        yield from (("numbers", functools.partial(torch.full_like, leaf, number)) for number in (0, 1, -1))


def _resized(leaf: torch.Tensor, axis: int, wanted: int) -> torch.Tensor:
    if not leaf.shape[axis]:
        return leaf.new_ones([*leaf.shape[:axis], wanted, *leaf.shape[axis + 1 :]])
    return leaf.index_select(axis, torch.arange(wanted) % leaf.shape[axis])


def _without(leaf: torch.Tensor, axis: int) -> torch.Tensor:
    return leaf.select(axis, 0).clone() if leaf.shape[axis] else leaf.sum(axis).to(leaf.dtype)


def _special(leaf: torch.Tensor) -> torch.Tensor:
    """Numbers that are not finite, and others at the edge, in some places."""
    if not leaf.is_floating_point():
        return leaf
    generator = torch.Generator().manual_seed(leaf.numel())
    chosen = torch.randint(0, len(SPECIAL), leaf.shape, generator=generator)
    some = torch.rand(leaf.shape, generator=generator) < 0.4
    return torch.where(some, torch.tensor(SPECIAL, dtype=torch.float64)[chosen].to(leaf.dtype), leaf)


def _of_all(tensors: list[torch.Tensor], extents: list[int]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Ways to move all tensors together."""
    main = tensors[0].dtype if tensors else None

    def of_tensors(change: Callable[[torch.Tensor], torch.Tensor], leaf: Any) -> Any:
        return change(leaf) if isinstance(leaf, torch.Tensor) else leaf

    ways: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [("all special", _special)]
    for dtype in OTHERS:
        ways.append(("all dtype", lambda leaf, to=dtype: leaf.to(to) if leaf.dtype == main else leaf))
        if dtype.is_floating_point:
            ways.append(("all floats", lambda leaf, to=dtype: leaf.to(to) if leaf.is_floating_point() else leaf))
    for size in extents:
        ways += [("all size", functools.partial(_of_size, size, wanted)) for wanted in {0, 1, size + 1} - {size}]
    for axis, wanted in itertools.product((0, 1, -1, -2), (0, 1)):
        ways.append(("all axis", lambda leaf, axis=axis, to=wanted: _resized(leaf, axis, to) if leaf.dim() > axis >= -leaf.dim() else leaf))  # fmt: skip
    ways.append(("all rank", lambda leaf: _without(leaf, 0) if leaf.dim() else leaf))
    ways.append(("all rank", lambda leaf: leaf.unsqueeze(0).clone()))
    ways.append(("all rank", lambda leaf: leaf.flatten()[0].clone() if leaf.numel() else leaf))
    ways.append(("strided", lambda leaf: leaf.mT.contiguous().mT if leaf.dim() > 1 else leaf))
    yield from ((way, functools.partial(of_tensors, change)) for way, change in ways)


def _of_size(size: int, wanted: int, leaf: torch.Tensor) -> torch.Tensor:
    """With ``wanted`` elements along the axes of ``size``; indices stay inside."""
    is_index = not (leaf.is_floating_point() or leaf.is_complex() or leaf.dtype == torch.bool)
    for axis in range(leaf.dim()):
        if leaf.shape[axis] == size:
            leaf = _resized(leaf, axis, wanted)
    return leaf.clamp(max=max(wanted - 1, 1)) if is_index and 0 < wanted < size else leaf


def with_other_numbers(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """The call with tensors of the same dtypes and sizes that lie otherwise in memory, or hold other numbers, most of which kernels take."""
    yield pytree.tree_map(lambda leaf: leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))
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
    yield pytree.tree_map(_first_places, (args, kwargs))


def _first_places(leaf: Any) -> Any:
    """Masks that choose everything, and indices that every size has."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_floating_point() or leaf.is_complex():
        return leaf
    return torch.ones_like(leaf) if leaf.dtype in (torch.bool, torch.uint8) else torch.zeros_like(leaf)


def _identity(leaf: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(leaf)
    if leaf.dim() > 1:
        made.diagonal(0, -2, -1).fill_(1)
    return made


def _first_alone(leaf: torch.Tensor, number: int | None = None) -> torch.Tensor:
    """The largest number, or ``number``, in the first place, as sizes of batches that end after one step."""
    made = torch.zeros_like(leaf)
    if leaf.numel():
        made.reshape(-1)[0] = (
            leaf.max() if number is None else torch.tensor(number)
        )  # which wraps around in small dtypes
    return made


def _first_most(leaf: torch.Tensor, total: int) -> torch.Tensor:
    """Ones, except for the first number, that add up to ``total``, as sizes of batches."""
    made = torch.ones_like(leaf)
    if leaf.numel():
        made.reshape(-1)[0] = torch.tensor(total - leaf.numel() + 1)
    return made


def _rising(leaf: torch.Tensor) -> torch.Tensor:
    return torch.arange(leaf.numel()).reshape(leaf.shape).to(leaf.dtype)
