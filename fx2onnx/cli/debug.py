"""``fx2onnx debug MODEL SOURCE``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from fx2onnx.base.errors import VerificationError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, check_readable, know_faults
from fx2onnx.cli.outcome import print_json, print_text, reports_errors


@reports_errors
def debug_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file that is wrong.", show_default=False)],
    source: options.SourceArgument,
    batch: options.Batch = None,
    seq: options.Seq = None,
    image_size: options.ImageSize = None,
    seed: options.Seed = 0,
    weights: options.Weights = None,
    dtype: options.Dtype = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="An engine to run the file in; several times for several.", show_default=False),
    ] = None,
    case: Annotated[
        Path | None,
        typer.Option("--case", help="Write the nodes as a test case into this new folder.", show_default=False),
    ] = None,
    case_weights: options.CaseWeights = "full",
    faults: Annotated[
        Path | None,
        typer.Option(
            "--faults",
            metavar="FILE",
            help="A table of faults of engines: what is in it is known, what is found is added.",
            show_default=False,
        ),
    ] = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the first node of an ONNX file that differs from the eager PyTorch module, and who is to blame.

    The weights must be the same: give the options and the seed of the export. Exit code 1 where a node is found.
    """
    from fx2onnx.cli.progress import Stages
    from fx2onnx.targets.fault_entries import add_entries
    from fx2onnx.verify import locate
    from fx2onnx.verify.testcase import check_case

    check_readable(model)
    check_apart([faults], [model])
    if faults is not None and faults.exists():
        know_faults(faults)
    if case is not None:
        check_case(case, case_weights)
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {source}"):
            reference = options.resolve_source(
                source, batch=batch, seq=seq, image_size=image_size, seed=seed, weights=weights, dtype=dtype
            )
        with warnings.catch_warnings(action="ignore"):
            found = stages.call(
                "compare node by node",
                lambda: locate(model, reference.module, reference.args, reference.kwargs, engines=engine),
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
