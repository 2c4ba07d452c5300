"""Resident memory of this process over time."""

from __future__ import annotations

import threading
import time
from types import TracebackType

INTERVAL_SECONDS = 0.005
"""Between two readings of the thread: one reading takes some 10 microseconds, so this costs a fifth of a per cent."""


class MemorySampler:
    """Reads the resident set size on a thread of its own, and when asked. Use as a context manager."""

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        import psutil

        self.samples: list[tuple[int, int]] = []
        """(``time.perf_counter_ns``, bytes), in order of time once the block has ended."""
        self._process = psutil.Process()
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fx2onnx memory", daemon=True)

    def read(self) -> None:
        self.samples.append((time.perf_counter_ns(), self._process.memory_info().rss))

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.read()

    def __enter__(self) -> MemorySampler:
        self.read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.read()
        self.samples.sort()
