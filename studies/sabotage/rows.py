"""Rows of several runs in one file, and the page of them: whole, or a section of a later run of some architectures."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.sabotage.architectures import ARCHITECTURES

LATER = "## A later run"
Row = dict[str, Any]


def read_rows(path: Path, key: tuple[str, ...]) -> list[Row]:
    """The last row of each ``key`` in a file of JSON lines, in the order of the architectures."""
    order = [each.name for each in ARCHITECTURES]
    lines = path.read_text(encoding="utf-8").splitlines()
    found = {tuple(row[name] for name in key): row for row in (json.loads(line) for line in lines)}
    return sorted(found.values(), key=lambda row: order.index(row["model"]))


def write_later(page: Path, rows: Sequence[Row], text: str) -> None:
    """A section at the end of the page: a part of the architectures, where not all were measured. An earlier one stays if it
    has architectures that this one does not.
    """
    before, *sections = page.read_text(encoding="utf-8").split(LATER)
    names = list(dict.fromkeys(row["model"] for row in rows))
    told = (
        f"Run of {time.strftime('%Y-%m-%d')}, {len(names)} of the "
        f"{len(ARCHITECTURES)} architectures ({', '.join(names)}):"
    )
    kept = [f"{LATER}{section.rstrip()}\n\n" for section in sections if not _named(section) <= set(names)]
    heading = f"{LATER}: {', '.join(names)}" if kept else LATER
    page.write_text(f"{before.rstrip()}\n\n{''.join(kept)}{heading}\n\n{told}\n\n{text}\n", encoding="utf-8")


def _named(section: str) -> set[str]:
    found = re.search(r"architectures \((.*?)\):", section)
    return set(found[1].split(", ")) if found else set()
