"""Python's functions of lists, such as ``zip``, ``map``, ``sum`` and ``max``, for the user's files, and those of ``itertools``: they take
lists of a dynamic length, too.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import operator
from collections.abc import Callable
from types import GeneratorType

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.loops.elements import Elements, current_loops
from fx2onnx.capture.loops.turns import Counted, Turns, become, has_numbers, listed, series_of, stacked
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.relation import Relation


@answers_for_caller
class _Zip(type):
    """The class of what stands for ``zip``."""

    def __call__(cls, *parts: Value, **kwargs: Value) -> Value:
        found = [series_of(part) for part in parts] if THREAD.captures else []
        if not any(found):
            return zip(*parts, **kwargs)  # noqa: B905
        whole = [one if one is not None else _plain(part) for one, part in zip(found, parts, strict=True)]
        lengths = [one.length for one in whole]
        length = lengths[0] if len({*map(str, lengths)}) == 1 else min(lengths)
        return Counted(Elements(length, lambda index: tuple(one.at(index) for one in whole)))

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, zip | Counted)


@answers_for_caller
class _Enumerate(type):
    """The class of what stands for ``enumerate``."""

    def __call__(cls, part: Value, start: Value = 0) -> Value:
        found = series_of(part) if THREAD.captures else None
        if found is None:
            return enumerate(part, start)
        return Counted(Elements(found.length, lambda index: (index + start, found.at(index))))

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, enumerate | Counted)


@answers_for_caller
class _Reversed(type):
    """The class of what stands for ``reversed``."""

    def __call__(cls, part: Value) -> Value:
        found = series_of(part) if THREAD.captures and not isinstance(part, Turns) else None
        return reversed(part) if found is None else Counted(found.turned())

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, reversed | Counted)


def _plain(part: Value) -> Elements:
    """The elements of a list of a fixed length: tensors of one size, or numbers."""
    items = [*part] if isinstance(part, list | tuple | range | torch.Tensor) else []
    kinds = {tuple(one.shape) if isinstance(one, torch.Tensor) else type(one) for one in items}
    if len(kinds) != 1:
        raise current_loops().refused("Python goes through elements of several kinds beside a list of a dynamic length")
    return series_of(current_loops().repeated(stacked(items), has_numbers(items)))  # type: ignore[return-value]


@answers_for_caller
class _Map(type):
    """The class of what stands for ``map``."""

    def __call__(cls, function: Value, *parts: Value) -> Value:
        if not THREAD.captures or not any(series_of(part) is not None for part in parts):
            return map(function, *parts)
        series = series_of(parts[0] if len(parts) == 1 else NAMES["zip"](*parts))
        at = series.at  # type: ignore[union-attr]
        is_one = len(parts) == 1
        return Counted(Elements(series.length, lambda index: function(at(index)) if is_one else function(*at(index))))  # type: ignore[union-attr]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, map | Counted)


@answers_for_caller
class _Listed(type):
    """The class of what stands for ``list`` and ``tuple``."""

    def __call__(cls, *args: Value) -> Value:
        found = listed(args[0]) if len(args) == 1 and THREAD.captures else None
        kind = cls.__mro__[1]
        return kind(*args) if found is None else found if type(found) is Turns else kind(found)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (cls.__mro__[1], Turns))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.__mro__[1])

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__mro__[1]

    def __hash__(cls) -> int:
        return hash(cls.__mro__[1])


@answers_for_caller
def _sum(part: Value, start: Value = 0) -> Value:
    found = listed(part) if THREAD.captures else None
    if found is None:
        return sum(part, start)
    if type(found) is not Turns:
        return sum(found, start)
    total = (found.whole() if _may_be_empty(found, start) else found.some()).sum(0)
    if has_numbers(found):
        return total.item() + start
    total = total + start
    if current_loops().tracer.sizes.may_fail(Relation("ge", (unwrap(found.length()), 1))):
        current_loops().may_be_number(total, start)
    return total


def _may_be_empty(found: Turns, start: Value) -> bool:
    """Return whether the sum of no elements, which is ``start``, is as large as that of some."""
    one = list.__getitem__(found, 0)
    if not isinstance(one, torch.Tensor) or not one.dim():
        return True
    is_of_start = isinstance(start, torch.Tensor) and start.dtype == torch.promote_types(start.dtype, one.dtype)
    return is_of_start and [*map(unwrap, one.shape)] == [*map(unwrap, start.shape)]


def _truth_of(name: str) -> Callable[..., Value]:
    """``any`` or ``all`` of as many truths as a size says, as a tensor; Python's own of anything else."""
    original = getattr(builtins, name)

    @answers_for_caller
    def joined(part: Value) -> Value:
        found = listed(part) if THREAD.captures else None
        if type(found) is not Turns:
            return original(part if found is None else found)
        whole = found.whole()
        if whole.dim() > 1:
            raise current_loops().refused(f"{name} goes through tensors of several numbers")
        return getattr(torch, name)(whole)

    return joined


