"""``fx2onnx diff A B``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fx2onnx.base.errors import Fx2OnnxError, UserError, first_line
from fx2onnx.cli import options
from fx2onnx.cli.files import check_readable
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.cli.progress import cell, line, shape_text, working

if TYPE_CHECKING:
    from fx2onnx.diff.compare import ChangedWeight, Difference, WeightDifferences
    from fx2onnx.diff.nodes import NodeChange, NodeDifferences, NodeFacts


@reports_errors
def diff_command(
    first: Annotated[Path, options.argument("A", "An ONNX file, or a folder that holds one.")],
    second: Annotated[Path, options.argument("B", "The one to compare with it.")],
    numbers: Annotated[bool, options.flag("--numbers/--no-numbers", "Run both on the same random inputs, too.")] = True,
    engine: options.Engines = None,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    json_output: options.Json = False,
    quiet: options.Quiet = False,
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
        from fx2onnx.judge.engines import chosen_engines

        if len(engine or ()) > 1:
            raise UserError("E001", "diff runs both files in one engine", next="give --engine once")
        chosen_engines([name])
    from fx2onnx.diff.compare import diff

    with working(f"compare {files[0]} with {files[1]}"):
        found = diff(*files)
        outputs = compare_outputs(*files, name, sizes, seed) if numbers else None
    if json_output:
        print_json({**found.as_dict(), "numbers": outputs})
    elif not quiet:
        show_difference(found)
        if outputs is not None:
            show_numbers(outputs)
    if not found.equal:
        raise typer.Exit(1)


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


def _few(numbers: Any) -> str:
    """The numbers of a small weight, floats with six digits."""
    if isinstance(numbers, list):
        return f"[{', '.join(map(_few, numbers))}]"
    return f"{numbers:.6g}" if isinstance(numbers, float) else str(numbers)


def _weight_row(weight: ChangedWeight) -> Sequence[str]:
    if weight.perm is not None:
        what = f"transposed {weight.perm}"
    elif weight.before is not None and weight.after is not None:
        what = f"{_few(weight.before)} -> {_few(weight.after)}"
    elif weight.largest is not None:
        what = f"up to {weight.largest:.3g}; largest number {weight.scale:.3g}"
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


def _both(change: NodeChange) -> tuple[str, str]:
    return _text(change.before), _text(change.after)


def _arrow(change: NodeChange) -> str:
    return " -> ".join(text[:_LONGEST] for text in _both(change))


def _text(value: Any) -> str:
    if value is None:
        return "(none)"
    return shape_text(value) if isinstance(value, list) else str(value)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def compare_outputs(first: Path, second: Path, engine: str, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """``{"engine", "seed", "sizes", "outputs": [{"output", "largest", "scale", "problem"}], "note"}``.

    ``note`` says why nothing was compared: other inputs, or an engine that does not run a file. Raises UserError E001 for a
    dim that no input has.
    """
    import onnx
    import onnx_ir

    from fx2onnx.cli.feeds import check_dims
    from fx2onnx.judge.engines import ENGINES
    from fx2onnx.judge.feeds import candidate_sizes, conditions_of, dim_names, inputs_of, taken_feeds

    result: dict[str, Any] = {"engine": engine, "seed": seed, "sizes": {}, "outputs": [], "note": ""}
    one, other = (
        onnx_ir.serde.deserialize_model(onnx.load(path, load_external_data=False)) for path in (first, second)
    )
    inputs, others = inputs_of(one), inputs_of(other)
    if {each.name: each.dtype for each in inputs} != {each.name: each.dtype for each in others}:
        return {**result, "note": "the files take other inputs"}
    check_dims([dim for each in inputs for dim in (*(each.dims or ()), *dim_names(each))], dims)
    conditions = [*conditions_of(one), *conditions_of(other)]
    if next(candidate_sizes(inputs, conditions, dims), None) is None:
        return {**result, "note": "no sizes were found that both files are right for; give them with --dim"}
    file = first
    try:
        taken = next(taken_feeds(inputs, ENGINES[engine](str(first)), conditions, dims, seed), None)
        if taken is None:
            return {**result, "note": "no random values for inputs that are no tensors, or of no known rank"}
        file = second
        after = ENGINES[engine](str(second))(taken.feeds)
    except Exception as cause:  # each engine has classes of its own
        why = cause.what if isinstance(cause, Fx2OnnxError) else f"{type(cause).__name__}: {first_line(cause)[:200]}"
        return {**result, "note": f"{engine} does not run {file}: {why}"}
    result["sizes"] = {name: size for name, size in taken.sizes.items() if name.isidentifier()}
    names, other_names = ([value.name for value in model.graph.outputs] for model in (one, other))
    if set(names) == set(other_names):
        after = [after[other_names.index(name)] for name in names]
    pairs = zip(names, taken.results, after, strict=False)
    return {**result, "outputs": [_compared(name or "", *values) for name, *values in pairs]}


def _compared(name: str, before: Any, after: Any) -> dict[str, Any]:
    import numpy as np

    from fx2onnx.judge.arrays import largest_difference

    row = {"output": name, "largest": None, "scale": None, "problem": ""}
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return {**row, "problem": "no tensor"}
    if before.shape != after.shape or before.dtype != after.dtype:
        kinds = (f"{array.dtype} {list(array.shape)}" for array in (before, after))
        return {**row, "problem": " and ".join(kinds)}
    largest, scale = largest_difference(before, after)
    if largest is None and not np.array_equal(before, after):
        row["problem"] = "other strings"
    return {**row, "largest": largest, "scale": scale}
