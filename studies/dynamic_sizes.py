"""The share of sizes that eager PyTorch takes at other values and that are dynamic in the file, asked for by name.

``python -m studies.dynamic_sizes [--source torchvision|timm|hf] [--limit N]`` asks for the batch, height and width of
every image and for what the source proposes (sequences, frames, ...). A size counts where the module runs in eager PyTorch
with another one in its place, alone or together with the others. The file is run in onnxruntime at the sizes so found,
beside eager PyTorch. It goes on where an earlier call stopped, and writes docs/measured/dynamic_sizes.md where that then covers no
fewer models.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from studies.coverage_models import SOURCES, all_names, attempts
from studies.coverage_worker import Row, Worker, _described, _quiet, answer, read_named_rows
from studies.eager_distance import ERROR, RATIO, compared, eager_outputs

PAGE = Path(__file__).parent.parent / "docs" / "measured" / "dynamic_sizes.md"
TITLES = {
    "torchvision": "torchvision, entries of list_models()",
    "timm": "timm, one architecture a family",
    "hf": "transformers, shrunk config, types drawn at random",
}
LIMIT_S = 600.0
LARGEST_BYTES = 12 << 30
HF_TYPES = 240
IMAGE_AXES = {0: "batch", 2: "height", 3: "width"}
TRIES = 3
"""Sets of sizes at which a file is run."""

Sizes = dict[str, int]
Axes = dict[str, dict[int, str]]


def names_of(source: str) -> list[str]:
    """The models of a source, in an order that makes the first so many a fair sample."""
    every = sorted(all_names(source), key=lambda name: zlib.crc32(name.encode()))
    return every[: HF_TYPES if source == "hf" else None]


def examine(source: str, name: str, _seeds: int) -> Row:
    """The row of one model. Raises nothing that the model or fx2onnx raises."""
    row: Row = {"source": source, "name": name}
    with _quiet(), torch.no_grad():
        built = _built(row, source, name)
        if built is not None:
            try:
                _measure(row, built)
            except Exception as error:  # whatever a model raises is its row's result
                row["error"] = _described(error, "export")
    return row


def _built(row: Row, source: str, name: str) -> Any:
    for label, build in attempts(source, name):
        try:
            found = build()
            found.module(*found.args, **found.kwargs)
        except Exception as error:  # another form of the model may still run
            row["error"] = _described(error, "eager")
            continue
        row.pop("error", None)
        return found if row.setdefault("form", label) else None
    return None


def _measure(row: Row, built: Any) -> None:
    from fx2onnx.cli.feeds import arguments_of

    arguments = arguments_of(built)
    axes = _axes_of(built, arguments)
    sample = {dim: arguments[name].shape[axis] for name, found in axes.items() for axis, dim in found.items()}
    accepted: list[Sizes] = []
    free: set[str] = set()
    for sizes in _other_sizes(sample):
        if {dim for dim in sizes if sizes[dim] != sample[dim]} <= free and len(accepted) >= TRIES:
            continue
        if eager_outputs(built, _resized(arguments, axes, sample, sizes)) is not None:
            accepted.append(sizes)
            free |= {dim for dim in sizes if sizes[dim] != sample[dim]}
    row |= {"sample": sample, "free": sorted(free), "fixed": sorted(sample.keys() - free)}
    asked = {name: {axis: dim for axis, dim in found.items() if dim in free} for name, found in axes.items()}
    _export(row, built, asked, [(sizes, _resized(arguments, axes, sample, sizes)) for sizes in reversed(accepted)])


def _axes_of(built: Any, arguments: Mapping[str, Any]) -> Axes:
    axes: Axes = {name: dict(found) for name, found in (built.dynamic_shapes or {}).items() if name not in built.bake}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.ndim == 4 and value.is_floating_point() and value.shape[1] <= 4:
            axes[name] = {axis: axes.get(name, {}).get(axis, dim) for axis, dim in IMAGE_AXES.items()}
    is_tensor = {name for name in axes if isinstance(arguments.get(name), torch.Tensor)}
    return {name: found for name, found in axes.items() if name in is_tensor}


def _other_sizes(sample: Sizes) -> Iterator[Sizes]:
    """Each size alone, then height and width together, then all together, at several distances."""
    ways = [lambda size: size + 1, lambda size: size + 32, lambda size: 2 * size, lambda size: max(size // 2, 1)]
    groups = [[dim] for dim in sample]
    groups += [[dim for dim in ("height", "width") if dim in sample], list(sample)]
    for group in groups:
        for way in ways if group else ():
            sizes = {**sample, **{dim: way(sample[dim]) for dim in group}}
            if sizes != sample and sizes.get("batch", 0) <= 8:
                yield sizes


def _resized(arguments: Mapping[str, Any], axes: Axes, sample: Sizes, sizes: Sizes) -> dict[str, Any]:
    """The arguments at other sizes: what is longer begins again from its start."""
    result = dict(arguments)
    for name, found in axes.items():
        for axis, dim in found.items():
            if sizes[dim] != sample[dim]:
                result[name] = result[name].index_select(axis, torch.arange(sizes[dim]) % sample[dim])
    return result


def _export(row: Row, built: Any, asked: Axes, tries: Sequence[tuple[Sizes, Mapping[str, Any]]]) -> None:
    import fx2onnx
    from fx2onnx.base.errors import UserError
    from fx2onnx.capture.shapes.dynamic import Proposed

    def export(shapes: Any) -> Any:
        return fx2onnx.export(
            built.module,
            built.args,
            kwargs=built.kwargs,
            dynamic_shapes=shapes,
            bake=built.bake,
            data_branches=built.data_branches,
        )

    start = time.perf_counter()
    try:
        result = export(asked)
    except UserError as error:
        row["refused"] = _described(error, "export")
        proposed = {name: {axis: Proposed(str(dim)) for axis, dim in found.items()} for name, found in asked.items()}
        result = export(proposed)
        row["pinned"] = [str(each) for each in result.report.assumptions if each.kind in ("specialization", "guard")][
            :6
        ]
    row["export_s"] = round(time.perf_counter() - start, 2)
    row["conditions"] = [each.expression for each in result.report.assumptions if each.kind == "condition"]
    if "refused" not in row:
        row["runs"] = _runs(result, built, tries)


def _runs(result: Any, built: Any, tries: Sequence[tuple[Sizes, Mapping[str, Any]]]) -> list[str]:
    """The results of the file at the first sizes that eager PyTorch takes: ``equal``, ``condition``, or the
    difference."""
    from fx2onnx.base.errors import UserError
    from fx2onnx.runner import InferenceSession

    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        result.save(path)
        session, checker = _onnxruntime(path), InferenceSession(path)
        names = [each.name for each in session.get_inputs()]
        for sizes, arguments in tries:
            feeds = {name: arguments[name].numpy() for name in names if isinstance(arguments.get(name), torch.Tensor)}
            if len(feeds) < len(names):
                return ["inputs have other names"]
            try:
                checker.check_feeds(feeds)
                found.append(f"{sizes}: {compared(session.run(None, feeds), built, arguments)}")
            except UserError as error:
                found.append(f"{sizes}: {error.what[:80]}")
            except Exception as error:  # the engine refuses these sizes
                found.append(f"{sizes}: {type(error).__name__} {str(error)[:160]}")
            if len(found) >= TRIES:
                break
    return found


def _onnxruntime(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def _serve(pipe: Any) -> None:
    answer(pipe, examine)


class SizeWorker(Worker):
    """One that asks for sizes."""

    serve = staticmethod(_serve)


def state(row: Row) -> str:
    """The outcome of a model."""
    if "free" not in row:
        return "no case"
    if "error" in row:
        return "failed"
    if "refused" in row:
        return "pinned"
    runs = row["runs"]
    return "wrong" if any("off by" in run or "shape" in run for run in runs) else "dynamic" if row["free"] else "fixed"


def sweep(source: str, options: argparse.Namespace) -> None:
    known = read_named_rows(options.file)
    names = options.models.split(",") if options.models else names_of(source)[: options.limit]
    worker = SizeWorker(LIMIT_S, LARGEST_BYTES)
    for name in names:
        row = known.get(f"{source}:{name}")
        if (
            row is not None
            and not options.models
            and not (options.again and state(row) in ("failed", "pinned", "wrong"))
        ):
            continue
        start = time.perf_counter()
        row = {"source": source, "name": name} | worker.examine(source, name, 0)
        row["total_s"] = round(time.perf_counter() - start, 1)
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        why = row.get("error") or row.get("refused") or {"what": [run for run in row["runs"] if "equal" not in run][:1]}
        print(
            f"{source}:{name:<36} {state(row):<9} {row['total_s']:>6.1f} s {','.join(row.get('free', []))} {why}",
            flush=True,
        )
    worker.close()


def write_page(rows: Sequence[Row]) -> None:
    packages = ("torch", "torchvision", "timm", "transformers", "onnxruntime")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    lines = [
        "# Dynamic sizes, by model",
        "",
        f"Generated by `make dynamic-sizes` ({versions}). Asked for by name are the batch, height and width of images and "
        "whatever the source proposes (sequences, frames, ...), as far as the module runs in eager PyTorch with another size "
        f"in its place. The file runs in onnxruntime at up to {TRIES} of the sets of sizes that eager PyTorch took and its "
        f"conditions allow, beside eager PyTorch; an output may be off by {ERROR} of its largest number, or {RATIO:.0f} times what eager "
        "PyTorch in float32 is off itself, with inputs a rounding apart.",
        "",
        "| source | models | tried so far | some size is free in eager PyTorch | all of these dynamic | | with conditions | refused (E105) | does not export | differs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for source, title in TITLES.items():
        found = [row for row in rows if row["source"] == source]
        cases = [row for row in found if row.get("free")]
        by_state = {word: sum(state(row) == word for row in cases) for word in ("dynamic", "wrong", "pinned", "failed")}
        dynamic = by_state["dynamic"] + by_state["wrong"]
        limited = sum(bool(row.get("conditions")) for row in cases if "refused" not in row)
        share = f"{100 * dynamic / len(cases):.1f} %" if cases else ""
        counts = [
            len(names_of(source)), len(found), len(cases), dynamic, share, limited, by_state["pinned"],
            by_state["failed"], by_state["wrong"],
        ]  # fmt: skip
        lines.append(f"| {title} | {' | '.join(map(str, counts))} |")
    lines += _list("Refused", "pinned", rows, lambda row: f"{row['refused']['what']} ({row['refused']['where']})")
    lines += _list("Does not export", "failed", rows, lambda row: f"{row['error']['code']} {row['error']['what']}")
    lines += _list("Differs", "wrong", rows, lambda row: "; ".join(run for run in row["runs"] if "equal" not in run))
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


def _list(title: str, wanted: str, rows: Sequence[Row], text: Any) -> list[str]:
    found = [row for row in rows if state(row) == wanted and row["free"]]
    lines = ["", f"## {title}", "", "| model | free in eager PyTorch | |", "|---|---|---|"] if found else []
    for row in found:
        lines.append(
            f"| {row['source']}:{row['name']} | {', '.join(row['free'])} | {text(row)[:240].replace('|', '/')} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=SOURCES, action="append", help="default: all of them")
    parser.add_argument("--models", help="only these names, measured anew")
    parser.add_argument("--limit", type=int, help="only the first so many of a source")
    parser.add_argument("--again", action="store_true", help="measure anew what is refused, differs or fails")
    parser.add_argument("--file", type=Path, default=Path("/tmp/dynamic_sizes.jsonl"))
    parser.add_argument("--page-only", action="store_true", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    for source in () if options.page_only else options.source or SOURCES:
        sweep(source, options)
    rows = list(read_named_rows(options.file).values())
    if len(rows) < tried_on_page():
        print(f"{PAGE} is left as it is: it covers {tried_on_page()} models, {options.file} {len(rows)}")
    else:
        write_page(rows)
    return 0


def tried_on_page() -> int:
    """The number of models on the page."""
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return sum(int(row[3]) for row in rows if row[1].strip() in TITLES.values())


if __name__ == "__main__":
    sys.exit(main())
