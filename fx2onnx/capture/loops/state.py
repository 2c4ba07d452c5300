"""The changes of one iteration of a loop: variables of its function, and the objects that these hold at any depth."""

from __future__ import annotations

import ast
import dis
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType, GeneratorType
from typing import NamedTuple

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.branches.statements import live_variables
from fx2onnx.capture.python.held import CELL, DICT, LIST, MISSING, OBJECT, Entry, Snapshot, Value, differing
from fx2onnx.capture.python.places import VARIABLE, Place, set_variables, value_at
from fx2onnx.torchcompat.frames import is_user
from fx2onnx.torchcompat.source_ast import UnreadableError, place_of, position, tree_of, value_of

COMPREHENSIONS = ("<listcomp>",)
_LAZY = ("<genexpr>", "<setcomp>", "<dictcomp>")


_REFERENCES = 3
"""References to a dict at which ``Held`` looks: of its entry, its loop and the call."""
UNTOLD = "what a list is made of cannot be told"


class PlaceChange(NamedTuple):
    """A place with what it had before a turn and has after it."""

    place: Place
    before: Value
    after: Value
    is_read: bool
    """True if the turn may read what the turn before left there."""


class Grown(NamedTuple):
    """A list with what a turn added to its end."""

    holder: list[Value]
    items: list[Value]
    place: Place | None = None
    """The place that a longer list took from the list before; None if the list itself grew."""
    before: Sequence[Value] = ()
    """The elements of the list before."""
    is_hidden: bool = False
    """True of the list that a comprehension makes, which no turn can read."""
    is_front: bool = False
    """True where turns add to its beginning."""
    infos: tuple[Value, ...] = ()
    """The types of ``sample``."""
    is_kept: bool = True
    """False if some turns add nothing, or less."""
    sample: Sequence[Value] = ()
    """The elements that a turn adds which adds all that turns may add."""

    @property
    def identity(self) -> object:
        """Equal for the same list."""
        return id(self.holder) if self.place is None else self.place.identity

    def before_loop(self) -> list[Value]:
        """The list to add to, once everything is as before the turn."""
        return self.holder if self.place is None else [*self.before]


class Remade(NamedTuple):
    """A list that a turn has changed by more than adding elements to one end, with what it had before the loop."""

    holder: list[Value]
    before: Sequence[Value]
    place: Place | None = None
    """The place at which another list replaced the one before."""

    @property
    def identity(self) -> object:
        """Equal for the same list."""
        return id(self.holder) if self.place is None else self.place.identity

    def now(self) -> list[Value]:
        """The list at this point of the turn."""
        return self.holder if self.place is None else value_at(self.place)


