"""Operators on strings, and regular expressions as RE2 matches them.

A match takes time by the length of the text: all states at once, no backtracking. Python's own parser reads the pattern; what it
reads otherwise than RE2 is refused.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.limits import check_bytes, check_shape, count_iteration
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, INT64, Array, string_array


@kernel("StringConcat", 20)
def string_concat(a: Array, b: Array) -> Array:
    """a + b, with broadcasting."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    check_shape(shape, a.dtype)
    longest = sum(max((len(item) for item in array.reshape(-1)), default=0) for array in (a, b))
    check_bytes(math.prod(shape) * longest, "the result of StringConcat")
    return np.asarray(np.add(a, b), dtype=object)


@kernel("StringSplit", 20)
def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """The parts of each string, padded with empty ones; and their number."""
    separator, most = delimiter or None, -1 if maxsplit is None else maxsplit
    rows = [*map(str.split, x.reshape(-1).tolist(), itertools.repeat(separator), itertools.repeat(most))]
    counts = [*map(len, rows)]
    width = max(counts, default=0)
    check_shape((*x.shape, width), x.dtype, "the result of StringSplit")
    y = np.empty((len(rows), width), object)
    for place, column in enumerate(itertools.zip_longest(*rows, fillvalue="")):
        y[:, place] = column
    return y.reshape(*x.shape, width), np.array(counts, INT64).reshape(x.shape)


@kernel("RegexFullMatch", 20)
def regex_full_match(x: Array, *, pattern: str | None = None) -> Array:
    """Return whether each whole string matches the RE2 pattern."""
    if pattern is None:
        raise ValueError("it has no pattern")
    compiled = compiled_pattern(pattern)
    return np.array([compiled.matches(str(item)) for item in x.reshape(-1)], np.bool_).reshape(x.shape)


