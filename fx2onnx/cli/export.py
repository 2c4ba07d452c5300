"""``fx2onnx export SOURCE -o FILE``: one model."""

from __future__ import annotations

import contextlib
import enum
import inspect
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl

import typer

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.escape import human_size
from fx2onnx.base.options import INPUTS, SIZES
from fx2onnx.base.targets import check_target
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, write_report
from fx2onnx.cli.job import Job, run
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import first_lines, in_flags, print_json, print_warnings, reports_errors
from fx2onnx.exporting.options import TASK_HELP, ExportOptions
from fx2onnx.files.staging import cannot_write
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.precision.options import Precision
from fx2onnx.quantize.options import Quantize
from fx2onnx.sources.registry import with_kind
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    from fx2onnx.judge.verdict import Verdict


Task = Annotated[str | None, options.flag("--task", TASK_HELP, INPUTS)]


class Capture(enum.StrEnum):
    """The strategies of capture."""

    auto = "auto"
    symbolic = "symbolic"
    fake = "fake"
    export = "export"


CaptureFlag = Annotated[Capture, options.flag("--capture", "Capture strategy (docs/capture.md).", SIZES)]
Exported = Annotated[dict[str, Any], Group(ExportOptions)]
Captured = Annotated[dict[str, Any], Group(CaptureOptions)]


@reports_errors
def export_command(
    source: options.SourceArgument,
    sample: Annotated[dict[str, Any], Group(Options)],
    quantize: Annotated[Quantize | None, Group(Quantize, is_made=True)],
    precision: Annotated[Precision | None, Group(Precision, is_made=True)],
    exported: Exported,
    captured: Captured,
    output: Annotated[Path | None, options.output("The ONNX file to write.")] = None,
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
    """Export a model and compare the file with PyTorch."""
    asked = asked_of(exported | captured, quantize, precision, capture, verify)
    source = with_task(with_kind(source), task)
    path = output or default_output(source, sample["weights"], MODEL_FILE)
    job = Job(source, str(path), asked, tuple(dynamic or ["default"]), options.names_of(bake), sample, strict)
    with in_folder(job) as jobs:
        for each in jobs:
            _export_one(each, report=report, json_output=json_output, quiet=quiet)


@contextlib.contextmanager
def in_folder(job: Job) -> Iterator[list[Job]]:
    """``job`` itself; where it is to turn a sentence-transformers folder into one with ONNX files, a job for each of them.

    The other files are copied after the exports. Where one fails, nothing is left of a folder that is new.

    Raises:   UserError E301, E302, E601.
    """
    from fx2onnx.files.staging import check_folder
    from fx2onnx.sources import embedder_folder

    kind, _, name = job.source.partition(":")
    target = Path(job.output)
    if kind != embedder_folder.PREFIX or target.suffix == Path(MODEL_FILE).suffix:
        yield [job]
        return
    body, mark, query = name.partition("?")
    folder = Path(body).expanduser()
    embedder_folder.class_of(folder)
    embedder_folder.check_copy(folder, check_folder(target))
    is_new = not target.exists()
    asked = dict(parse_qsl(query)).get("modality")
    files = {
        word: embedder_folder.onnx_path(folder, target, word)
        for word in ([asked] if asked else embedder_folder.modalities(folder))
    }
    more = "" if asked or len(files) == 1 else f"{'&' if mark else '?'}modality="
    jobs = [
        replace(job, output=str(path), source=f"{job.source}{more}{word if more else ''}")
        for word, path in files.items()
    ]
    try:
        for path in files.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        yield jobs
        embedder_folder.copy(folder, target)
    except BaseException as error:
        if is_new and not isinstance(error, VerificationError | typer.Exit):  # the file that differs is kept
            shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, OSError):
            raise cannot_write(target, error) from error
        raise


