"""``fx2onnx list [KIND] [PATTERN]`` and ``fx2onnx ops [--opset N] [--missing] [PATTERN]``: what there is."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from fx2onnx.base.errors import UserError
from fx2onnx.base.opsets import OPSET_MAX, OPSET_MIN, check_opset
from fx2onnx.cli import options
from fx2onnx.cli.options import Group
from fx2onnx.cli.outcome import print_json, reports_errors, show_error
from fx2onnx.exporting.options import ExportOptions

if TYPE_CHECKING:
    from fx2onnx.torchcompat.operators import OpOverload


@reports_errors
def list_command(
    kind: Annotated[str | None, options.argument("[KIND]", "zoo, torchvision, timm, hf or file.")] = None,
    pattern: Annotated[
        str | None,
        options.argument("[PATTERN]", "Part of a name, or a shell pattern such as 'vit_*'."),
    ] = None,
    json_output: options.Json = False,
) -> None:
    """List the models of a source, one name a line. Without a kind, list the kinds of source."""
    from fx2onnx import sources

    if kind is None:
        _list_kinds(json_output)
        return
    known = sources.names(kind.rstrip(":"))
    if not known:
        raise UserError("E601", f"the models of {kind} cannot be listed", next="fx2onnx list shows how one is named")
    result = [name for name in known if pattern is None or fits(name, pattern)]
    if not result:
        from fx2onnx.sources.registry import fail_unknown

        fail_unknown(f"{kind} model", pattern or "", known, hint=f"fx2onnx list {kind}")
    if json_output:
        print_json(result)
    else:
        print("\n".join(result))


def fits(name: str, pattern: str) -> bool:
    """Whether ``pattern`` is a shell pattern for ``name``, or a part of it in any case."""
    if any(character in pattern for character in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern.lower() in name.lower()


def _list_kinds(json_output: bool) -> None:
    from fx2onnx.sources.registry import FACTORY, kind_of, prefixes

    kinds = [FACTORY]
    for prefix in reversed(prefixes()):
        try:
            kinds[:0] = filter(None, [kind_of(prefix)])
        except UserError as error:  # the others are listed all the same
            show_error(error)
    if json_output:
        print_json([{"kind": kind.prefix, "summary": kind.summary, "example": kind.example} for kind in kinds])
        return
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import unheaded_table

    table = unheaded_table(3)
    for kind in kinds:
        table.add_row(Text(f"{kind.prefix}:", "bold"), kind.summary, Text(kind.example, "dim"))
    console().print(table)


ENTRY, DECOMPOSITION, TORCHLIB, REFUSED, MISSING = "entry", "decomposition", "torchlib", "refused", "missing"
OTHER_STORAGE = (
    "cudnn_", "miopen_", "mkldnn_", "to_mkldnn", "quantized_", "quantize_", "dequantize", "empty_quantized", "q_",
    "qscheme", "int_repr", "sparse_", "to_sparse", "copy_sparse", "resize_as_sparse", "hspmm", "indices", "values",
    "crow_indices", "ccol_indices", "col_indices", "row_indices", "is_coalesced", "dense_dim", "to_padded_tensor",
)  # fmt: skip
"""Beginnings of names of overloads that belong to one back end, or to tensors that are not strided."""
QUESTIONS = ("is_pinned", "is_set_to", "is_same_size", "set")
"""Overloads about a tensor's memory; capture answers them or the file cannot know."""

SECTION = re.compile(r"(Shapes|ONNX|Refuses|Raises|Buffers|Numerics|Cost|Source):")


class Row(TypedDict):
    """One overload. ``since``: the lowest opset that expresses some of its calls and, where that is another, the lowest
    that expresses all that any opset does. ``measured``: whether these were found by trying calls of the operator
    database at every opset; else they are what the entry declares. ``form``: the ONNX form in words.
    """

    overload: str
    source: str
    since: list[int]
    measured: bool
    complex: bool
    form: str


@reports_errors
def ops_command(
    exported: Annotated[dict[str, Any], Group(ExportOptions, only=("opset_version",))],
    pattern: Annotated[
        str | None,
        options.argument("[PATTERN]", "Part of an overload's name, or a shell pattern such as 'aten.conv*'."),
    ] = None,
    missing: Annotated[
        bool, options.flag("--missing", "List what has no ONNX form instead (with --opset: in that opset).")
    ] = False,
    json_output: options.Json = False,
) -> None:
    """List the ATen operators that can be exported: overloads with an ONNX form, and where it comes from."""
    opset: int | None = exported["opset_version"]
    if opset is not None:
        check_opset(opset, "--opset")
    every = sorted(rows(OPSET_MIN), key=lambda row: row["overload"])
    result = [
        row
        for row in every
        if (pattern is None or fits(row["overload"], pattern)) and is_missing(row, opset or OPSET_MAX) == missing
    ]
    if not result and pattern is not None and not any(fits(row["overload"], pattern) for row in every):
        from fx2onnx.sources.registry import fail_unknown

        fail_unknown("overload", pattern, [row["overload"] for row in every], hint="fx2onnx ops")
    if json_output:
        print_json(result)
    else:
        _print_table(result)


