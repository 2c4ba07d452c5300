"""``fx2onnx inspect PATH``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fx2onnx.base.escape import human_size
from fx2onnx.cli import options
from fx2onnx.cli.outcome import print_json, reports_errors
from fx2onnx.cli.progress import cell, line, shape_text, working

MOST_FREQUENT = 12
"""Operators, lines of source code and tied weights that are named; all are in the JSON."""
MOST_MODULES = 20
"""Rows of the table of modules."""
_LONGEST_VALUE = 200
"""Characters shown of what others wrote into the metadata."""


@reports_errors
def inspect_command(
    path: Annotated[
        Path,
        options.argument("PATH", "An ONNX file, or a folder that fx2onnx exported."),
    ],
    html: options.Html = None,
    json_output: options.Json = False,
) -> None:
    """Show what is in an ONNX file or exported folder: inputs, outputs, operators, weights, sizes that it is right for."""
    from fx2onnx.functions import inspect

    with working(f"read {path}"):
        facts = inspect(path, html=html)
    if json_output:
        print_json(facts)
    else:
        (_show_folder if "folder" in facts else _show_file)(facts)


def _show_file(facts: Mapping[str, Any]) -> None:
    head = [f"file {facts['file']}, {human_size(facts['bytes'])}"]
    head += [f"by {facts['producer']}"] if facts["producer"] else []
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    line("model", facts["graph"] or "(no name)", *head)
    line("opset", opsets or "(none)", f"IR version {facts['ir_version']}")
    _show_values(facts["inputs"], facts["outputs"])
    for dim, places in facts["dims"].items():
        line("dim", dim, "; ".join(places))
    counts = [f"{name} {count}" for name, count in list(facts["operators"].items())[:MOST_FREQUENT]]
    more = len(facts["operators"]) - len(counts)
    counts += [f"and {more} more" if more else ""]
    line("nodes", str(facts["nodes"]), ", ".join(filter(None, counts)))
    if facts["functions"]:
        line("functions", str(facts["functions"]))
    weights = facts["weights"]
    line(
        "weights", f"{weights['tensors']} tensors", human_size(weights["bytes"]), f"{facts['parameters']:,} parameters"
    )
    for beside in weights["external"]:
        missing = "" if beside["is_there"] else "the file is missing"
        line("", f"in {beside['file']!r}", human_size(beside["bytes"]), missing)
    for row in facts["tied"][:MOST_FREQUENT]:
        readers = ", ".join(module or "(the model itself)" for module in row["modules"])
        line("tied", " = ".join(row["weights"]), human_size(row["bytes"]), f"read by {readers}" if readers else "")
    _show_modules(facts["modules"])
    _show_sources(facts["sources"])
    _show_conditions(facts["conditions"])
    for name, following in facts["state"].items():
        line("state", name, f"its next value is {following}")
    for key, value in facts["metadata"].items():
        line("metadata", key, value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}...")


def _show_modules(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the modules to a depth that takes few rows."""
    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import headed_table

    inner = [row for row in rows if row["module"]]
    depths = sorted({row["module"].count(".") for row in inner})
    shown: list[Mapping[str, Any]] = []
    for depth in depths:
        wanted = [row for row in inner if row["module"].count(".") <= depth]
        if len(wanted) > MOST_MODULES and shown:
            break
        shown = wanted
    if not shown:
        return
    table = headed_table("module", ">nodes", ">parameters", ">size")
    for row in shown[:MOST_MODULES]:
        numbers = (str(row["nodes"]), f"{row['parameters']:,}", human_size(row["bytes"]))
        table.add_row(*map(cell, (row["module"], *numbers)))
    console().print(table)
    if len(inner) > min(len(shown), MOST_MODULES):
        line("", f"of {len(inner)} modules; --json and --html have all")


def _show_sources(rows: Sequence[Mapping[str, Any]]) -> None:
    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import headed_table

    if not rows:
        return
    table = headed_table("line", ">nodes")
    for row in rows[:MOST_FREQUENT]:
        table.add_row(cell(row["source"]), cell(str(row["nodes"])))
    console().print(table)


def _show_folder(facts: Mapping[str, Any]) -> None:
    asked = [f"{key} {value}" for key, value in facts["options"].items() if value is not None]
    line("folder", facts["folder"], f"version {facts['version']}")
    if facts["source"]:
        line("source", facts["source"], facts["task"], f"seed {facts['seed']}", *asked)
    for graph in facts["graphs"]:
        per_call = graph["tokens_per_call"]
        tokens = f"takes {'all tokens' if graph['tokens'] == 'all' else 'new tokens'}, " + (
            f"{per_call} a call" if per_call else "any number a call"
        )
        print()
        line("graph", graph["file"], graph["kind"], *([tokens] if graph["kind"] in ("forward", "decode") else []))
        _show_values(graph["inputs"], graph["outputs"], graph["cache"])
        _show_conditions(graph["conditions"])
    print()
    for medium in facts["media"]:
        line("media", medium["kind"], "in every prompt" if medium["is_required"] else "where the prompt has it")
    for name in facts["baked"]:
        line("baked", name, "a constant of the graphs")
    for name, length in facts["files"].items():
        line("file", name, human_size(length))


def _show_values(
    inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]], cache: Iterable[Mapping[str, Any]] = ()
) -> None:
    """A row for each input and output; for a cache that repeats in every layer, one for each kind of tensor."""
    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import headed_table

    rows = [("input", each) for each in inputs] + [("output", each) for each in outputs]
    has_roles = any("role" in value for _, value in rows)
    table = headed_table("", "name", "dtype", "shape", *(["role"] if has_roles else []))
    for side, value in rows:
        cells = (side, value["name"], value["dtype"], shape_text(value["shape"]), value.get("role", ""))
        table.add_row(*map(cell, cells[: len(table.columns)]))
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for state in cache:
        kinds.setdefault((state["dtype"], shape_text(state["shape"]), state["length"]), []).append(state["name"])
    for (dtype, shape, length), names in kinds.items():
        shown = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"
        table.add_row(*map(cell, ("cache", shown, dtype, shape, f"length {length}")))
    console().print(table)


def _show_conditions(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import headed_table

    table = headed_table("dim", "right where", "needed by")
    for row in rows:
        table.add_row(*map(cell, (", ".join(row["dims"]), row["condition"], row["where"] or "-")))
    console().print(table)
