"""The output of commands: a console, lines and cells, and a live display of their stages on stderr."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

from fx2onnx.base import events
from fx2onnx.base.escape import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


Result = TypeVar("Result")
_PLAIN_WIDTH = 10_000  # columns of tables that go to a file or a pipe: no line is broken


def is_terminal(stream: IO[str]) -> bool:
    """Return whether somebody looks at the stream as it is written."""
    return stream.isatty()


def console(*, stderr: bool = False) -> Console:
    """A console that breaks no line where there is no terminal."""
    from fx2onnx.report.console import PlainConsole

    stream = sys.stderr if stderr else sys.stdout
    return PlainConsole(stderr=stderr, width=None if is_terminal(stream) else _PLAIN_WIDTH)


def working(title: str) -> contextlib.AbstractContextManager[Any]:
    """Show on a terminal's stderr that a command of one stage is at work."""
    return console(stderr=True).status(title) if is_terminal(sys.stderr) else contextlib.nullcontext()


class Stages:
    """Shows the stages of a command while they run. Use as a context manager."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live = is_terminal(sys.stderr) and not quiet
        self._done: list[tuple[str, float]] = []
        self._current: tuple[str, float] | None = None
        self._context: contextvars.Context | None = None
        self._note = ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Stages:
        if self._live:
            from rich.live import Live

            self._stack.enter_context(
                Live(console=console(stderr=True), get_renderable=self._render, refresh_per_second=10, transient=False)
            )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._current = None
        self._stack.close()

    @contextlib.contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """One stage; its seconds stay on the display afterwards. A stage that fails leaves no line."""
        start = time.perf_counter()
        self._current = (title, start)
        try:
            yield
        finally:
            self._current = None
            self._note = ""
        seconds = time.perf_counter() - start
        self._done.append((title, seconds))
        if not self._live and not self._quiet:
            print(plain(f"{title:<44} {seconds:7.2f} s"), file=sys.stderr, flush=True)

    def call(self, title: str, function: Callable[[], Result]) -> Result:
        """``function()`` as a stage, showing the phase that its event recorder is in.

        The function runs in a copy of the current context, where the display's thread can look up the recorder.
        """
        context = contextvars.copy_context()
        self._context = context
        try:
            with self.stage(title):
                return context.run(function)
        finally:
            self._context = None

    def say(self, note: str) -> None:
        """Show a note on the running stage in the live display."""
        self._note = note

    def _phase(self) -> str:
        if self._note:
            return self._note
        context = self._context
        recorder = events.active(context) if context is not None else None
        if recorder is None:
            return ""
        return " > ".join(span.name for span in recorder.open_spans[1:3])

    def _render(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        for title, seconds in self._done:
            grid.add_row(Text("✓", "green"), Text(title), f"{seconds:6.2f} s", "")
        if self._current is not None:
            title, start = self._current
            spent = f"{time.perf_counter() - start:6.2f} s"
            grid.add_row(Spinner("dots"), Text(title), spent, Text(self._phase(), "dim"))
        return grid


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; ``>`` before a heading puts the column to the right. Into a pipe it goes without rich, whose import takes
    a fifth of the time of a short command.
    """
    if is_terminal(sys.stdout):
        from fx2onnx.report.console import headed_table

        table = headed_table(*headings)
        for row in rows:
            table.add_row(*map(cell, row))
        console().print(table)
        return
    lines = [[plain(text) for text in row] for row in ([heading.removeprefix(">") for heading in headings], *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    encoding = sys.stdout.encoding or "utf-8"
    rule = "─" if encoding.lower().startswith("utf") else "-"
    lines.insert(1, [rule * width for width in widths])
    signs = [">" if heading.startswith(">") else "<" for heading in headings]
    for texts in lines:
        cells = [f"{text:{sign}{width}}" for text, sign, width in zip(texts, signs, widths, strict=True)]
        print(f" {'   '.join(cells)}".rstrip().encode(encoding, "backslashreplace").decode(encoding))


def line(label: str, *parts: str) -> None:
    """A label and what it says, two blanks apart."""
    from rich.text import Text

    text = Text(f"{label:<10} ", style="dim").append("  ".join(filter(None, parts)), style="not dim")
    console().print(text)


def cell(text: str) -> Text:
    """Escapes are written out here, before the table measures its columns."""
    from rich.text import Text

    return Text(plain(text))


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """``[batch, 3, ?]``; of a value without a known rank ``[...]``."""
    return "[...]" if shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"
