"""A light recorder of nested, timed spans.

``with record("lower"): ...`` costs about a microsecond; it does nothing where no recorder is active. One recorder is
active per thread and task (a context variable), so concurrent exports do not mix. Phases are always recorded; what
happens a thousand times (operators, shapes, rewrites) only where the recorder was asked for details: a hot loop takes
``details()`` once and calls ``begin``, ``end`` and ``add`` on it: some 0.2 microseconds each.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator
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


class Recorder:
    """Holds the spans of one pipeline run. ``memory`` is read at the ends of phases, and between while details come in.

    Details go to a flat log, from which ``tree`` makes spans when somebody looks.
    """

    def __init__(self, name: str, *, detailed: bool = False, memory: MemoryReader | None = None) -> None:
        self.detailed = detailed
        self.memory = memory
        if memory is not None:
            memory.read()
        self.root = Span(name, time.perf_counter_ns())
        self._open = [self.root]
        self._phases: list[Span] = []
        self._log: list[Any] = []
        """Begin: a phase's Span or (name, ns, module path). End: (ns, where). A stretch: (name, start ns, end ns, None)."""
        self._is_tree = False

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
        self._log.append(span)
        try:
            yield span
        finally:
            span.end_ns = time.perf_counter_ns()
            self._log.append((span.end_ns, None))
            del self._open[depth:]
            if self.memory is not None:
                self.memory.read()

    def begin(self, name: object, module_path: str = "") -> None:
        """Begin a detail; ``end`` must follow, also after an error. ``str(name)`` is taken when somebody looks."""
        at_ns = time.perf_counter_ns()
        self._log.append((name, at_ns, module_path))
        if self.memory is not None and at_ns > self.memory.next_ns:
            self.memory.read()

    def end(self, where: object = None) -> None:
        """End the detail begun last. ``where``: the user's source line."""
        self._log.append((time.perf_counter_ns(), where))

    def add(self, name: str, start_ns: int) -> None:
        """A stretch that ends now and holds nothing; those of one name and parent become one span."""
        self._log.append((name, start_ns, time.perf_counter_ns(), 1))

    def add_sum(self, name: str, spent_ns: int, count: int) -> None:
        """``count`` stretches that took ``spent_ns`` together."""
        self._log.append((name, 0, spent_ns, count))

    def close(self) -> Span:
        if not self.root.end_ns:
            self.root.end_ns = time.perf_counter_ns()
            if self.memory is not None:
                self.memory.read()
        return self.root

    def tree(self) -> Span:
        """The root with all spans below it. The recorder must be closed."""
        if not self._is_tree:
            self._is_tree = True
            _grow(self.root, self._log)
        return self.root

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


def _grow(root: Span, log: list[Any]) -> None:
    """Hang the log's entries below ``root``."""
    stack = [root]
    stretches: dict[tuple[int, str], Span] = {}
    for entry in log:
        parent = stack[-1]
        if isinstance(entry, Span):
            parent.children.append(entry)
            stack.append(entry)
        elif len(entry) == 2:
            stack.pop()
            parent.end_ns, where = entry
            if where is not None:
                parent.args["where"] = str(where)
        elif len(entry) == 3:
            name, start_ns, module_path = entry
            span = Span(str(name), start_ns, args={"module": module_path} if module_path else {})
            parent.children.append(span)
            stack.append(span)
        else:
            name, start_ns, end_ns, count = entry
            found = stretches.get((id(parent), name))
            if found is None:
                found = stretches[id(parent), name] = Span(name, parent.start_ns, parent.start_ns)
                parent.children.append(found)
            found.end_ns += end_ns - start_ns
            found.stretches += count


_active: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("fx2onnx_recorder", default=None)


def active(context: contextvars.Context | None = None) -> Recorder | None:
    """The recorder that is active in this thread and task, or in another one's ``context``; None where there is none."""
    return _active.get() if context is None else context.get(_active)


def details() -> Recorder | None:
    """The active recorder where it wants details, else None."""
    recorder = _active.get()
    return recorder if recorder is not None and recorder.detailed else None


@contextlib.contextmanager
def recording(name: str, *, detailed: bool = False, memory: MemoryReader | None = None) -> Iterator[Recorder]:
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
