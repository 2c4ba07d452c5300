"""``fx2onnx testcase MODEL -o FOLDER``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.outcome import print_json, print_text, reports_errors

if TYPE_CHECKING:
    from fx2onnx.verify.testcase import Case


@reports_errors
def case_command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="An ONNX file, or a source, which is exported.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The new folder.", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="The source of the file: its inputs, and outputs of eager PyTorch.", show_default=False
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="NAME=FILE.npy or NAME=random; random where not given.", show_default=False),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", help="Size of a dynamic dim, NAME=N; 1 where not given.", show_default=False),
    ] = None,
    batch: options.Batch = None,
    seq: options.Seq = None,
    image_size: options.ImageSize = None,
    seed: options.Seed = 0,
    weights: options.Weights = None,
    dtype: options.Dtype = None,
    case_weights: options.CaseWeights = "full",
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write ONNX's test directory: model.onnx and test_data_set_0 with inputs and outputs.

    The outputs are those of eager PyTorch where a source is given, else the runner's. fx2onnx run FOLDER compares.
    """
    from fx2onnx.cli.progress import Stages
    from fx2onnx.verify.testcase import check_case, write_case

    check_case(output, case_weights)
    is_file = Path(model).suffix == ".onnx" or Path(model).is_file()
    if is_file:
        check_readable(Path(model))
    spec = source if is_file else model
    if spec is not None and (input or dim):
        raise UserError("E001", "the inputs come from the source; --input and --dim have no place beside it")
    if not is_file and source is not None:
        raise UserError("E001", "--source names the module of a file", next="leave it out")
    asked = {"batch": batch, "seq": seq, "image_size": image_size, "seed": seed, "weights": weights, "dtype": dtype}
    with Stages(quiet=quiet or json_output) as stages, warnings.catch_warnings(action="ignore"):
        if spec is None:
            case = stages.call("run in the runner", lambda: _of_feeds(Path(model), input or [], dim or [], seed))
        else:
            case = stages.call(f"run {spec}", lambda: _of_source(Path(model) if is_file else None, spec, asked))
        stages.call("write", lambda: write_case(output, case, weights=case_weights))
    described = {"inputs": sorted(case.feeds), "outputs": sorted(case.outputs)}
    if json_output:
        print_json({"folder": str(output), **described})
    elif not quiet:
        print_text(f"{output}: {len(case.feeds)} inputs, {len(case.outputs)} outputs; fx2onnx run {output} compares\n")


def _of_feeds(path: Path, inputs: list[str], dims: list[str], seed: int) -> Case:
    import onnx_ir as ir

    from fx2onnx.cli.feeds import make_feeds, parse_dims, parse_pairs
    from fx2onnx.runner import InferenceSession
    from fx2onnx.verify.testcase import Case

    session = InferenceSession(str(path))
    feeds = make_feeds(session.get_inputs(), parse_pairs(inputs, "--input"), parse_dims(dims), seed)
    names = [item.name for item in session.get_outputs()]
    return Case(ir.load(path), feeds, dict(zip(names, session.run(None, feeds), strict=True)))


def _of_source(path: Path | None, spec: str, asked: dict[str, Any]) -> Case:
    import onnx_ir as ir

    from fx2onnx.api import export
    from fx2onnx.runner.check import open_file
    from fx2onnx.verify.sample_case import case_of_module

    found = options.resolve_source(spec, **asked)
    if path is not None:
        open_file(path)
        model = ir.load(path)
    else:
        model = export(
            found.module,
            found.args,
            kwargs=found.kwargs,
            dynamic_shapes=found.dynamic_shapes,
            output_names=list(found.output_names) or None,
            bake=found.bake,
            data_branches=found.data_branches,
        ).model
    return case_of_module(model, found.module, found.args, found.kwargs)
