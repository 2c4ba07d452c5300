"""A light recorder of nested, timed spans.

``with record("lower"): ...`` costs about a microsecond; it does nothing where no recorder is active. One recorder is
active per thread and task (a context variable), so concurrent exports do not mix.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Span:
    """A named stretch of time. ``start_ns`` and ``end_ns`` are ``time.perf_counter_ns`` readings."""

    name: str
    start_ns: int
    end_ns: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    children: list[Span] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Recorder:
    """Holds the spans of one pipeline run."""

    def __init__(self, name: str) -> None:
        self.root = Span(name, time.perf_counter_ns())
        self._open = [self.root]

    @contextlib.contextmanager
    def span(self, name: str, **args: Any) -> Iterator[Span]:
        span = Span(name, time.perf_counter_ns(), args=args)
        self._open[-1].children.append(span)
        self._open.append(span)
        try:
            yield span
        finally:
            span.end_ns = time.perf_counter_ns()
            self._open.pop()

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


@contextlib.contextmanager
def recording(name: str) -> Iterator[Recorder]:
    """Make a new recorder active for the block; it is closed afterwards, also after an error."""
    recorder = Recorder(name)
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
