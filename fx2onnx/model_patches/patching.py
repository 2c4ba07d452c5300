"""Put stand-ins in the place of library functions while a module is captured, and only for the capturing thread.

A stand-in is put in by exchanging the function's code object, so it does not matter under which names the function was
imported. It must compute what the function computes, for any sizes and data, without a Python decision on either.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import CodePatch


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
    def __init__(self) -> None:
        self.used: dict[str, str] = {}
        """The stand-ins that were called in this capture, by name, with their reasons."""


_THREAD = _Thread()
_CODE_PATCHES: dict[StandIn, CodePatch] = {}
"""How each one is put in, from when it was first."""


def stand_in_for(stand_ins: tuple[StandIn, ...]) -> dict[str, str]:
    """Until ``Changes`` end, the stand-ins of those modules that are loaded are used by this thread. Gives the ones called."""
    used: dict[str, str] = {}
    before_change(functools.partial(setattr, _THREAD, "used", _THREAD.used))
    _THREAD.used = used
    for stand_in in stand_ins:
        function: Any = sys.modules.get(stand_in.module)
        for part in stand_in.function.split("."):
            function = getattr(function, part, None)
        code_patch = _code_patch(inspect.unwrap(function), stand_in) if isinstance(function, FunctionType) else None
        if code_patch is not None:
            code_patch.put_in()
    return used


def _code_patch(function: Any, stand_in: StandIn) -> CodePatch | None:
    """None where the function is not as the stand-in knows it."""
    known = _CODE_PATCHES.get(stand_in)
    if known is not None and known.still_fits(function):
        return known
    if not isinstance(function, FunctionType) or not _fits(function, stand_in):
        return None

    def replacement(original: FunctionType) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if stand_in.reason:
                _THREAD.used[stand_in.name] = stand_in.reason
            return stand_in.compute(original, *args, **kwargs) if stand_in.around else stand_in.compute(*args, **kwargs)

        return called

    made = _CODE_PATCHES[stand_in] = CodePatch(function, replacement)
    return made


def _fits(function: FunctionType, stand_in: StandIn) -> bool:
    if stand_in.around:
        return True
    own, theirs = inspect.signature(stand_in.compute).parameters, inspect.signature(function).parameters
    return list(own) == list(theirs)