def _columns(found: Turns, key: Value) -> list[torch.Tensor]:
    """The numbers by which Python compares elements of a list."""
    return (found if key is None else listed(NAMES["map"](key, found))).columns()


def _order(columns: list[torch.Tensor], reverse: bool) -> torch.Tensor:
    """The numbers of the elements in the order that Python sorts them into."""
    order = columns[-1].sort(stable=True, descending=reverse).indices
    for column in reversed(columns[:-1]):
        order = order[column[order].sort(stable=True, descending=reverse).indices]
    return order


def _extreme_of(name: str, find: Callable[[torch.Tensor], torch.Tensor], worst: float) -> Callable[..., Value]:
    """``min`` or ``max`` of as many elements as a size says: the first of those that no other is beyond; NaN is beyond nothing."""

    @answers_for_caller
    def extreme(*parts: Value, **keywords: Value) -> Value:
        found = listed(parts[0]) if THREAD.captures and len(parts) == 1 else None
        if type(found) is not Turns:
            return getattr(builtins, name)(*(parts if found is None else [found]), **keywords)
        if "default" in keywords:
            raise current_loops().refused(f"{name} has a default for an empty list of a dynamic length")
        current_loops().expects_some(found.length())
        columns = _columns(found, keywords.get("key"))
        if len(columns) > 1:
            return found.series().at(_order(columns, name == "max")[0].item())
        keys = columns[0]
        if keys.is_floating_point():
            is_first = keys[0].isnan()
            keys = torch.where(keys.isnan(), worst, keys)
            return found.series().at(torch.where(is_first, 0, find(keys)).item())
        return found.series().at(find(keys).item())

    return extreme


@answers_for_caller
def sorted_list(part: Value, *, key: Value = None, reverse: bool = False) -> Value:
    """``sorted``, also of as many elements as a size says."""
    found = listed(part) if THREAD.captures else None
    if type(found) is not Turns:
        return sorted(part if found is None else found, key=key, reverse=reverse)
    order = _order(_columns(found, key), bool(reverse))
    return found.mapped(lambda whole: whole.index_select(0, order))


NAMES: dict[str, Value] = {"zip": _Zip("zip", (), {}), "enumerate": _Enumerate("enumerate", (), {})}
NAMES |= {"reversed": _Reversed("reversed", (), {}), "map": _Map("map", (), {})}
NAMES |= {kind.__name__: _Listed(kind.__name__, (kind,), {}) for kind in (list, tuple)}
NAMES |= {"sum": _sum, "any": _truth_of("any"), "all": _truth_of("all"), "sorted": sorted_list}
NAMES |= {"max": _extreme_of("max", torch.argmax, -math.inf), "min": _extreme_of("min", torch.argmin, math.inf)}


