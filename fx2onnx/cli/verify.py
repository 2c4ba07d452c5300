"""``fx2onnx verify MODEL SOURCE`` and ``fx2onnx locate MODEL SOURCE``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.notices import ExportWarning
from fx2onnx.base.options import CHECKS, INPUTS, OUTPUT
from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, know_faults
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, print_text, reports_errors
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.judge import Effort
    from fx2onnx.judge.verdict import Verdict
    from fx2onnx.sources import Source
    from fx2onnx.verify.locating.first_wrong import FirstWrong

_METRIC = options.flag(
    "--metric", "How answers on --data are compared: top1, tokens, wer, psnr, or package.module:function.", CHECKS
)


@reports_errors
def verify_command(
    model: Annotated[Path, options.argument("MODEL", "The ONNX file to check.")],
    source: options.SourceArgument,
    sample: Annotated[dict[str, Any], Group(Options)],
    asked: Annotated[dict[str, Any], Group(ExportOptions, only=("effort",))],
    given: options.Inputs = None,
    bake: options.Bake = None,
    engine: options.Engines = None,
    data: Annotated[str | None, options.DATA] = None,
    metric: Annotated[str | None, _METRIC] = None,
    faults: options.Faults = None,
    html: options.Html = None,
    record: Annotated[
        bool,
        options.flag("--record", "Write the verdict into the file's metadata, as fx2onnx.verdict.", OUTPUT),
    ] = False,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare an ONNX file with its PyTorch module.

    Give the options for example inputs and the seed that the file was exported with, so that the weights are the same.
    """
    from fx2onnx.cli.feeds import with_inputs
    from fx2onnx.cli.progress import Stages, console
    from fx2onnx.files.staging import write_text
    from fx2onnx.judge.engines import chosen_engines
    from fx2onnx.report.document import verdict_page
    from fx2onnx.sources.inputs import input_files

    if (data is None) != (metric is None):
        missing, other = ("--data FILE.npz", "--metric") if data is None else ("--metric NAME", "--data")
        raise UserError("E001", f"{other} needs {missing}", next=f"add {missing}")
    _check_file(model)  # before the module is built, which may take long
    know_faults(faults)
    engines = chosen_engines(engine or None)
    check_apart([html], [model, *input_files(source)])
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {source}"):
            reference = with_inputs(options.resolve_source(source, **sample), given or [], model)
        verdict = stages.call(
            "verify against eager PyTorch",
            lambda: check_model(
                model, reference, engine and engines, options.names_of(bake), data=data, metric=metric, **asked
            ),
        )
    if record:
        verdict.write_into(model)
    if html is not None:
        write_text(html, verdict_page(str(model), source, verdict.as_dict()))
    if json_output:
        print_json({"file": str(model), "source": source, **verdict.as_dict()})
    elif not quiet:
        console().print(verdict_view(verdict))
    require_ok(verdict, model, source, is_reported=json_output)


def _check_file(model: Path) -> None:
    """Raises UserError E302, E303 unless the path is an ONNX file."""
    from fx2onnx.semantics.reading.load import load_model
    from fx2onnx.verify.interface import OF_FOLDER

    if os.path.isdir(model):  # Path's raises for a name that is too long
        raise UserError(
            "E302", f"'{model}' is a folder", next=["give a file in it", f"a generating folder: {OF_FOLDER}"]
        )
    load_model(os.fspath(model))


def check_model(
    model: Path | ExportResult,
    source: Source,
    engines: Sequence[str] | None = None,
    bake: Sequence[str] = (),
    effort: Effort = "normal",
    **measured: Any,
) -> Verdict:
    """The verdict on a model against the eager module of ``source``, in all engines unless some are named."""
    from fx2onnx.verify.compare import verify

    with warnings.catch_warnings(action="ignore"):
        return verify(
            model, source.module, source.args, source.kwargs,
            engines=engines, bake=(*source.bake, *bake), effort=effort, **measured,
        )  # fmt: skip


