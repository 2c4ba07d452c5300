"""Several exports: expand patterns, skip what is done, run in processes, sum up."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import human_size, plain
from fx2onnx.base.source import SourceLocation
from fx2onnx.base.typed_json import Misfit, Open, built
from fx2onnx.cli.files import check_apart, write_report
from fx2onnx.cli.job import Job
from fx2onnx.cli.made_from import is_current
from fx2onnx.cli.old_spellings import PATTERN
from fx2onnx.cli.outcome import first_lines, json_text, print_json, show_error
from fx2onnx.cli.progress import console
from fx2onnx.files.digest import digest_of
from fx2onnx.files.staging import sweep
from fx2onnx.irx.model_files import digest_of_model
from fx2onnx.report.console import headed_table
from fx2onnx.report.text import of_allowed

Row: TypeAlias = dict[str, Any]

RESULTS = "exports.jsonl"
"""The file beside the models with one line for each finished export, from which an interrupted run goes on."""


def expand(sources: Sequence[str]) -> list[str]:
    """Every model once, in order; patterns replaced by the names that they fit.

    Raises:   UserError E601 for a pattern that fits none.
    """
    result: list[str] = []
    for source in sources:
        match = re.fullmatch(PATTERN, source)
        if match is None:
            result.append(source)
            continue
        from fx2onnx import sources as kinds
        from fx2onnx.sources.registry import fail_unknown, kind_of, prefixes

        kind = match["kind"]
        if kind_of(kind) is None:
            listed = f"patterns are for kinds with a list; name functions of a module: {kind}:FIRST {kind}:SECOND"
            fail_unknown("source kind", kind, prefixes(), hint=listed)
        known = kinds.names(kind)
        fitting = fnmatch.filter(known, match["name"])
        if not fitting:
            fail_unknown(f"{kind} model", match["name"], known, hint=f"fx2onnx list {kind}")
        result += [f"{kind}:{name}{match['query'] or ''}" for name in fitting]
    return list(dict.fromkeys(result))


def plan(template: Job, sources: Sequence[str], folder: Path) -> list[Job]:
    """One job a source, each with a file of its own in ``folder``, whatever other runs put there."""
    owners = _owners(folder)
    jobs = []
    for source in sources:
        name = next(name for name in _names(source) if owners.get(name, source) == source)
        owners[name] = source
        jobs.append(replace(template, source=source, output=str(folder / f"{name}.onnx")))
    return jobs


def _owners(folder: Path) -> dict[str, str]:
    """The source of each file that earlier runs made, by its stem; nothing where that cannot be read."""
    with contextlib.suppress(UserError):
        return {Path(row["job"]["output"]).stem: row["source"] for row in finished(folder)}
    return {}


_LONGEST_STEM = 150
_SAME_AS_FILE = re.compile(r"[A-Za-z0-9]\w*:[A-Za-z0-9][\w.-]*", re.ASCII)


def _names(source: str) -> Iterator[str]:
    """File names for a source, the best one first: with a digest of it where characters were lost."""
    stem = re.sub(r"[^A-Za-z0-9.]+", "_", source).strip("_.")[:_LONGEST_STEM] or "model"
    if _SAME_AS_FILE.fullmatch(source):
        yield stem
    for digits in range(8, 33):
        yield f"{stem}-{digest_of(source.encode())[:digits]}"


def finished(folder: Path) -> list[Row]:
    """The rows of earlier runs, oldest first; a line that a killed run left half-written is skipped."""
    rows: list[Row] = []
    try:
        lines = (folder / RESULTS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return rows
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("E302", f"cannot read '{folder / RESULTS}'", why=str(error), next="use --again") from error
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if _is_row(row):
            rows.append(row)
    return rows


@dataclass
class _JobOfRow(Open):
    output: str


@dataclass
class _ReportOfRow(Open):
    nodes_onnx: int
    file_bytes: int
    seconds: float
    warnings: list[str] = field(default_factory=list)


@dataclass
class _LineOfRow(Open):
    max_abs_error: float


@dataclass
class _VerdictOfRow(Open):
    rows: list[_LineOfRow]


@dataclass
class _StatedRow(Open):
    """The required keys of a line of ``exports.jsonl``, so that it can be shown and gone on from."""

    source: str
    ok: bool
    exit_code: int
    seconds: float
    job: _JobOfRow
    report: _ReportOfRow | None = None
    verify: _VerdictOfRow | None = None


def _is_row(row: Any) -> bool:
    try:
        stated = built(_StatedRow, row)
    except Misfit:
        return False
    return not stated.ok or stated.report is not None


def done_before(job: Job, rows: Sequence[Row]) -> Row | None:
    """The row of an earlier run that made the file which is there now, with these options, from the code, files and
    versions that are there now, and found nothing wrong."""
    wanted = job.as_dict()
    fitting = [row for row in reversed(rows) if row["ok"] and row["job"] == wanted and row.get("digest")]
    digest = digest_of_model(job.output) if fitting else None
    for row in fitting:
        if row["digest"] == digest and is_current(job, row.get("made_from")):
            return row
    return None


def export_many(
    jobs: Sequence[Job],
    folder: Path,
    *,
    processes: int,
    limit_s: float,
    again: bool,
    cluster: str | None = None,
    report: Path | None,
    json_output: bool,
    quiet: bool,
) -> None:
    """Run the jobs, here or on a ``cluster``, and show the table. Exits with 1 where a model differs from eager PyTorch
    or a bug in fx2onnx showed, with 2 where something else could not be exported or ``exports.jsonl`` could not be
    written.
    """
    from fx2onnx.sources.inputs import input_files

    earlier = [] if again else finished(folder)
    done = {job.source: done_before(job, earlier) for job in jobs}
    rows = {source: row for source, row in done.items() if row is not None}
    left = [job for job in jobs if job.source not in rows]
    if report is not None:
        read = [path for job in jobs for path in input_files(job.source, job.source_options.get("weights"))]
        check_apart([report], [folder / RESULTS, *(job.output for job in jobs), *read])
    start = time.perf_counter()
    sweep(folder)
    parts = _parts(folder)
    unrecorded: UserError | None = None
    for row in _shown(left, len(rows), processes, limit_s, cluster, quiet=quiet or json_output):
        unrecorded = _append(folder, row) or unrecorded
        rows[row["source"]] = row
    for part in _parts(folder) - parts:
        shutil.rmtree(part, ignore_errors=True)
    sweep(folder)
    ordered = [rows[job.source] for job in jobs]
    code = exit_code(ordered) or (2 if unrecorded else 0)
    summary = {
        "ok": code == 0,
        "folder": str(folder),
        "models": len(ordered),
        "skipped": len(jobs) - len(left),
        "seconds": round(time.perf_counter() - start, 2),
        "exports": ordered,
        "error": unrecorded and unrecorded.as_dict(),
    }
    if report is not None:
        write_report(report, summary)
    if json_output:
        print_json(summary)
    elif not quiet:
        _print_table(ordered, summary)
    if unrecorded is not None and not json_output:
        show_error(unrecorded)
    if code:
        raise typer.Exit(code)


def exit_code(rows: Iterable[Row]) -> int:
    """1 if any is 1 (numbers differ, a fault of fx2onnx), else 2 if any is 2 (a user's error), else 0."""
    codes = {row["exit_code"] for row in rows}
    return next((code for code in (1, 2) if code in codes), 0)


def _append(folder: Path, row: Row) -> UserError | None:
    """Add the row's line, all of it or nothing. What prevents that is returned: it must not cost the other models."""
    path = folder / RESULTS
    line = json_text(row).encode() + b"\n"
    try:
        with path.open("a+b", buffering=0) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 1))
            if stream.read(1) not in (b"", b"\n"):
                line = b"\n" + line
            try:
                if stream.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                stream.truncate(size)
                raise
    except OSError as error:
        why = error.strerror or str(error)
        then = "free space; the same command then exports again what has no line in it"
        return UserError("E301", f"cannot write '{path}'", why=why, next=then)
    return None


