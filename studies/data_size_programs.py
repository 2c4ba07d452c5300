"""Programs with data-dependent sizes beside eager PyTorch, in onnxruntime and in the runner.

``python -m studies.data_size_programs [--every N] [--only TEXT] [--jobs 2]`` exports each program of
``tests/capture/data_size_programs.py`` and runs its file on the example inputs and on all others that eager PyTorch takes.
It goes on where an earlier call stopped, and writes docs/measured/data_size_programs.md where that then covers no
fewer programs.
"""

from __future__ import annotations

import argparse
import collections
import json
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fx2onnx
from tests.capture.data_size_programs import PROGRAMS, Program
from tests.support import Engines, flat

PAGE = Path(__file__).parent.parent / "docs" / "measured" / "data_size_programs.md"
LIMIT_S = 60
OUTCOMES = {
    "right": "values, shapes and dtypes of eager PyTorch, in both engines",
    "wrong": "other values or shapes than eager PyTorch",
    "refuses inputs": "does not take inputs that eager PyTorch takes",
    "refused": "not exported, with an error that says why",
    "crash": "an internal error, or none of fx2onnx",
}

Row = dict[str, Any]


def examine(program: Program) -> Row:
    """The outcome of a program, and what shows it."""
    row: Row = {"name": program.name, "use": program.use, "way": program.way, "axes": program.axes}
    row["two"] = program.is_of_two
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    try:
        row |= _outcome(program)
    except Exception as error:  # whatever an export raises is the program's outcome
        row |= {"outcome": "crash", "why": f"{type(error).__name__}: {error}"[:400]}
    finally:
        signal.alarm(0)
    return row | {"s": round(time.perf_counter() - start, 3)}


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"longer than {LIMIT_S} s")


def _outcome(program: Program) -> Row:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        cases = [(sizes, tensors, want) for sizes, tensors, want in _eager(program)]
        try:
            result = fx2onnx.export(program.module, cases[0][1], dynamic_shapes=program.dynamic_shapes)
        except fx2onnx.UserError as error:
            return {"outcome": "refused", "code": error.code, "why": f"{error.what} | {error.why or ''}"[:400]}
        row: Row = {"assumptions": [str(each)[:160] for each in result.report.assumptions][:6]}
        engines = Engines(result.model_proto)
        differences = [found for sizes, tensors, want in cases for found in _differences(engines, sizes, tensors, want)]
    if not differences:
        return row | {"outcome": "right", "inputs": len(cases)}
    wrong = [each for each in differences if each["kind"] == "wrong"]
    return row | {"outcome": "wrong" if wrong else "refuses inputs", "differences": (wrong or differences)[:4]}


def _eager(program: Program) -> Iterator[tuple[Any, Any, list[np.ndarray]]]:
    """Inputs that eager PyTorch takes, with its results. The example inputs are among them."""
    for number, (sizes, tensors) in enumerate(program.inputs()):
        try:
            yield sizes, tensors, flat(program.module(*(each.clone() for each in tensors)))
        except (RuntimeError, ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError):
            if number == 0:
                raise


def _differences(engines: Engines, sizes: Any, tensors: Any, want: Sequence[np.ndarray]) -> Iterator[Row]:
    by_name = dict(zip(("x", "data"), tensors, strict=True))
    feeds = {name: by_name[name].numpy() for name in engines.names}
    for engine, session in engines.sessions.items():
        found: Row = {"engine": engine, "rows, batch, numbers": sizes}
        try:
            outputs = session.run(None, feeds)
        except Exception as error:  # an engine that refuses what eager PyTorch takes
            text = f"{type(error).__name__} {getattr(error, 'code', '')}: {error}"
            yield found | {"kind": "refuses", "why": " ".join(text.split())[:300]}
            continue
        why = _difference(outputs, want)
        if why:
            yield found | {"kind": "wrong", "why": why}


