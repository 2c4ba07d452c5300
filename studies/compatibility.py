"""The core tests in environments of many versions.

``python -m studies.compatibility [--only NAME ...] [--folder DIR] [--whole] [--keep]`` makes each environment of
``environments.py`` in turn, runs the tests marked ``core`` there (with ``--whole`` all of the default suite), removes it, and
writes docs/measured/compatibility.md. It goes on where an earlier call stopped; a row that is named is made anew. Rows that were never made
here stay as the page has them, with the day and the commit that they were made with.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fx2onnx.files.staging import write_text
from studies.environments import ENVIRONMENTS, ROOT, Environment, Unavailable, make, make_whole
from tests.conftest import CORE, WITHOUT_TORCH, is_core

PAGE = ROOT / "docs" / "measured" / "compatibility.md"
SHOWN = (
    "torch", "torchvision", "timm", "transformers", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "numpy",
    "ml_dtypes",
)  # fmt: skip
SHOWN_OF_WHOLE = ("torch", "transformers", "onnx", "onnxruntime")
COUNTED = ("passed", "failed", "left out", "date", "commit")
WHOLE = "## The default suite"
LIMIT_S = 5400.0
_NAMES = [environment.name for environment in ENVIRONMENTS]
Row = dict[str, Any]
_VERSIONS = """
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for name in NAMES:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def examine(environment: Environment, folder: Path, *, whole: bool = False) -> list[Row]:
    """The row of an environment, which is made in ``folder``: of its core tests; with ``whole``, also that of the default
    suite, of which they are a part.
    """
    row: Row = {"name": environment.name, "wanted_python": environment.python}
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            python = make(environment, folder)
        if whole:
            make_whole(python)
    except Unavailable as missing:
        return [row | {"missing": str(missing)}]
    asked = _VERSIONS.replace("NAMES", repr(SHOWN))
    row["versions"] = json.loads(
        subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout
    )
    row["date"] = datetime.date.today().isoformat()
    row["commit"] = _commit()
    results = folder / "results.xml"
    files = [] if whole else sorted(CORE if environment.has_torch else WITHOUT_TORCH)
    begin = time.monotonic()
    said = _test(python, results, ["-m", "not slow" if whole else "core and not slow", *files])
    row["seconds"] = round(time.monotonic() - begin)
    if not results.exists():
        return [row | {"missing": f"pytest did not run: {said[-300:]}"}]
    rows = [row | read_results(results, is_core)]
    return [*rows, row | {"whole": True} | read_results(results)] if whole else rows


