"""``fx2onnx locate MODEL SOURCE``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from fx2onnx.base.errors import VerificationError
from fx2onnx.base.options import OUTPUT
from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, check_readable, know_faults
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, print_text, reports_errors
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.sources.source import Options


@reports_errors
def locate_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file that is wrong.", show_default=False)],
    source: options.SourceArgument,
    sample: Annotated[dict[str, Any], Group(Options)],
    asked: Annotated[dict[str, Any], Group(ExportOptions, only=("effort",))],
    engine: options.Engines = None,
    case: Annotated[
        Path | None,
        typer.Option(
            "--case",
            metavar="FOLDER",
            help="Write the nodes as a test case into this new folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    case_weights: options.CaseWeights = "full",
    faults: options.Faults = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the first wrong node of an ONNX file.

    It says who is to blame: the model, the export or an engine. Give the options for example inputs and the seed that the file
    was exported with. The exit code is 1 where a node is found.
    """
    from fx2onnx.cli.progress import Stages
    from fx2onnx.targets.fault_entries import add_entries
    from fx2onnx.verify.locating.locate import locate
    from fx2onnx.verify.testcase import check_case

    check_readable(model)
    check_apart([faults], [model])
    if faults is not None and faults.exists():
        know_faults(faults)
    if case is not None:
        check_case(case, case_weights)
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {source}"):
            reference = options.resolve_source(source, **sample)
        with warnings.catch_warnings(action="ignore"):
            found = stages.call(
                "compare node by node",
                lambda: locate(model, reference.module, reference.args, reference.kwargs, engines=engine, **asked),
            )
    if found is not None and case is not None:
        found.write_case(case, weights=case_weights)
    if found is not None and faults is not None:
        add_entries(found.faults, faults)
    if json_output:
        wrong = None if found is None else found.as_dict()
        print_json({"file": str(model), "source": source, "first_wrong": wrong})
    elif not quiet:
        print_text(f"{model} agrees with eager PyTorch\n" if found is None else f"{found.describe()}\n")
    if found is not None:
        raise typer.Exit(VerificationError.exit_code)
