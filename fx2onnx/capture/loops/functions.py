"""Python's functions of lists, such as ``zip``, ``map``, ``sum`` and ``max``, for the user's files: they take lists of a dynamic length, too."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.loops.turns import Counted, Elements, Turns, current_loops, has_numbers, listed, series_of
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.shapes.symnode import unwrap


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
    raise current_loops().refused("zip goes through a list of a fixed length beside one of a dynamic length")


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
    return (total.item() if has_numbers(found) else total) + start


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


def _keys(found: Turns, key: Value) -> torch.Tensor:
    """The numbers by which Python compares elements of a list."""
    keys = (found if key is None else listed(NAMES["map"](key, found))).whole()
    if keys.dim() != 1:
        raise current_loops().refused("Python compares tensors of several numbers")
    return keys


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
        keys = _keys(found, keywords.get("key"))
        if keys.is_floating_point():
            is_first = keys[0].isnan()
            keys = torch.where(keys.isnan(), worst, keys)
            return found.series().at(torch.where(is_first, 0, find(keys)).item())
        return found.series().at(find(keys).item())

    return extreme


@answers_for_caller
def _sorted(part: Value, *, key: Value = None, reverse: bool = False) -> Value:
    found = listed(part) if THREAD.captures else None
    if type(found) is not Turns:
        return sorted(part if found is None else found, key=key, reverse=reverse)
    order = _keys(found, key).sort(stable=True, descending=reverse).indices
    loops = current_loops()
    return loops.repeated(found.whole().index_select(0, order), is_number=has_numbers(found))


NAMES: dict[str, Value] = {"zip": _Zip("zip", (), {}), "enumerate": _Enumerate("enumerate", (), {})}
NAMES |= {"reversed": _Reversed("reversed", (), {}), "map": _Map("map", (), {})}
NAMES |= {kind.__name__: _Listed(kind.__name__, (kind,), {}) for kind in (list, tuple)}
NAMES |= {"sum": _sum, "any": _truth_of("any"), "all": _truth_of("all"), "sorted": _sorted}
NAMES |= {"max": _extreme_of("max", torch.argmax, -math.inf), "min": _extreme_of("min", torch.argmin, math.inf)}
