"""Resident memory of this process over time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

INTERVAL_NS = 50_000_000
"""Between two readings inside a phase: one costs 5 microseconds, but some 50 where the kernel's part is not in the cache,
so this keeps them near a tenth of a per cent."""

_OLD_NS = 20_000_000
"""The age up to which a reading still holds where a phase begins or ends."""


_GROUPS = "/proc/self/cgroup"
_HIERARCHIES = (
    ("", "/sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory",
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""Control groups of version 2 and 1: the controller, where its groups lie, the files with what a group may take and has
taken, and what of that, by ``memory.stat``, are pages of files, which the system takes back where memory is short."""


class MemoryReader:
    """Readings of the resident set size, taken where events are recorded: a thread of its own would fight for the GIL.

    ``readings`` are (``time.perf_counter_ns``, bytes now, peak bytes since the reading before). The peak is exact where it
    is the process's highest so far, which the kernel keeps; below that it is the higher of the two readings.
    """

    def __init__(self) -> None:
        self.readings: list[tuple[int, int, int]] = []
        self.next_ns = 0
        self._now_bytes = _resident_reader()
        self._peak_bytes = _peak_reader()
        self._highest_bytes = self._peak_bytes()
        self._last_bytes = 0

    def read_if_old(self) -> None:
        """Take a reading unless one was taken just now."""
        if time.perf_counter_ns() - self.readings[-1][0] > _OLD_NS:
            self.read()

    def read(self) -> None:
        """Take a reading, however short ago the last one was."""
        now_bytes, highest_bytes = self._now_bytes(), self._peak_bytes()
        peak_bytes = max(now_bytes, self._last_bytes)
        if highest_bytes > self._highest_bytes:
            self._highest_bytes = highest_bytes
            peak_bytes = max(peak_bytes, highest_bytes)
        at_ns = time.perf_counter_ns()
        self.readings.append((at_ns, now_bytes, peak_bytes))
        self._last_bytes = now_bytes
        self.next_ns = at_ns + INTERVAL_NS


def _resident_reader() -> Callable[[], int]:
    with contextlib.suppress(OSError, AttributeError):
        return _Statm().read
    import psutil

    process = psutil.Process()
    return lambda: int(process.memory_info().rss)


class _Statm:
    """Linux's own file, kept open: a tenth of what psutil takes to open and read it anew."""

    def __init__(self) -> None:
        self._handle = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> int:
        return int(os.pread(self._handle, 96, 0).split()[1]) * self._page_bytes

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._handle)


def _peak_reader() -> Callable[[], int]:
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return lambda: 0
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return lambda: int(getrusage(RUSAGE_SELF).ru_maxrss) * unit


def free_bytes() -> int:
    """The bytes that this process may still take."""
    import psutil

    free: int = psutil.virtual_memory().available
    free = min([free, *_free_in_groups()])
    with contextlib.suppress(ImportError, OSError):  # not on every system
        import resource

        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit_bytes != resource.RLIM_INFINITY:
            free = min(free, limit_bytes - psutil.Process().memory_info().vms)
    return max(free, 0)


def _free_in_groups() -> Iterator[int]:
    """The bytes that are free in the control groups of this process: its own (a container, a job, a service) and those
    around it.
    """
    with contextlib.suppress(OSError, ValueError):  # another system
        lines = [line.split(":", 2) for line in Path(_GROUPS).read_text(encoding="utf-8").splitlines()]
        for controller, root, limit, taken, of_files in _HIERARCHIES:
            for own in [path for _, names, path in lines if controller in names.split(",")]:
                for path in (PurePosixPath(own), *PurePosixPath(own).parents):
                    folder = Path(root + str(path))
                    with contextlib.suppress(OSError, ValueError):  # not seen from inside, or no limit
                        most, now = (int((folder / name).read_bytes()) for name in (limit, taken))
                        stat = dict(
                            line.split(" ")
                            for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
                        )
                        yield most - now + sum(int(stat.get(name, 0)) for name in of_files)
