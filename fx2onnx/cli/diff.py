"""``fx2onnx diff A B``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import UserError
from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.cli.progress import cell, line, shape_text
from fx2onnx.diff.compare import Difference
from fx2onnx.diff.nodes import Change, NodeDifferences, NodeFacts
from fx2onnx.diff.weights import ChangedWeight, WeightDifferences

if TYPE_CHECKING:
    from fx2onnx.diff.compare import Difference


@reports_errors
def diff_command(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="An ONNX file, or a folder that holds one.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The one to compare with it.", show_default=False)],
    numbers: Annotated[
        bool, typer.Option("--numbers/--no-numbers", help="Run both on the same random inputs, too.")
    ] = True,
    engine: options.Engines = None,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    json_output: options.Json = False,
) -> None:
    """Compare two ONNX files.

    It shows nodes, weights, inputs and outputs that differ, and the outputs on random inputs. Names and the order of nodes are
    no difference. The exit code is 0 where the files are equal, 1 where they differ and 2 for an error.
    """
    from fx2onnx.cli.feeds import parse_dims
    from fx2onnx.cli.run_data import model_in

    files = model_in(first), model_in(second)
    for file in files:
        check_readable(file)
    sizes = parse_dims(dim or [])
    name = engine[0] if engine else "runner"
    if numbers:
        from fx2onnx.cli.diff_numbers import check_engine

        if len(engine or ()) > 1:
            raise UserError("E001", "diff runs both files in one engine", next="give --engine once")
        check_engine(name)
    from fx2onnx.diff.compare import diff

    found = diff(*files)
    outputs = None
    if numbers:
        from fx2onnx.cli.diff_numbers import compare_outputs

        outputs = compare_outputs(*files, name, sizes, seed)
    if json_output:
        print_json({**found.as_dict(), "numbers": outputs})
    else:
        _show(found, outputs)
    if not found.equal:
        raise typer.Exit(1)


def _show(found: Difference, outputs: dict[str, Any] | None) -> None:
    show_difference(found)
    if outputs is not None:
        show_numbers(outputs)


MOST_ROWS = 40
"""Rows of each table; all are in the JSON."""
_LONGEST = 120
"""Characters of a value."""


def show_difference(found: Difference) -> None:
    """All of it, what is no difference in numbers only."""
    line("A", found.files[0])
    line("B", found.files[1])
    for change in found.info:
        line(change.what, change.name, _arrow(change), "(no difference)")
    for change in (*found.model, *found.interface, *found.functions):
        line(change.what, change.name, _arrow(change))
    _show_nodes(found.nodes)
    _show_weights(found.weights)
    line("", "equal" if found.equal else "different")


def _show_nodes(nodes: NodeDifferences) -> None:
    counts = {"changed": len(nodes.changed), "added": len(nodes.added), "removed": len(nodes.removed)}
    beside = {"with another name": nodes.renamed, "in another order": nodes.moved}
    line("nodes", f"{nodes.matched} in both", _counted(counts), _counted(beside))
    rows = [("changed", each.node, change) for each in nodes.changed for change in each.changes]
    _table(
        ("", "node", "operator", "from", "", "A", "B"),
        (
            (kind, _name(node), node.op_type, node.source, f"{change.what} {change.name}", *_both(change))
            for kind, node, change in rows
        ),
    )
    alone = [("removed", node) for node in nodes.removed] + [("added", node) for node in nodes.added]
    _table(("", "node", "operator", "from"), ((kind, _name(node), node.op_type, node.source) for kind, node in alone))
    for change in nodes.outputs:
        line("output", change.name, _arrow(change))


def _name(node: NodeFacts) -> str:
    return f"{node.name} ({node.graph})" if node.graph else node.name


def _show_weights(weights: WeightDifferences) -> None:
    counts = {"changed": len(weights.changed), "added": len(weights.added), "removed": len(weights.removed)}
    line("weights", f"{weights.equal} equal", _counted({"renamed": len(weights.renamed)}), _counted(counts))
    _table(("weight", "A", "B", "difference", "read by"), map(_weight_row, weights.changed))
    alone = [("removed", each) for each in weights.removed] + [("added", each) for each in weights.added]
    _table(("", "weight", "dtype", "shape"), ((kind, w.name, w.dtype, shape_text(w.shape)) for kind, w in alone))


def _weight_row(weight: ChangedWeight) -> Sequence[str]:
    if weight.perm is not None:
        what = f"transposed {weight.perm}"
    elif weight.before is not None and weight.after is not None:
        what = f"{weight.before} -> {weight.after}"
    elif weight.largest is not None:
        what = f"at most {weight.largest:.3g}, of {weight.scale:.3g}"
    else:
        what = "another shape" if weight.shape != weight.other_shape else "other strings"
    before = f"{weight.dtype} {shape_text(weight.shape)}"
    after = f"{weight.other_dtype} {shape_text(weight.other_shape)}"
    name = weight.name if weight.name == weight.other_name else f"{weight.name} -> {weight.other_name}"
    return name, before, "" if after == before else after, what, weight.read_by


def show_numbers(numbers: Mapping[str, Any]) -> None:
    """The largest difference of each output."""
    sizes = ", ".join(f"{name} {size}" for name, size in numbers["sizes"].items())
    line("numbers", f"in {numbers['engine']}, seed {numbers['seed']}", sizes)
    if numbers["note"]:
        line("", f"not compared: {numbers['note']}")
    _table(
        ("output", "largest difference", "largest value"),
        (
            (row["output"], row["problem"] or _short(row["largest"]), "" if row["problem"] else _short(row["scale"]))
            for row in numbers["outputs"]
        ),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Nothing where there are no rows."""
    every = list(rows)
    if not every:
        return
    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import headed_table

    table = headed_table(*columns)
    for row in every[:MOST_ROWS]:
        table.add_row(*(cell(text[:_LONGEST]) for text in row))
    console().print(table)
    if len(every) > MOST_ROWS:
        line("", f"and {len(every) - MOST_ROWS} more; --json has all")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _both(change: Change) -> tuple[str, str]:
    return _text(change.before), _text(change.after)


def _arrow(change: Change) -> str:
    return " -> ".join(text[:_LONGEST] for text in _both(change))


def _text(value: Any) -> str:
    if value is None:
        return "(none)"
    return shape_text(value) if isinstance(value, list) else str(value)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