@answers_for_caller
class Held:
    """Everything that a turn can reach by names of its function, as it is before the turn."""

    def __init__(
        self, frames: Sequence[FrameType], stays: bool | None = None, filled: list[Value] | None = None
    ) -> None:
        """``frames``: that of the loop last, behind those of generators that give it the elements."""
        self._live = {frame: live_variables(frame, stays) for frame in frames}
        self._variables = {frame: dict(frame.f_locals) for frame in frames}
        self._names = {frame: {name: _global(frame, name) for name in frame.f_code.co_names} for frame in frames}
        own = [
            each
            for space in (*self._variables.values(), *self._names.values())
            for each in space.items()
            if isinstance(each[1], list)
            or not (type(each[1]).__module__.startswith("fx2onnx.") or getattr(each[1], "gi_frame", None) in self._live)
        ]
        self._snapshot, frame = Snapshot((), own), frames[-1]
        self._hidden = _empty_lists() if frame.f_code.co_name in COMPREHENSIONS or is_inlined(frame) else {}
        if filled is not None:
            self._hidden = {id(filled): filled}
        self._is_found = filled is not None
        self._before = [] if filled is None else [*list.__iter__(filled)]
        for entry in self._snapshot.entries:
            self._hidden.pop(id(entry.holder), None)

    def changes(
        self, plan: Value, *, is_over: bool = True, may_add_nothing: bool = False
    ) -> Iterator[PlaceChange | Grown | Remade | str]:
        """The differences to the noted state; a text for one that no loop of the file can make. ``plan`` knows the stand-ins in lists;
        ``is_over``: whether the turn is, so that a comprehension has added to its list, unless it ``may_add_nothing``.
        """
        dropped = self._dropped()
        for frame, live in self._live.items():
            before, after = self._variables[frame], frame.f_locals
            for name in sorted({*before, *after} & live.at_head):
                one, two = before.get(name, MISSING), after.get(name, MISSING)
                if one is not two:
                    one = dropped.get(id(one), one)
                    is_read = name in live.in_body and not (one is MISSING and name in live.targets)
                    yield PlaceChange(Place(VARIABLE, frame, name), one, two, is_read)
            for name, value in self._names[frame].items():
                if _global(frame, name) is not value:
                    yield f"a turn changes the global variable {name}"
        for entry in self._snapshot.entries:
            if id(entry.holder) not in dropped:
                yield from _changes_of(entry, plan.markers, plan.states)
        grown = self._filled() if is_over else []
        if not self._hidden.keys().isdisjoint(plan.states):
            return  # a turn may add any number of elements to it
        if len(grown) == 1:
            items = [*list.__iter__(grown[0])][len(self._before) :]
            yield Grown(grown[0], items, before=self._before, is_hidden=True)
        elif grown or (self._hidden and is_over and not may_add_nothing):
            yield UNTOLD

    def _dropped(self) -> dict[int, Value]:
        """Contents before the turn, by id, of dicts that only variables had, which have others now: nothing reads what the turn left there."""
        for frame in self._variables:
            frame.f_locals  # noqa: B018 - before Python 3.13 the frame keeps its variables of the last time
        had = Counter(id(value) for variables in self._variables.values() for value in variables.values())
        return {
            id(one): content
            for one, content, kind, *_ in self._snapshot.entries
            if kind == DICT and sys.getrefcount(one) == had[id(one)] + _REFERENCES
        }

    def _filled(self) -> list[list[Value]]:
        """The lists that got an element and that nothing holds but a comprehension, which makes them."""
        count = len(self._before) + 1
        found = [one for one in self._hidden.values() if list.__len__(one) == count and not _is_error(one)]
        if self._is_found or not found:
            return found
        loops = THREAD.tracer.plugin("loops")
        known = [found, loops.turned, *(loop.held.hidden for loop in loops.open)]
        holders = [one for one in gc.get_referrers(*found) if not any(one is each for each in known)]
        held = {
            id(part)
            for one in holders
            if not isinstance(one, FrameType | Grown | Remade)
            for part in gc.get_referents(one)
        }
        alone = [each for each in found if id(each) not in held]
        if len(alone) == 1:
            self._hidden, self._is_found = {id(alone[0]): alone[0]}, True
        return alone

    @property
    def hidden(self) -> Mapping[int, list[Value]]:
        """The lists one of which a comprehension may fill."""
        return self._hidden

    def filled(self) -> list[Value] | None:
        """The list that a comprehension fills, where turns have shown which it is."""
        return next(iter(self._hidden.values())) if self._is_found and self._hidden else None

    @property
    def is_untold(self) -> bool:
        """True if no turn has shown which list a comprehension fills."""
        return bool(self._hidden) and not self._is_found

    def forget(self) -> None:
        """Hold no list any more that something else may fill."""
        self._hidden = {}

    def put_back(self) -> None:
        """Everything is as it was before the turn."""
        for found in [*self._hidden.values()] if self._is_found else self._filled():
            list.__setitem__(found, slice(None), self._before)
        self._snapshot.put_back()
        for frame, variables in self._variables.items():
            set_variables(frame, variables)


def _changes_of(
    entry: Entry, markers: frozenset[int], states: Mapping[object, object]
) -> Iterator[PlaceChange | Grown | Remade | str]:
    found = [*differing(entry)]
    if not found:
        return
    if entry.kind == LIST and (
        id(entry.holder) in states
        or (
            isinstance(entry.holder, list)
            and (list.__len__(entry.holder) != len(entry.content) or has_repeats(entry.holder))
        )
    ):
        is_state = id(entry.holder) in states
        grown = None if is_state else grown_list(entry.holder, entry.content, markers)
        yield grown or Remade(entry.holder, entry.content)
    elif entry.kind == LIST and len(entry.holder) != len(entry.content):
        yield f"a turn changes the length of a {type(entry.holder).__name__}"
    elif entry.kind not in (DICT, LIST, OBJECT, CELL):
        yield f"a turn changes a {type(entry.holder).__name__}"
    else:
        for key, before, after in found:
            if isinstance(key, torch.SymInt):
                yield "a turn puts something into a dict whose key is a size"
                return
            yield PlaceChange(Place(entry.kind, entry.holder, key), before, after, True)


def grown_list(found: Value, before: list[Value], markers: frozenset[int], place: Place | None = None) -> Grown | None:
    """A list that has what was there before, and more at its end or at its beginning; None where it is no such list."""
    if not isinstance(found, list):
        return None
    whole = [*list.__iter__(found)]
    held, count = [each for each in whole if id(each) not in markers], len(before)
    if len(held) < count or (len(held) == count and place is not None):
        return None
    is_behind = len(whole) == len(held) or id(whole[0]) in markers or count > 0
    if is_behind and [*map(id, held[:count])] == [*map(id, before)]:
        return Grown(found, held[count:], place, before)
    if count == 0 or [*map(id, held[-count:])] == [*map(id, before)]:
        return Grown(found, held[: len(held) - count], place, before, is_front=True)
    return None


def _global(frame: FrameType, name: str) -> Value:
    return frame.f_globals.get(name, MISSING)


def _is_error(items: list[Value]) -> bool:
    return isinstance(list.__getitem__(items, -1), BaseException)


def has_repeats(items: Value) -> bool:
    """Return whether a list holds what stands for as many elements as a size says."""
    return isinstance(items, list) and any(id(one) in THREAD.tracer.repeats for one in list.__iter__(items))


