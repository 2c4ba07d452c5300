"""``fx2onnx verify MODEL SOURCE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.outcome import print_json, reports_errors


@reports_errors
def verify_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX file to check.", show_default=False)],
    source: options.SourceArgument,
    batch: options.Batch = None,
    seq: options.Seq = None,
    image_size: options.ImageSize = None,
    seed: options.Seed = 0,
    weights: options.Weights = None,
    dtype: options.Dtype = None,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare an ONNX file with the eager PyTorch module that it came from.

    The weights must be the same: give the options and the seed of the export.
    """
    from fx2onnx.cli.progress import Stages, console
    from fx2onnx.cli.verdict import check_model, require_ok, verdict_view

    check_readable(model)
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {source}"):
            reference = options.resolve_source(
                source, batch=batch, seq=seq, image_size=image_size, seed=seed, weights=weights, dtype=dtype
            )
        verdict = stages.call("verify against eager PyTorch", lambda: check_model(model, reference))
    if json_output:
        print_json({"file": str(model), "source": source, **verdict.as_dict()})
    elif not quiet:
        console().print(verdict_view(verdict))
    require_ok(verdict, model, is_reported=json_output)
