"""The memory limit: what a model asks for is compared with it before anything is allocated."""

from __future__ import annotations

import contextvars
import math
import os
import time
from collections.abc import Sequence
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.types import Dtype

MAX_STEPS = 100_000
"""Steps of one program after functions are expanded: 10 times the largest exported model; stops nested function bombs."""

MAX_NESTING = 64
"""Depth of graphs inside graphs and of functions inside functions; exported models have 4 at most."""

MAX_RANK = 64
"""NumPy's own limit on the number of axes."""


def default_limit_bytes() -> int:
    """Four fifths of the machine's memory: what is larger could only end in swapping or a kill."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 4 // 5
    except (ValueError, OSError, AttributeError):
        return 16 << 30


DEFAULT_LIMIT_BYTES = default_limit_bytes()
_limit_bytes: contextvars.ContextVar[int] = contextvars.ContextVar(
    "fx2onnx_memory_limit_bytes", default=DEFAULT_LIMIT_BYTES
)


MAX_ITERATIONS = 10_000_000
"""Iterations of all loops of a run, those of kernels over cells and taps that the model counts included: at a few
microseconds each, more would run for minutes without doing work."""

_iterations: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("fx2onnx_iterations", default=None)


_end: contextvars.ContextVar[float] = contextvars.ContextVar("fx2onnx_end", default=math.inf)


class Setting:
    """A context variable that has a value in a block; each run of a session enters several."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: contextvars.ContextVar[Any], value: Any) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def iteration_budget(count: int) -> Setting:
    """Allow ``count`` iterations of loops in the block, nested ones included."""
    return Setting(_iterations, [count])


def time_limit(seconds: float) -> Setting:
    """End loops in the block that still turn after so many seconds, with TimeoutError."""
    return Setting(_end, time.monotonic() + seconds)


def count_iteration(count: int = 1) -> None:
    """Take one iteration, or several, from the budget of the run.

    Raises: UserError E404 where the budget of the run is spent, TimeoutError where its time is."""
    if time.monotonic() > _end.get():
        raise TimeoutError("a loop still turns")
    left = _iterations.get()
    if left is None:
        return
    left[0] -= count
    if left[0] < 0:
        raise UserError(
            "E404",
            "the loops of the model ran for more iterations than the limit allows",
            next='raise it: SessionOptions().add_session_config_entry("fx2onnx.loop_limit", "...")',
        )


def memory_limit(limit_bytes: int) -> Setting:
    """Make the limit hold for the block."""
    return Setting(_limit_bytes, limit_bytes)


def limit_bytes() -> int:
    """The memory limit in force."""
    return _limit_bytes.get()


def check_bytes(wanted_bytes: int, what: str) -> None:
    """Raises: UserError E404 where ``wanted_bytes`` is above the limit in force."""
    limit_bytes = _limit_bytes.get()
    if wanted_bytes > limit_bytes:
        raise UserError(
            "E404",
            f"{what} needs {wanted_bytes} bytes; the limit is {limit_bytes}",
            why="sizes that a model claims are checked before they are allocated",
            next='raise it: SessionOptions().add_session_config_entry("fx2onnx.memory_limit_bytes", "...")',
        )


def check_shape(shape: Sequence[int], dtype: Dtype, what: str = "a tensor") -> None:
    """Raises: UserError E404 for more bytes than the limit, E403 for a negative dim or too many axes."""
    if len(shape) > MAX_RANK:
        raise UserError("E404", f"{what} has {len(shape)} axes; NumPy allows {MAX_RANK}")
    if shape and min(shape) < 0:
        raise UserError("E403", f"{what} would have the negative dim {min(shape)}")
    size_bytes = math.prod(map(int, shape)) * dtype.itemsize
    if size_bytes > _limit_bytes.get():
        check_bytes(size_bytes, f"{what} of shape {list(map(int, shape))}")