def asked_of(
    exported: dict[str, Any],
    quantize: Quantize | None,
    precision: Precision | None,
    capture: Capture = Capture.auto,
    verify: bool = True,
) -> ExportOptions:
    """The options of the export that the flags ask for. Raises UserError E001."""
    functions = exported["functions"] or False
    metadata = own_metadata(exported["properties"] or ())
    exported = {name: value for name, value in exported.items() if name != "properties"}
    exported |= {"functions": True if functions == ("all",) else functions, "metadata": metadata}
    return ExportOptions.of(capture=capture.value, verify=verify, quantize=quantize, precision=precision, **exported)


def own_metadata(given: Sequence[str]) -> list[Any]:
    """``--metadata`` as ``fx2onnx.export`` takes it. Raises UserError E001 for a key that is given twice."""
    pairs = [text.partition("=") for text in given]
    entries = {key: value for key, equals, value in pairs if equals}
    if len(entries) < sum(bool(equals) for _, equals, _ in pairs):
        raise UserError("E001", "--metadata has a key twice", next="give each key once: KEY=VALUE")
    return [*(key for key, equals, _ in pairs if not equals), entries]


def default_output(source: str, weights: str | None, file: str = "") -> Path:
    """A model by reference lies beside its weights; everything else needs ``-o``."""
    folder = Path(
        source.partition("?")[0].removeprefix("hf:").removeprefix("gguf:").removeprefix("diffusers:")
    ).expanduser()
    folder = folder.parent if os.path.isfile(folder) else folder
    if weights == "reference" and os.path.isdir(folder):
        return folder / file
    raise UserError("E001", "--output is missing", next=f"-o {file or 'FOLDER'}")


def with_task(source: str, task: str | None) -> str:
    """``source`` with ``?task=``.

    Raises:   UserError E001 for a source that has no tasks, E601 for a word that is no task.
    """
    if task is None:
        return source
    from fx2onnx.decoding.parts import GENERATION_WORDS
    from fx2onnx.sources.hf.kind import check_task

    if not source.startswith(("hf:", "gguf:")):
        step = "it takes hf:FOLDER, hf:MODEL_TYPE or gguf:FILE"
        raise UserError("E001", f"--task has no meaning for '{source}'", next=step)
    if not is_folder_task(task):
        check_task(task, also=GENERATION_WORDS)
    return f"{source}{'&' if '?' in source else '?'}task={task}"


def is_folder_task(task: str) -> bool:
    """Return whether ``task`` gives a folder rather than a file."""
    from fx2onnx.decoding.parts import is_generation_task

    return is_generation_task(task)


def _export_one(job: Job, *, report: Path | None, json_output: bool, quiet: bool) -> None:
    from fx2onnx.cli.progress import Stages
    from fx2onnx.cli.verify import require_ok
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
    else:
        print_warnings(_warnings(done.summary["report"]))
    if done.verdict is not None:
        require_ok(done.verdict, output, job.source, is_reported=json_output)


def _warnings(report: Mapping[str, Any]) -> list[str]:
    known = inspect.signature(export_command).parameters
    return [in_flags(text, known) for text in report["warnings"]]


def _print_summary(summary: dict[str, Any], verdict: Verdict | None) -> None:
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.cli.verify import verdict_view
    from fx2onnx.report.console import unheaded_table
    from fx2onnx.report.text import limits

    report = summary["report"]
    phases = {name: value for name, value in report["phases"].items() if value >= 0.005}
    rows = {
        "file": f"{summary['file']}   {human_size(report['file_bytes'])}",
        "origin": summary["origin"],
        "capture": f"{report['strategy']}, {report['nodes_captured']} operations -> {report['nodes_onnx']} ONNX nodes",
        "seconds": f"{report['seconds']:.2f}   ({', '.join(f'{name} {value:.2f}' for name, value in phases.items())})",
        "inputs": ", ".join(report["input_names"]),
        "outputs": ", ".join(report["output_names"]),
        "assumed": first_lines(limits(report)),
        "done": first_lines(report["notes"]),
        "warnings": first_lines(_warnings(report)),
    }
    table = unheaded_table(2)
    for label, text in rows.items():
        if text:
            table.add_row(Text(label, style="bold"), Text(text))
    out = console()
    out.print(table)
    if verdict is not None:
        out.print(verdict_view(verdict))
