"""``fx2onnx.optimize`` beside onnxsim, on files of other tools: bytes, nodes, and time in onnxruntime.

``python -m benchmarks.optimize_files --onnxsim PYTHON --write docs/measured/optimize_files.md``, where PYTHON is that of an environment with
onnxsim. The small files lie in ``tests/data/foreign``; larger ones are written by both exporters of PyTorch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from benchmarks.machine import describe
from fx2onnx.judge.feeds import InputType, inputs_of, taken_feeds
from fx2onnx.steps.opened import open_model
from fx2onnx.steps.pipeline import optimize_model

FOREIGN = Path(__file__).parents[1] / "tests" / "data" / "foreign"
MODELS = (
    "torchvision:resnet18", "torchvision:mobilenet_v3_small", "torchvision:shufflenet_v2_x0_5",
    "hf:bert?num_hidden_layers=2&vocab_size=1000", "hf:gpt2?n_layer=2&vocab_size=1000", "timm:convnext_atto",
)  # fmt: skip
SECONDS = 0.3
"""The duration of the runs of each of the three files."""
MORE_NODES = """onnxsim has fewer nodes where it folds a factor into the weights of the convolution behind it: in the ConvNeXt of TorchScript, at opset
17, the 0.5 of GELU's five nodes. onnxruntime finds a Gelu in the five and none in four, so they stay five here."""
SIMPLIFY = """
import sys, onnx, onnxsim
for line in sys.stdin:
    source, target = line.split()
    try:
        onnx.save(onnxsim.simplify(onnx.load(source))[0], target)
    except BaseException as error:
        print(source, repr(error)[:200], file=sys.stderr)
"""


@dataclass
class Row:
    """One file: as it is, by onnxsim, by us."""

    name: str
    nodes: list[int | None]
    sizes: list[int | None]
    micros: list[float | None]
    verified: bool | None


def write_large(folder: Path) -> None:
    """Models of three libraries by TorchScript and by dynamo."""
    import torch

    from fx2onnx.sources import resolve

    for spec in MODELS:
        source = resolve(spec)
        name = spec.partition(":")[2].partition("?")[0]
        for kind, options in (
            ("torchscript", {"dynamo": False, "opset_version": 17, "do_constant_folding": False}),
            ("dynamo", {"dynamo": True, "optimize": False, "external_data": False, "verbose": False}),
        ):
            path = folder / f"{kind}_{name}_large.onnx"
            with warnings.catch_warnings(action="ignore"):
                try:
                    torch.onnx.export(source.module, source.args, path, kwargs=source.kwargs, **options)  # type: ignore[arg-type]
                except Exception as error:  # the exporters have errors of many kinds
                    print(f"{path.name}: not exported: {type(error).__name__}")


