"""``fx2onnx export-folder hf:... -o FOLDER``: a generating model or a pipeline as several graphs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fx2onnx.cli import options
from fx2onnx.cli.export import asked_of, default_output, with_task
from fx2onnx.cli.files import check_apart, human_size, write_report_of_folder
from fx2onnx.cli.job import engines_for
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.exporting.options import ExportOptions, FolderOptions
from fx2onnx.files.pipeline_index import PREFIX, is_pipeline
from fx2onnx.precision.options import Precision
from fx2onnx.quantize.options import Quantize
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    from fx2onnx.exporting.result import ExportedFolder


@reports_errors
def export_folder_command(
    source: options.SourceArgument,
    folder: Annotated[dict[str, Any], Group(FolderOptions)],
    sample: Annotated[dict[str, Any], Group(Options)],
    quantize: Annotated[Quantize | None, Group(Quantize, is_made=True)],
    precision: Annotated[Precision | None, Group(Precision, is_made=True)],
    exported: Annotated[dict[str, Any], Group(ExportOptions, skip=("attest", "state", "external_data"))],
    output: Annotated[Path | None, options.output("The folder to write.", "FOLDER")] = None,
    report: options.Report = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
    verify: options.Verify = True,
    strict: options.Strict = False,
) -> None:
    """Export a generative model or a diffusers pipeline as a folder of ONNX files."""
    asked = asked_of(exported, quantize, precision, verify=verify)
    if not source.startswith(PREFIX) and not is_pipeline(source):
        with_task(source, folder["task"])
    place = output or default_output(source, sample["weights"])
    _export(
        source,
        place,
        FolderOptions(**folder, export=asked, engines=engines_for(asked.target), source=sample),
        report=report,
        json_output=json_output,
        quiet=quiet,
    )


def _export(
    source: str, output: Path, options: FolderOptions, *, report: Path | None, json_output: bool, quiet: bool
) -> None:
    from fx2onnx.cli.progress import Stages
    from fx2onnx.cli.verify import require_ok
    from fx2onnx.exporting.folder import check_folder, write_folder
    from fx2onnx.sources.inputs import input_files

    check_folder(output)
    check_apart([report], input_files(source, options.source.get("weights")))
    with Stages(quiet=quiet or json_output) as stages, warnings.catch_warnings(action="ignore"):
        done = stages.call(f"export {source}", lambda: write_folder(source, output, options))
    ok = all(verdict.ok for verdict in done.verdicts.values())
    summary = _summary(source, options.task, done, ok)
    if report is not None:
        write_report_of_folder(report, output, summary)
    if json_output:
        print_json(summary)
    elif not quiet:
        _show(done)
    for name, verdict in done.verdicts.items():
        require_ok(verdict, done.path / name, source, is_reported=json_output)


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
    from fx2onnx.cli.verify import verdict_view
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