def is_missing(row: Row, opset: int) -> bool:
    """Whether an export at ``opset`` would refuse the overload for want of a form."""
    return row["source"] in (MISSING, REFUSED) or bool(row["since"] and row["since"][0] > opset)


def measured_opsets() -> dict[str, list[int]]:
    """Lowest opsets by overload, as ``make operators`` measured them."""
    import fx2onnx.aten_map

    file = Path(fx2onnx.aten_map.__file__).parent / "measured_opsets.json"
    result: dict[str, list[int]] = json.loads(file.read_text(encoding="utf-8"))
    return result


def rows(opset_min: int) -> Iterator[Row]:
    """Every overload with an entry, and the functional ones of ATen that a model may call."""
    from fx2onnx.aten_map import TABLE
    from fx2onnx.aten_map.table.families import load_all, load_family
    from fx2onnx.lower import torchlib
    from fx2onnx.sources.torchvision import import_torchvision
    from fx2onnx.torchcompat.operators import is_decomposable, registered_overloads

    measured = measured_opsets()
    load_all()
    load_family("namespaces.quantized_decomposed")
    with contextlib.suppress(UserError):  # no torchvision, or a broken one
        import_torchvision()
        load_family("namespaces.torchvision")
    known = [*TABLE.entries, *(overload for overload in TABLE.complex_entries if overload not in TABLE.entries)]
    for overload in known:
        entries = TABLE.entries.get(overload) or TABLE.complex_entries[overload]
        form = entries[0].form or form_of(entries[0].function.__doc__)
        yield Row(
            overload=str(overload),
            source=REFUSED if form.startswith(REFUSED) else ENTRY,
            since=sorted(set(measured.get(str(overload), [max(min(entry.since for entry in entries), opset_min)]))),
            measured=str(overload) in measured,
            complex=overload in TABLE.complex_entries,
            form=form,
        )
    for overload in registered_overloads("aten"):
        if overload not in TABLE and may_be_called(overload):
            source = DECOMPOSITION if is_decomposable(overload) else MISSING
            since = []
            if source == MISSING and torchlib.find(overload, False) is not None:
                source, since = TORCHLIB, [torchlib.WRITTEN_FOR]
            yield Row(overload=str(overload), source=source, since=since, measured=False, complex=False, form="")


def form_of(docstring: str | None) -> str:
    """What the ``ONNX:`` section of an entry's docstring says, on one line; empty where there is none."""
    lines = [line.strip() for line in (docstring or "").splitlines()]
    start = next((index for index, line in enumerate(lines) if line.startswith("ONNX:")), len(lines))
    section = list(itertools.takewhile(lambda line: line and not SECTION.match(line), lines[start + 1 :]))
    return " ".join([line.removeprefix("ONNX:").strip() for line in lines[start : start + 1]] + section)


def may_be_called(overload: OpOverload) -> bool:
    """Whether it computes tensors from tensors, for any back end, in the forward direction."""
    schema = overload._schema
    name = schema.name.partition("::")[2]
    if name.startswith("_") or "backward" in name or name.startswith(OTHER_STORAGE) or name in QUESTIONS:
        return False
    takes_out = any(argument.is_out for argument in schema.arguments)
    return not schema.is_mutable and not takes_out and any("Tensor" in str(value.type) for value in schema.returns)


def _print_table(result: list[Row]) -> None:
    from rich.text import Text

    from fx2onnx.cli.progress import console
    from fx2onnx.report.console import unheaded_table

    table = unheaded_table(4)
    table.add_row(*(Text(title, "bold") for title in ("overload", "opset", "source")), "")
    for row in result:
        shown = ", ".join(f"{opset}+" for opset in row["since"]) if row["source"] in (ENTRY, TORCHLIB) else ""
        opset = shown or "-"
        table.add_row(row["overload"], opset, row["source"], Text("complex too" if row["complex"] else "", "dim"))
    console().print(table)
    console(stderr=True).print(Text(f"{len(result)} overloads", "dim"))
