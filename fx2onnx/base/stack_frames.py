"""Frames of the stack: room for those below the user's code, what an error's traceback holds on to, and which of them a user sees."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar

from fx2onnx.base.changes import before_change
from fx2onnx.base.errors import Fx2OnnxError, InternalError, catch_as_torch_error
from fx2onnx.base.source import PACKAGE_FOLDER

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Owner = TypeVar("Owner", bound=type)

FRAMES = 1000
"""The frames that an export has above forward (14) and below it (an operator that PyTorch decomposes on fake tensors: 150; torch.export
and its compiler of Python: several hundred), where eager PyTorch has almost nothing."""

FRAMES_A_LEVEL = 6
"""Python frames that one level of nested modules takes: three in eager PyTorch, those of capture, and a hook."""

MOST_LEVELS = 2_000
"""The number of levels of modules that get room, whatever the limit is. A call through C takes memory of the stack, 8
MB on Linux, which ends the process where it is used up: at some 20,000 calls."""

_LOCK: Any = threading.RLock()
_INSIDE: set[object] = set()
"""A token of each export that runs."""
_LIMITS = {"before": 0, "raised": 0}
"""While one runs; else zeros, which no limit is."""


def make_room_to_recurse(levels: int = 0) -> None:
    """Python's recursion limit, which all threads share, is higher by ``FRAMES`` until ``Changes`` end: what runs in eager
    PyTorch just below the limit has to run here, too. It is enough for ``levels`` of modules inside each other, up to
    ``MOST_LEVELS``: torch's functions go through them by recursion. A limit that is set meanwhile stays.
    """
    token = object()
    before_change(partial(_leave, token))
    with _LOCK:
        if not _INSIDE:
            limit = sys.getrecursionlimit()
            raised = FRAMES + max(limit, FRAMES + FRAMES_A_LEVEL * min(levels, MOST_LEVELS))
            _LIMITS.update(before=limit, raised=raised)
            sys.setrecursionlimit(raised)
        _INSIDE.add(token)


def levels_of(module: Any) -> int:
    """The number of modules that lie inside each other; 0 for what is no module."""
    level, seen, levels = {id(module): module}, {id(module)}, -1
    while level:
        parts = [inner for each in level.values() if (inner := getattr(each, "_modules", None))]
        level = {id(child): child for inner in parts for child in inner.values() if id(child) not in seen}
        level.pop(id(None), None)
        seen |= level.keys()
        levels += 1
    return levels


def _leave(token: object) -> None:
    while _LOCK._is_owned():  # an interrupt may come on the way out of the block that holds it
        _LOCK.release()
    with _LOCK:
        _INSIDE.discard(token)
        if not _INSIDE:
            if sys.getrecursionlimit() == _LIMITS["raised"]:
                sys.setrecursionlimit(_LIMITS["before"])
            _LIMITS.update(before=0, raised=0)


def limit_reached(error: RecursionError) -> tuple[str, str]:
    """The limit that ``error`` came from, and what may be done to raise it."""
    limit = _LIMITS["before"] or sys.getrecursionlimit()
    if 2 * sum(1 for _ in traceback.walk_tb(error.__traceback__)) < sys.getrecursionlimit():
        return (
            f"this version of Python ends calls through C, such as those of modules, at a number of its own; eager PyTorch gets"
            f" a few levels further (sys.setrecursionlimit is at {limit} and of no use)",
            "another version of Python, where the modules really are nested so deep: that of 3.12 is the lowest",
        )
    return (
        f"the limit is {limit} calls; eager PyTorch stops here, too",
        "sys.setrecursionlimit(...) before the export, where the modules really are nested so deep",
    )


_PACKAGE = PACKAGE_FOLDER + os.sep


def empty_frames(error: BaseException) -> None:
    """Empty the finished frames of this package in the tracebacks of ``error`` and of the errors that it came from.

    A variable there that holds the error makes a cycle: what else the frames have, weights among it, would live until the
    collector comes by, long after the error. Frames of the user's and of torch stay as they are, for a debugger.
    """
    for each in _chain(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename.startswith(_PACKAGE):
                with contextlib.suppress(RuntimeError):  # it is running
                    frame.clear()


def drop_frames(error: BaseException) -> None:
    """Take the tracebacks from ``error``, which is kept and not raised on: a frame also holds the one that called it."""
    for each in _chain(error):
        each.__traceback__ = None


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and all that it came from."""
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        last = pending.pop()
        if last is not None and all(last is not other for other in chain):
            chain.append(last)
            pending += [last.__cause__, last.__context__]
    return chain


@contextlib.contextmanager
def frames_emptied() -> Iterator[None]:
    """Errors that leave the block hold nothing through frames of this package."""
    try:
        yield
    except BaseException as error:
        empty_frames(error)
        raise


def wants_traceback() -> bool:
    """True if ``FX2ONNX_TRACEBACK`` is set to something but 0: errors keep the frames of fx2onnx and PyTorch."""
    return os.environ.get("FX2ONNX_TRACEBACK", "0") not in ("", "0")


def public(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorator of a public function: its errors show the frames of the user's code only, and ``except
    torch.onnx.OnnxExporterError`` catches them.
    """

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        __tracebackhide__ = True  # pytest and IPython leave out this frame
        try:
            return function(*args, **kwargs)
        except Fx2OnnxError as error:
            catch_as_torch_error(error)
            if wants_traceback() or isinstance(error, InternalError):
                raise
            _keep_users_frames(error)
            raise

    return called


def public_methods(public_class: Owner) -> Owner:
    """Decorator of a public class: each of its own methods, properties and its construction is ``public``."""
    for name, member in list(vars(public_class).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(public_class, name, type(member)(public(member.__func__)))
        elif isinstance(member, property):
            setattr(public_class, name, member.getter(public(member.fget)))  # type: ignore[arg-type]
        elif isinstance(member, FunctionType) and not hasattr(member, "__wrapped__"):
            setattr(public_class, name, public(member))
    return public_class


def _keep_users_frames(error: BaseException) -> None:
    """Take all other frames from the error and those that it came from. A function of its own, as a variable of ``public`` would
    hold the error, whose traceback holds that frame.
    """
    for each in _chain(error):
        each.__traceback__ = _users_frames(each.__traceback__)
        each.__suppress_context__ = True


def _users_frames(first: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of fx2onnx and PyTorch."""
    kept: TracebackType | None = None
    for each in reversed(list(_tracebacks(first))):
        if not _is_inside(each.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _tracebacks(each: TracebackType | None) -> Iterator[TracebackType]:
    while each is not None:
        yield each
        each = each.tb_next


def _is_inside(file: str) -> bool:
    return file.startswith((_PACKAGE, contextlib.__file__, functools.__file__, "<")) or f"{os.sep}torch{os.sep}" in file
