"""``fx2onnx export hf:... --task text-generation-with-past -o FOLDER``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.cli.files import check_apart, human_size, write_report_of_folder
from fx2onnx.cli.outcome import print_json
from fx2onnx.cli.target import engines_for

if TYPE_CHECKING:
    from fx2onnx.exporting.folder import FolderOptions
    from fx2onnx.exporting.result import ExportedFolder


def is_folder_task(task: str) -> bool:
    """Whether ``task`` gives a folder rather than a file."""
    from fx2onnx.decoding.parts import is_generation_task

    return is_generation_task(task)


def with_task(source: str, task: str | None) -> str:
    """``source`` with ``?task=``.

    Raises:   UserError E001 for a source that has no tasks, E601 for a word that is no task.
    """
    if task is None:
        return source
    from fx2onnx.decoding.parts import GENERATION_WORDS
    from fx2onnx.sources.hf.kind import check_task

    if not source.startswith("hf:"):
        raise UserError("E001", f"--task has no meaning for '{source}'", next="it takes hf:FOLDER or hf:MODEL_TYPE")
    if not is_folder_task(task):
        check_task(task, also=GENERATION_WORDS)
    return f"{source}{'&' if '?' in source else '?'}task={task}"


@dataclass(frozen=True)
class FolderJob:
    """What ``fx2onnx export`` was asked for."""

    source: str
    output: Path
    options: FolderOptions


def export_into_folder(asked: FolderJob, *, report: Path | None, json_output: bool, quiet: bool) -> None:
    """Export, then show the files and the verdict on each. Exits with 1 where one differs from eager PyTorch."""
    from fx2onnx.cli.progress import Stages
    from fx2onnx.cli.verdict import require_ok
    from fx2onnx.exporting.folder import check_folder, write_folder
    from fx2onnx.sources.inputs import input_files

    options = replace(asked.options, engines=engines_for(asked.options.export.target))
    check_folder(asked.output)
    check_apart([report], input_files(asked.source, options.source.get("weights")))
    with Stages(quiet=quiet or json_output) as stages, warnings.catch_warnings(action="ignore"):
        done = stages.call(f"export {asked.source}", lambda: write_folder(asked.source, asked.output, options))
    ok = all(verdict.ok for verdict in done.verdicts.values())
    summary = _summary(asked.source, options.task, done, ok)
    if report is not None:
        write_report_of_folder(report, asked.output, summary)
    if json_output:
        print_json(summary)
    elif not quiet:
        _show(done)
    for name, verdict in done.verdicts.items():
        require_ok(verdict, done.path / name, is_reported=json_output)


def _summary(source: str, task: str, done: ExportedFolder, ok: bool) -> dict[str, Any]:
    return {
        "ok": ok,
        "source": source,
        "task": task,
        "folder": str(done.path),
        "files": done.files,
        "notes": done.notes,
        "reports": {name: report.as_dict() for name, report in done.reports.items()},
        "verify": {name: verdict.as_dict() for name, verdict in done.verdicts.items()} or None,
    }


def _show(done: ExportedFolder) -> None:
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.cli.verdict import verdict_view
    from fx2onnx.report.console import unheaded_table

    out = console()
    table = unheaded_table(2)
    table.add_row(Text("folder", style="bold"), Text(str(done.path)))
    for name in done.files:
        report = done.reports.get(name)
        facts = f"{report.nodes_onnx} nodes, {report.seconds:.2f} s" if report is not None else ""
        table.add_row(Text(name), Text(f"{human_size((done.path / name).stat().st_size):>9}   {facts}"))
    for note in done.notes:
        table.add_row(Text("note", style="bold"), Text(note))
    out.print(table)
    for name, verdict in done.verdicts.items():
        out.print(Text(name, style="bold"))
        out.print(verdict_view(verdict))