def simplify(python: str, pairs: list[tuple[Path, Path]]) -> None:
    """Simplify files with onnxsim and its defaults, in its own environment."""
    text = "".join(f"{source} {target}\n" for source, target in pairs)
    subprocess.run([python, "-c", SIMPLIFY], input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def count_nodes(path: Path) -> int:
    """Nested ones and those of functions too, but no constants."""
    proto = onnx.load(path)

    def count(nodes: Any) -> int:
        nested = sum(
            count(attribute.g.node) for node in nodes for attribute in node.attribute if attribute.HasField("g")
        )
        return nested + sum(node.op_type != "Constant" for node in nodes)

    return count(proto.graph.node) + sum(count(function.node) for function in proto.functions)


def session(path: Path) -> onnxruntime.InferenceSession:
    """One thread, everything that onnxruntime optimizes itself."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feeds_for(inputs: list[InputType], run: Any) -> dict[str, Any] | None:
    """Random inputs that the file takes."""
    try:
        return next((taken.feeds for taken in taken_feeds(inputs, lambda feeds: list(run.run(None, feeds)))), None)
    except Exception:  # onnxruntime's classes share no base
        return None


def measure(paths: list[Path]) -> list[float | None]:
    """Microseconds of processor time of a run of each file, in turns: medians."""
    runs: list[Any] = []
    for path in paths:
        try:
            runs.append(session(path) if path.exists() else None)
        except Exception:  # as above
            runs.append(None)
    feeds = feeds_for(inputs_of(open_model(paths[0]).fresh()), runs[0]) if runs[0] is not None else None
    if feeds is None:
        return [None] * len(paths)
    start = time.process_time()
    runs[0].run(None, feeds)
    count = max(1, min(50, int(0.01 / max(time.process_time() - start, 1e-6))))
    times: list[list[float]] = [[] for _ in paths]
    end = time.process_time() + SECONDS * len(paths)
    while time.process_time() < end or len(times[0]) < 5:
        for index, run in enumerate(runs):
            if run is None:
                continue
            start = time.process_time()
            for _ in range(count):
                run.run(None, feeds)
            times[index].append((time.process_time() - start) / count * 1e6)
    return [statistics.median(each) if each else None for each in times]


def compare(python: str, folder: Path) -> list[Row]:
    """All files."""
    write_large(folder)
    sources = [*sorted(FOREIGN.glob("*.onnx")), *sorted(folder.glob("*_large.onnx"))]
    simplified, optimised = folder / "onnxsim", folder / "ours"
    simplified.mkdir()
    optimised.mkdir()
    simplify(python, [(path, simplified / path.name) for path in sources])
    rows = []
    for path in sources:
        result = optimize_model(path, optimised / path.name)
        files = [path, simplified / path.name, optimised / path.name]
        there = [each if each.exists() else None for each in files]
        rows.append(
            Row(
                path.stem,
                [None if each is None else count_nodes(each) for each in there],
                [None if each is None else each.stat().st_size for each in there],
                measure(files),
                result.verified,
            )
        )
        print(rows[-1], flush=True)
    return rows


def page(rows: list[Row]) -> str:
    """The table, and what it comes to."""
    known = [row for row in rows if row.nodes[1] is not None]
    timed = [row for row in known if None not in row.micros]
    ratios = sorted(float(row.micros[2] or 0) / float(row.micros[1] or 1) for row in timed)
    lines = [
        "# Files of other tools, optimized",
        "",
        "`fx2onnx.optimize` at its defaults beside onnxsim at its own, each file as the tool wrote it. Nodes include those of bodies",
        "and functions, constants are none. Time: one run in onnxruntime (all its optimizations, one thread) in microseconds of processor",
        "time, the three files in turns, medians. Written by `make optimize-files`.",
        "",
        f"{describe()}",
        "",
        f"- {len(rows)} files; {sum(row.verified is True for row in rows)} verified against their input in the runner and onnxruntime",
        f"- larger than the input: {sum((row.sizes[2] or 0) > (row.sizes[0] or 0) for row in rows)}; "
        f"larger than onnxsim's: {sum((row.sizes[2] or 0) > (row.sizes[1] or 0) for row in known)}",
        f"- more nodes than onnxsim's: {sum((row.nodes[2] or 0) > (row.nodes[1] or 0) for row in known)}, "
        f"as many: {sum(row.nodes[2] == row.nodes[1] for row in known)}, fewer: {sum((row.nodes[2] or 0) < (row.nodes[1] or 0) for row in known)}",
        f"- time of a run, ours by onnxsim's: median {statistics.median(ratios):.3f}, from {ratios[0]:.2f} to {ratios[-1]:.2f} "
        f"over {len(ratios)} files; more than 5 % slower: {sum(ratio > 1.05 for ratio in ratios)}",
        "",
        MORE_NODES,
        "",
        "| file | nodes | onnxsim | ours | bytes | onnxsim | ours | µs | onnxsim | ours |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [*row.nodes, *row.sizes, *(None if micros is None else round(micros, 1) for micros in row.micros)]
        lines.append(f"| {row.name} | " + " | ".join("-" if cell is None else f"{cell:,}" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the page and what tests compare with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnxsim", required=True, help="the Python of an environment with onnxsim")
    parser.add_argument("--write", type=Path, help="the page")
    parser.add_argument("--counts", type=Path, help="JSON of onnxsim's nodes of the small files, for the tests")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(chosen.onnxsim, Path(folder))
    if chosen.write:
        chosen.write.write_text(page(rows))
    if chosen.counts:
        small = {f"{row.name}.onnx": row.nodes[1] for row in rows if not row.name.endswith("_large")}
        chosen.counts.write_text(json.dumps(small, indent=1) + "\n")


if __name__ == "__main__":
    main()
