"""Coverage of three libraries: every torchvision entry, timm family and transformers type is exported and compared in
both engines.

``python -m studies.coverage [--source torchvision|timm|hf] [--limit N] [--full] [--dynamic]`` goes on where an
earlier call stopped (``--again failing|all`` measures anew) and writes docs/measured/coverage.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from studies import coverage_report
from studies.coverage_models import SOURCES, all_names
from studies.coverage_worker import Row, examine_all
from tools import long_tables

PAGE = Path(__file__).parent.parent / "docs" / "measured" / "coverage.md"
PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnxruntime")
LIMIT_S = {"torchvision": 600.0, "timm": 300.0, "hf": 300.0}


def read_rows(path: Path) -> dict[str, Row]:
    """The last row of each model by name; a line that a killed sweep left half-written is skipped.

    A worker that was stopped says nothing of the model, so such a row does not replace one that got further.
    """
    rows: dict[str, Row] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            was_stopped = row.get("error", {}).get("code") == "process"
            if not (was_stopped and rows.get(row["name"], {}).get("passed")):
                rows[row["name"]] = row
    return rows


def rows_path(folder: Path, source: str, dynamic: bool) -> Path:
    return folder / f"coverage_{source}{'_dynamic' if dynamic else ''}.jsonl"


def to_do(names: Sequence[str], done: dict[str, Row], again: str, limit: int | None) -> list[str]:
    """The names still to examine."""
    kept = {
        name
        for name, row in done.items()
        if again == "no" or (again == "failing" and row["passed"] == "match" and "errors" in row)
    }
    missing = [name for name in names if name not in kept]
    return missing if limit is None else missing[:limit]


def sweep(source: str, options: argparse.Namespace) -> None:
    path = rows_path(options.folder, source, options.dynamic)
    names = options.models.split(",") if options.models else all_names(source, options.full)
    again = "all" if options.models else options.again
    tasks = [(source, name) for name in to_do(names, read_rows(path), again, options.limit)]
    print(f"{source}: {len(names)} models, {len(tasks)} to examine", flush=True)
    cut_off = path.exists() and not path.read_bytes().endswith(b"\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" if cut_off else "")
        for row in examine_all(tasks, options.dynamic, options.timeout or LIMIT_S[source], options.jobs):
            file.write(json.dumps(row) + "\n")
            file.flush()
            error = row.get("error")
            problem = f"   {error['stage']} {error['code']} {error['what'][:110]}" if error else ""
            print(f"{row['name']:<36} {row['passed'] or '-':<8} {row['total_s']:>6.1f} s{problem}", flush=True)


def write_page(folder: Path, full: bool) -> None:
    rows: list[Row] = []
    planned: dict[str, int] = {}
    for source in SOURCES:
        names = set(all_names(source, full))
        planned[source] = len(names)
        for dynamic in (False, True):
            rows += [row for name, row in read_rows(rows_path(folder, source, dynamic)).items() if name in names]
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    long_tables.write_page(PAGE, coverage_report.text(rows, planned, versions))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=SOURCES, action="append", help="default: all of them")
    parser.add_argument("--limit", type=int, help="examine at most so many models of each source")
    parser.add_argument("--full", action="store_true", help="every timm architecture instead of one a family")
    parser.add_argument("--dynamic", action="store_true", help="with the dynamic sizes that the source proposes")
    parser.add_argument("--again", choices=("no", "failing", "all"), default="no", help="what to measure anew")
    parser.add_argument("--models", help="only these names, measured anew")
    parser.add_argument("--timeout", type=float, help="seconds a model may take")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"), help="of the coverage_*.jsonl files")
    parser.add_argument("--no-page", action="store_true", help="only measure")
    parser.add_argument("--page-only", action="store_true", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    if not options.page_only:
        for source in options.source or SOURCES:
            sweep(source, options)
    if not options.no_page:
        write_page(options.folder, options.full)
    return 0


if __name__ == "__main__":
    sys.exit(main())
