"""Command line options that several commands share."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError

if TYPE_CHECKING:
    from fx2onnx.precision.options import Precision
    from fx2onnx.quantize.options import Quantize
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
Logits = Annotated[
    str,
    typer.Option("--logits", help="Of generation tasks: all, or last: of the last position, as generation needs them."),
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
FileDtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="float16, bfloat16 or mixed: weights and compute, but where a measurement asks for float32 (docs/precision.md); "
        "float32 or float64: the module's.",
        show_default=False,
    ),
]
Io = Annotated[
    str | None,
    typer.Option("--io", help="float32: with --dtype, inputs and outputs stay as they are.", show_default=False),
]
Functions = Annotated[
    list[str] | None,
    typer.Option(
        "--functions",
        metavar="CLASS",
        help="Modules of this class as ONNX functions, repeatable; all: of every class (docs/functions.md).",
        show_default=False,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="PATTERN",
        help="Nodes (by name, result or operator) that --dtype leaves in float32, repeatable.",
        show_default=False,
    ),
]

Faults = Annotated[
    Path | None,
    typer.Option(
        "--faults",
        metavar="FILE",
        help="A table of known faults of engines, beside those of fx2onnx (fx2onnx debug --faults writes it).",
        show_default=False,
    ),
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
Checks = Annotated[
    bool,
    typer.Option(
        "--checks/--no-checks", help="Nodes that fail where sizes that only the data tells break a condition."
    ),
]

QuantizeKind = Annotated[
    str | None,
    typer.Option(
        "--quantize", help="Weights as int8, int4, uint4, nf4 or float8 (docs/quantization.md).", show_default=False
    ),
]
Block = Annotated[
    int | None,
    typer.Option(
        "--block", help="Numbers that share a scale; 0: a row. Default: 32 of 4 bits, a row of 8.", show_default=False
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="PATTERN", help="Weights that --quantize leaves, repeatable.", show_default=False
    ),
]
QuantizeFormat = Annotated[
    str,
    typer.Option("--format", help="qdq, matmulnbits (onnxruntime's product), or auto: the latter for 4 bits."),
]
Embeddings = Annotated[bool, typer.Option("--embeddings", help="--quantize also tables and heads that share them.")]
KeepWorst = Annotated[int, typer.Option("--keep-worst", help="So many layers that --quantize would change most stay.")]
Accuracy = Annotated[
    bool, typer.Option("--accuracy/--no-accuracy", help="With --quantize: measure what it does to each layer.")
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="FILE.npz",
        help="Inputs of the model by name, which --quantize fits the codes of products to.",
        show_default=False,
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="With --calibration: gptq (the default) or awq.", show_default=False),
]
ActOrder = Annotated[bool, typer.Option("--act-order", help="Of gptq: columns of the largest inputs first.")]
Activations = Annotated[
    str,
    typer.Option(
        "--activations",
        help="int8: onnxruntime's product rounds what it multiplies to 8 bits (faster). auto: for onnxruntime-genai.",
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


def precision_of(
    dtype: str | None, io: str | None, keep: list[str] | None, *, training: bool = False
) -> tuple[Precision | None, str | None]:
    """What ``--dtype`` and the options beside it ask for, and the dtype that is asked of a source. Raises UserError E001."""
    from fx2onnx.precision.options import precision_or_dtype

    if training and not io and not keep:
        return None, dtype
    precision, of_source = precision_or_dtype(dtype, io)
    if training:
        raise UserError("E001", "--io and --keep are for files that infer", next="leave out --training")
    if precision is None:
        if keep:
            raise UserError("E001", "--keep is for --dtype", next="add --dtype float16")
        return None, of_source
    return replace(precision, keep=tuple(keep or ())), of_source


def precision_of_file(dtype: str | None, float16: bool, io: str | None, keep: list[str] | None) -> Precision | None:
    """The same for a file, which has no source. Raises UserError E001."""
    from fx2onnx.precision.options import Precision

    if float16 and dtype not in (None, "float16"):
        raise UserError("E001", f"--float16 stands beside --dtype {dtype}", next="leave out one of both")
    asked = "float16" if float16 else dtype
    if asked is None:
        precision_of(None, io, keep)
        return None
    return replace(Precision(asked, io), keep=tuple(keep or ()))


def quantize_of(
    kind: str | None,
    block: int | None,
    exclude: list[str] | None,
    form: str,
    *,
    embeddings: bool,
    keep_worst: int,
    accuracy: bool,
    calibration: str | None,
    method: str | None,
    act_order: bool,
    activations: str,
) -> Quantize | None:
    """What ``--quantize`` and the options beside it ask for. Raises UserError E001."""
    from fx2onnx.quantize.options import Quantize

    if kind is not None:
        chosen = tuple(exclude or ()), form, embeddings, keep_worst, accuracy
        return Quantize(
            kind, block, *chosen, calibration=calibration, method=method, act_order=act_order, activations=activations
        )
    alone = {
        "--block": block is not None,
        "--exclude": bool(exclude),
        "--format": form != "auto",
        "--embeddings": embeddings,
        "--keep-worst": keep_worst,
        "--calibration": calibration is not None,
        "--method": method is not None,
        "--act-order": act_order,
        "--activations": activations != "auto",
    }
    for name, is_given in alone.items():
        if is_given:
            raise UserError("E001", f"{name} is for --quantize", next="add --quantize int8")
    return None
