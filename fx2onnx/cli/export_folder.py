"""``fx2onnx export hf:... --task text-generation-with-past -o FOLDER``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.cli.outcome import print_json

if TYPE_CHECKING:
    from fx2onnx.folder import ExportedFolder


def is_folder_task(task: str) -> bool:
    """Whether ``task`` gives a folder rather than a file."""
    from fx2onnx.sources.generation_parts import is_generation_task

    return is_generation_task(task)


def with_task(source: str, task: str | None) -> str:
    """``source`` with ``?task=``.

    Raises:   UserError E001 for a source that has no tasks, E601 for a word that is no task.
    """
    if task is None:
        return source
    from fx2onnx.sources.generation_parts import ALL_TASKS
    from fx2onnx.sources.registry import fail_unknown

    if task not in ALL_TASKS:
        fail_unknown("task", task, ALL_TASKS, hint=f"tasks: {', '.join(ALL_TASKS)}")
    if not source.startswith("hf:"):
        raise UserError("E001", f"--task has no meaning for '{source}'", next="it takes hf:FOLDER or hf:MODEL_TYPE")
    return f"{source}{'&' if '?' in source else '?'}task={task}"


def export_into_folder(
    source: str,
    output: Path,
    task: str,
    cache: str,
    opset: int | None,
    verify: bool,
    options: Mapping[str, Any],
    *,
    json_output: bool,
    quiet: bool,
) -> None:
    """Export, then show the files and the verdict on each. Exits with 1 where one differs from eager PyTorch."""
    import warnings

    from fx2onnx.cli.progress import Stages
    from fx2onnx.folder import check_folder, export_folder

    check_folder(output)
    with Stages(quiet=quiet or json_output) as stages, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = stages.call(
            f"export {source}",
            lambda: export_folder(
                source, output, task=task, cache=cache, opset_version=opset, verify=verify, **options
            ),
        )
    ok = all(verdict.ok for verdict in done.verdicts.values())
    if json_output:
        print_json(_summary(source, task, done, ok))
    elif not quiet:
        _show(done)
    if not ok:
        _fail(done, already_told=json_output)


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
    from rich.table import Table
    from rich.text import Text

    from fx2onnx.cli.export import human_size
    from fx2onnx.cli.progress import console
    from fx2onnx.cli.verdict import verdict_view

    out = console()
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("folder", style="bold"), Text(str(done.path)))
    for name in done.files:
        report = done.reports.get(name)
        told = f"{report.nodes_onnx} nodes, {report.seconds:.2f} s" if report is not None else ""
        table.add_row(Text(name), Text(f"{human_size((done.path / name).stat().st_size):>9}   {told}"))
    for note in done.notes:
        table.add_row(Text("note", style="bold"), Text(note))
    out.print(table)
    for name, verdict in done.verdicts.items():
        out.print(Text(name, style="bold"))
        out.print(verdict_view(verdict))


def _fail(done: ExportedFolder, *, already_told: bool) -> None:
    from fx2onnx.cli.verdict import require_ok

    if already_told:
        raise typer.Exit(1)
    for name, verdict in done.verdicts.items():
        require_ok(verdict, done.path / name)