def _parts(folder: Path) -> set[Path]:
    """The unfinished files in the folder, of exports that are running or were killed."""
    return set(folder.glob(".fx2onnx-*"))


def _shown(
    jobs: Sequence[Job], skipped: int, processes: int, limit_s: float, cluster: str | None = None, *, quiet: bool
) -> Iterator[Row]:
    """The rows as they become ready, with a live display on terminals and one line a model elsewhere (stderr)."""
    from fx2onnx.cli import workers

    out = console(stderr=True)
    live = out.is_terminal and not quiet
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[done]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=out, disable=not live) as progress:
        total = len(jobs) + skipped
        whole = progress.add_task("models", total=total, completed=skipped, done=f"{skipped} of {total}")
        count = max(1, min(processes, len(jobs))) if cluster is None else 0
        tasks = [progress.add_task("", total=None, visible=False, done="") for _ in range(count)]
        running = [""] * count

        def on_stage(number: int, source: str, stage: str) -> None:
            if source != running[number]:
                running[number] = source
                progress.reset(tasks[number])  # each model has a clock of its own
            progress.update(tasks[number], description=f"  {source}  {stage}", visible=bool(source))

        if cluster is None:
            rows = workers.run_all(jobs, count, limit_s, on_stage)
        else:
            rows = workers.run_on_cluster(jobs, cluster, limit_s)
        for finished_now, row in enumerate(rows if jobs else (), skipped + 1):
            progress.update(whole, advance=1, done=f"{finished_now} of {total}")
            if not quiet:
                verdict = _result(row)
                progress.print(f"{row['source']:<44} {row['seconds']:7.2f} s  {verdict[:200]}", soft_wrap=True)
                sys.stderr.flush()
            yield row


