"""Regular expressions in time by the length of the text, as RE2 matches them: all states at once, no backtracking.

Python's own parser reads the pattern; what it reads otherwise than RE2 is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.limits import count_iteration

MAX_STATES = 50_000
"""RE2's default memory budget allows programs of about this size."""

MAX_REPEAT = 1000
"""RE2's own bound on a counted repetition."""

_READ_OTHERWISE = re.compile(r"\{,|\[:|\[\^?\]")
"""``{,3}``, ``[[:alpha:]]`` and ``[]a]``: one of the two reads these as plain characters, or not at all."""

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

Accepts = Callable[[str], bool]
Holds = Callable[[str, int], bool]


@dataclass(slots=True)
class _State:
    """Goes on to ``after`` by a character, or to all of ``free`` without one, where ``holds`` allows it."""

    accepts: Accepts | None = None
    after: int = -1
    free: list[int] = field(default_factory=list)
    holds: Holds | None = None


def _is_word(text: str, place: int) -> bool:
    return 0 <= place < len(text) and (text[place] == "_" or (text[place].isascii() and text[place].isalnum()))


def _at_boundary(text: str, place: int) -> bool:
    return _is_word(text, place - 1) != _is_word(text, place)


_POSITIONS: dict[Any, Holds] = {
    codes.AT_BEGINNING: lambda text, place: place == 0,
    codes.AT_BEGINNING_STRING: lambda text, place: place == 0,
    codes.AT_END: lambda text, place: place == len(text),
    codes.AT_END_STRING: lambda text, place: place == len(text),
    codes.AT_BOUNDARY: _at_boundary,
    codes.AT_NON_BOUNDARY: lambda text, place: not _at_boundary(text, place),
}
_LINES: dict[Any, Holds] = {
    codes.AT_BEGINNING: lambda text, place: place == 0 or text[place - 1] == "\n",
    codes.AT_END: lambda text, place: place == len(text) or text[place] == "\n",
}
_CATEGORIES: dict[Any, Accepts] = {
    codes.CATEGORY_DIGIT: lambda c: "0" <= c <= "9",
    codes.CATEGORY_NOT_DIGIT: lambda c: not "0" <= c <= "9",
    codes.CATEGORY_SPACE: lambda c: c in "\t\n\f\r ",
    codes.CATEGORY_NOT_SPACE: lambda c: c not in "\t\n\f\r ",
    codes.CATEGORY_WORD: lambda c: _is_word(c, 0),
    codes.CATEGORY_NOT_WORD: lambda c: not _is_word(c, 0),
}


def _folded(accepts: Accepts, flags: int) -> Accepts:
    if not flags & re.IGNORECASE:
        return accepts
    return lambda c: any(len(case) == 1 and accepts(case) for case in (c, c.lower(), c.upper()))


def _is_code(code: int) -> Accepts:
    return lambda c: ord(c) == code


def _in_range(low: int, high: int) -> Accepts:
    return lambda c: low <= ord(c) <= high


def _member(items: Iterable[Any], flags: int) -> Accepts:
    """Return whether a character is in a set such as ``[^a-z_]``."""
    tests: list[Accepts] = []
    is_negated = False
    for op, arg in items:
        if op is codes.NEGATE:
            is_negated = True
        elif op is codes.LITERAL:
            tests.append(_folded(_is_code(arg), flags))
        elif op is codes.RANGE:
            tests.append(_folded(_in_range(*arg), flags))
        else:
            tests.append(_CATEGORIES[arg])
    return lambda c: any(test(c) for test in tests) is not is_negated


class Pattern:
    """A compiled pattern. Raises: ValueError for what is no RE2 syntax, UserError E404 for one that is too large."""

    def __init__(self, text: str) -> None:
        if _READ_OTHERWISE.search(text):
            raise ValueError(f"the pattern {text[:80]!r} has syntax that is not supported here")
        try:
            parsed = _parser.parse(_ESCAPED.sub(lambda match: r"\Z" if match[1] == "z" else match[0], text), re.ASCII)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"the pattern {text[:80]!r} is not valid: {error}") from error
        self.text = text
        self.states = [_State()]
        self.accepting = 0
        self.start = self._sequence(parsed, 0, parsed.state.flags)

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches all of ``text``. Raises: UserError E404 where the budget of the run is spent."""
        alive = self._closure([self.start], text, 0)
        for place, character in enumerate(text):
            states = [self.states[index] for index in alive]
            after = [state.after for state in states if state.accepts is not None and state.accepts(character)]
            if not after:
                return False
            alive = self._closure(after, text, place + 1)
        return self.accepting in alive

    def _closure(self, indices: list[int], text: str, place: int) -> dict[int, None]:
        """The states reached without a character."""
        result: dict[int, None] = {}
        stack = indices[::-1]
        while stack:
            index = stack.pop()
            if index in result:
                continue
            count_iteration()
            result[index] = None
            state = self.states[index]
            if state.holds is None or state.holds(text, place):
                stack += state.free
        return result

    def _new(self, state: _State) -> int:
        if len(self.states) >= MAX_STATES:
            raise UserError("E404", f"the pattern {self.text[:80]!r} needs more than {MAX_STATES} states")
        self.states.append(state)
        return len(self.states) - 1

    def _sequence(self, items: Iterable[Any], after: int, flags: int) -> int:
        """The first state of what matches the items and goes on to ``after``."""
        for op, arg in reversed(list(items)):
            after = self._item(op, arg, after, flags)
        return after

    def _item(self, op: Any, arg: Any, after: int, flags: int) -> int:
        accepts = _single(op, arg, flags)
        if accepts is not None:
            return self._new(_State(accepts, after))
        if op is codes.BRANCH:
            return self._new(_State(free=[self._sequence(branch, after, flags) for branch in arg[1]]))
        if op is codes.SUBPATTERN:
            _, added, removed, inner = arg
            return self._sequence(inner, after, (flags | added) & ~removed)
        if op is codes.AT:
            holds = _LINES.get(arg) if flags & re.MULTILINE else None
            return self._new(_State(free=[after], holds=holds or _POSITIONS[arg]))
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, inner = arg
            return self._repeat(least, most, inner, after, flags)
        raise ValueError(f"the pattern {self.text[:80]!r} uses {str(op).lower()}, which RE2 does not have")

    def _repeat(self, least: int, most: int, inner: Any, after: int, flags: int) -> int:
        is_open = most is codes.MAXREPEAT
        if least > MAX_REPEAT or (not is_open and most > MAX_REPEAT):
            raise ValueError(f"the pattern {self.text[:80]!r} repeats more than {MAX_REPEAT} times")
        if is_open:
            loop = self._new(_State())
            self.states[loop].free = [self._sequence(inner, loop, flags), after]
            after = loop
        end = after
        for _ in range(0 if is_open else most - least):
            after = self._new(_State(free=[self._sequence(inner, after, flags), end]))
        for _ in range(least):
            after = self._sequence(inner, after, flags)
        return after


def _single(op: Any, arg: Any, flags: int) -> Accepts | None:
    """The test of an item that matches one character."""
    if op in (codes.LITERAL, codes.NOT_LITERAL):
        is_same = _folded(_is_code(arg), flags)
        return is_same if op is codes.LITERAL else lambda c: not is_same(c)
    if op is codes.ANY:
        return (lambda c: True) if flags & re.DOTALL else lambda c: c != "\n"
    return _member(arg, flags) if op is codes.IN else None


@lru_cache(maxsize=256)
def compiled_pattern(text: str) -> Pattern:
    """Raises: as ``Pattern``."""
    return Pattern(text)
