"""Derived bounds of rounding beside measured rounding: models of the zoo and of libraries, as ``fx2onnx lint --ranges`` bounds them.

``make value-ranges`` writes docs/measured/value_ranges.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.utils import _pytree as pytree

from benchmarks.machine import describe
from fx2onnx.proof.nodes import OpenedFile
from fx2onnx.proof.ranges import start
from fx2onnx.proof.spans import sum_share, unit_of
from fx2onnx.proof.walk import Walk

PAGE = Path("docs/measured/value_ranges.md")
CNNS = (
    *("mnist_cnn", "mnist_cnn_same", "resnet18", "mobilenet_v3_large", "efficientnet_b0", "yolov5", "realesrgan_tiny"),
    "diffusion_unet",
)
OTHERS = (
    *("deit_tiny", "vit_tiny", "bert_tiny", "gpt2_tiny", "t5_tiny", "llama_tiny", "whisper_tiny", "clip_tiny"),
    *("lstm_tagger", "gru_seq2seq"),
)
DEEP = "hf:bert?num_hidden_layers={}&hidden_size=32&num_attention_heads=2&intermediate_size=64&vocab_size=100"
SPECS = {
    **{f"zoo:{name}": "CNN" for name in CNNS},
    **{f"zoo:{name}": "transformer, recurrent" for name in OTHERS},
    **{DEEP.format(layers): f"BERT of {layers} layers, 32 wide" for layers in (1, 2, 4, 12)},
    "tests/data/foreign/tf2onnx_gru.onnx": "GRU as a Loop, of tf2onnx",
    "tests/data/foreign/torchscript_scripted.onnx": "If, of torch.jit.script",
    "tests/data/foreign/skl2onnx_gaussian_process.onnx": "Scan, of skl2onnx",
}
FOREIGN = Path("tests/data/foreign")
SECONDS = 300
MOST = {True: 1e3, False: 1e5}
"""The times of the measured rounding that a bound should not pass, for CNNs and for others."""
FLOATS, INTEGERS = (-1.0, 1.0), (0, 9)


def ranges_of(path: Path) -> dict[str, tuple[float, float]]:
    """Ranges of the inputs of a file by their dtypes."""
    found: dict[str, tuple[float, float]] = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind
        found[value.name] = (0, 1) if kind == "b" else INTEGERS if kind in "iu" else FLOATS
    return found


def measure(spec: str, folder: Path) -> dict[str, Any]:
    """The bounds of one model's outputs beside the measured rounding."""
    import fx2onnx
    from fx2onnx.sources import resolve

    path = Path(spec) if spec.endswith(".onnx") else folder / f"{abs(hash(spec))}.onnx"
    source = None if path == Path(spec) else resolve(spec)
    if source is not None:
        fx2onnx.export(
            source.module, source.args, path, kwargs=source.kwargs, dynamic_shapes=source.dynamic_shapes, verify=False
        )
    began = time.perf_counter()
    with np.errstate(all="ignore"):
        walk = start(OpenedFile(path), ranges_of(path), {})
        found = walk.run()
        bounds = bounds_of(walk)
    most = MOST[SPECS[spec] == "CNN"]
    worst = max(found.outputs.values(), key=lambda each: each.rounding, default=None)
    return {
        "holds": all(measured <= bound for _, measured, bound, _ in bounds),
        "nodes": len(bounds),
        "outputs": len(found.outputs),
        "measured": None if worst is None else worst.measured,
        "rounding": None if worst is None else worst.rounding,
        "lost_at": found.lost_at,
        "passed_at": next((name for name, measured, bound, least in bounds if bound > most * max(measured, least)), ""),
        "unknown": sorted(set(found.unknown.values())),
        "least": None if source is None else at_one_input(source),
        "s": time.perf_counter() - began,
    }


