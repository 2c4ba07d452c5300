"""Lines and cells of what commands show of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fx2onnx.base.escape import plain

if TYPE_CHECKING:
    from rich.text import Text


def line(label: str, *parts: str) -> None:
    """A label and what it says, two blanks apart."""
    from rich.text import Text

    from fx2onnx.cli.progress import console

    text = Text(f"{label:<10} ", style="dim").append("  ".join(filter(None, parts)), style="not dim")
    console().print(text)


def cell(text: str) -> Text:
    """Escapes are written out here, before the table measures its columns."""
    from rich.text import Text

    return Text(plain(text))


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """``[batch, 3, ?]``; of a value without a known rank ``[...]``."""
    return "[...]" if shape is None else f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"
