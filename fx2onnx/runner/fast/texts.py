"""RegexFullMatch of many ASCII strings: a table of the states that a pattern has met, read character by character."""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np

from fx2onnx.runner.fast.compiled import compiled
from fx2onnx.semantics.kernels.strings import Moves, compiled_pattern
from fx2onnx.semantics.types import INT64, Array

CHARACTERS, MOST_STATES = 128, 1 << 10
UNKNOWN = -1
LEAST_TEXTS = 16
"""Strings from which on the table is faster than a string at a time."""


@compiled
def _scan(text: Array, ends: Array, first: int, start: int, table: Array, last: Array) -> int:
    """The state after each string from the first on; returns the number of one that needs an unknown state, or that of all."""
    begin = ends[first - 1] if first else 0
    for n in range(first, ends.size):
        state = start
        for place in range(begin, ends[n]):
            state = table[state, text[place]]
            if state == UNKNOWN:
                return n
        last[n], begin = state, ends[n]
    return int(ends.size)


class _Table:
    """The states of a pattern by number, and the number of the state after each by a character."""

    def __init__(self, text: str) -> None:
        self.pattern = compiled_pattern(text)
        self.lock = threading.Lock()
        self.states: list[Moves] = []
        self.numbers: dict[tuple[int, ...], int] = {}
        self.table = np.full((MOST_STATES, CHARACTERS), UNKNOWN, np.int32)
        self.accepts = np.zeros(MOST_STATES, np.bool_)
        self.start = self._number(self.pattern.begin(""))

    def _number(self, moves: Moves) -> int:
        """The number of a state, a new one where it was not met before."""
        number = self.numbers.setdefault(moves.alive, len(self.states))
        if number == len(self.states):
            self.accepts[number] = self.pattern.accepting in moves.alive
            self.states.append(moves)
        return number

    def extend(self, text: bytes) -> None:
        """Note the states that a string goes through."""
        number = self.start
        for character in text:
            if self.table[number, character] == UNKNOWN:
                self.table[number, character] = self._number(self.states[number][chr(character)])
            number = int(self.table[number, character])


_table = lru_cache(maxsize=16)(_Table)


def call_RegexFullMatch(x: Array, *, pattern: str | None = None) -> Array | None:
    texts = x.reshape(-1).tolist()
    if pattern is None or len(texts) < LEAST_TEXTS or compiled_pattern(pattern).looks_around:
        return None
    try:
        text = np.frombuffer(bytearray("".join(texts).encode("ascii")), np.uint8)
    except (TypeError, UnicodeEncodeError):
        return None
    known, ends = _table(pattern), np.cumsum(np.fromiter(map(len, texts), INT64, len(texts)))
    last, done = np.empty(len(texts), np.int32), 0
    with known.lock:
        while (done := _scan(text, ends, done, known.start, known.table, last)) < len(texts):
            if len(known.states) + len(texts[done]) >= MOST_STATES:
                return None
            known.extend(texts[done].encode("ascii"))
    return np.asarray(known.accepts[last].reshape(x.shape))