@answers_for_caller
def _of_python(original: Value, instead: Value) -> Value:
    """The stand-in for a function of Python's library, which is called unless ``instead`` gives a result."""

    @functools.wraps(original, updated=())
    def chosen(*args: Value, **keywords: Value) -> Value:
        found = instead(*args, **keywords) if THREAD.captures else None
        return original(*args, **keywords) if found is None else found

    if original is itertools.chain:
        chosen.from_iterable = itertools.chain.from_iterable  # type: ignore[attr-defined]
    return chosen


def _from(found: Elements, first: Value) -> Counted:
    """All elements from that one on."""
    return Counted(Elements(max(found.length - first, 0), lambda index: found.at(index + first)))


def _begun(found: Elements, start: Value) -> tuple[Value, Counted]:
    """The value that a reduction begins with, and the elements that follow."""
    if start is not None:
        return start, Counted(found)
    current_loops().expects_some(found.length)
    return found.at(0), _from(found, 1)


_OWN_REDUCE = functools.reduce


def _reduce(function: Value, part: Value, start: Value = None) -> Value:
    part = listed(part) if isinstance(part, GeneratorType) else part
    found = series_of(part)
    if found is None:
        return _OWN_REDUCE(function, part, *([] if start is None else [start]))
    total, rest = _begun(found, start)
    for one in rest:
        total = function(total, one)
    return total


def _accumulate(part: Value, function: Value = operator.add, *, initial: Value = None) -> Value:
    found = series_of(part)
    if found is None:
        return None
    total, rest = _begun(found, initial)
    sums = [total]
    for one in rest:
        total = (function or operator.add)(total, one)
        sums.append(total)
    return sums


def _pairwise(part: Value) -> Value:
    found = series_of(part)
    return None if found is None else NAMES["zip"](Counted(found), _from(found, 1))


def _islice(part: Value, *ends: Value) -> Value:
    found, cut = series_of(part), slice(*ends)
    if found is None:
        return None
    first, step = cut.start or 0, cut.step or 1
    length = max((found.length if cut.stop is None else min(cut.stop, found.length)) - first, 0)
    return Counted(Elements((length + step - 1) // step, lambda index: found.at(first + step * index)))


def _chain(*parts: Value) -> Value:
    if all(series_of(part) is None for part in parts):
        return None
    items: list[Value] = []
    for part in parts:
        held = listed(part)
        items += [*part] if held is None else list.__iter__(held)
    become(items, Turns)
    return items


def _product(*parts: Value, repeat: int = 1) -> Value:
    found = [series_of(part) for part in parts * repeat]
    if not any(found):
        return None
    whole = [one or _plain(part) for one, part in zip(found, parts * repeat, strict=True)]
    steps = [math.prod(one.length for one in whole[place + 1 :]) for place in range(len(whole))]
    return Counted(
        Elements(
            math.prod(one.length for one in whole),
            lambda index: tuple(one.at(index // step % one.length) for one, step in zip(whole, steps, strict=True)),
        )
    )


def _combinations(part: Value, count: int) -> Value:
    found = series_of(part)
    if found is None:
        return None
    if count != 2:
        raise current_loops().refused("Python goes through combinations of more than two elements")
    pairs = torch.triu_indices(found.length, found.length, 1)
    return Counted(Elements(pairs.shape[1], lambda index: tuple(found.at(each.item()) for each in pairs[:, index])))


def _starmap(function: Value, part: Value) -> Value:
    found = series_of(part)
    return None if found is None else Counted(Elements(found.length, lambda index: function(*found.at(index))))


OF_MODULES = [
    (space, name, _of_python(getattr(space, name), instead))
    for space, name, instead in (
        (functools, "reduce", _reduce),
        (itertools, "accumulate", _accumulate),
        (itertools, "pairwise", _pairwise),
        (itertools, "islice", _islice),
        (itertools, "chain", _chain),
        (itertools, "product", _product),
        (itertools, "combinations", _combinations),
        (itertools, "starmap", _starmap),
    )
]
"""Stand-ins for functions of Python's library, with module and name."""
