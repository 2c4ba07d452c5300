"""Modules of torch that note torch's functions when they are imported: never while functions of ours stand in their place."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Protocol

from fx2onnx.base.changes import before_change


class Lock(Protocol):
    """A lock that may be waited for."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


COMPILER = "torch._dynamo"
"""It takes longer to import than an export takes; many a module is exported without it."""
WAITS_SECONDS = 10.0
"""So long does another thread that imports the compiler wait for the end of a capture, which may need the same import."""


class ImportNeeded(BaseException):
    """Something that runs in a capture imports ``COMPILER``: no error of the module's, which must not catch it."""


class _Finder:
    """Stops an import of ``COMPILER`` in the thread that made it; others wait for ``lock``, which is held by a capture."""

    def __init__(self, lock: Lock) -> None:
        self._lock, self._thread = lock, threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == COMPILER:
            if threading.get_ident() == self._thread:
                raise ImportNeeded
            if self._lock.acquire(timeout=WAITS_SECONDS):
                self._lock.release()
        return None


def keep_compiler_out(lock: Lock) -> None:
    """Until ``Changes`` end, an import of ``COMPILER`` in this thread raises ImportNeeded, unless it is there already."""
    if COMPILER in sys.modules:
        importlib.import_module(COMPILER)  # waits for another thread that is about it
        return
    finder = _Finder(lock)

    def put_back() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    before_change(put_back)
    sys.meta_path.insert(0, finder)


def import_compiler() -> None:
    """Import ``COMPILER`` after an ImportNeeded, so that what needs it can run again from its start."""
    importlib.import_module(COMPILER)