def _warnings(row: Row) -> list[str]:
    """The warnings of an export, each once."""
    return list(dict.fromkeys((row.get("report") or {}).get("warnings", ())))


def _result(row: Row) -> str:
    """One line: ok, with how many warnings, or what went wrong."""
    if row["ok"]:
        count = len(_warnings(row))
        return "ok" + (f", {count} warning{'s' * (count > 1)}" if count else "")
    error = row.get("error")
    if error:
        return ": ".join(filter(None, (f"[{error['code']}] {error['what'].splitlines()[0]}", error.get("why"))))
    return "[E501] the outputs differ from eager PyTorch"


def _block(error: Row) -> str:
    """A row's error as the command for one model shows it: with the line, the reason and what to do."""
    fields = {name: error.get(name) or "" for name in ("module_path", "node", "why", "next")}
    where = error.get("where") and SourceLocation(**error["where"])
    return plain(UserError(error["code"], error["what"], where=where, **fields).render())


def _print_table(rows: Sequence[Row], summary: Row) -> None:
    table = headed_table("model", ">nodes", ">size", ">seconds", ">error of allowed", "result")
    for row in rows:
        report = row.get("report")
        table.add_row(
            Text(row["source"]),
            str(report["nodes_onnx"]) if report else "",
            human_size(report["file_bytes"]) if report else "",
            f"{report['seconds']:.2f}" if report else "",
            _of_allowed(row),
            Text(f"[{row['error']['code']}]" if row.get("error") else _result(row), style=_style(row)),
        )
    out = console()
    out.print(table)
    for row in rows:
        if row.get("error"):
            out.print(Text(f"{row['source']}: {_block(row['error'])}", style=_style(row)), soft_wrap=True)
        if warned := _warnings(row):
            out.print(Text(f"{row['source']}\n{first_lines(warned)}", style="yellow"))
    good = sum(row["ok"] for row in rows)
    skipped = f", {summary['skipped']} of them by an earlier run" if summary["skipped"] else ""
    out.print(
        f"{good} of {len(rows)} models exported{skipped}; {summary['seconds']:.1f} s; files in {summary['folder']}"
    )


def _style(row: Row) -> str:
    return ("yellow" if _warnings(row) else "green") if row["ok"] else "red"


def _of_allowed(row: Row) -> str:
    """The largest error as a share of what is allowed; nothing where no number says it."""
    worst = (row.get("verify") or {}).get("worst")
    return of_allowed(worst["max_abs_error"], worst["allowed"]) if worst else ""
