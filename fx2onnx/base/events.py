"""A light recorder of nested, timed spans.

``with record("lower"): ...`` costs about a microsecond; it does nothing where no recorder is active. One recorder is
active per thread and task (a context variable), so concurrent exports do not mix. Phases are always recorded; what
happens a thousand times (operators, shapes, rewrites) only where the recorder was asked for details: a hot loop takes
``details()`` once and calls ``begin``, ``end`` and ``add`` on it.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fx2onnx.base.memory import MemorySampler


@dataclass(slots=True)
class Span:
    """A named stretch of time. ``start_ns`` and ``end_ns`` are ``time.perf_counter_ns`` readings.

    ``count`` above 1: the sum of so many short stretches within the parent, put at the parent's start.
    """

    name: str
    start_ns: int
    end_ns: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    children: list[Span] = field(default_factory=list)
    count: int = 1

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Recorder:
    """Holds the spans of one pipeline run. With ``memory``, its sampler also reads the memory at every phase's ends."""

    def __init__(self, name: str, *, detailed: bool = False, memory: MemorySampler | None = None) -> None:
        self.detailed = detailed
        self.memory = memory
        self.root = Span(name, time.perf_counter_ns())
        self._open = [self.root]

    @contextlib.contextmanager
    def span(self, name: str, **args: Any) -> Iterator[Span]:
        if self.memory is not None:
            self.memory.read()
        span = self.begin(name, args)
        try:
            yield span
        finally:
            self.end(span)
            if self.memory is not None:
                self.memory.read()

    def begin(self, name: str, args: dict[str, Any]) -> Span:
        """Open a span; ``end`` closes it. For hot loops: everything else uses ``span``."""
        span = Span(name, time.perf_counter_ns(), 0, args)
        self._open[-1].children.append(span)
        self._open.append(span)
        return span

    def end(self, span: Span) -> None:
        """Close ``span`` and whatever was left open inside it by an exception."""
        span.end_ns = time.perf_counter_ns()
        while self._open.pop() is not span:
            pass

    def add(self, name: str, start_ns: int) -> None:
        """Add the time since ``start_ns`` to the open span's child ``name``, one for all its stretches."""
        duration_ns = time.perf_counter_ns() - start_ns
        parent = self._open[-1]
        for child in parent.children:
            if child.name == name:
                child.end_ns += duration_ns
                child.count += 1
                return
        parent.children.append(Span(name, parent.start_ns, parent.start_ns + duration_ns))

    def close(self) -> Span:
        self.root.end_ns = time.perf_counter_ns()
        return self.root

    @property
    def open_spans(self) -> tuple[Span, ...]:
        """The spans that are running now, outermost first."""
        return tuple(self._open)

    def phases(self) -> dict[str, float]:
        """Seconds of each top-level phase, in order; phases of one name are added up."""
        seconds: dict[str, float] = {}
        for span in self.root.children:
            seconds[span.name] = seconds.get(span.name, 0.0) + span.seconds
        return seconds


_active: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("fx2onnx_recorder", default=None)


def active(context: contextvars.Context | None = None) -> Recorder | None:
    """The recorder that is active in this thread and task, or in another one's ``context``; None where there is none."""
    return _active.get() if context is None else context.get(_active)


def details() -> Recorder | None:
    """The active recorder where it wants details, else None."""
    recorder = _active.get()
    return recorder if recorder is not None and recorder.detailed else None


@contextlib.contextmanager
def recording(name: str, *, detailed: bool = False, memory: MemorySampler | None = None) -> Iterator[Recorder]:
    """Make a new recorder active for the block; it is closed afterwards, also after an error."""
    recorder = Recorder(name, detailed=detailed, memory=memory)
    token = _active.set(recorder)
    try:
        yield recorder
    finally:
        _active.reset(token)
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
