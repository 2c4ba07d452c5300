"""The console and the form of every table and line: names are shown as they are, whatever stands in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from fx2onnx.base.escape import plain


class PlainConsole(Console):
    """A console without markup, emoji codes and highlighting in strings; control characters come out as escapes.

    What has a style is a ``Text``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


def headed_table(*columns: str) -> Table:
    """A table with these headings; ``>`` before one puts the column to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def unheaded_table(columns: int) -> Table:
    """A table without headings or lines."""
    table = Table.grid(padding=(0, 2))
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table
