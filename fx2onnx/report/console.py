"""The console of every table and line: names are shown as they are, whatever stands in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fx2onnx.base.plain import plain


class PlainConsole(Console):
    """A console without markup, emoji codes and highlighting in strings; control characters come out as escapes.

    What has a style is a ``Text``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))
