"""Iterators, generators of random numbers, files, queues and arrays of bytes: what goes on as it is used.

A run gets copies of iterators, and the others are put back where they were. A generator of Python's, and an iterator that
reads from one, can neither be copied nor put back.
"""

from __future__ import annotations

import array
import contextlib
import io
import queue
import random
import types
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from fx2onnx.capture.python.held import StandIn, Value, is_iterator
from fx2onnx.torchcompat.dispatch import real_kernels

_MOST_BYTES = 1 << 20
"""Arrays and texts of more are not copied."""
UNKNOWN: Value = type("Unknown", (), {"__repr__": lambda _: "unknown"})()
"""The state of what does not say it."""


class _Kind(NamedTuple):
    state: Callable[[Value], Value]
    put_back: Callable[[Value, Value], object] | None = None
    """None where it stays as a run leaves it."""


def _state_of_file(file: Value) -> Value:
    if isinstance(file, io.StringIO | io.BytesIO):
        content = file.getvalue()
        return (file.tell(), content) if len(content) <= _MOST_BYTES else UNKNOWN
    return file.tell() if file.readable() and file.seekable() and not file.writable() else UNKNOWN


def _put_file_back(file: Value, state: Value) -> None:
    if isinstance(state, tuple):
        position, content = state
        if file.getvalue() != content:
            file.seek(0)
            file.truncate()
            file.write(content)
        file.seek(position)
    else:
        file.seek(state)


def _put_queue_back(found: Value, state: Value) -> None:
    with found.mutex:
        found.queue.clear()
        found.queue.extend(state[0])
        found.unfinished_tasks = state[1]


def _state_of_generator(generator: types.GeneratorType[Value, Value, Value]) -> Value:
    frame = generator.gi_frame
    return None if frame is None else (frame.f_lasti, dict(frame.f_locals))


def _put_view_back(found: memoryview, state: bytes) -> None:
    if not found.readonly:
        array = np.asarray(found)  # which may have strides
        array[...] = np.ndarray(array.shape, array.dtype, state)


_BYTES = _Kind(
    lambda found: found[:] if len(found) <= _MOST_BYTES else UNKNOWN,
    lambda found, state: found.__setitem__(slice(None), state),
)
_KINDS: dict[type, _Kind] = {
    random.Random: _Kind(lambda found: found.getstate(), lambda found, state: found.setstate(state)),
    np.random.Generator: _Kind(
        lambda found: found.bit_generator.state, lambda found, state: setattr(found.bit_generator, "state", state)
    ),
    np.random.BitGenerator: _Kind(lambda found: found.state, lambda found, state: setattr(found, "state", state)),
    np.random.RandomState: _Kind(
        lambda found: found.get_state(legacy=False), lambda found, state: found.set_state(state)
    ),
    torch.Generator: _Kind(lambda found: found.get_state(), lambda found, state: found.set_state(state)),
    io.IOBase: _Kind(_state_of_file, _put_file_back),
    queue.Queue: _Kind(lambda found: (list(found.queue), found.unfinished_tasks), _put_queue_back),
    queue.SimpleQueue: _Kind(lambda found: found.qsize()),
    bytearray: _BYTES,
    memoryview: _Kind(
        lambda found: found.tobytes() if found.nbytes <= _MOST_BYTES else UNKNOWN,
        _put_view_back,
    ),
    array.array: _BYTES,
    types.GeneratorType: _Kind(_state_of_generator),
    StandIn: _Kind(lambda found: _state_of_generator(found._generator)),
}
"""The functions that read and restore the state of each of ``held.ADVANCING_TYPES``."""


def _kind(value: Value) -> _Kind:
    return next(each for kind, each in _KINDS.items() if isinstance(value, kind))


def state_of(value: Value) -> Value:
    """The state of an iterator, which shows by ``is_same_state`` whether it has gone on since, and lets it be put
    back.
    """
    try:
        return _position(value) if is_iterator(type(value)) else _kind(value).state(value)
    except Exception:  # of a class of the user's, or a file that is closed
        return UNKNOWN


def put_back(value: Value, state: Value) -> None:
    """Restore the state of an object. A file that forward closed stays closed."""
    if state is UNKNOWN or is_iterator(type(value)):
        return
    put = _kind(value).put_back
    now = state_of(value)
    if put is not None and now is not UNKNOWN and not is_same_state(now, state):
        put(value, state)


def is_put_back(value: Value) -> bool:
    """Return whether a run leaves it, or its copy, as it was."""
    if is_iterator(type(value)):
        return copied(value) is not None
    return _kind(value).put_back is not None and state_of(value) is not UNKNOWN


class ForReal(StandIn):
    """Stands for a generator of Python's, which holds what its code makes: no tensors of a capture."""

    def __init__(self, generator: types.GeneratorType[Value, Value, Value]) -> None:
        self._generator = generator

    def __iter__(self) -> ForReal:
        return self

    def __next__(self) -> Value:
        with real_kernels():
            return next(self._generator)

    def __getattr__(self, name: str) -> Value:
        return getattr(self._generator, name)


def users_own(value: Value) -> Value:
    """The iterator that ``value`` stands for, or ``value`` itself."""
    return value._generator if isinstance(value, ForReal) else value


def stand_in(value: Value) -> Value:
    """The stand-in for an iterator in a run; None where the run gets the iterator itself."""
    if isinstance(value, StandIn):
        return None
    return ForReal(value) if isinstance(value, types.GeneratorType) else copied(value)


def copied(value: Value) -> Value:
    """An iterator that gives what this one gives next; None where there is no such copy."""
    if not is_iterator(type(value)):
        return None
    with contextlib.suppress(TypeError, ValueError, AttributeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since Python 3.12 of those of itertools
        return _copied(value)
    return None


def _copied(value: Value) -> Value:
    if hasattr(value, "__copy__"):
        return value.__copy__()
    make, args, *rest = value.__reduce__()
    made = make(*map(_part, args))
    if rest and rest[0] is not None:
        made.__setstate__(_state_part(rest[0]))
    return made


def _part(part: Value) -> Value:
    if isinstance(part, Iterator):
        if not is_iterator(type(part)):
            raise TypeError("it cannot be copied")
        return _copied(part)
    return tuple(map(_part, part)) if type(part) is tuple else part


def _state_part(part: Value) -> Value:
    if type(part) is tuple:
        return tuple(map(_state_part, part))
    return list(part) if type(part) is list else _part(part)


def _position(value: Value) -> Value:
    """Numbers that tell how far an iterator has gone."""
    if isinstance(value, Iterator):
        if not is_iterator(type(value)):
            return state_of(value) if isinstance(value, types.GeneratorType) else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return tuple(map(_position, value.__reduce__()[1:]))
    if type(value) is tuple:
        return tuple(map(_position, value))
    if type(value) is list:
        return len(value)
    return value if type(value) in (int, float, bool) else None


def is_same_state(one: Value, other: Value) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, torch.Tensor):
        return one is other or (one.dtype == torch.uint8 and torch.equal(one, other))
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(is_same_state, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(is_same_state, one.values(), other.values()))
    return isinstance(one, int | float | str | bytes | bytearray | array.array) and bool(one == other)
