"""``fx2onnx diff A B``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.outcome import print_json, reports_errors

if TYPE_CHECKING:
    from fx2onnx.diff import Difference


@reports_errors
def diff_command(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="An ONNX file, or a folder that holds one.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The one to compare with it.", show_default=False)],
    numbers: Annotated[
        bool, typer.Option("--numbers/--no-numbers", help="Run both on the same random inputs, too.")
    ] = True,
    engine: Annotated[
        str, typer.Option("--engine", help="What runs them: runner, onnxruntime, reference, openvino.")
    ] = "runner",
    dim: Annotated[
        list[str] | None,
        typer.Option("--dim", help="Size of a dynamic dim, NAME=N; a small one where not given.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random inputs.")] = 0,
    json_output: options.Json = False,
) -> None:
    """Show what differs between two ONNX files: nodes by where they come from, weights, inputs and outputs, numbers.

    Exit code 0 where they are equal, 1 where they differ, 2 for an error. Names and order of nodes are no difference.
    """
    from fx2onnx.cli.feeds import parse_dims
    from fx2onnx.cli.run_data import model_in

    files = model_in(first), model_in(second)
    for file in files:
        check_readable(file)
    sizes = parse_dims(dim or [])
    if numbers:
        from fx2onnx.cli.diff_numbers import check_engine

        check_engine(engine)
    from fx2onnx.diff import diff

    found = diff(*files)
    outputs = None
    if numbers:
        from fx2onnx.cli.diff_numbers import compare_outputs

        outputs = compare_outputs(*files, engine, sizes, seed)
    if json_output:
        print_json({**found.as_dict(), "numbers": outputs})
    else:
        _show(found, outputs)
    if not found.equal:
        raise typer.Exit(1)


def _show(found: Difference, outputs: dict[str, Any] | None) -> None:
    from fx2onnx.cli.diff_show import show_difference, show_numbers

    show_difference(found)
    if outputs is not None:
        show_numbers(outputs)
