"""``fx2onnx verify MODEL SOURCE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fx2onnx.cli import options
from fx2onnx.cli.files import check_apart, check_readable, know_faults
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
    bake: options.Bake = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            help="What runs the file, repeatable: runner, onnxruntime, reference, openvino.",
            show_default="runner and, where it is installed, onnxruntime",
        ),
    ] = None,
    faults: options.Faults = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the verdict as a page.", show_default=False),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Put the verdict into the file's metadata, as fx2onnx.verdict.")
    ] = False,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare an ONNX file with the eager PyTorch module that it came from.

    The weights must be the same: give the options and the seed of the export.
    """
    from fx2onnx.cli.progress import Stages, console
    from fx2onnx.cli.verdict import check_model, require_ok, verdict_view
    from fx2onnx.files.staging import write_text
    from fx2onnx.judge.engines import chosen_engines
    from fx2onnx.report.verdict_page import verdict_page
    from fx2onnx.sources.inputs import input_files

    check_readable(model)
    know_faults(faults)
    engines = chosen_engines(engine or None)
    check_apart([html], [model, *input_files(source)])
    with Stages(quiet=quiet or json_output) as stages:
        with stages.stage(f"build {source}"):
            reference = options.resolve_source(
                source, batch=batch, seq=seq, image_size=image_size, seed=seed, weights=weights, dtype=dtype
            )
        verdict = stages.call(
            "verify against eager PyTorch", lambda: check_model(model, reference, engine and engines, bake or ())
        )
    if record:
        verdict.write_into(model)
    if html is not None:
        write_text(html, verdict_page(str(model), source, verdict.as_dict()))
    if json_output:
        print_json({"file": str(model), "source": source, **verdict.as_dict()})
    elif not quiet:
        console().print(verdict_view(verdict))
    require_ok(verdict, model, is_reported=json_output)
