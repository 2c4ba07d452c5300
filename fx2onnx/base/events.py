"""A light recorder of nested, timed spans.

``with record("lower"): ...`` costs about a microsecond; it does nothing where no recorder is active. One recorder is
active per thread and task (a context variable), so concurrent exports do not mix. Phases are always recorded; what
happens a thousand times (operators, shapes, rewrites) only where the recorder is to have details: a hot loop takes
``details()`` once, reads the clock where something begins and calls ``detail`` or ``add`` where it ends, or extends
``log`` itself: some 0.2 microseconds.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fx2onnx.base.memory import MemoryReader


@dataclass(slots=True)
class Span:
    """A named stretch of time. ``start_ns`` and ``end_ns`` are ``time.perf_counter_ns`` readings.

    ``stretches`` above 0: the sum of so many short stretches within the parent, put at the parent's start.
    """

    name: str
    start_ns: int
    end_ns: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    children: list[Span] = field(default_factory=list)
    stretches: int = 0

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class SpanRecorder:
    """Holds the spans of one pipeline run. ``memory`` is read at the ends of phases, and between while details come in.

    Details go to a flat log, from which ``tree`` makes spans when they are read.
    """

    def __init__(self, name: str, *, detailed: bool = False, memory: MemoryReader | None = None) -> None:
        self.detailed = detailed
        self.memory = memory
        if memory is not None:
            memory.read()
        self.root = Span(name, time.perf_counter_ns())
        self._open = [self.root]
        self._phases: list[Span] = []
        self.log: list[Any] = []
        """The spans and stretches that ended, five items each and none of them a container, which the collector would
        look through: details (name, start ns, end ns, module path, where) or (what, start ns, end ns, label, None),
        where ``label(what)`` gives name, module path and where; stretches (name, start ns, end ns, None, None). A phase
        is there twice: (span, 0, 0, None, None) where it begins, (None, 0, 0, None, None) where it ends."""

    @contextlib.contextmanager
    def span(self, name: str, **args: Any) -> Iterator[Span]:
        """A phase. What its block finds out can be put into the span's ``args``."""
        if self.memory is not None:
            self.memory.read_if_old()
        span = Span(name, time.perf_counter_ns(), args=args)
        if len(self._open) == 1:
            self._phases.append(span)
        depth = len(self._open)
        self._open.append(span)
        self.log.extend((span, 0, 0, None, None))
        try:
            yield span
        finally:
            span.end_ns = time.perf_counter_ns()
            self.log.extend((None, 0, 0, None, None))
            del self._open[depth:]
            if self.memory is not None:
                self.memory.read_if_old()

    def detail(self, name: object, start_ns: int, module_path: str = "", where: object = None) -> None:
        """A detail that began at ``start_ns`` and ends now; what ended since then lies within it. ``where``: the user's
        source line. ``str`` of ``name`` and ``where`` is taken when they are read.
        """
        at_ns = time.perf_counter_ns()
        self.log.extend((name, start_ns, at_ns, module_path, where))
        if self.memory is not None and at_ns > self.memory.next_ns:
            self.memory.read()

    def add(self, name: str, start_ns: int) -> None:
        """A stretch that ends now and holds nothing; those of one name and parent become one span."""
        self.log.extend((name, start_ns, time.perf_counter_ns(), None, None))

    def close(self) -> Span:
        if not self.root.end_ns:
            self.root.end_ns = time.perf_counter_ns()
            if self.memory is not None:
                self.memory.read()
        return self.root

    @property
    def entries(self) -> int:
        """The number of entries of the log."""
        return len(self.log) // 5

    @property
    def open_spans(self) -> tuple[Span, ...]:
        """The phases that are running now, outermost first."""
        return tuple(self._open)

    def phases(self) -> dict[str, float]:
        """Seconds of each top-level phase, in order; phases of one name are added up."""
        seconds: dict[str, float] = {}
        for span in self._phases:
            seconds[span.name] = seconds.get(span.name, 0.0) + span.seconds
        return seconds


_active: contextvars.ContextVar[SpanRecorder | None] = contextvars.ContextVar("fx2onnx_recorder", default=None)


def active(context: contextvars.Context | None = None) -> SpanRecorder | None:
    """The recorder that is active in this thread and task, or in another one's ``context``; None where there is none."""
    return _active.get() if context is None else context.get(_active)


def details() -> SpanRecorder | None:
    """The active recorder where it wants details, else None."""
    recorder = _active.get()
    return recorder if recorder is not None and recorder.detailed else None


def active_as_now() -> Callable[[], object]:
    """A function that makes the current recorder, if any, active again."""
    return functools.partial(_active.set, _active.get())


@contextlib.contextmanager
def recording(name: str, *, detailed: bool = False, memory: MemoryReader | None = None) -> Iterator[SpanRecorder]:
    """Make a new recorder active for the block; it is closed afterwards, also after an error."""
    recorder = SpanRecorder(name, detailed=detailed, memory=memory)
    outer = _active.get()
    try:
        _active.set(recorder)
        yield recorder
    finally:
        _active.set(outer)
        recorder.close()


@contextlib.contextmanager
def record(name: str, **args: Any) -> Iterator[Span | None]:
    """A span of the active recorder, or nothing."""
    recorder = _active.get()
    if recorder is None:
        yield None
        return
    with recorder.span(name, **args) as span:
        yield span
