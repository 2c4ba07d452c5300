"""Digests of the files and reports of all models, to tell whether another state of the code writes the same.

``python -m tools.file_digests [--source zoo|torchvision|timm|hf] [--only NAMES] [--file LINES]`` exports the zoo and
the models of docs/measured/dynamic_sizes.md with fixed seeds, once with fixed sizes and once with dynamic ones: those of the zoo
as its models declare them, those of the others where the module allows. It writes a JSON line a model and goes on where an
earlier call stopped. ``--compare OLD NEW`` prints where two such files differ, and ends with 1 where they do.
``--keep FOLDER`` keeps the ONNX files, for ``fx2onnx diff``.

A line has, for each of the two exports, the SHA-256 of the ONNX file with its external data, digests of the file's parts,
the report, and CPU seconds; or code and first sentence of the error. Left out is what differs between runs of the same
code: of the report seconds, and of errors the addresses of objects (as in ``<object at 0x7f12>``) and, where the error is
none of ours, the place in our code. Sets of texts, over which some models iterate, have one order (``PYTHONHASHSEED=0``).
``--compare`` looks at no seconds but their sums.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from studies.conditions_at_sample import _zoo
from studies.coverage_models import SOURCES
from studies.coverage_worker import Row, Worker, _described, _quiet, answer, read_named_rows
from studies.dynamic_sizes import LARGEST_BYTES, _axes_of, _built, names_of

LIMIT_S = 1800.0
"""The limit of one model, by the clock: other work on the machine makes no row differ."""
NOT_COMPARED = {"phases", "seconds", "assumption_details"}
"""Fields of a report that differ between runs of the same code, or say what another field says."""
MOST_NAMES = 6
"""The number of exports that ``--compare`` names for a difference."""


def examine(source: str, name: str, folder: str | None) -> Row:
    """The line of one model. Raises nothing that the model or fx2onnx raises."""
    row: Row = {"source": source, "name": name}
    with _quiet(), torch.no_grad():
        _seed()
        start = time.process_time()
        built = _zoo(name) if source == "zoo" else _built(row, source, name)
        row["build_s"] = round(time.process_time() - start, 2)
        for way in ("static", "dynamic") if built is not None else ():
            start = time.process_time()
            try:
                row[way] = _exported(built, source, way, Path(folder, f"{source}_{name}_{way}") if folder else None)
            except Exception as error:  # whatever a model raises is its row's result
                row[way] = {"error": _said(_described(error, "export"))}
            row[way]["cpu_s"] = round(time.process_time() - start, 2)
    if "error" in row:
        row["error"] = _said(row["error"])
    return row


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)


def _said(error: Row) -> Row:
    is_ours = bool(re.fullmatch(r"E\d+", error["code"]))
    said = {name: error[name] for name in ("code", "what", *(("where", "why") if is_ours else ()))}
    return {name: re.sub(r"0x[0-9a-f]+", "0x", text) for name, text in said.items()}


def _exported(built: Any, source: str, way: str, folder: Path | None) -> Row:
    import fx2onnx

    _seed()
    result = fx2onnx.export(
        built.module, built.args, kwargs=built.kwargs or None,
        dynamic_shapes=_dynamic_shapes(built, source) if way == "dynamic" else None,
        bake=built.bake, data_branches=built.data_branches,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        result.save(path)
        row = _digests(path)
        if folder is not None:
            shutil.copytree(scratch, folder, dirs_exist_ok=True)
    report = {name: value for name, value in result.report.as_dict().items() if value and name not in NOT_COMPARED}
    return row | {"report": report}


def _dynamic_shapes(built: Any, source: str) -> Any:
    """The dynamic sizes of a model: those of the zoo as declared, others as proposed, which may turn out static."""
    from dataclasses import replace

    from fx2onnx.cli.feeds import arguments_of, dynamic_shapes_of

    if source == "zoo":
        return built.dynamic_shapes
    return dynamic_shapes_of(replace(built, dynamic_shapes=_axes_of(built, arguments_of(built))), "default")


def _digests(path: Path) -> Row:
    """The digests of the file with its external data, and of the parts that tell where two files differ."""
    import onnx

    whole = hashlib.sha256()
    for file in sorted(path.parent.iterdir()):  # the ONNX file comes first: the others' names begin with its name
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").digest()
        whole.update(digest)
    model = onnx.load(path, load_external_data=False)
    operators: Counter[str] = Counter()
    sources = hashlib.sha256()
    for graph in _graphs(model.graph):
        for node in graph.node:
            operators[node.op_type] += 1
            for entry in node.metadata_props:
                sources.update(entry.value.encode())
            node.ClearField("metadata_props")
    parts = {
        "nodes": model.graph.node,
        "weights": model.graph.initializer,
        "inputs and outputs": [*model.graph.input, *model.graph.output],
        "types": model.graph.value_info,
        "properties": [*model.metadata_props, *model.opset_import],
    }
    found = {name: _digest(entries) for name, entries in parts.items()} | {"user's lines": sources.hexdigest()[:12]}
    return {"sha256": whole.hexdigest(), "parts": found, "operators": dict(sorted(operators.items()))}


def _digest(entries: Any) -> str:
    return hashlib.sha256(b"".join(entry.SerializeToString() for entry in entries)).hexdigest()[:12]


def _graphs(graph: Any) -> Iterator[Any]:
    """``graph`` and what its nodes carry."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _graphs(body)


