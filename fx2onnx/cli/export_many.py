"""``fx2onnx export-many SOURCE... -o FOLDER``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.targets import check_target
from fx2onnx.cli import options
from fx2onnx.cli.export import Capture, CaptureFlag, Exported, Task, asked_of, is_folder_task, with_task
from fx2onnx.cli.job import Job
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import reports_errors
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.precision.options import Precision
from fx2onnx.quantize.options import Quantize
from fx2onnx.sources.source import Options

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
