"""A check that every condition on sizes in the report of a model is true at the sizes of its own example inputs.

``python -m studies.conditions_at_sample [--source torchvision|timm|hf|zoo] [--models NAMES]`` exports the models of
docs/measured/dynamic_sizes.md and of the zoo without a file, with the sizes of docs/measured/dynamic_sizes.md dynamic where the module allows, then with
none. It prints each false condition and what is refused, goes on where an earlier call stopped, writes docs/measured/conditions_at_sample.md
(``--write``), and ends with 1 where a condition is false. ``--against FILE`` compares with the rows of another state of the code: models
lost, sizes lost, more conditions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from studies.coverage_models import SOURCES
from studies.coverage_worker import Row, Worker, _described, _quiet, answer, read_named_rows
from studies.dynamic_sizes import LARGEST_BYTES, _axes_of, _built, names_of

PAGE = Path(__file__).parent.parent / "docs" / "measured" / "conditions_at_sample.md"
LIMIT_S = 300.0
WAYS = ("dynamic", "static")
_PACKAGES = ("torch", "torchvision", "timm", "transformers")


def examine(source: str, name: str, _seeds: int) -> Row:
    """The row of one model. Raises nothing that the model or fx2onnx raises."""
    row: Row = {"source": source, "name": name, "false": []}
    with _quiet(), torch.no_grad():
        torch.manual_seed(0)
        built = _zoo(name) if source == "zoo" else _built(row, source, name)
        for way in WAYS if built is not None else ():
            begin = time.perf_counter()
            try:
                row[way] = _conditions(built, way, row["false"])
            except Exception as error:  # whatever a model raises is its row's result
                row[way] = {"error": _described(error, "export")}
            row[way]["s"] = round(time.perf_counter() - begin, 2)
    return row


def _zoo(name: str) -> Any:
    from fx2onnx.sources import resolve

    with torch.enable_grad():  # one of them is trained here
        return resolve(f"zoo:{name}")


def _conditions(built: Any, way: str, false: list[str]) -> Row:
    import fx2onnx
    from fx2onnx.capture.shapes.dynamic import Proposed
    from fx2onnx.cli.feeds import arguments_of
    from fx2onnx.sizes.assumptions import Assumption, Specialization

    arguments = arguments_of(built)
    proposed = {
        name: {axis: Proposed(str(dim)) for axis, dim in found.items()}
        for name, found in _axes_of(built, arguments).items()
    }
    result = fx2onnx.export(
        built.module, built.args, kwargs=built.kwargs or None, dynamic_shapes=proposed if way == "dynamic" else None,
        bake=built.bake, data_branches=built.data_branches, optimize=False,
    )  # fmt: skip
    sizes = dict(_sizes(result, arguments))
    counts: Counter[str] = Counter()
    lines = []
    for assumed in result.report.assumptions:
        if isinstance(assumed, Assumption):
            is_tried = "not tried on the example inputs" not in assumed.what
            counts["notes" if assumed.kind == "note" and is_tried else "asserted" if is_tried else "not tried"] += 1
            continue
        lines.append(str(assumed))
        if isinstance(assumed, Specialization):
            counts["specialized"] += 1
        elif not assumed.relation.symbols() <= sizes.keys():
            counts["of other sizes"] += 1
        else:
            counts["conditions"] += 1
            if not assumed.relation.is_true_at(sizes):
                false.append(f"{way}: {assumed} at {sizes}")
    return {"dims": sorted(sizes), "counts": dict(counts), "lines": lines}


def _sizes(result: Any, arguments: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The example's size of each dynamic size of the file's inputs."""
    tensors = [
        leaf for leaf in torch.utils._pytree.tree_leaves(list(arguments.values())) if isinstance(leaf, torch.Tensor)
    ]
    by_name = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    for value, in_order in zip(result.model.graph.inputs, tensors, strict=False):
        tensor = by_name.get(value.name, in_order)
        for dim, size in zip(value.shape or (), tensor.shape, strict=False):
            if isinstance(getattr(dim, "value", None), str):
                yield dim.value, int(size)


def _serve(pipe: Any) -> None:
    answer(pipe, examine)


class ConditionWorker(Worker):
    """One that evaluates the conditions of reports."""

    serve = staticmethod(_serve)


