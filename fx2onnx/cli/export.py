"""``fx2onnx export SOURCE... -o FILE_OR_FOLDER``."""

from __future__ import annotations

import enum
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.base.targets import check_target
from fx2onnx.cli import options
from fx2onnx.cli.export_kinds import Kind, refuse_others
from fx2onnx.cli.files import check_apart, human_size, write_report
from fx2onnx.cli.job import Job, run
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.manifest.names import MODEL_FILE

if TYPE_CHECKING:
    from fx2onnx.verify import Verdict


_LINES_SHOWN = 5


class Capture(enum.StrEnum):
    """The rungs of capture."""

    auto = "auto"
    symbolic = "symbolic"
    fake = "fake"
    export = "export"


@reports_errors
def export_command(
    context: typer.Context,
    sources: options.SourcesArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The ONNX file to write; a folder with generation tasks and with several models.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with eager PyTorch in the runner and onnxruntime.")
    ] = True,
    opset: Annotated[int | None, typer.Option("--opset", help="ONNX opset version.", show_default=False)] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="The runtime that the file is for, such as onnxruntime-1.19: fx2onnx lint --help.",
            show_default=False,
        ),
    ] = None,
    fused: Annotated[
        bool | None,
        typer.Option(
            "--fused/--no-fused",
            help="onnxruntime's own operators where it has such; default: for onnxruntime-genai alone.",
            show_default=False,
        ),
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic",
            help="default, none, or NAME:AXIS=DIM,AXIS=DIM;NAME:... such as input_ids:0=batch,1=seq.",
            show_default="default",
        ),
    ] = None,
    task: options.Task = None,
    cache: options.Cache = "dynamic",
    logits: options.Logits = "all",
    training: Annotated[
        bool, typer.Option("--training", help="A folder that trains: steps, gradients, loss (docs/training.md).")
    ] = False,
    loss: Annotated[
        str | None,
        typer.Option(
            "--loss",
            help="cross_entropy, mse or binary_cross_entropy_with_logits, with --training.",
            show_default="cross_entropy",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option("--optimizer", help="sgd, adam, adamw, ...; without it gradients alone.", show_default=False),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="The optimizer's first rate.", show_default=False)
    ] = None,
    weights: options.Weights = None,
    dtype: options.FileDtype = None,
    io: options.Io = None,
    keep: options.Keep = None,
    functions: options.Functions = None,
    quantize: options.QuantizeKind = None,
    block: options.Block = None,
    exclude: options.Exclude = None,
    format: options.QuantizeFormat = "auto",
    embeddings: options.Embeddings = False,
    keep_worst: options.KeepWorst = 0,
    accuracy: options.Accuracy = True,
    calibration: options.Calibration = None,
    method: options.Method = None,
    act_order: options.ActOrder = False,
    activations: options.Activations = "auto",
    bake: options.Bake = None,
    checks: options.Checks = True,
    capture: Annotated[Capture, typer.Option("--capture", help="How the graph is captured.")] = Capture.auto,
    batch: options.Batch = None,
    seq: options.Seq = None,
    image_size: options.ImageSize = None,
    seed: options.Seed = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes, with several models.")] = 1,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="With several models: dask://HOST:PORT runs them.", show_default=False),
    ] = None,
    limit: Annotated[float, typer.Option("--limit", min=1, help="Seconds for each of several models.")] = 600,
    again: Annotated[
        bool, typer.Option("--again", help="With several models: export those anew that an earlier run finished.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write the report to this JSON file.", show_default=False)
    ] = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export models to ONNX and check the files against eager PyTorch."""
    from fx2onnx.cli.export_folder import FolderJob, export_into_folder, is_folder_task, with_task
    from fx2onnx.cli.export_training import TrainingJob, export_training_folder
    from fx2onnx.cli.many import expand, export_many, is_pattern, plan
    from fx2onnx.exporting.options import ExportOptions

    kind = Kind.FILES if len(sources) > 1 or is_pattern(sources[0]) else Kind.FILE
    for name, alone in ((f"--task {task}", task is not None and is_folder_task(task)), ("--training", training)):
        if alone and kind is Kind.FILES:
            raise UserError("E001", f"{name} takes one model at a time")
    if task is not None and is_folder_task(task):
        kind = Kind.GENERATION
    elif training:
        kind = Kind.TRAINING
    refuse_others(kind, context)
    precision, of_source = options.precision_of(dtype, io, keep, training=training)
    source_options: dict[str, Any] = {"batch": batch, "seq": seq, "image_size": image_size}
    source_options |= {"seed": seed, "weights": weights, "dtype": of_source}
    output = output or _default_output(sources, weights, kind is Kind.GENERATION)
    sizes = tuple(dynamic or ["default"])
    shown: dict[str, Any] = {"report": report, "json_output": json_output, "quiet": quiet}
    if kind is Kind.TRAINING:
        source = with_task(sources[0], task)
        trained = TrainingJob(
            source, output, loss or "cross_entropy", optimizer, learning_rate, sizes, opset, source_options, verify
        )
        export_training_folder(trained, **shown)
        return
    asked = ExportOptions.of(
        capture=capture.value,
        opset_version=opset,
        target=target,
        fused=fused,
        verify=verify,
        quantize=options.quantize_of(
            quantize, block, exclude, format, embeddings=embeddings, keep_worst=keep_worst, accuracy=accuracy,
            calibration=calibration, method=method, act_order=act_order, activations=activations,
        ),
        precision=precision,
        checks=checks,
        functions=True if functions == ["all"] else tuple(functions or ()) or False,
    )  # fmt: skip
    if task is not None and kind is Kind.GENERATION:
        from fx2onnx.exporting.folder import FolderOptions

        of_folder = FolderOptions(task, cache, logits, asked, source=source_options)
        export_into_folder(FolderJob(sources[0], output, of_folder), **shown)
        return
    template = Job("", str(output), asked, sizes, tuple(bake or ()), source_options)
    if kind is Kind.FILE:
        _export_one(replace(template, source=with_task(sources[0], task)), **shown)
        return
    if cluster is not None:
        _check_cluster(cluster, jobs)
    every = [with_task(source, task) for source in expand(sources)]
    jobs_of_all = plan(template, every, _folder(output))
    export_many(jobs_of_all, output, processes=jobs, limit_s=limit, again=again, cluster=cluster, **shown)


def _check_cluster(address: str, jobs: int) -> None:
    from fx2onnx.base.packages import require
    from fx2onnx.cli.cluster import check_address

    if jobs != 1:
        raise UserError(
            "E001", "--jobs is for this machine's processes", next="the cluster's workers have threads: one job each"
        )
    check_address(address)
    require("distributed")


def _default_output(sources: list[str], weights: str | None, into_folder: bool) -> Path:
    """A model by reference lies beside its weights; everything else needs ``-o``."""
    folder = Path(sources[0].partition("?")[0].removeprefix("hf:")).expanduser()
    if weights == "reference" and len(sources) == 1 and os.path.isdir(folder):
        return folder if into_folder else folder / MODEL_FILE
    raise UserError("E001", "--output is missing", next="-o model.onnx, or -o FOLDER with several models")


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


def _export_one(job: Job, *, report: Path | None, json_output: bool, quiet: bool) -> None:
    from fx2onnx.cli.progress import Stages
    from fx2onnx.cli.verdict import require_ok
    from fx2onnx.irx.model_files import is_file_of
    from fx2onnx.sources.inputs import input_files

    output = Path(job.output)
    inputs = input_files(job.source, job.source_options.get("weights"))
    check_target(output, inputs=inputs)
    if report is not None and is_file_of(report, job.output):
        raise UserError("E001", "--report and --output name the same file")
    check_apart([report], [output, *inputs])
    with Stages(quiet=quiet or json_output) as stages:
        done = run(job, stages)
    if report is not None:
        write_report(report, done.summary)
    if json_output:
        print_json(done.summary)
    elif not quiet:
        _print_summary(done.summary, done.verdict)
    if done.verdict is not None:
        require_ok(done.verdict, output, is_reported=json_output)


def _print_summary(summary: dict[str, Any], verdict: Verdict | None) -> None:
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.cli.verdict import verdict_view
    from fx2onnx.report.console import unheaded_table

    report = summary["report"]
    phases = {name: value for name, value in report["phases"].items() if value >= 0.005}
    rows = {
        "file": f"{summary['file']}   {human_size(report['file_bytes'])}",
        "origin": summary["origin"],
        "capture": f"{report['rung']}, {report['nodes_captured']} operations -> {report['nodes_onnx']} ONNX nodes",
        "seconds": f"{report['seconds']:.2f}   ({', '.join(f'{name} {value:.2f}' for name, value in phases.items())})",
        "inputs": ", ".join(report["input_names"]),
        "outputs": ", ".join(report["output_names"]),
        "assumed": _lines(report["assumptions"]),
        "done": _lines(report["notes"]),
        "warnings": _lines(report["warnings"]),
    }
    table = unheaded_table(2)
    for label, text in rows.items():
        if text:
            table.add_row(Text(label, style="bold"), Text(text))
    out = console()
    out.print(table)
    if verdict is not None:
        out.print(verdict_view(verdict))


def _lines(texts: list[str]) -> str:
    """Each text once, the first few; the report has them all."""
    unique = list(dict.fromkeys(texts))
    rest = len(unique) - _LINES_SHOWN
    return "\n".join(unique[:_LINES_SHOWN] + ([f"and {rest} more (--report)"] if rest > 0 else []))