_CASES: dict[str, Any] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@kernel("StringNormalizer", 10, shape_inputs=None)
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Array:
    """Strings of one row without those that are stop words, in another case. The locale makes no difference here."""
    if case_change_action not in _CASES:
        raise ValueError(f"case_change_action is {case_change_action!r}")
    change = _CASES[case_change_action]
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"the input has the shape {list(x.shape)}, not [C] or [1, C]")
    fold = str if is_case_sensitive else str.lower
    stops = set(map(fold, stopwords))
    kept = [change(text) for text in x.reshape(-1).tolist() if fold(text) not in stops] or [""]
    return string_array(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


def _columns_of_grams(
    pool: Sequence[Any], edges: Sequence[int], sizes: range, indexes: Sequence[int]
) -> dict[int, dict[Any, int]]:
    """For each size of n-grams that there is, the column of each, counted from 1. A gram of one token is the token."""
    result: dict[int, dict[Any, int]] = {}
    number = 0
    for size, (start, end) in enumerate(itertools.pairwise(edges), 1):
        for first in range(start, end - size + 1, size):
            if size in sizes:
                gram = pool[first] if size == 1 else tuple(pool[first : first + size])
                result.setdefault(size, {})[gram] = indexes[number] + 1
            number += 1
    return result


@kernel("TfIdfVectorizer", 9)
def tf_idf_vectorizer(
    x: Array,
    *,
    kept: dict[str, Any] | None = None,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> Array:
    """Counts (or weights) of the pool's n-grams in each row, skips allowed."""
    if mode not in ("TF", "IDF", "TFIDF"):
        raise ValueError(f"the mode is {mode!r}")
    if not 1 <= min_gram_length <= max_gram_length <= len(ngram_counts) or max_skip_count < 0:
        lengths = f"{min_gram_length} to {max_gram_length} with {max_skip_count} skips"
        raise ValueError(f"n-grams of {lengths} do not fit ngram_counts of {len(ngram_counts)} lengths")
    if weights and len(weights) != len(ngram_indexes):
        raise ValueError(f"{len(weights)} weights for {len(ngram_indexes)} n-grams")
    pool: list[Any] = [*pool_strings] or [*pool_int64s]
    edges = [*ngram_counts, len(pool)]
    if edges[0] < 0 or any(low > high for low, high in itertools.pairwise(edges)):
        raise ValueError(f"ngram_counts {list(ngram_counts)[:8]} do not divide a pool of {len(pool)}")
    if any(index < 0 for index in ngram_indexes) or len(ngram_indexes) > len(pool):
        raise ValueError("ngram_indexes do not fit the pool")
    width = max(ngram_indexes, default=-1) + 1
    check_shape((x.shape[0] if x.ndim > 1 else 1, width), FLOAT32, "the counts of n-grams")
    kept = {} if kept is None else kept
    if "columns" not in kept:
        kept["columns"] = _columns_of_grams(pool, edges, range(min_gram_length, max_gram_length + 1), ngram_indexes)
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    counts = np.zeros((len(rows), width), np.float32)
    slot_weight = np.ones(width, np.float32)
    for index, weight in zip(ngram_indexes, weights, strict=False):
        slot_weight[index] = weight
    for row, tokens in zip(counts, rows.tolist(), strict=True):
        for size, columns in kept["columns"].items():
            if size > len(tokens):
                continue
            for skip in range(1, min(max_skip_count + 1, (len(tokens) - 1) // (size - 1)) + 1 if size > 1 else 2):
                n_starts = len(tokens) - skip * (size - 1)
                count_iteration(n_starts)
                parts = [tokens[skip * place : skip * place + n_starts] for place in range(size)]
                found = [*filter(None, map(columns.get, parts[0] if size == 1 else zip(*parts, strict=True)))]
                row += np.bincount(found, minlength=width + 1)[1:]
    if mode == "IDF":
        counts = (counts > 0) * slot_weight
    elif mode == "TFIDF":
        counts = counts * slot_weight
    return counts.astype(np.float32).reshape((*x.shape[:-1], width) if x.ndim else (width,))


MAX_STATES = 50_000
"""RE2's default memory budget allows programs of about this size."""

MAX_REPEAT = 1000
"""RE2's own bound on a counted repetition."""

MAX_KNOWN = 1 << 18
"""Numbers of states that a pattern remembers."""

_READ_OTHERWISE = re.compile(r"\{,|\[:|\[\^?\]")
"""``{,3}``, ``[[:alpha:]]`` and ``[]a]``: one of the two reads these as plain characters, or not at all."""

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

Accepts = Callable[[str], bool]
Holds = Callable[[str, int], bool]


_BEGIN = (-1,)
"""The key, which is of no states, of those before the first character."""


class Moves(dict[str, Any]):
    """States of a pattern, and by each character that came after them so far the ``Moves`` of the states after it."""

    __slots__ = ("alive", "pattern")

    def __init__(self, pattern: Pattern, alive: tuple[int, ...]) -> None:
        self.pattern, self.alive = pattern, alive

    def __missing__(self, character: str) -> Moves:
        self.pattern.n_known += 1
        made = self[character] = self.pattern.after(self, character, 0)
        return made


@dataclass(slots=True)
class _State:
    """A state that goes on to ``after`` by a character, or to all of ``free`` without one, where ``holds`` allows
    it."""

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
        self.looks_around = any(state.holds is not None for state in self.states)
        self.known: dict[tuple[int, ...], Moves] = {}
        self.n_known = 0

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches all of ``text``. Raises: UserError E404 where the budget of the run is spent."""
        moves = self.begin(text)
        if not self.looks_around:
            self.known[_BEGIN] = moves
            for character in text:
                moves = moves[character]
            return self.accepting in moves.alive
        for place in range(len(text)):
            if not moves.alive:
                return False
            moves = self.after(moves, text, place)
        return self.accepting in moves.alive

    def begin(self, text: str) -> Moves:
        """The states before the first character."""
        known = self.known.get(_BEGIN)
        return self.moves(self._closure([self.start], text, 0)) if known is None else known

    def after(self, moves: Moves, text: str, place: int) -> Moves:
        """The states after the character at ``place``."""
        states = [self.states[index] for index in moves.alive]
        after = [state.after for state in states if state.accepts is not None and state.accepts(text[place])]
        return self.moves(self._closure(after, text, place + 1))

    def moves(self, alive: Iterable[int]) -> Moves:
        """The entry of these states."""
        if self.n_known > MAX_KNOWN or self.looks_around:
            self.known, self.n_known = {}, 0
        made = Moves(self, tuple(alive))
        self.n_known += 1 + len(made.alive)
        return self.known.setdefault(made.alive, made)

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
