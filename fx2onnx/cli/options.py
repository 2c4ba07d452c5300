"""Command line options that several commands share."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fx2onnx.sources import Source

_SPECS = "zoo:NAME, torchvision:NAME, timm:NAME, hf:FOLDER_OR_TYPE or package.module:factory, with ?key=value"
SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help=f"{_SPECS}.",
        show_default=False,
    ),
]
SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help=f"{_SPECS}; NAME may be a pattern such as 'resnet*'.",
        show_default=False,
    ),
]
Batch = Annotated[int | None, typer.Option("--batch", help="Batch size of the sample inputs.", show_default=False)]
Seq = Annotated[int | None, typer.Option("--seq", help="Sequence length of the sample inputs.", show_default=False)]
ImageSize = Annotated[
    int | None, typer.Option("--image-size", help="Height and width of sample images.", show_default=False)
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="What an hf: model is for, such as masked-lm; text-generation-with-past and the like write a folder.",
        show_default=False,
    ),
]
Cache = Annotated[
    str,
    typer.Option(
        "--cache", help="Of generation tasks: dynamic, or static: of fixed size, written in place (opset 24)."
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of random weights and inputs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result, or the error, as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display and no summary.")]


Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="random, none, reference (hf:FOLDER: weights stay in their files) or a state dict's path. "
        "Default: those of the source.",
        show_default=False,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="float16, bfloat16, float32 or float64 parameters and inputs.", show_default=False),
]

Bake = Annotated[
    list[str] | None,
    typer.Option(
        "--bake",
        metavar="NAME",
        help="An input whose values become constants of the file, repeatable.",
        show_default=False,
    ),
]

CaseWeights = Annotated[
    str,
    typer.Option(
        "--case-weights", help="Of the test case: full, or statistics: random numbers like them (and weights.json)."
    ),
]


def resolve_source(spec: str, **asked: Any) -> Source:
    """``fx2onnx.sources.resolve`` without the warnings of the libraries that it imports."""
    from fx2onnx import sources

    with warnings.catch_warnings(action="ignore"):
        return sources.resolve(spec, **asked)
