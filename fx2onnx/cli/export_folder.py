"""``fx2onnx export-folder hf:... -o FOLDER``, a generating model or a pipeline as several graphs, and ``fx2onnx export-many``."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import human_size
from fx2onnx.base.targets import check_target
from fx2onnx.cli import options
from fx2onnx.cli.export import Capture, CaptureFlag, Exported, Task, asked_of, default_output, is_folder_task, with_task
from fx2onnx.cli.files import check_apart, write_report_of_folder
from fx2onnx.cli.job import Job, engines_for
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, print_warnings, reports_errors
from fx2onnx.exporting.options import ExportOptions, FolderOptions
from fx2onnx.manifest.names import MODEL_FILE
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
    """Export a generative model or a pipeline as a folder."""
    asked = asked_of(exported, quantize, precision, verify=verify)
    place = output or default_output(source, sample["weights"])
    with options.stand_ins_of(sample) as others:
        _export(
            source,
            place,
            FolderOptions(**folder, export=asked, engines=engines_for(asked.target), source=others),
            report=report,
            json_output=json_output,
            quiet=quiet,
        )


def _export(
    source: str, output: Path, options: FolderOptions, *, report: Path | None, json_output: bool, quiet: bool
) -> None:
    from fx2onnx.cli.progress import Stages
    from fx2onnx.cli.verify import require_ok
    from fx2onnx.exporting.folder import write_folder
    from fx2onnx.files.staging import check_folder
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
    else:
        print_warnings(f"{name}: {text}" for name, each in done.reports.items() for text in each.warnings)
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
    made = [f"{name}: {note}" for name, report in done.reports.items() for note in report.notes]
    for note in [*done.notes, *made]:
        table.add_row(Text("note", style="bold"), Text(note))
    out.print(table)
    for name, verdict in done.verdicts.items():
        out.print(Text(name, style="bold"))
        out.print(verdict_view(verdict))


PANEL = "Several models"


@reports_errors
def export_many_command(
    sources: options.SourcesArgument,
    sample: Annotated[dict[str, Any], Group(Options)],
    quantize: Annotated[Quantize | None, Group(Quantize, is_made=True)],
    precision: Annotated[Precision | None, Group(Precision, is_made=True)],
    exported: Exported,
    output: Annotated[Path, options.output("The folder to write a file for each model to.", "FOLDER")],
    jobs: Annotated[int, options.flag("--jobs -j", "Processes on this machine.", PANEL, min=1)] = 1,
    cluster: Annotated[
        str | None,
        options.flag("--cluster", "Run on the dask cluster dask://HOST:PORT instead.", PANEL),
    ] = None,
    limit: Annotated[float, options.flag("--limit", "Seconds for each model.", PANEL, min=1)] = 600,
    again: Annotated[bool, options.flag("--again", "Export again what an earlier run finished.", PANEL)] = False,
    task: Task = None,
    bake: options.Bake = None,
    dynamic: options.Dynamic = None,
    capture: CaptureFlag = Capture.auto,
    report: options.Report = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
    verify: options.Verify = True,
    strict: options.Strict = False,
) -> None:
    """Export several models in processes of their own, and go on where a run stopped."""
    if task is not None and is_folder_task(task):
        raise UserError(
            "E001", f"--task {task} takes one model at a time", next="fx2onnx export-folder SOURCE -o FOLDER"
        )
    from fx2onnx.cli.many import expand, export_many, plan

    asked = asked_of(exported, quantize, precision, capture, verify)
    if cluster is not None:
        _check_cluster(cluster, jobs)
    every = [with_task(source, task) for source in expand(sources)]
    template = Job("", str(output), asked, tuple(dynamic or ["default"]), tuple(bake or ()), sample, strict)
    planned = plan(template, every, _folder(output))
    export_many(
        planned,
        output,
        processes=jobs,
        limit_s=limit,
        again=again,
        cluster=cluster,
        report=report,
        json_output=json_output,
        quiet=quiet,
    )


def _check_cluster(address: str, jobs: int) -> None:
    from fx2onnx.base.packages import require
    from fx2onnx.cli.workers import check_address

    if jobs != 1:
        raise UserError(
            "E001", "--jobs is for this machine's processes", next="the cluster's workers have threads: one job each"
        )
    check_address(address)
    require("distributed")


def _folder(output: Path) -> Path:
    """The folder for several models, made where only its last part is missing. Raises UserError E301."""
    if os.path.exists(output) and not output.is_dir():
        raise UserError("E301", f"'{output}' is a file", next="several models need a folder: -o FOLDER")
    try:
        output.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError("E301", f"cannot make the folder '{output}'", why=error.strerror or str(error)) from error
    check_target(output / MODEL_FILE)
    return output
