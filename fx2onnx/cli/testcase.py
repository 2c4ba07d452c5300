"""``fx2onnx testcase MODEL -o FOLDER``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fx2onnx.base.errors import UserError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, print_text, reports_errors
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.sources import Source


@reports_errors
def case_command(
    model: Annotated[
        str,
        options.argument("MODEL", "An ONNX file, or a source, which is exported."),
    ],
    sample: Annotated[dict[str, Any], Group(Options)],
    output: Annotated[Path, options.output("The new folder.", "FOLDER")],
    source: options.SourceFlag = None,
    input: options.Inputs = None,
    dim: options.Dim = None,
    case_weights: options.CaseWeights = "full",
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write an ONNX test directory with inputs and outputs.

    The folder has model.onnx and test_data_set_0; fx2onnx run FOLDER compares. The outputs are those of PyTorch where a source is
    given, else the runner's.
    """
    from fx2onnx.cli.feeds import parse_dims, parse_pairs
    from fx2onnx.cli.progress import Stages
    from fx2onnx.functions import testcase
    from fx2onnx.verify.testcase import check_case

    check_case(output, case_weights)
    is_file = Path(model).suffix == ".onnx" or Path(model).is_file()
    if is_file:
        check_readable(Path(model))
    spec = source if is_file else model
    if spec is not None and (input or dim):
        raise UserError("E001", "the inputs come from the source; --input and --dim have no place beside it")
    if not is_file and source is not None:
        raise UserError("E001", "--source names the module of a file", next="leave it out")
    feeds = parse_pairs(input or [], "--input")
    sizes = parse_dims(dim or [])

    def written() -> dict[str, list[str]]:
        if spec is None:
            return testcase(model, output, feeds=feeds, dims=sizes, seed=sample["seed"], weights=case_weights)
        found = options.resolve_source(spec, **sample)
        file = model if is_file else _exported(found)
        return testcase(file, output, module=found.module, args=found.args, kwargs=found.kwargs, weights=case_weights)

    with Stages(quiet=quiet or json_output) as stages, warnings.catch_warnings(action="ignore"):
        described = stages.call(f"run {spec or 'in the runner'}", written)
    if json_output:
        print_json({"folder": str(output), **described})
    elif not quiet:
        print_text(
            f"{output}: {len(described['inputs'])} inputs, {len(described['outputs'])} outputs; fx2onnx run {output} compares\n"
        )


def _exported(found: Source) -> ExportResult:
    from fx2onnx.api import export

    return export(
        found.module,
        found.args,
        kwargs=found.kwargs,
        dynamic_shapes=found.dynamic_shapes,
        output_names=list(found.output_names) or None,
        bake=found.bake,
        data_branches=found.data_branches,
    )