def verdict_view(verdict: Verdict) -> RenderableType:
    """The worst case of every engine and output, and the notes."""
    from rich import console
    from rich.text import Text

    from fx2onnx.report.console import headed_table
    from fx2onnx.report.text import of_allowed

    table = headed_table("engine", "output", ">of allowed", ">largest error", "at", "")
    table.columns[0].no_wrap = True
    pairs = dict.fromkeys((row.engine, row.output) for row in verdict.rows)
    for engine, output in pairs:
        rows = [row for row in verdict.rows if (row.engine, row.output) == (engine, output)]
        worst = max(rows, key=lambda row: (not row.ok, bool(row.problem), row.share))
        count = "" if len(rows) == 1 else f"worst of {len(rows)}: "
        table.add_row(
            Text(engine),
            Text(output),
            Text(of_allowed(worst.max_abs_error, worst.allowed)),
            Text(f"{worst.max_abs_error:.2e}"),
            Text(count + worst.inputs),
            Text("ok", style="green") if worst.ok else Text(worst.problem or "differs", style="red"),
        )
    late = [f"incomplete: {verdict.incomplete}"] if verdict.incomplete else []
    notes = [*verdict.notes, *_left_out(verdict), *late]
    moved = [Text(str(each)) for each in verdict.moved]
    return console.Group(table, *moved, *(Text(f"note: {note}", style="dim") for note in notes))


def _left_out(verdict: Verdict) -> list[str]:
    """One line on the inputs that were not tried; the JSON output has each."""
    count = len(verdict.left_out)
    return [f"sets of inputs: {len(verdict.tried)} compared, {count} left out (--json lists them)"] if count else []


def require_ok(verdict: Verdict, file: Path, source: str, *, is_reported: bool = False) -> None:
    """Raise VerificationError E501 with the failing outputs unless the verdict is good (E502 where there is none), or end with
    its exit code where the verdict ``is_reported`` already.
    """
    if not verdict.ok:
        if is_reported:
            raise typer.Exit(VerificationError.exit_code)
        if verdict.unverified:
            raise verdict.not_verified(f"{file} is not verified")
        from fx2onnx.judge.verdict import OTHER_WEIGHTS

        raise VerificationError(
            "E501",
            f"the outputs of {file} differ from eager PyTorch",
            why="; ".join(verdict.describe().splitlines()[:4]),
            next=[
                *([OTHER_WEIGHTS] if any(row.engine == "weights" and not row.ok for row in verdict.rows) else []),
                f"fx2onnx locate {file} {source} names the first wrong node and the part at fault; {file.name} stays as it is",
            ],
        )


@reports_errors
def locate_command(
    model: Annotated[Path, options.argument("MODEL", "The ONNX file that is wrong.")],
    source: options.SourceArgument,
    sample: Annotated[dict[str, Any], Group(Options)],
    asked: Annotated[dict[str, Any], Group(ExportOptions, only=("effort",))],
    given: options.Inputs = None,
    engine: options.Engines = None,
    case: Annotated[
        Path | None,
        options.flag("--case", "Write the nodes as a test case into this new folder.", OUTPUT, metavar="FOLDER"),
    ] = None,
    case_weights: options.CaseWeights = "full",
    dump: Annotated[
        Path | None,
        options.flag(
            "--dump",
            "Values that a device computed: .npy files by names of values or nodes, or a .npz.",
            INPUTS,
            metavar="FOLDER",
        ),
    ] = None,
    faults: options.Faults = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the first wrong node of an ONNX file.

    It says who is to blame: the model, the export or an engine. Give the options for example inputs and the seed that the file
    was exported with. The exit code is 1 where a node is found.
    """
    from fx2onnx.cli.feeds import with_inputs
    from fx2onnx.cli.progress import Stages
    from fx2onnx.semantics.reading.load import load_model
    from fx2onnx.targets.fault_entries import add_entries
    from fx2onnx.verify.locating.locate import locate
    from fx2onnx.verify.testcase import check_case

    load_model(os.fspath(model))  # before the module is built, which may take long
    check_apart([faults], [model])
    if faults is not None and faults.exists():
        know_faults(faults)
    if case is not None:
        check_case(case, case_weights)
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {source}"):
            reference = with_inputs(options.resolve_source(source, **sample), given or [], model)
        with warnings.catch_warnings(record=True, action="always", category=ExportWarning) as caught:
            own = reference.module, reference.args, reference.kwargs
            found = stages.call("compare node by node", lambda: locate(model, *own, engines=engine, dump=dump, **asked))
    notes = [str(each.message) for each in caught if each.category is ExportWarning and dump is not None]
    if found is not None and case is not None:
        found.write_case(case, weights=case_weights)
    if found is not None and faults is not None:
        add_entries(found.faults, faults)
    if json_output:
        print_json({"file": str(model), "source": source, "first_wrong": found and found.as_dict(), "warnings": notes})
    elif found is not None or not quiet:
        print_text("".join(f"{line}\n" for line in (*notes, _told(found, model, dump))))
    if found is not None:
        raise typer.Exit(VerificationError.exit_code)


def _told(found: FirstWrong | None, model: Path, dump: Path | None) -> str:
    if found is not None:
        return found.describe()
    return f"{model} agrees with eager PyTorch" if dump is None else f"{dump}: each value follows from those before it"