def at_one_input(source: Any) -> float | None:
    """The roundings of an output that sums in any order may have at one input in the ranges, to first order: products of weights alone.

    The gradient of an output says how far each sum moves it. None for a module that does not run in float64.
    """
    module, sums = source.module.double(), []

    def note(layer: Any, args: Any, out: torch.Tensor) -> None:
        x, weight, count = args[0].abs(), layer.weight.abs(), layer.weight[0].numel() + 1
        is_linear = isinstance(layer, torch.nn.Linear)
        size = torch.nn.functional.linear(x, weight) if is_linear else layer._conv_forward(x, weight, None)
        sums.append((out, (sum_share(count, 2.0**-24) * size).detach()))

    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d):
            layer.register_forward_hook(note)
    torch.manual_seed(0)

    def drawn(each: Any) -> Any:
        return each.double().uniform_(*FLOATS) if isinstance(each, torch.Tensor) and each.is_floating_point() else each

    args, kwargs = pytree.tree_map(drawn, (source.args, source.kwargs))
    try:
        outputs = pytree.tree_leaves(module(*args, **kwargs))
        flat = outputs[0].reshape(-1)
        found = []
        for place in range(0, len(flat), -(-len(flat) // 10)):
            slopes = torch.autograd.grad(flat[place], [out for out, _ in sums], retain_graph=True, allow_unused=True)
            moved = [
                (slope.abs() * off).sum() for slope, (_, off) in zip(slopes, sums, strict=True) if slope is not None
            ]
            found.append(float(sum(moved)))
    except (RuntimeError, TypeError, AttributeError, ValueError):
        return None
    return max(found)


def bounds_of(walk: Walk) -> list[tuple[str, float, float, float]]:
    """Each node with its measured rounding, the bound of it, and one rounding of its largest number."""
    found = []
    for node in walk.file.proto.graph.node:
        for name in node.output:
            span, unit = walk.known(name), unit_of(np.asarray(walk.samples[0].get(name)).dtype)
            if span is not None and span.low.size and unit:
                ends = float(span.error.max()), unit * float(span.size.max())
                found.append((node.name or name, walk.measured(name), *ends))
    return found


def foreign() -> dict[str, Any]:
    """The files of other tools: those without an unknown node, those whose outputs all have bounds, and operators without a bound by files."""
    import fx2onnx

    files, unknown = sorted(FOREIGN.glob("*.onnx")), Counter[str]()
    whole = bounded = 0
    for path in files:
        found = fx2onnx.value_ranges(path, ranges_of(path))
        graph = onnx.load(path, load_external_data=False).graph
        whole += not found.unknown
        bounded += len(found.outputs) == len(graph.output)
        unknown.update(set(found.unknown.values()))
    return {"files": len(files), "whole": whole, "bounded": bounded, "unknown": dict(unknown.most_common())}


def line(spec: str, row: dict[str, Any]) -> str:
    """One row of the page."""
    cells = [f"`{spec.partition('&')[0].removeprefix(f'{FOREIGN}/')}`", SPECS[spec]]
    if "error" in row:
        return "| " + " | ".join([*cells, "", "", "", "", "", row["error"], ""]) + " |"
    measured, rounding = row["measured"], row["rounding"]
    if not row["outputs"]:
        where = "no bound behind " + ", ".join(row["unknown"])
        return "| " + " | ".join([*cells, "", "", "", "", "", where, f"{row['s']:.1f}"]) + " |"
    ratio = f"{rounding / measured:.2g}" if measured and rounding < float("inf") else ""
    where = [row["passed_at"], row["lost_at"].partition(" ")[0]]
    least = f"{row['least']:.2g}" if row.get("least") else ""
    return (
        "| "
        + " | ".join([*cells, f"{measured:.2g}", least, f"{rounding:.2g}", ratio, *where, f"{row['s']:.1f}"])
        + " |"
    )


def page(rows: dict[str, dict[str, Any]], others: dict[str, Any]) -> str:
    """The table, and what it comes to."""
    known = {spec: row for spec, row in rows.items() if row.get("outputs")}
    held = sum(row["holds"] for row in known.values())
    within = {
        kind: [spec for spec, row in known.items() if row["measured"] and row["rounding"] <= most * row["measured"] and (SPECS[spec] == "CNN") == is_cnn]
        for kind, most, is_cnn in (("CNN", MOST[True], True), ("other", MOST[False], False))
    }  # fmt: skip
    cnns = sum(SPECS[spec] == "CNN" for spec in known)
    beyond = [
        spec
        for spec, row in known.items()
        if SPECS[spec] == "CNN" and (row.get("least") or 0) > MOST[True] * row["measured"] > 0
    ]
    return "\n".join(
        [
            "# Derived bounds of rounding",
            "",
            "`fx2onnx lint --ranges` bounds every value and its float32 rounding over all inputs in the ranges, by interval arithmetic from node to",
            f"node. Beside it is the largest rounding that four inputs of the ranges show, in the runner against float64. Inputs: floats from {FLOATS[0]:g} to",
            f"{FLOATS[1]:g}, integers from {INTEGERS[0]} to {INTEGERS[1]}; weights are random. Written by `make value-ranges`.",
            "",
            describe(),
            "",
            f"- {len(known)} of {len(rows)} models have bounded outputs; measured rounding is within the bounds of all nodes "
            f"({sum(row['nodes'] for row in known.values()):,}) in {held} of {len(known)}",
            f"- at most 1,000 times the measured rounding: {len(within['CNN'])} of {cnns} CNNs; at most 100,000 times: "
            f"{len(within['other'])} of {len(known) - cnns} others",
            f"- of {others['files']} files of other tools (`{FOREIGN}`) {others['whole']} have a bound at every node, and {others['bounded']} at every output. "
            f"Without a bound, by files: {', '.join(f'{name} ({count})' for name, count in others['unknown'].items())}",
            "",
            "Intervals do not know that values depend on each other. Each sum adds the roundings of all its terms, where measured ones cancel, so",
            "that a bound grows by the width of a layer with each layer. *Too wide from* is the first node whose bound is more than 1,000 times (CNNs) or",
            "100,000 times (others) the measured rounding, or one rounding of its largest number. *Explodes at* is the first node whose bound is as large",
            "as its numbers; behind it a bound says little. In transformers that is an early normalization or softmax: it divides by a spread that an",
            "interval cannot keep from zero.",
            "",
            "*At one input* is what rounding may come to at one input in the ranges where sums are taken in any order: each weighted sum is off by its",
            "worst, and gradients say how far that moves an output, to first order. No bound that takes each sum at its worst can be",
            f"smaller: it is more than 1,000 times the measured rounding in {len(beyond)} of {cnns} CNNs, since roundings of one order cancel.",
            "",
            "| model | kind | measured | at one input | bound | bound by measured | too wide from | explodes at | s |",
            "|---|---|---:|---:|---:|---:|---|---|---:|",
            *(line(spec, row) for spec, row in rows.items()),
            "",
        ]
    )


def main() -> None:
    """Measure each model in a process of its own, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="measure one model, and print its row as JSON")
    parser.add_argument("--folder", type=Path, default=Path("out/value_ranges"), help="rows are kept: a run resumes")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    chosen.folder.mkdir(exist_ok=True, parents=True)
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.folder)))
        return
    rows = {}
    for spec in SPECS:
        kept = chosen.folder / f"{''.join(each if each.isalnum() else '_' for each in spec)}.json"
        if not kept.exists():
            command = [sys.executable, "-m", "studies.value_ranges", "--one", spec, "--folder", str(chosen.folder)]
            try:
                done = subprocess.run(command, text=True, capture_output=True, timeout=SECONDS, check=False)
                text = (
                    done.stdout
                    if done.returncode == 0
                    else json.dumps({"error": done.stderr.strip().splitlines()[-1][:120]})
                )
            except subprocess.TimeoutExpired:
                text = json.dumps({"error": f"more than {SECONDS} s"})
            kept.write_text(text)
        rows[spec] = json.loads(kept.read_text().splitlines()[-1])
        print(spec, rows[spec], flush=True)
    if chosen.write:
        PAGE.write_text(page(rows, foreign()))


if __name__ == "__main__":
    main()
