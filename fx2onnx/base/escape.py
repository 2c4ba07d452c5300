"""Text that came from a model or a file, made safe to show."""

from __future__ import annotations

import re

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
