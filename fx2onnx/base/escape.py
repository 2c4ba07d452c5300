"""Text that came from a model or a file, made safe to show, and objects as short text and as a table."""

from __future__ import annotations

import re
from typing import Any

_ORDERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Characters that a terminal obeys and nobody sees: control characters (line feed and tab stay), ends of lines and paragraphs, marks
that turn the direction of text, characters without width; and halves of characters, which no file takes."""


def plain(text: str) -> str:
    r"""``text`` with every character that is an order rather than a letter written as its escape, such as ``\x1b``."""
    return _ORDERS.sub(lambda match: ascii(match[0])[1:-1], text)


_HALVES = re.compile(r"[\ud800-\udfff]")


def storable(text: str) -> str:
    r"""``text`` as UTF-8 can hold it: halves of characters, as Python makes of bytes that are no text, are escapes such as ``\ud800``."""
    return text if text.isascii() else _HALVES.sub(lambda match: ascii(match[0])[1:-1], text)


class Shown:
    """Base of results that have a ``repr`` of a line, and a table in notebooks."""

    __slots__ = ()
    MOST_SHOWN = 100
    """Characters of one entry in the ``repr``."""

    def _shown(self) -> dict[str, Any]:
        """The entries to show, by label; empty ones are left out."""
        raise NotImplementedError

    def _entries(self) -> dict[str, str]:
        return {label: plain(str(value)) for label, value in self._shown().items() if value not in (None, "", [], {})}

    def __repr__(self) -> str:
        entries = {label: " ".join(text.split()) for label, text in self._entries().items()}
        parts = [f"{label} {_shortened(text, self.MOST_SHOWN)}" for label, text in entries.items()]
        return f"<fx2onnx.{type(self).__name__} {_shortened(', '.join(parts), 400)}>"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        from html import escape

        rows = "".join(
            f'<tr><th style="text-align:left">{escape(label)}</th><td style="text-align:left;white-space:pre-line">{escape(_shortened(text, 2000))}</td></tr>'
            for label, text in self._entries().items()
        )
        return f"<table><caption>fx2onnx.{type(self).__name__}</caption>{rows}</table>"


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def human_size(size_bytes: int) -> str:
    """``size_bytes`` with a unit: 1.2 kB, 97.8 MB."""
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