def _difference(outputs: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> str:
    if len(outputs) != len(want):
        return f"{len(outputs)} outputs, {len(want)} in eager PyTorch"
    for index, (got, expected) in enumerate(zip(outputs, want, strict=True)):
        if got.shape != expected.shape or got.dtype != expected.dtype:
            return f"output {index} is {got.dtype}{list(got.shape)}, {expected.dtype}{list(expected.shape)} in eager PyTorch"
        if not np.allclose(got, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
            return (
                f"output {index} {list(got.shape)} differs: {got.ravel()[:4]}, in eager PyTorch {expected.ravel()[:4]}"
            )
    return ""


def read_rows(path: Path) -> dict[str, Row]:
    """The last row of each program that still exists, by name."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {row["name"]: row for row in rows if row["name"] in PROGRAMS}


def sweep(names: Sequence[str], path: Path) -> None:
    """Examine programs by name, a line of JSON for each."""
    torch.set_num_threads(1)
    for name in names:
        row = examine(PROGRAMS[name])
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, default=str) + "\n")
        if row["outcome"] != "right":
            shown = row.get("why") or "; ".join(
                f"{each['rows, batch, numbers']} {each['why'][:120]}" for each in row["differences"][:1]
            )
            print(f"{row['outcome']:<14} {row.get('code', ''):<4} {name:<60} {shown[:200]}", flush=True)


def chosen(options: argparse.Namespace) -> list[str]:
    """The programs to try now."""
    known = {} if options.only else read_rows(options.file)
    names = [name for name in PROGRAMS if not options.only or options.only in name][:: options.every]
    again = {name for name, row in known.items() if options.again and row["outcome"] != "right"}
    return [name for name in names if name not in known or name in again]


def shares(rows: Sequence[Row]) -> list[str]:
    """Cells of a table: the number of programs, and of those of each outcome."""
    counts = collections.Counter(row["outcome"] for row in rows)
    return [str(len(rows)), *(str(counts[outcome]) for outcome in OUTCOMES)]


def page(rows: Sequence[Row]) -> str:
    """The page, from the rows of all programs."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "onnxruntime"))
    heads = ["programs", *OUTCOMES]
    lines = [
        "# Data-dependent sizes, by program",
        "",
        f"Generated by `make data-size-programs` ({versions}), from {len(rows)} of {len(PROGRAMS)} programs. Each gets a number from data in one of many ways "
        "(`int(lengths.max())`, `mask.sum().item()`, `x[mask].shape[0]`, ...) and uses it where PyTorch takes a size or an "
        "index; some get two numbers. `x` has no, one or two dynamic axes. Each file runs in onnxruntime and in the runner on "
        "the example inputs and on others that eager PyTorch takes: other numbers, among them the largest and smallest, "
        "and other sizes of the dynamic axes.",
        "",
        *(f"- **{outcome}**: {meaning}." for outcome, meaning in OUTCOMES.items()),
    ]
    for title, of in (
        ("By dynamic axes", lambda row: ("two numbers" if row["two"] else "one number") + f", {row['axes'] or 'none'}"),
        ("By the way to the number", lambda row: f"{'two numbers: ' if row['two'] else ''}{row['way']}"),
    ):
        lines += ["", f"## {title}", "", f"| | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
        for key in dict.fromkeys(map(of, rows)):
            lines.append(f"| {key} | {' | '.join(shares([row for row in rows if of(row) == key]))} |")
        lines.append(f"| all | {' | '.join(shares(rows))} |")
    lines += ["", "## What is not right", "", "| use | outcome | programs | |", "|---|---|---:|---|"]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["outcome"] != "right":
            groups.setdefault((("two: " if row["two"] else "") + row["use"], row["outcome"]), []).append(row)
    for (use, outcome), found in groups.items():
        first = found[0]
        shown = (
            f"{first['code']}: {first['why']}"
            if "code" in first
            else first.get("why") or first["differences"][0]["why"]
        )
        lines.append(f"| `{use}` | {outcome} | {len(found)} | {shown[:200].replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def tried_on_page() -> int:
    """The number of programs on the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    return max((int(line.split("|")[2]) for line in lines if line.startswith("| all |")), default=0)


def _parts(names: Sequence[str], options: argparse.Namespace) -> None:
    """Several processes, each of which takes every so many-th program."""
    listed = options.file.with_suffix(".names.json")
    listed.write_text(json.dumps(list(names)), encoding="utf-8")
    command = [
        sys.executable, "-m", "studies.data_size_programs", "--file", str(options.file), "--names", str(listed),
    ]  # fmt: skip
    parts = [subprocess.Popen([*command, "--part", f"{part}/{options.jobs}"]) for part in range(options.jobs)]
    for process in parts:
        process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every so many-th program")
    parser.add_argument("--only", default="", help="only programs whose name has this text, tried anew")
    parser.add_argument("--again", action="store_true", help="try anew what was not right")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--file", type=Path, default=Path("/tmp/data_size_programs.jsonl"))
    parser.add_argument("--names", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.names:
        part, count = map(int, options.part.split("/"))
        sweep(json.loads(options.names.read_text(encoding="utf-8"))[part::count], options.file)
        return 0
    _parts(chosen(options), options)
    rows: Mapping[str, Row] = read_rows(options.file)
    print(" ".join(map(" ".join, zip(["programs", *OUTCOMES], shares(list(rows.values())), strict=True))))
    if len(rows) < tried_on_page():
        print(f"{PAGE} is left as it is: it covers {tried_on_page()} programs, {options.file} {len(rows)}")
    else:
        PAGE.write_text(page([rows[name] for name in PROGRAMS if name in rows]), encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