def _empty_lists() -> dict[int, list[Value]]:
    """All lists without elements, one of which a comprehension fills."""
    return {id(found): found for found in gc.get_objects() if type(found) is list and not found}


def is_at_head(frame: FrameType) -> bool:
    """Return whether a ``for`` of the frame asks for the next element."""
    return frame.f_lasti in _heads(frame.f_code)


@lru_cache(maxsize=256)
def _heads(code: CodeType) -> Mapping[int, int]:
    """Offsets of the instructions that ask for the next element, and of those behind their loops."""
    return {one.offset: one.argval for one in dis.get_instructions(code) if one.opname == "FOR_ITER"}


def takes_all(frame: FrameType) -> bool:
    """Return whether the frame takes all elements of an iterator as they come: ``[*x]``, ``f(*x)``, ``out += x``, ``out.extend(x)``."""
    return frame.f_lasti in _takers(frame.f_code)


@lru_cache(maxsize=256)
def _takers(code: CodeType) -> frozenset[int]:
    found, method = set[int](), None
    for one in dis.get_instructions(code):
        method = one.argval if one.opname in ("LOAD_METHOD", "LOAD_ATTR") else method
        is_call = one.opname in ("PRECALL", "CALL") and method == "extend"
        if is_call or one.opname in ("LIST_EXTEND", "CALL_FUNCTION_EX", "BINARY_OP"):
            found.add(one.offset)
    return frozenset(found)


def makes_tuple(frame: FrameType) -> bool:
    """Return whether a tuple that takes all elements, ``(*x, y)`` or ``f(*x)``, is more than the argument of a function of a module."""
    depth, instructions = 1, (one for one in dis.get_instructions(frame.f_code) if one.offset >= frame.f_lasti)
    if next(instructions).opname == "CALL_FUNCTION_EX":
        return _passes_tuple(frame)
    for one in instructions:  # the list lies as deep in the stack
        if depth == 1 and "LIST_TO_TUPLE" in (one.opname, one.argrepr.removeprefix("INTRINSIC_")):
            following = next(instructions).opname
            is_kept = following.startswith(("STORE_", "RETURN_", "BINARY_", "BUILD_", "LOAD_CONST"))
            return is_kept or (following == "CALL_FUNCTION_EX" and _passes_tuple(frame))
        depth += dis.stack_effect(one.opcode, one.arg, jump=False)
        if depth < 1:
            break
    return False


def _passes_tuple(frame: FrameType) -> bool:
    """Return whether a call ``f(*x)`` is of a function of Python's that does more with the tuple than to pass it to functions of modules."""
    place = position(frame)
    calls = (one for one in ast.walk(tree_of(frame.f_code)) if isinstance(one, ast.Call))
    call = next((one for one in calls if place is not None and place_of(one) == place), None)
    try:
        code = getattr(None if call is None else value_of(call.func, frame), "__code__", None)
    except UnreadableError:
        return False
    if not isinstance(code, CodeType) or not code.co_flags & inspect.CO_VARARGS or not is_user(code):
        return False
    name, tree = code.co_varnames[code.co_argcount + code.co_kwonlyargcount], [*ast.walk(tree_of(code))]
    passed = [
        arg for one in tree if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) for arg in one.args
    ]
    uses = [one for one in tree if isinstance(one, ast.Name) and one.id == name]
    return not all(any(use is arg for arg in passed) for use in uses)


def is_inlined(frame: FrameType) -> bool:
    """Return whether the frame is at the head of a comprehension that has no function of its own, as since Python 3.12."""
    end = _heads(frame.f_code).get(frame.f_lasti, 0)
    within = (one for one in dis.get_instructions(frame.f_code) if frame.f_lasti < one.offset < end)
    return any(one.opname in ("LIST_APPEND", "SET_ADD", "MAP_ADD") for one in within)


def is_lazy(frame: FrameType) -> bool:
    """Return whether the loop is that of a generator, or of a set or a dict."""
    return frame.f_code.co_name in _LAZY or bool(frame.f_code.co_flags & 0x20)


def frames_of_turn(frame: FrameType, collected_by: Callable[[FrameType], Value]) -> list[FrameType]:
    """The frame of a loop; behind that of a generator the frame whose loop takes each of its elements. Empty where something else takes
    them.
    """
    found = [frame]
    while is_lazy(found[-1]) and collected_by(found[-1]) is None:
        generator, taker = _generator_of(found[-1]), found[-1].f_back
        if generator is None or taker is None or not is_at_head(taker) or is_passed_on(generator):
            return []
        found.append(taker)
    return found


def _generator_of(frame: FrameType) -> GeneratorType[Value, Value, Value] | None:
    found = (one for one in gc.get_referrers(frame) if isinstance(one, GeneratorType))
    return next((one for one in found if one.gi_frame is frame), None)


def is_passed_on(iterator: object) -> bool:
    """Return whether an iterator is behind another one of Python's (``itertools.islice``, ``map``), whose count is not to be seen."""
    referrers = gc.get_referrers(iterator)
    return any(hasattr(type(one), "__next__") and not isinstance(one, GeneratorType) for one in referrers)
