"""``fx2onnx optimize IN OUT``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable, human_size
from fx2onnx.cli.outcome import print_json, reports_errors

if TYPE_CHECKING:
    from fx2onnx.steps.result import OptimizeResult


@reports_errors
def optimize_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="An ONNX file of any origin.", show_default=False)],
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The file to write; IN itself is replaced as a whole.", show_default=False),
    ],
    level: Annotated[int, typer.Option("-O", "--level", help="0 to 3: how much is rewritten.")] = 2,
    opset: Annotated[int | None, typer.Option("--opset", help="Convert to this opset.", show_default=False)] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="The runtime that OUT is for, such as onnxruntime-1.19.", show_default=False),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option("--fix", help="Fix sizes: batch=1,sequence=128, or input:axis=N.", show_default=False),
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option("--dynamic", help="Make sizes dynamic again: input:axis=NAME.", show_default=False),
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--no-external-data",
            help="Weights in a file beside, or not; default: as IN has them.",
            show_default=False,
        ),
    ] = None,
    external_data_bytes: Annotated[
        int, typer.Option("--external-data-bytes", help="Smaller weights stay in the model file.")
    ] = 1024,
    metadata: Annotated[
        str, typer.Option("--metadata", help="keep, or none: leave out stack traces and source lines of nodes.")
    ] = "keep",
    quantize: options.QuantizeKind = None,
    block: options.Block = None,
    exclude: options.Exclude = None,
    format: options.QuantizeFormat = "auto",
    embeddings: options.Embeddings = False,
    keep_worst: options.KeepWorst = 0,
    accuracy: options.Accuracy = True,
    calibration: options.Calibration = None,
    method: options.Method = None,
    act_order: options.ActOrder = False,
    activations: options.Activations = "auto",
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="float16, bfloat16 or mixed: weights and compute, but where a measurement asks for float32.",
            show_default=False,
        ),
    ] = None,
    float16: Annotated[bool, typer.Option("--float16", help="The same as --dtype float16.")] = False,
    io: options.Io = None,
    keep: options.Keep = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare OUT with IN on random inputs.")] = True,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="What runs both: runner, onnxruntime, ...; repeatable.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random inputs.")] = 0,
    explain: Annotated[bool, typer.Option("--explain", help="Show what was refused, too, and why.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what differs between IN and OUT.")] = False,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Make an ONNX file smaller and faster, whoever wrote it, and compare the result with it.

    A rewrite that changes the numbers is found, named and left out; a file that differs is never written.
    """  # fmt: skip
    from fx2onnx.cli.progress import Stages
    from fx2onnx.steps.dynamic import parse_dynamic
    from fx2onnx.steps.pipeline import optimize_model
    from fx2onnx.steps.sizes import parse_sizes

    rounded = options.quantize_of(
        quantize, block, exclude, format, embeddings=embeddings, keep_worst=keep_worst, accuracy=accuracy,
        calibration=calibration, method=method, act_order=act_order, activations=activations,
    )  # fmt: skip
    precision = options.precision_of_file(dtype, float16, io, keep)
    check_readable(source)
    if diff and output.exists() and source.samefile(output):
        raise UserError("E001", "--diff compares OUT with IN, which is replaced", next="give OUT another name")
    with Stages(quiet=quiet or json_output) as stages:
        result = stages.call(
            f"optimize {source}",
            lambda: optimize_model(
                source,
                output,
                level=level,
                opset=opset,
                target=target,
                fix=parse_sizes(",".join(fix or [])),
                dynamic=parse_dynamic(dynamic or []),
                quantize=rounded,
                dtype=precision,
                external_data=external_data,
                external_data_bytes=external_data_bytes,
                metadata=metadata,
                verify=verify,
                engines=engine,
                seed=seed,
                explain=explain,
            ),
        )
    found = None
    if diff:
        from fx2onnx.diff import diff as difference

        found = difference(source, output)
    if json_output:
        print_json({**result.as_dict(), **({} if found is None else {"diff": found.as_dict()})})
    elif not quiet:
        _show(source, result)
        if found is not None:
            from fx2onnx.cli.diff_show import show_difference

            show_difference(found)


def _show(source: Path, result: OptimizeResult) -> None:
    from fx2onnx.cli.lines import line

    before, after = result.before, result.after
    line("in", str(source), human_size(before.total_bytes), f"{before.nodes} nodes", f"{before.weights} weights")
    line("out", result.path, human_size(after.total_bytes), f"{after.nodes} nodes", f"{after.weights} weights")
    line("opset", str(result.opset))
    for name, count in result.edits.items():
        line("done", name, str(count))
    for name, reasons in result.refusals.items():
        for reason, count in reasons.items():
            line("refused", name, reason, str(count))
    for warning in [*result.done_notes, *result.warnings]:
        line("note", warning)
    line("verified", _verdict(result))


def _verdict(result: OptimizeResult) -> str:
    if result.comparison is None:
        return "no: --no-verify"
    if result.verified is None:
        return "no: no engine runs the file on random inputs"
    rows = result.comparison.rows
    worst = max(rows, key=lambda row: row.share)
    engines = ", ".join(dict.fromkeys(row.engine for row in rows))
    sets, error = len(result.comparison.tried), worst.max_abs_error
    return f"{sets} sets of random inputs in {engines}: largest error {error:.2g}, allowed {worst.allowed:.2g}"
