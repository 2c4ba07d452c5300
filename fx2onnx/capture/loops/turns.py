"""Lists whose number of elements a size says, and what goes through them: ``range(n)``, ``x.unbind(1)``, the list that a loop filled."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import GeneratorType

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.python.file_names import LENGTHS
from fx2onnx.capture.python.held import Value

Index = Value
"""A number of an element: an int or a symbolic size."""


@dataclass(frozen=True)
class Elements:
    """Elements by their numbers, of which there are ``length``."""

    length: Index
    at: Callable[[Index], Value]

    def turned(self) -> Elements:
        """From the last to the first."""
        return Elements(self.length, lambda index: self.at(self.length - 1 - index))


@dataclass(frozen=True, eq=False)
class Repeat:
    """The stand-in for one tensor in a list: ``length`` tensors of its type."""

    marker: torch.Tensor
    length: Index
    stacked: Callable[[], torch.Tensor]
    """All of them along a new first axis."""
    element: Callable[[Index], torch.Tensor] | None = None
    """The one of a number, where that needs not all of them."""
    is_number: bool = False
    """True if the elements are plain numbers of Python."""

    def at(self, index: Index) -> Value:
        """The one of a number."""
        one = self.stacked().select(0, index) if self.element is None else self.element(index)
        return one.item() if self.is_number else one


def _at(one: Value, index: Index) -> Value:
    """The element of a number, where each is a tensor, or a list or tuple of such."""
    if isinstance(one, Repeat):
        return one.at(index)
    return type(one)(_at(part, index) for part in one) if isinstance(one, list | tuple) else one


def _stacked(one: Value) -> torch.Tensor:
    """All elements along a new first axis."""
    if isinstance(one, Repeat):
        return one.stacked()
    parts = [_stacked(part) for part in one]
    dtype = functools.reduce(torch.promote_types, {part.dtype for part in parts})
    return torch.stack([part.to(dtype) for part in parts], 1)


def _length(one: Value) -> Index | None:
    """The number of elements that an entry of a list stands for; None for one element."""
    if isinstance(one, list | tuple):
        return next((found for found in map(_length, one) if found is not None), None)
    return one.length if isinstance(one, Repeat) else None


@answers_for_caller
class Counted:
    """The stand-in for an object to iterate over whose length is a size."""

    def __init__(self, series: Elements) -> None:
        self.series = series

    def __iter__(self) -> Iterator[Value]:
        return _loops().iterator(self.series, None)  # type: ignore[no-any-return]

    def some(self) -> torch.Tensor:
        """All elements along a new first axis, of which there have to be some."""
        return listed(self).some()  # type: ignore[no-any-return]

    def __reversed__(self) -> Iterator[Value]:
        return _loops().iterator(self.series.turned(), None)  # type: ignore[no-any-return]

    def __getitem__(self, index: Value) -> Value:
        if isinstance(index, slice):
            raise _loops().refused("Python takes a part of as many elements as a size says")
        return self.series.at(index if is_from_front(index) else self.series.length + index)


def _known(one: Value) -> Value:
    """The value that an element of a list stands for."""
    if isinstance(one, list | tuple):
        return type(one)(map(_known, one)) if type(one) in (list, tuple) else one
    return THREAD.tracer.repeats.get(id(one), one)


@answers_for_caller
class Turns(list):  # type: ignore[type-arg]
    """A list with a tensor that stands for as many as a size says. What reads its storage (``torch.stack``) gets that tensor."""

    __slots__ = ()

    def _repeats(self) -> list[Value]:
        return [_known(one) for one in list.__iter__(self)]

    def length(self) -> Index:
        """The number of its elements."""
        return sum(1 if (count := _length(one)) is None else count for one in self._repeats())

    def __bool__(self) -> bool:
        return bool(self.length() > 0)

    def whole(self) -> torch.Tensor:
        """All elements along a new first axis."""
        held = self._repeats()
        is_nested = len(held) == 1 and isinstance(held[0], list | tuple)
        return _stacked(held[0]) if is_nested else torch.stack(self)

    def some(self) -> torch.Tensor:
        """All elements along a new first axis, of which there have to be some."""
        _loops().expects_some(self.length())
        return self.whole()

    def series(self) -> Elements:
        """The elements by their numbers."""
        held = self._repeats()
        if len(held) == 1:
            return Elements(self.length(), lambda index: _at(held[0], index))
        if any(not isinstance(one, Repeat | torch.Tensor) or getattr(one, "is_number", False) for one in held):
            raise _loops().refused("a list of a dynamic length holds something else than tensors")
        whole = self.whole()
        return Elements(self.length(), lambda index: whole.select(0, index))

    def has_numbers(self) -> bool:
        """Return whether its elements are numbers of Python's."""
        return any(isinstance(one, Repeat) and one.is_number for one in self._repeats())

    def _of(self, whole: torch.Tensor) -> list[Value]:
        return _loops().repeated(whole, is_number=self.has_numbers())  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Value]:
        return _loops().iterator(None, self)  # type: ignore[no-any-return]

    def __reversed__(self) -> Iterator[Value]:
        return _loops().iterator(None, self._of(self.whole().flip(0)))  # type: ignore[no-any-return]

    def __getitem__(self, index: Value) -> Value:
        held = self._repeats()
        if isinstance(index, slice):
            step = index.step or 1
            whole = self.whole() if step > 0 else self.whole().flip(0)
            if step < 0 and (index.start is not None or index.stop is not None):
                raise _loops().refused("Python takes a part of a list of a dynamic length backwards")
            return self._of(whole[index.start : index.stop : step] if step > 0 else whole[::-step])
        order = range(len(held)) if is_from_front(index) else reversed(range(len(held)))
        place = index if is_from_front(index) else -1 - index
        for each in order:
            one = held[each]
            if _length(one) is not None:
                if len(held) > 1 and (
                    any(_length(other) is not None for other in held if other is not one) or type(index) is not int
                ):
                    break
                return _at(one, place if is_from_front(index) else -1 - place)
            if type(place) is int and place == 0:
                return one
            place -= 1
        return self.whole().select(0, index)

    def __add__(self, other: Value) -> list[Value]:
        return _as_turns([*list.__iter__(self), *list.__iter__(other)])

    def __radd__(self, other: Value) -> list[Value]:
        return _as_turns([*other, *list.__iter__(self)])

    def __mul__(self, count: Value) -> Value:
        raise _loops().refused("Python repeats a list of a dynamic length")

    __rmul__ = __imul__ = __mul__

    def reverse(self) -> None:
        """From the last to the first, in place."""
        turned = [_loops().repeat(one.stacked().flip(0)) if isinstance(one, Repeat) else one for one in self._repeats()]
        list.__setitem__(self, slice(None), turned[::-1])

    def copy(self) -> list[Value]:
        """A copy of the list with the same elements."""
        return _as_turns([*list.__iter__(self)])

    def insert(self, index: Value, value: Value) -> None:
        """Only to the front."""
        if index != 0:
            raise _loops().refused("Python inserts into a list of a dynamic length")
        list.insert(self, 0, value)

    def __setitem__(self, index: Value, value: Value) -> None:
        raise _loops().refused("Python writes into a list of a dynamic length")

    def pop(self, index: Value = -1) -> Value:
        """Not from such a list."""
        raise _loops().refused("Python takes an element out of a list of a dynamic length")

    def index(self, *_: Value) -> int:
        """Not in such a list."""
        raise _loops().refused("Python looks for an element of a list of a dynamic length")

    remove = __delitem__ = sort = count = __contains__ = __eq__ = __lt__ = index  # type: ignore[assignment]


