"""Lists whose number of elements a size says, and what goes through them: ``range(n)``, ``x.unbind(1)``, the list that a loop filled."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable, Iterator
from types import GeneratorType

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.loops.elements import (
    Elements,
    Index,
    Repeat,
    all_of,
    current_loops,
    element_at,
    known,
    length_of,
    mapped,
)
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.python.stand_ins import LENGTHS
from fx2onnx.capture.shapes.symnode import unwrap

_ELEMENTS = (torch.Tensor, int, float, torch.SymInt, torch.SymFloat, torch.SymBool, DataNumber)


@answers_for_caller
class Counted:
    """The stand-in for an object to iterate over whose length is a size."""

    def __init__(self, series: Elements) -> None:
        self.series = series

    def __iter__(self) -> Iterator[Value]:
        return current_loops().iterator(self.series, None)  # type: ignore[no-any-return]

    def some(self, is_typed: bool = False) -> torch.Tensor:
        """All elements as ``Turns.some`` gives them."""
        return listed(self).some(is_typed)  # type: ignore[no-any-return]

    def __reversed__(self) -> Iterator[Value]:
        return current_loops().iterator(self.series.turned(), None)  # type: ignore[no-any-return]

    def __getitem__(self, index: Value) -> Value:
        if isinstance(index, slice):
            raise current_loops().refused("Python takes a part of as many elements as a size says")
        return self.series.at(index if is_from_front(index) else self.series.length + index)


@answers_for_caller
def _has_more(count: Index, number: int) -> bool:
    """Return whether a count is more than ``number`` at all sizes."""
    return count > number if type(count) is int else count.node.env.certain("gt", count.node.value, number) is True


@answers_for_caller
class Turns(list):  # type: ignore[type-arg]
    """A list with a tensor that stands for as many as a size says. What reads its storage (``torch.stack``) gets that tensor."""

    __slots__ = ()

    def _repeats(self) -> list[Value]:
        current_loops().check_lent(self)
        return [known(one) for one in list.__iter__(self)]

    def length(self) -> Index:
        """The number of its elements."""
        return sum(1 if (count := length_of(one)) is None else count for one in self._repeats())

    def __bool__(self) -> bool:
        return bool(self.length() > 0)

    def whole(self) -> torch.Tensor:
        """All elements along a new first axis."""
        return all_of(self._as_one())

    def some(self, is_typed: bool = False) -> torch.Tensor:
        """All elements along a new first axis: at least one, except for numbers whose dtype is given (``is_typed``), or is that of
        floats, which an empty list has, too.
        """
        whole = self.whole()
        if not (is_typed or whole.dtype == torch.float64) or whole.dim() > 1:
            current_loops().expects_some(self.length())
        return whole

    def series(self) -> Elements:
        """The elements by their numbers."""
        one = self._as_one()
        return Elements(self.length(), lambda index: self._lent(element_at(one, index)))

    def _as_one(self) -> Value:
        """The stand-in for all elements, part by part where they are tuples."""
        held = self._repeats()
        return held[0] if len(held) == 1 and length_of(held[0]) is not None else _joined([*list.__iter__(self)])

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> list[Value]:
        """A list of other elements, which ``change`` makes of all along the first axis."""
        return _as_turns([mapped(self._as_one(), change)])

    def __iter__(self) -> Iterator[Value]:
        return current_loops().iterator(None, self)  # type: ignore[no-any-return]

    def __reversed__(self) -> Iterator[Value]:
        return current_loops().iterator(None, self.mapped(lambda whole: whole.flip(0)))  # type: ignore[no-any-return]

    def __getitem__(self, index: Value) -> Value:
        held = self._repeats()
        if isinstance(index, slice):
            step = index.step or 1
            if step < 0 and (index.start is not None or index.stop is not None):
                raise current_loops().refused("Python takes a part of a list of a dynamic length backwards")
            if step < 0:
                return self.mapped(lambda whole: whole.flip(0)[::-step])
            return self.mapped(lambda whole: whole[index.start : index.stop : step])
        order = range(len(held)) if is_from_front(index) else reversed(range(len(held)))
        place = index if is_from_front(index) else -1 - index
        for each in order:
            one = held[each]
            if (count := length_of(one)) is not None:
                if len(held) > 1 and (type(index) is not int or not _has_more(count, place)):
                    break  # which of them it is depends on how many there are
                return self._lent(element_at(one, place if is_from_front(index) else -1 - place))
            if type(place) is int and place == 0:
                return one
            place -= 1
        return self._lent(element_at(self._as_one(), index))

    def _lent(self, one: Value) -> Value:
        """An element, which is made anew where it is a list: what changes it does not change this list."""
        if isinstance(one, list):
            current_loops().lent.append((self, one, [*list.__iter__(one)]))
        for part in list.__iter__(one) if isinstance(one, list) else one if type(one) is tuple else ():
            self._lent(part)
        return one

    def __add__(self, other: Value) -> list[Value]:
        return _as_turns([*list.__iter__(self), *list.__iter__(other)])

    def __radd__(self, other: Value) -> list[Value]:
        return _as_turns([*other, *list.__iter__(self)])

    def __mul__(self, count: Value) -> Value:
        if type(count) is int:
            return _as_turns([*list.__iter__(self)] * count)
        raise current_loops().refused("Python repeats a list of a dynamic length")

    __rmul__ = __mul__

    def __imul__(self, count: Value) -> Value:
        list.__setitem__(self, slice(None), list.__iter__(self * count))
        return self

    def reverse(self) -> None:
        """From the last to the first, in place."""
        turned = [
            one if length_of(each) is None else mapped(each, lambda whole: whole.flip(0))
            for one, each in zip(list.__iter__(self), self._repeats(), strict=True)
        ]
        list.__setitem__(self, slice(None), turned[::-1])

    def copy(self) -> list[Value]:
        """A copy of the list with the same elements."""
        return _as_turns([*list.__iter__(self)])

    def _become(self, *parts: torch.Tensor) -> None:
        """Have the elements along the first axis of these instead."""
        marker = current_loops().repeat(parts[0] if len(parts) == 1 else torch.cat(parts), has_numbers(self))
        list.__setitem__(self, slice(None), [marker])

    def _as_row(self, value: Value, whole: torch.Tensor) -> torch.Tensor:
        row = stacked([value])
        if (
            isinstance(self._as_one(), list | tuple)
            or has_numbers([value]) is not has_numbers(self)
            or row.dtype is not whole.dtype
        ):
            raise current_loops().refused("Python writes something of another type into a list of a dynamic length")
        return row

    def _is_end(self, index: Value) -> bool:
        """Return whether a plain element is at that end of the list."""
        is_end = type(index) is int and index in (0, -1) and list.__len__(self) > 0
        return is_end and length_of(known(list.__getitem__(self, index))) is None

    def insert(self, index: Value, value: Value) -> None:
        """Insert an element as Python does, whose index is within the list."""
        if type(index) is int and index == 0:
            return list.insert(self, 0, value)
        whole = self.whole()
        self._become(whole[:index], self._as_row(value, whole), whole[index:])

    def __setitem__(self, index: Value, value: Value) -> None:
        if isinstance(index, slice):
            raise current_loops().refused("Python writes a part of a list of a dynamic length")
        if self._is_end(index):
            list.__setitem__(self, index, value)
            return
        whole, place = self.whole(), current_loops().as_tensor(index)
        self._become(whole.index_put((place.reshape(1),), self._as_row(value, whole)))

    def pop(self, index: Value = -1) -> Value:
        """Take an element out, and return it."""
        if self._is_end(index):
            return list.pop(self, index)
        _check_from_front(index)
        one = element_at(self._as_one(), index)
        place = index if is_from_front(index) else self.length() + index
        self._leave_out(place, place + 1)
        return one

    def _leave_out(self, start: Index, stop: Index) -> None:
        def left(whole: torch.Tensor) -> torch.Tensor:
            is_first = type(start) is int and start == 0
            return whole[stop:] if is_first else torch.cat([whole[:start], whole[stop:]])

        list.__setitem__(self, slice(None), list.__iter__(self.mapped(left)))

    def __delitem__(self, index: Value) -> None:
        if not isinstance(index, slice):
            self.pop(index)
            return
        start, stop = index.start or 0, self.length() if index.stop is None else index.stop
        _check_from_front(start)
        _check_from_front(stop)
        if index.step is not None or not is_from_front(start) or not is_from_front(stop):
            raise current_loops().refused("Python deletes a part of a list of a dynamic length")
        self._leave_out(start, max(start, stop))

    def clear(self) -> None:
        """Take all elements out."""
        list.__setitem__(self, slice(None), list.__iter__(self.mapped(lambda whole: whole[:0])))

    def _equal(self, value: Value) -> torch.Tensor:
        """A mask of the elements that are equal to a number."""
        whole = self.whole()
        if whole.dim() != 1:
            raise current_loops().refused("Python compares tensors of several numbers")
        return whole == current_loops().as_tensor(value)  # type: ignore[no-any-return]

    def __contains__(self, value: Value) -> bool:
        return bool(self._equal(value).any())

    def count(self, value: Value) -> int:
        """The number of elements that are equal to a number."""
        return self._equal(value).sum().item()  # type: ignore[return-value]

    def index(self, value: Value) -> int:  # type: ignore[override]
        """The place of the first element that is equal to a number."""
        return self._equal(value).nonzero()[0, 0].item()  # type: ignore[return-value]

    def remove(self, value: Value) -> None:
        """Take out the first element that is equal to a number."""
        self.pop(self.index(value))

    def columns(self) -> list[torch.Tensor]:
        """The numbers by which Python compares the elements: several of tuples, the first one first."""
        one = self._as_one()
        parts = [*map(all_of, one)] if isinstance(one, list | tuple) else [all_of(one)]
        found = [
            *itertools.takewhile(lambda part: part.dim() == 1, parts)
        ]  # Python comes to further ones in equal tuples
        if not found:
            raise current_loops().refused("Python compares tensors of several numbers")
        return found

    def sort(self, *, key: Value = None, reverse: bool = False) -> None:
        """Sort the elements in place as Python does."""
        list.__setitem__(self, slice(None), list.__iter__(current_loops().sorted(self, key, reverse)))

    def __eq__(self, other: object) -> bool:
        raise current_loops().refused("Python compares a list of a dynamic length")

    __lt__ = __eq__
    __hash__ = None


def _joined(items: list[Value]) -> Value:
    """The stand-in for all elements of a list, part by part where they are tuples."""
    first = items[0]
    if type(first) in (list, tuple):
        if any(type(one) is not type(first) or len(one) != len(first) for one in items):
            raise current_loops().refused("a list of a dynamic length holds elements of several kinds")
        return type(first)(_joined([*parts]) for parts in zip(*items, strict=True))
    whole, one = stacked(items), known(first)
    is_list = isinstance(one, Repeat) and one.is_list
    return Repeat(whole, whole.shape[0], lambda: whole, is_number=has_numbers(items), is_list=is_list)


def has_numbers(items: list[Value]) -> bool:
    """Return whether elements of a list are numbers of Python's."""
    held = [known(one) for one in list.__iter__(items)]
    return any(one.is_number if isinstance(one, Repeat) else not isinstance(one, torch.Tensor) for one in held)


