"""Put stand-ins in the place of library functions while a module is captured, and only for the capturing thread.

A stand-in is put in by exchanging the function's code object, so it does not matter under which names the function was
imported. It must compute what the function computes, for any sizes and data, without a Python decision on either.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True, slots=True)
class StandIn:
    """What stands in for ``function`` of ``module``, which is never imported for it."""

    module: str
    function: str
    """Its qualified name."""
    compute: Callable[..., Any]
    """Takes the function's own parameters; a library whose function takes others keeps its own."""
    reason: str
    """What the function decides by data, and what is done instead; said in the report, if anything."""
    around: bool = False
    """Whether ``compute`` takes the function itself first, then whatever the function was called with."""

    @property
    def name(self) -> str:
        return f"{self.module}.{self.function}"


class _Thread(threading.local):
    used: dict[str, str] | None = None
    """The stand-ins that were called in this capture, by name, with their reasons; None outside a capture."""


_THREAD = _Thread()
_CALL = "__fx2onnx_stand_in_"


@contextlib.contextmanager
def standing_in(stand_ins: tuple[StandIn, ...]) -> Iterator[dict[str, str]]:
    """Inside, the stand-ins of those modules that are loaded are used by this thread. Gives the ones called."""
    swapped: list[tuple[FunctionType, Any, str]] = []
    outer, _THREAD.used = _THREAD.used, {}
    try:
        for stand_in in stand_ins:
            function: Any = sys.modules.get(stand_in.module)
            for part in stand_in.function.split("."):
                function = getattr(function, part, None)
            function = inspect.unwrap(function) if isinstance(function, FunctionType) else None
            if isinstance(function, FunctionType) and _fits(function, stand_in):
                swapped.append((function, function.__code__, _put(function, stand_in)))
        yield _THREAD.used
    finally:
        _THREAD.used = outer
        for function, code, name in reversed(swapped):
            function.__code__ = code
            function.__globals__.pop(name, None)


def _fits(function: FunctionType, stand_in: StandIn) -> bool:
    if stand_in.around:
        return True
    own, theirs = inspect.signature(stand_in.compute).parameters, inspect.signature(function).parameters
    return list(own) == list(theirs)


def _put(function: FunctionType, stand_in: StandIn) -> str:
    """Exchange the code; the function's globals get one name, which is returned."""
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if _THREAD.used is None:
            return original(*args, **kwargs)
        if stand_in.reason:
            _THREAD.used[stand_in.name] = stand_in.reason
        return stand_in.compute(original, *args, **kwargs) if stand_in.around else stand_in.compute(*args, **kwargs)

    name = _CALL + stand_in.function.replace(".", "_")
    function.__globals__[name] = called
    function.__code__ = _calling(name, function.__name__, function.__code__.co_freevars).replace(
        co_filename=function.__code__.co_filename, co_firstlineno=function.__code__.co_firstlineno
    )
    return name


def _calling(name: str, function: str, cells: tuple[str, ...]) -> CodeType:
    """Code of ``function`` that calls ``name``; it holds as many ``cells`` as the code in whose place it is put."""
    lines = ["def outer():", *(f"    {cell} = None" for cell in cells), f"    def {function}(*args, **kwargs):"]
    lines += [
        f"        return {name}(*args, **kwargs)",
        *(f"        {cell}" for cell in cells),
        f"    return {function}",
    ]
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)
    code: CodeType = space["outer"]().__code__
    return code
