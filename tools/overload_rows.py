"""Write the overloads that ``fx2onnx ops`` lists into ``fx2onnx/aten_map/overloads.json``: ``python -m tools.overload_rows``."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from fx2onnx.aten_map import TABLE
from fx2onnx.aten_map.table.families import load_all, load_family
from fx2onnx.base.errors import UserError
from fx2onnx.base.opsets import OPSET_MIN
from fx2onnx.cli.listing import DECOMPOSITION, ENTRY, MISSING, OVERLOADS, REFUSED, TORCHLIB, ListedRow
from fx2onnx.lower import torchlib
from fx2onnx.sources.torchvision import import_torchvision
from fx2onnx.torchcompat.operators import OpOverload, is_decomposable, registered_overloads

NAMESPACES = frozenset({"aten", "torchvision", "quantized_decomposed"})
OTHER_STORAGE = (
    "cudnn_", "miopen_", "mkldnn_", "to_mkldnn", "quantized_", "quantize_", "dequantize", "empty_quantized", "q_",
    "qscheme", "int_repr", "sparse_", "to_sparse", "copy_sparse", "resize_as_sparse", "hspmm", "indices", "values",
    "crow_indices", "ccol_indices", "col_indices", "row_indices", "is_coalesced", "dense_dim", "to_padded_tensor",
)  # fmt: skip
"""Beginnings of names of overloads that belong to one back end, or to tensors that are not strided."""
QUESTIONS = ("is_pinned", "is_set_to", "is_same_size", "set")
"""Overloads about a tensor's memory; capture answers them or the file cannot know."""

SECTION = re.compile(r"(Shapes|ONNX|Refuses|Raises|Buffers|Numerics|Cost|Source):")


def measured_opsets() -> dict[str, list[int]]:
    """Lowest opsets by overload, as ``make operators`` measured them."""
    file = Path(__file__).with_name("measured_opsets.json")
    result: dict[str, list[int]] = json.loads(file.read_text(encoding="utf-8"))
    return result


def rows(opset_min: int) -> Iterator[ListedRow]:
    """Every overload with an entry, and the functional ones of ATen that a model may call."""
    measured = measured_opsets()
    load_all()
    load_family("namespaces.quantized_decomposed")
    with contextlib.suppress(UserError):  # no torchvision, or a broken one
        import_torchvision()
        load_family("namespaces.torchvision")
    known = [*TABLE.entries, *(overload for overload in TABLE.complex_entries if overload not in TABLE.entries)]
    for overload in filter(is_listed, known):
        entries = TABLE.entries.get(overload) or TABLE.complex_entries[overload]
        form = entries[0].form or form_of(entries[0].function.__doc__)
        yield ListedRow(
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
            yield ListedRow(overload=str(overload), source=source, since=since, measured=False, complex=False, form="")


def form_of(docstring: str | None) -> str:
    """The ``ONNX:`` section of an entry's docstring, on one line; empty where there is none."""
    lines = [line.strip() for line in (docstring or "").splitlines()]
    start = next((index for index, line in enumerate(lines) if line.startswith("ONNX:")), len(lines))
    section = list(itertools.takewhile(lambda line: line and not SECTION.match(line), lines[start + 1 :]))
    return " ".join([line.removeprefix("ONNX:").strip() for line in lines[start : start + 1]] + section)


def is_listed(overload: OpOverload) -> bool:
    """True if the overload is there in every process; other namespaces come with what a process has imported."""
    return overload.namespace in NAMESPACES


def may_be_called(overload: OpOverload) -> bool:
    """True if the overload computes tensors from tensors, for any back end, in the forward direction."""
    schema = overload._schema
    name = schema.name.partition("::")[2]
    if name.startswith("_") or "backward" in name or name.startswith(OTHER_STORAGE) or name in QUESTIONS:
        return False
    takes_out = any(argument.is_out for argument in schema.arguments)
    return not schema.is_mutable and not takes_out and any("Tensor" in str(value.type) for value in schema.returns)


def collected() -> list[ListedRow]:
    """The rows in order."""
    return sorted(rows(OPSET_MIN), key=lambda row: row["overload"])


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in collected())
    OVERLOADS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