def sweep(source: str, options: argparse.Namespace) -> None:
    from fx2onnx.sources.registry import names as registered

    known = {} if options.models else read_named_rows(options.file)
    names = options.models.split(",") if options.models else registered("zoo") if source == "zoo" else names_of(source)
    worker = ConditionWorker(LIMIT_S, LARGEST_BYTES)
    for name in names:
        if f"{source}:{name}" in known:
            continue
        row = {"source": source, "name": name, "false": []} | worker.examine(source, name, False)
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{source}:{name:<36} {said(row)}", flush=True)
    worker.close()


def said(row: Row) -> str:
    """A line about a model."""
    words = [f"FALSE {each}" for each in row["false"]]
    words += [row["error"]["what"]] if "error" in row else []
    for way in WAYS:
        found = row.get(way, {})
        if not isinstance(found, dict):  # a model that took too long
            continue
        error = found.get("error")
        words.append(f"{way} [{error['code']}] {error['what']}" if error else f"{way} {found.get('counts')}")
    return "; ".join(words)


def compared(rows: Mapping[str, Row], others: Mapping[str, Row]) -> Iterator[str]:
    """The lines on models and sizes of ``others`` that ``rows`` has no more."""
    for name in rows.keys() & others.keys():
        for way in WAYS:
            now, then = rows[name].get(way), others[name].get(way)
            if now is None or then is None or "error" in then:
                if then is not None and now is None and "error" not in then:
                    yield f"{name} {way}: lost, {said(rows[name])}"
            elif "error" in now:
                yield f"{name} {way}: lost, [{now['error']['code']}] {now['error']['what']}"
            elif set(then["dims"]) - set(now["dims"]):
                yield f"{name} {way}: fixed now: {sorted(set(then['dims']) - set(now['dims']))}"
            elif set(now["lines"]) - set(then["lines"]):
                yield f"{name} {way}: new: {sorted(set(now['lines']) - set(then['lines']))}, gone: {sorted(set(then['lines']) - set(now['lines']))}"


def _exports(rows: Iterable[Row], way: str) -> list[Row]:
    """The results of the models that were exported; a model that took too long has none."""
    return [row[way] for row in rows if isinstance(row.get(way), dict) and "error" not in row[way]]


def page(rows: Iterable[Row]) -> str:
    """The page: a line for each source, and each condition that its own example breaks."""
    sources: dict[str, list[Row]] = {}
    for row in rows:
        sources.setdefault(row["source"], []).append(row)
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    lines = [
        "# Conditions at the example inputs",
        "",
        f"Generated by `make conditions-at-sample` ({versions}). Each model is exported with all sizes dynamic that eager PyTorch takes, then with",
        "none. Every condition in its report is evaluated at the sizes of its own example inputs.",
        "",
        "| source | models | exported with dynamic sizes | without | conditions | of computed sizes | checks by data | false |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for source, found in sources.items():
        exported = [_exports(found, way) for way in WAYS]
        counts = [
            sum(each["counts"].get(what, 0) for each in itertools.chain(*exported))
            for what in ("conditions", "of other sizes", "asserted")
        ]
        cells = (source, len(found), *map(len, exported), *counts, sum(len(row["false"]) for row in found))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        *(
            f"- {row['source']}:{row['name']}: {text}"
            for each in sources.values()
            for row in each
            for text in row["false"]
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=[*SOURCES, "zoo"], action="append", help="default: all of them")
    parser.add_argument("--models", help="only these names, measured anew")
    parser.add_argument("--file", type=Path, default=Path("/tmp/conditions_at_sample.jsonl"), help="keeps the rows")
    parser.add_argument("--against", type=Path, help="rows of another state of the code")
    parser.add_argument("--write", action="store_true", help="write the page of all rows")
    options = parser.parse_args()
    for source in options.source or [*SOURCES, "zoo"]:
        sweep(source, options)
    rows = read_named_rows(options.file)
    if options.write:
        PAGE.write_text(page(rows.values()), encoding="utf-8")
    if options.against:
        print("\n".join(compared(rows, read_named_rows(options.against))))
    counts: Counter[str] = Counter()
    for row in rows.values():
        for way in WAYS:
            counts.update(row.get(way, {}).get("counts", {}))
            counts[f"{way} refused" if "error" in row.get(way, {"error": 1}) else way] += 1
    false = sum(len(row["false"]) for row in rows.values())
    print(f"{len(rows)} models, {dict(counts)}, {false} conditions false")
    return int(false > 0)


if __name__ == "__main__":
    sys.exit(main())
