"""``fx2onnx export SOURCE -o FILE``."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_writable, replacing
from fx2onnx.cli.outcome import print_json, reports_errors

if TYPE_CHECKING:
    from fx2onnx.api import ExportResult
    from fx2onnx.cli.progress import Stages
    from fx2onnx.sources import Source
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
    source: options.SourceArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The ONNX file to write; a folder with generation tasks.", show_default=False
        ),
    ],
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with eager PyTorch in the runner and onnxruntime.")
    ] = True,
    opset: Annotated[int | None, typer.Option("--opset", help="ONNX opset version.", show_default=False)] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic",
            help="default, none, or NAME:AXIS=DIM,AXIS=DIM;NAME:... such as input_ids:0=batch,1=seq.",
            show_default="default",
        ),
    ] = None,
    task: options.Task = None,
    capture: Annotated[Capture, typer.Option("--capture", help="How the graph is captured.")] = Capture.auto,
    batch: options.Batch = None,
    seq: options.Seq = None,
    image_size: options.ImageSize = None,
    seed: options.Seed = 0,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write the report to this JSON file.", show_default=False)
    ] = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Export a model to ONNX and check the file against eager PyTorch."""
    from fx2onnx.cli.dynamic import dynamic_shapes_of, parse_dynamic
    from fx2onnx.cli.export_folder import export_into_folder, is_folder_task, with_task
    from fx2onnx.cli.progress import Stages

    if task is not None and is_folder_task(task):
        sizes = {"batch": batch, "seq": seq, "image_size": image_size, "seed": seed}
        export_into_folder(source, output, task, opset, verify, sizes, json_output=json_output, quiet=quiet)
        return
    source = with_task(source, task)
    for path in (output, report):
        if path is not None:
            check_writable(path)
    if report is not None and report.resolve() == output.resolve():
        raise UserError("E001", "--report and --output name the same file")
    wanted = parse_dynamic(dynamic or ["default"])
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {source}"):
            model = options.resolve_source(source, batch, seq, image_size, seed)
            shapes = dynamic_shapes_of(model, wanted)
        result = _export(stages, model, shapes, output, opset, capture)
        verdict = _verify(stages, output, model) if verify else None
    summary = _summary(source, output, model, result, verdict)
    if report is not None:
        with replacing(report) as temporary:
            temporary.write_text(json.dumps(summary, indent=2, default=str) + "\n", encoding="utf-8")
    if json_output:
        print_json(summary)
    elif not quiet:
        _print_summary(summary, verdict)
    if verdict is not None and not verdict.ok:
        _fail(verdict, output, already_told=json_output)


def _export(
    stages: Stages, model: Source, shapes: Any, output: Path, opset: int | None, capture: Capture
) -> ExportResult:
    from fx2onnx import api

    return stages.call(
        "export",
        lambda: api.export(
            model.module,
            model.args,
            output,
            kwargs=model.kwargs or None,
            output_names=list(model.output_names) or None,
            opset_version=opset,
            dynamic_shapes=shapes,
            verify=False,
            capture=capture.value,
        ),
    )


def _verify(stages: Stages, output: Path, model: Source) -> Verdict:
    from fx2onnx.cli.verdict import check_model

    return stages.call("verify against eager PyTorch", lambda: check_model(output, model))


def _summary(source: str, output: Path, model: Source, result: ExportResult, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "ok": verdict is None or verdict.ok,
        "source": source,
        "origin": model.origin,
        "file": str(output),
        "report": result.report.as_dict(),
        "verify": None if verdict is None else verdict.as_dict(),
    }


def _print_summary(summary: dict[str, Any], verdict: Verdict | None) -> None:
    from rich.table import Table
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.cli.verdict import verdict_view

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
        "warnings": _lines(report["warnings"]),
    }
    table = Table.grid(padding=(0, 2))
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


def _fail(verdict: Verdict, output: Path, *, already_told: bool) -> None:
    from fx2onnx.cli.verdict import require_ok

    if already_told:
        raise typer.Exit(1)
    require_ok(verdict, output)


def human_size(size_bytes: int) -> str:
    """``size_bytes`` with a unit: 1.2 kB, 97.8 MB."""
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
