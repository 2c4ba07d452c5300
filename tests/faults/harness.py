"""Strikes at every file-system call of a commit: a process is stopped there, or the call fails.

An audit hook sees each call before it happens. It cannot be taken away again, so a test that uses one runs in a process of
its own (``apart``).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

CALLS = frozenset([
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.scandir", "os.listdir", "os.truncate",
    "os.chmod", "os.utime", "shutil.rmtree", "shutil.copyfile", "fcntl.flock", "mmap.__new__", "tempfile.mkstemp",
])  # fmt: skip
Fault: TypeAlias = Callable[[str, tuple[Any, ...]], None]
"""Gets the call's name and arguments, as the audit hook does."""
SECOND_WRITER_SECONDS = 0.05
"""The time for which the first writer stands still; the second may be waiting for its lock."""


def is_stage(name: str) -> bool:
    return name.startswith(".fx2onnx-") and len(name) == len(".fx2onnx-") + 16


def names(folder: Path) -> list[str]:
    """What is there, but for stages, which a killed writer leaves to the next one."""
    return sorted(path.name for path in folder.iterdir() if not is_stage(path.name))


def forked() -> int:
    """``os.fork``, whose child leaves garbage of before alone: it would wait for threads of an engine's that it does not have."""
    child = os.fork()
    if child == 0:
        gc.freeze()
    return child


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """The test in a forked process; what it raises there fails it here."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        reading, writing = os.pipe()
        child = forked()
        if child == 0:
            os.close(reading)
            code = 1
            try:
                test(*args, **kwargs)
                code = 0
            except BaseException:
                os.write(writing, traceback.format_exc()[-20_000:].encode())
            finally:
                os._exit(code)
        os.close(writing)
        with open(reading, "rb") as pipe:
            told = pipe.read().decode()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, told

    return run


class Striker:
    """Deals ``fault(call, args)`` at call number ``at``, counted from ``with``; from then on where ``lasting``."""

    _active: Striker | None = None
    _is_hooked = False

    def __init__(self, at: int, fault: Fault, lasting: bool = False) -> None:
        self.at, self.fault, self.lasting = at, fault, lasting
        self.count = 0

    def __enter__(self) -> Striker:
        if not Striker._is_hooked:
            sys.addaudithook(_hook)
            Striker._is_hooked = True
        Striker._active = self
        return self

    def __exit__(self, *_: object) -> None:
        Striker._active = None

    @staticmethod
    @contextlib.contextmanager
    def paused() -> Iterator[None]:
        """Calls inside do not count."""
        active, Striker._active = Striker._active, None
        try:
            yield
        finally:
            Striker._active = active


def _hook(event: str, args: tuple[Any, ...]) -> None:
    striker = Striker._active
    if striker is None or event not in CALLS:
        return
    striker.count += 1
    if striker.count == striker.at or (striker.lasting and striker.count > striker.at):
        Striker._active = None  # what the fault does is not counted
        try:
            striker.fault(event, args)
        finally:
            Striker._active = striker


def struck(act: Callable[[], None], fault: Fault, lasting: bool = False) -> Iterator[BaseException | None]:
    """What came of ``act`` with the fault at its first call, at its second, ... until it makes fewer calls."""
    at = 1
    while True:
        outcome = None
        with Striker(at, fault, lasting) as striker:
            try:
                act()
            except BaseException as error:
                outcome = error.with_traceback(None)  # whose frames would keep what was interrupted alive
        if striker.count < at:
            return
        yield outcome
        at += 1


def interrupted_at_lines(act: Callable[[], None], files: tuple[str, ...]) -> Iterator[BaseException | None]:
    """What came of ``act``, interrupted before the first of the distinct lines that it runs in ``files``, the second, ..."""
    at = 1
    while True:
        seen: set[tuple[str, int]] = set()

        def lines(frame: FrameType, event: str, _: Any, seen: Any = seen, at: int = at) -> Any:
            place = (frame.f_code.co_filename, frame.f_lineno)
            if event == "line" and place not in seen:
                seen.add(place)
                if len(seen) == at:
                    raise KeyboardInterrupt
            return lines

        def calls(frame: FrameType, event: str, _: Any, lines: Any = lines) -> Any:
            return lines if frame.f_code.co_filename.endswith(files) else None

        outcome = None
        sys.settrace(calls)
        try:
            act()
        except BaseException as error:
            outcome = error.with_traceback(None)
        finally:
            sys.settrace(None)
        if len(seen) < at:
            return
        yield outcome
        at += 1


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def terminate(*_: object) -> None:
    raise SystemExit(1)


def no_space(call: str, args: tuple[Any, ...]) -> None:
    """What frees room or only looks succeeds on a full disk."""
    creates = call == "open" and args[2] & os.O_CREAT
    if creates or call in ("os.mkdir", "os.rename", "os.link"):
        raise OSError(28, "No space left on device")


def refused(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def in_child(work: Callable[[], None]) -> int:
    """Exit code of a fork that does ``work``; 1 for an exception, negative for a signal."""
    child = forked()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class SecondWriter:
    """A fault: another process commits, and this one goes on when that is through, or waits for it."""

    def __init__(self, commit: Callable[[], None]) -> None:
        self._commit = commit
        self._child = 0

    def __call__(self, *_: object) -> None:
        self._child = forked()
        if self._child == 0:
            code = 1
            try:
                self._commit()
                code = 0
            finally:
                os._exit(code)
        end = time.monotonic() + SECOND_WRITER_SECONDS
        while time.monotonic() < end and not self._is_through():
            time.sleep(0.002)

    def _is_through(self) -> bool:
        if self._child:
            child, status = os.waitpid(self._child, os.WNOHANG)
            if child:
                assert status == 0
                self._child = 0
        return not self._child

    def wait(self) -> None:
        while not self._is_through():
            time.sleep(0.002)
