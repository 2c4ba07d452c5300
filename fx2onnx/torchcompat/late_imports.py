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


def torch_arrays() -> tuple[ModuleType, type, type]:
    """torch's module of NumPy's functions over tensors, its class of arrays, and that of their dtypes."""
    tnp = importlib.import_module("torch._numpy")
    return tnp, tnp.ndarray, tnp._dtypes.DType


COMPILER = "torch._dynamo"
"""The module of torch's compiler, which takes longer to import than an export takes; many modules are exported without
it."""
WAITS_SECONDS = 10.0
"""The longest wait of a thread that was started during a capture for its end, before it imports the compiler."""


class ImportNeeded(BaseException):
    """Something that runs in a capture imports ``COMPILER``: no error of the module's."""


class CompilerStop:
    """Stops an import of ``COMPILER`` in the thread that made it; others wait for ``lock``, which is held by a capture."""

    def __init__(self, lock: Lock) -> None:
        self._lock, self._thread = lock, threading.get_ident()
        self.was_met = False
        """True if an import was stopped. A module that catches every exception may have gone on another way."""

    def put(self) -> None:
        """Until ``Changes`` end, an import of ``COMPILER`` in this thread raises ImportNeeded. Where there are other threads, which
        may import it at any time, it is imported at once.
        """
        if COMPILER in sys.modules or threading.active_count() > 1:
            import_compiler()  # waits for another thread that is about it
            return
        before_change(self._put_back)
        sys.meta_path.insert(0, self)

    def _put_back(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == COMPILER:
            if threading.get_ident() == self._thread:
                self.was_met = True
                raise ImportNeeded
            if self._lock.acquire(timeout=WAITS_SECONDS):
                self._lock.release()
        return None


def import_compiler() -> None:
    """Import ``COMPILER``, so that what needs it can run again from its start."""
    importlib.import_module(COMPILER)