def is_from_front(index: Value) -> bool:
    """Return whether an index does not count from the end."""
    return not isinstance(index, int) or isinstance(index, torch.SymInt) or index >= 0


def _as_turns(items: list[Value]) -> list[Value]:
    become(items, Turns)
    return items


def become(found: list[Value], kind: type) -> None:
    """The list itself, whoever holds it, is one of ``kind`` from now on: ``Turns`` or ``list``, whose objects are alike in memory."""
    before = type(found)
    ctypes.c_void_p.from_address(id(found) + object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)).value = id(kind)
    for each, change in ((kind, ctypes.pythonapi.Py_IncRef), (before, ctypes.pythonapi.Py_DecRef)):
        if each is not list:
            change(ctypes.py_object(each))


def _loops() -> Value:
    return THREAD.tracer.plugin("loops")


@answers_for_caller
def repeated_list(items: list[Value], count: Index) -> list[Value]:
    """``items * count``, of one number or tensor."""
    loops = _loops()
    if len(items) != 1 or not isinstance(items[0], int | float | torch.Tensor | torch.SymInt):
        raise loops.refused("Python repeats a list as often as a size says")
    item = loops.as_tensor(items[0])
    marker = loops.repeat(item.expand(count, *item.shape), is_number=not isinstance(items[0], torch.Tensor))
    return _as_turns([marker])


@answers_for_caller
def listed(part: Value) -> Value:
    """``list(part)``, where sizes tell how many elements there are; None where they do not."""
    if isinstance(part, GeneratorType | Turns | Counted) or series_of(part) is not None:
        if isinstance(part, torch.Tensor):
            return _loops().repeated(part)
        if isinstance(part, Turns):
            return part.copy()
        found: list[Value] = []
        with _loops().collecting(part, found):
            for one in part:
                found.append(one)
        return found
    return None


def series_of(value: object) -> Elements | None:
    """The elements of what has as many as a size says; None for anything else."""
    if isinstance(value, Counted):
        return value.series
    if isinstance(value, Turns):
        return value.series()
    if isinstance(value, torch.Tensor) and value.dim() and THREAD.captures and _loops().may_loop(value.shape[0]):
        return Elements(value.shape[0], lambda index: value.select(0, index))
    found = getattr(value, "series", None) if type(value).__name__ == "TurnsIterator" else None
    return found() if callable(found) else None


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
    raise _loops().refused("zip goes through a list of a fixed length beside one of a dynamic length")


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


NAMES: dict[str, Value] = {"zip": _Zip("zip", (), {}), "enumerate": _Enumerate("enumerate", (), {})}
NAMES |= {"reversed": _Reversed("reversed", (), {}), "map": _Map("map", (), {})}
NAMES |= {kind.__name__: _Listed(kind.__name__, (kind,), {}) for kind in (list, tuple)}
LENGTHS[Turns] = Turns.length
LENGTHS[Counted] = lambda value: value.series.length


def range_of(start: Value, length: Value, step: Value) -> Counted:
    """The numbers of a ``range``."""
    return Counted(Elements(length, lambda index: start + index * step))


def parts_of(tensor: torch.Tensor, axis: int) -> Sequence[Value]:
    """The result of ``unbind`` along an axis of a dynamic size."""
    return _loops().repeated(tensor.movedim(axis, 0))  # type: ignore[no-any-return]