def _commit() -> str:
    """The commit that is tested, "-dirty" where more than the page itself differs from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    others = git("status", "--porcelain", "--", ".", f":(exclude){PAGE.relative_to(ROOT)}")
    return git("describe", "--always") + ("-dirty" if others else "")


def _test(python: Path, results: Path, asked: list[str]) -> str:
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={results}", *asked]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return (done.stdout + done.stderr).strip()


def read_results(results: Path, is_counted: Callable[[str], bool] = lambda node: True) -> Row:
    """Counts, each failure with its first line, and how often tests were left out for which reason."""
    counts: Counter[str] = Counter()
    failures: list[list[str]] = []
    reasons: Counter[str] = Counter()
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if not is_counted(_node(name)):
            continue
        kinds = {child.tag: child.get("message", "") for child in case}
        status = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        counts[status] += 1
        if status in ("error", "failure"):
            failures.append([name, kinds[status].splitlines()[0][:300] if kinds[status] else status])
        elif status == "skipped":
            reasons[kinds[status]] += 1
    failed = counts["failure"] + counts["error"]
    return {"passed": counts["passed"], "failed": failed, "failures": failures, "left_out": dict(reasons)}


def _node(name: str) -> str:
    """``tests.test_a.TestB::test_c`` as pytest names it: ``tests/test_a.py::TestB::test_c``."""
    module, _, test = name.partition("::")
    parts = module.split(".")
    of_file = next((n for n in range(1, len(parts)) if parts[n].startswith("test_")), len(parts) - 1) + 1
    return "::".join(["/".join(parts[:of_file]) + ".py", *parts[of_file:], test])


def page(rows: Iterable[Row], before: str = "") -> str:
    """docs/measured/compatibility.md. What is in no row is as ``before``, a page, has it."""
    kept_core, _, kept_whole = before.partition(WHOLE)
    core = {row["name"]: row for row in rows if not row.get("whole")}
    whole = {row["name"]: row for row in rows if row.get("whole")}
    lines = [
        "# Compatibility",
        "",
        "Generated by `make matrix`: for each row an environment is made, and the tests marked `core` (capture, table, zoo, "
        "runner, verify) run there on the CPU. Builds of torch for CUDA run without CUDA's libraries and without a GPU. What a "
        "version of torch does otherwise is found out by looking for it, not by its number, so other versions may work, too; "
        "where one lacks what the exporter needs, error E602 says what. "
        "A row whose interpreter the machine lacks says so; that of Python 3.14 was made in a folder of Debian "
        "testing (`debootstrap`, `chroot`). Each row has the day and the commit that it was tested at; before 26 November 2026, "
        "the commit that brought it to this page.",
        "",
        *_table(core, kept_core, SHOWN),
    ]
    waiting = [
        name for name in _NAMES if name not in core and not re.search(rf"^\| {name} \|", kept_core, re.MULTILINE)
    ]
    lines += ["", f"Not made yet: {', '.join(waiting)}."] if waiting else []
    lines += _notes(core, kept_core, "##")
    if whole or kept_whole:
        lines += [
            "",
            WHOLE,
            "",
            "All tests but those marked `slow`, by "
            "`python -m studies.compatibility --whole --only NAME`. The versions of constraints.txt are those that each "
            "change is tested with.",
            "",
            *_table(whole, kept_whole, SHOWN_OF_WHOLE),
            *_notes(whole, kept_whole, "###"),
        ]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Mapping[str, Row], before: str, shown: Sequence[str]) -> Iterable[str]:
    kept = {match[1]: match[0] for match in re.finditer(r"^\| ([\w.-]+) \|.*$", before, re.MULTILINE)}
    columns = ["environment", "Python", *shown, *COUNTED]
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for name in _NAMES:
        if name in rows:
            yield _line(rows[name], shown)
        elif name in kept:
            yield kept[name]


def _notes(rows: Mapping[str, Row], before: str, mark: str) -> Iterable[str]:
    kept = {match[1]: match[0] for match in re.finditer(rf"^{mark} (.+)\n\n(?:- .*\n?)+", before, re.MULTILINE)}
    for name in _NAMES:
        if name in rows:
            yield from _details(rows[name], mark)
        elif name in kept:
            yield from ("", *kept[name].splitlines())


def _line(row: Row, shown: Sequence[str]) -> str:
    versions = row.get("versions", {})
    left_out = sum(row.get("left_out", {}).values()) if "passed" in row else ""
    cells = [row["name"], versions.get("python", row["wanted_python"]), *(versions.get(name, "") for name in shown)]
    cells += [row.get("passed", ""), row.get("failed", ""), left_out, row.get("date", ""), row.get("commit", "")]
    return f"| {' | '.join(map(str, cells))} |"


def _details(row: Row, mark: str) -> Iterable[str]:
    """The packages, failures and left-out tests of an environment, as lines of the page."""
    notes = [f"- not to be had here: {row['missing']}"] if "missing" in row else []
    notes += [f"- `{name}`: {_plain(message)}" for name, message in row.get("failures", ())]
    notes += [f"- left out, {count} times: {_plain(why)}" for why, count in row.get("left_out", {}).items()]
    return ["", f"{mark} {row['name']}", "", *notes] if notes else []


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="make these rows anew, and no others")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "matrix", help="where environments and rows are")
    parser.add_argument("--whole", action="store_true", help="run all of the default suite there")
    parser.add_argument("--keep", action="store_true", help="do not remove the environments")
    options = parser.parse_args()
    kept = options.folder / "made.json"
    rows: list[Row] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else []
    for environment in ENVIRONMENTS:
        known = any(row["name"] == environment.name for row in rows)
        if environment.name in options.only if options.only else not known:
            place = (options.folder / environment.name).absolute()
            place.parent.mkdir(parents=True, exist_ok=True)
            for made in examine(environment, place, whole=options.whole):
                rows = [row for row in rows if _key(row) != _key(made)] + [made]
                print({key: value for key, value in made.items() if key not in ("failures", "left_out")}, flush=True)
            write_text(kept, json.dumps(rows, indent=1))
            if not options.keep:
                shutil.rmtree(place, ignore_errors=True)
    write_text(PAGE, page(rows, PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""))


def _key(row: Row) -> tuple[str, bool]:
    return row["name"], row.get("whole", False)


if __name__ == "__main__":
    main()