def _serve(pipe: Any) -> None:
    answer(pipe, examine)


class DigestWorker(Worker):
    """One that exports and takes digests."""

    serve = staticmethod(_serve)


def sweep(source: str, options: argparse.Namespace) -> None:
    from fx2onnx.sources.registry import names as registered

    known = {} if options.only else read_named_rows(options.file)
    names = options.only.split(",") if options.only else registered("zoo") if source == "zoo" else names_of(source)
    os.environ["PYTHONHASHSEED"] = "0"  # for the worker's process
    worker = DigestWorker(LIMIT_S, LARGEST_BYTES)
    for name in names:
        if f"{source}:{name}" in known:
            continue
        row: Row = {"source": source, "name": name} | worker.examine(source, name, options.keep)
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        said = [f"{way} {_in_short(row[way])}" for way in ("static", "dynamic") if way in row]
        print(f"{source}:{name:<36} {'; '.join(said) or row['error']['what']}", flush=True)
    worker.close()


def _in_short(export: Row) -> str:
    error = export.get("error")
    return f"{export['cpu_s']:.1f} s {error['code'] + ' ' + error['what'] if error else export['sha256'][:12]}"


def differences(old: Mapping[str, Row], new: Mapping[str, Row]) -> Iterator[str]:
    """Each difference with the exports that have it, of those that both have; then the sums."""
    names: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    old_s = new_s = 0.0
    for name in sorted(old.keys() & new.keys()):
        for way in ("static", "dynamic"):
            then, now = (rows[name].get(way) or {"error": rows[name].get("error"), "cpu_s": 0} for rows in (old, new))
            old_s, new_s = old_s + then["cpu_s"], new_s + now["cpu_s"]
            found = [*_file_differences(then, now), *_report_differences(then.get("report", {}), now.get("report", {}))]
            counts["exports differ" if found else "exports are equal"] += 1
            for difference in found:
                names.setdefault(difference, []).append(f"{name} {way}")
    for difference, found in sorted(names.items(), key=lambda item: -len(item[1])):
        others = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
        yield f"{', '.join(found[:MOST_NAMES])}{others}: {difference}"
    for word, rows in (("old", old.keys() - new.keys()), ("new", new.keys() - old.keys())):
        counts[f"models only in {word}"] = len(rows)
    yield f"{dict(counts)}, {old_s:.0f} s and {new_s:.0f} s of CPU"


def _file_differences(then: Row, now: Row) -> Iterator[str]:
    if then.get("error") != now.get("error"):
        yield f"error {then.get('error')} -> {now.get('error')}"
    if "error" in then or "error" in now or then["sha256"] == now["sha256"]:
        return
    parts = [name for name, digest in then["parts"].items() if now["parts"].get(name) != digest]
    yield f"the file's {', '.join(parts) or 'data'}"
    before, after = Counter(then["operators"]), Counter(now["operators"])
    counts = [f"{op} {before[op]} -> {after[op]}" for op in sorted(before | after) if before[op] != after[op]]
    if counts:
        yield ", ".join(counts)


def _report_differences(then: Row, now: Row) -> Iterator[str]:
    for name in sorted(then.keys() | now.keys()) if then and now else ():
        before, after = then.get(name), now.get(name)
        if not isinstance(before or after, list) or not isinstance(after or before, list):
            if before != after:
                yield f"{name}: {before} -> {after}"
            continue
        before, after = before or [], after or []
        yield from (f"{name}: no more {each}" for each in before if each not in after)
        yield from (f"{name}: new {each}" for each in after if each not in before)
        if before != after and sorted(before) == sorted(after):
            yield f"{name}: in another order"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=["zoo", *SOURCES], action="append", help="default: all of them")
    parser.add_argument("--only", help="only these models, measured anew")
    parser.add_argument("--file", type=Path, default=Path("out/file_digests.jsonl"), help="keeps the lines")
    parser.add_argument("--keep", help="a folder for the ONNX files")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"), help="of two states of the code")
    options = parser.parse_args()
    if options.compare:
        lines = list(differences(*map(read_named_rows, options.compare)))
        print("\n".join(lines))
        return int(len(lines) > 1)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    for source in options.source or ["zoo", *SOURCES]:
        sweep(source, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
