"""``fx2onnx optimize IN OUT`` and ``fx2onnx quantize IN OUT``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import human_size
from fx2onnx.base.options import OUTPUT, PRECISION, SIZES
from fx2onnx.cli import options
from fx2onnx.cli.export import own_metadata
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, print_warnings, reports_errors
from fx2onnx.exporting.options import EXTERNAL_HELP, ExportOptions
from fx2onnx.precision.options import Precision
from fx2onnx.quantize.options import KINDS, Quantize
from fx2onnx.report.text import of_allowed

if TYPE_CHECKING:
    from fx2onnx.steps.result import OptimizeResult

Source = Annotated[Path, options.argument("IN", "An ONNX file from any tool.")]
Out = Annotated[
    Path | None,
    options.argument("OUT", "The file to write. IN itself is replaced as a whole."),
]
External = Annotated[
    bool | None,
    options.flag(
        "--external-data/--no-external-data",
        EXTERNAL_HELP,
        OUTPUT,
    ),
]


@reports_errors
def optimize_command(
    source: Source,
    quantize: Annotated[Quantize | None, Group(Quantize, is_made=True)],
    precision: Annotated[Precision | None, Group(Precision, is_made=True)],
    exported: Annotated[dict[str, Any], Group(ExportOptions, only=("opset_version", "target", "effort", "properties"))],
    out: Out = None,
    output: Annotated[Path | None, options.output("The file to write, instead of OUT.")] = None,
    level: Annotated[int, options.flag("-O --level", "How much is rewritten: 0 to 3.")] = 2,
    fix: Annotated[
        list[str] | None,
        options.flag("--fix", "Fix sizes: batch=1,sequence=128, or input:axis=N.", SIZES, metavar="DIM=N"),
    ] = None,
    dynamic: options.Dynamic = None,
    external_data: External = None,
    external_data_bytes: Annotated[
        int,
        options.flag("--external-data-bytes", "Keep smaller weights in the model file.", OUTPUT),
    ] = 1024,
    verify: options.Verify = True,
    strict: options.Strict = False,
    engine: options.Engines = None,
    seed: options.Seed = 0,
    explain: Annotated[
        bool, options.flag("--explain", "Show the rewrites that were refused, and why.", OUTPUT)
    ] = False,
    diff: Annotated[bool, options.flag("--diff", "Show what differs between IN and OUT.", OUTPUT)] = False,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Optimize any ONNX file and check the result.

    A rewrite that changes the results is found, named and left out. A file that differs is never written.
    """
    from fx2onnx.cli.feeds import places_of
    from fx2onnx.steps.sizes import parse_sizes

    asked = {
        "level": level,
        "opset": exported["opset_version"],
        **{name: exported[name] for name in ("target", "effort")},
        "fix": parse_sizes(",".join(fix or [])),
        "dynamic": places_of(dynamic or []),
        "quantize": quantize,
        "dtype": precision,
        "external_data": external_data,
        "external_data_bytes": external_data_bytes,
        "metadata": own_metadata(exported["properties"] or ()),
        "verify": verify,
        "engines": engine,
        "seed": seed,
        "explain": explain,
    }
    _optimize(source, _path(out, output), asked, diff=diff, json_output=json_output, quiet=quiet)


@reports_errors
def quantize_command(
    source: Source,
    weights: Annotated[dict[str, Any], Group(Quantize, skip=("kind",))],
    exported: Annotated[dict[str, Any], Group(ExportOptions, only=("opset_version", "target", "effort"))],
    out: Out = None,
    kind: Annotated[str, options.flag("--kind", f"How weights are stored: {', '.join(KINDS)}.", PRECISION)] = "int8",
    output: Annotated[Path | None, options.output("The file to write, instead of OUT.")] = None,
    external_data: External = None,
    verify: options.Verify = True,
    strict: options.Strict = False,
    engine: options.Engines = None,
    seed: options.Seed = 0,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Quantize the weights of any ONNX file. The rest of the graph stays as it is."""
    asked = {
        "level": 0, "opset": exported["opset_version"], "target": exported["target"],
        "quantize": Quantize(kind, **weights), "external_data": external_data, "verify": verify,
        "effort": exported["effort"], "engines": engine, "seed": seed,
    }  # fmt: skip
    _optimize(source, _path(out, output), asked, diff=False, json_output=json_output, quiet=quiet)


def _path(out: Path | None, output: Path | None) -> Path:
    if (out is None) == (output is None):
        raise UserError(
            "E001",
            "OUT is missing" if out is None else "OUT and --output name two files",
            next="-o smaller.onnx" if out is None else "leave out one of the two",
        )
    return out or output  # type: ignore[return-value]


def _optimize(source: Path, output: Path, asked: dict[str, Any], *, diff: bool, json_output: bool, quiet: bool) -> None:
    from fx2onnx.cli.progress import Stages
    from fx2onnx.steps.pipeline import optimize_model

    check_readable(source)
    if diff and output.exists() and source.samefile(output):
        raise UserError("E001", "--diff compares OUT with IN, which is replaced", next="give OUT another name")
    with Stages(quiet=quiet or json_output) as stages:
        result = stages.call(f"optimize {source}", lambda: optimize_model(source, output, **asked))
    found = None
    if diff:
        from fx2onnx.diff.compare import diff as difference

        found = difference(source, output)
    if json_output:
        print_json({**result.as_dict(), **({} if found is None else {"diff": found.as_dict()})})
    elif not quiet:
        _show(source, result)
        if found is not None:
            from fx2onnx.cli.diff import show_difference

            show_difference(found)
    else:
        print_warnings(result.warnings)


def _show(source: Path, result: OptimizeResult) -> None:
    from fx2onnx.cli.progress import line

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
    share = of_allowed(worst.max_abs_error, worst.allowed)
    return (
        f"{len(result.comparison.tried)} sets of random inputs in {engines}: "
        f"largest error {worst.max_abs_error:.2g}{f', {share} of what is allowed' if share else ''}"
    )