def stacked(items: list[Value]) -> torch.Tensor:
    """All elements of a list along a new first axis, which are tensors, or numbers of one type."""
    held = [known(one) for one in list.__iter__(items)]
    kinds = {one.is_number if isinstance(one, Repeat) else not isinstance(one, torch.Tensor) for one in held}
    if len(kinds) > 1 or any(not isinstance(one, (Repeat, *_ELEMENTS)) for one in held):
        raise current_loops().refused("a list of a dynamic length holds something else than tensors, or numbers")
    if kinds == {False}:
        return torch.stack(items)
    pieces = [one.stacked() if isinstance(one, Repeat) else current_loops().as_tensor(one).reshape(1) for one in held]
    if len({one.dtype for one in pieces}) > 1:
        raise current_loops().refused("a list of a dynamic length holds numbers of different types")
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def is_from_front(index: Value) -> bool:
    """Return whether an index does not count from the end."""
    return not isinstance(index, int) or isinstance(index, torch.SymInt) or index >= 0


def _check_from_front(index: Value) -> None:
    """Raises where a size may be an index from the end."""
    env = THREAD.tracer.sizes
    if not isinstance(index, int) and env.certain("ge", unwrap(index), 0) is not True:
        raise current_loops().refused(
            "Python takes elements out of a list of a dynamic length by an index that may be negative"
        )


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


def took_all(copies: list[Value]) -> None:
    """A list that took all these stand-ins is one of a dynamic length: ``[*x]``, ``out += x``."""
    one = next((each for each in copies if length_of(known(each)) is not None), None)
    for found in gc.get_referrers(one) if one is not None else ():
        if type(found) is list and found is not copies and any(each is one for each in found):
            become(found, Turns)
            current_loops().turned.append(found)


@answers_for_caller
def repeated_list(items: list[Value], count: Index) -> list[Value]:
    """``items * count``, of one number or tensor."""
    loops = current_loops()
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
            return current_loops().repeated(part)
        if isinstance(part, Turns):
            return part.copy()
        found: list[Value] = []
        with current_loops().collecting(part, found):
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
    if isinstance(value, torch.Tensor) and value.dim() and THREAD.captures and current_loops().may_loop(value.shape[0]):
        return Elements(value.shape[0], lambda index: value.select(0, index))
    found = getattr(value, "series", None) if type(value).__name__ == "TurnsIterator" else None
    return found() if callable(found) else None


LENGTHS[Turns] = Turns.length
LENGTHS[Counted] = lambda value: value.series.length
