"""State of the process that forward may change: afterwards as before.

What only this thread sees is put back where it differs, and so is what all threads see, where this is the only thread.
Else a difference could be another thread's: then setters are patched to say what this thread changes, and
what was changed by a way that does not say so stays.
"""

from __future__ import annotations

import gc
import locale
import logging
import operator
import os
import sys
import threading
import warnings
from _locale import setlocale as unpatched_setlocale
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.multiprocessing

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.capture.python.random_draws import draw_apart, keep_random_states
from fx2onnx.torchcompat.flags import TORCH_OF_PROCESS, TORCH_OF_THREAD, Flag, attribute, torch_setters

_environment: dict[bytes, bytes] = vars(os.environ)["_data"]


def _set_filters(filters: list[object]) -> None:
    vars(warnings)["filters"][:] = filters
    vars(warnings)["_filters_mutated"]()


def _set_environment(values: dict[bytes, bytes]) -> None:
    for key in {*_environment, *values}:
        if key not in values:
            del os.environ[os.fsdecode(key)]
        elif _environment.get(key) != values[key]:
            os.environ[os.fsdecode(key)] = os.fsdecode(values[key])


def _of_numpy(name: str, what: str) -> Flag:
    def put_back(old: dict[str, object]) -> None:
        if old:
            getattr(sys.modules["numpy"], f"set{what}")(**old)

    return Flag(name, lambda: getattr(sys.modules.get("numpy"), f"get{what}", dict)(), put_back)


OF_THREAD = (
    _of_numpy("NumPy's errors", "err"),
    _of_numpy("NumPy's print options", "_printoptions"),
    *TORCH_OF_THREAD,
)
"""What each thread has of its own."""

OF_PROCESS = (
    *TORCH_OF_PROCESS,
    Flag("sharing strategy", torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
    Flag("warnings' filters", lambda: list(warnings.filters), _set_filters),
    attribute("how warnings are shown", warnings, "showwarning"),
    Flag("environment", _environment.copy, _set_environment),
    Flag("working directory", os.getcwd, os.chdir),
    Flag("locale", partial(unpatched_setlocale, locale.LC_ALL), partial(unpatched_setlocale, locale.LC_ALL)),
    Flag("import path", lambda: list(sys.path), lambda old: operator.setitem(sys.path, slice(None), old)),
    Flag("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Flag("garbage collector", gc.isenabled, lambda old: gc.enable() if old else gc.disable()),
    Flag("garbage collector's thresholds", gc.get_threshold, lambda old: gc.set_threshold(*old)),
    attribute("logging", logging.root.manager, "disable"),
)
"""What all threads have together. Those that decide for others come after them."""

_UNREADABLE = object()


def _value(flag: Flag) -> object:
    """torch refuses to say what a flag is that was set in two ways; a working directory may be gone."""
    try:
        return flag.get()
    except (RuntimeError, OSError):
        return _UNREADABLE


def _values(flags: Sequence[Flag]) -> list[object]:
    try:
        return [get() for _, get, _ in flags]
    except (RuntimeError, OSError):
        return [_value(flag) for flag in flags]


def _put_back(flags: Sequence[Flag], values: list[object]) -> None:
    if _values(flags) == values:
        return
    for flag, value in zip(flags, values, strict=True):
        if value is not _UNREADABLE and _value(flag) != value:
            flag.set(value)


class _Seen(threading.local):
    def __init__(self) -> None:
        self.before: dict[Flag, object] = {}
        """Flags of the process that this thread's capture was seen to change, with what they were."""
        self.setting: list[list[Any]] = []
        """All values from before each call of a setter that has not ended; an interrupted one stays."""


_SEEN = _Seen()


def keep_process_state() -> None:
    """Until ``Changes`` end, forward may set defaults, modes and seeds, and draw random numbers."""
    if threading.active_count() == 1:
        before_change(partial(_put_back, OF_PROCESS, _values(OF_PROCESS)))
        keep_random_states()
    else:
        seen: dict[Flag, object] = {}
        setting: list[list[object]] = []
        put_name(_SEEN, "before", seen)
        put_name(_SEEN, "setting", setting)
        before_change(lambda: _put_back_seen(seen, setting))
        for code_patch in _setters():
            code_patch.put_in()
        draw_apart()
    _LEVELS.put_in()
    before_change(partial(_put_back, OF_THREAD, _values(OF_THREAD)))


def _put_back_seen(seen: dict[Flag, object], setting: list[list[object]]) -> None:
    for values in setting:
        seen = dict(zip(OF_PROCESS, values, strict=True)) | seen
    _put_back(tuple(seen), list(seen.values()))


def _noticed(setter: Callable[..., object]) -> Callable[..., object]:
    def noticed(*args: object, **kwargs: object) -> object:
        before, seen = _values(OF_PROCESS), _SEEN
        seen.setting.append(before)
        try:
            return setter(*args, **kwargs)
        finally:
            for flag, old, new in zip(OF_PROCESS, before, _values(OF_PROCESS), strict=True):
                if old is not _UNREADABLE and old != new:
                    seen.before.setdefault(flag, old)
            seen.setting.pop()

    return noticed


def _level_noticed(setter: Callable[..., object]) -> Callable[..., object]:
    def set_level(logger: logging.Logger, level: int | str) -> None:
        before_change(partial(setter, logger, logger.level))
        setter(logger, level)

    return set_level


@cache
def _setters() -> tuple[CodePatch, ...]:
    """Setters of flags of the process that are functions of Python."""
    plain: tuple[Callable[..., object], ...] = (
        *torch_setters(),
        *(warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings),
        *(warnings.catch_warnings.__enter__, warnings.catch_warnings.__exit__),
        *(type(os.environ).__setitem__, type(os.environ).__delitem__),
        locale.setlocale,
        logging.disable,
    )
    return tuple(CodePatch(setter, _noticed) for setter in plain)


_LEVELS = CodePatch(logging.Logger.setLevel, _level_noticed)
"""There are too many loggers to look at each."""
