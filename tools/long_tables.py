"""Tables too long to read on a page, as CSV files beside it: ``python -m tools.long_tables docs/measured/coverage.md``.

What writes a measured page calls :func:`write_page`, so that a page stays within the length that ``make lint`` allows, and rows
can be sorted and searched.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

LONG_TABLE = 600
"""Words of a table above which it goes to a file of its own."""
_TABLE = re.compile(r"^(\|.*\n)\|[-:| ]+\|\n((?:\|.*\n)+)", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


def write_page(page: Path, text: str) -> None:
    """Write a page; each of its long tables goes to ``PAGE_SECTION_COLUMN.csv``, and a link takes its place."""
    for old in page.parent.glob(f"{page.stem}_*.csv"):
        old.unlink()
    page.write_text(_TABLE.sub(lambda found: _apart(page, text[: found.start()], found), text), encoding="utf-8")
    print(f"wrote {page}")


def _apart(page: Path, before: str, table: re.Match[str]) -> str:
    if len(table[0].split()) <= LONG_TABLE:
        return table[0]
    rows = [_cells(line) for line in (table[1] + table[2]).splitlines()]
    words = [heading.partition(" ")[0] for heading in _SECTION.findall(before)[-1:]] + rows[0][0].split()
    file = page.with_name("_".join([page.stem, *(re.sub(r"\W", "", word).lower() for word in words)]) + ".csv")
    if file.exists():
        raise ValueError(f"{page} has two long tables of one section and first column: both would be {file.name}")
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)
    return f"All {len(rows) - 1} rows, with {', '.join(rows[0])}: [{file.name}]({file.name}).\n"


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_page(Path(name), Path(name).read_text(encoding="utf-8"))
