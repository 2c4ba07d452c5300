"""Certificates of what ``fx2onnx optimize`` did to files of other tools and to exports of the zoo, beside onnxsim's on the same pairs.

``make certificates``: it needs an environment with onnxsim and z3.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx

import fx2onnx
from benchmarks.machine import describe
from benchmarks.optimize_files import FOREIGN, write_large
from fx2onnx.proof.certify import KINDS, certify
from fx2onnx.sources import resolve
from tools.long_tables import write_page

PAGE = Path("docs/measured/certificates.md")
PACKAGED = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
"""Files of the onnx package, which Caffe2 wrote; their weights are made by nodes."""
ZOO = (
    *("mnist_cnn", "mnist_cnn_same", "resnet18", "mobilenet_v3_large", "efficientnet_b0", "deit_tiny", "vit_tiny"),
    *("yolov5", "realesrgan_tiny", "diffusion_unet", "bert_tiny", "gpt2_tiny", "t5_tiny", "llama_tiny", "whisper_tiny"),
    *("clip_tiny", "lstm_tagger", "gru_seq2seq"),
)
LIBRARIES = (
    *(f"hf:{kind}?num_hidden_layers=2&vocab_size=1000" for kind in ("albert", "electra", "roberta", "mpnet")),
    *(f"timm:{name}" for name in ("resnet10t", "mixer_s32_224", "levit_128s", "mobilevit_xxs", "convnext_atto", "swin_s3_tiny_224")),
    *(f"torchvision:{name}" for name in ("squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5", "regnet_y_400mf")),
)  # fmt: skip
SECONDS = 30
"""The time for onnxsim on one pair, whose own limit is for its solver alone."""
TIMES = 3
"""The times of the optimization that a certificate may take."""
ONNXSIM = """
import sys, time, json, onnx, onnxsim.certify
for line in sys.stdin:
    one, other = line.split()
    start = time.perf_counter()
    try:
        found = onnxsim.certify.certify(onnx.load(one), onnx.load(other), total_timeout_ms=5000)
        kinds = sorted(set(found.outputs.values()))
    except BaseException as error:
        kinds = [type(error).__name__]
    print(json.dumps([kinds, time.perf_counter() - start]), flush=True)
"""


def write_own(folder: Path) -> None:
    """Models of the zoo and of libraries, as they leave lowering."""
    for spec in (*(f"zoo:{name}" for name in ZOO), *LIBRARIES):
        name = spec.partition("?")[0].replace(":", "_")
        path = folder / f"{name}_own.onnx"
        if path.exists():
            continue
        try:
            source = resolve(spec)
            fx2onnx.export(source.module, source.args, path, kwargs=source.kwargs, dynamic_shapes=source.dynamic_shapes,
                           optimize=False)  # fmt: skip
        except Exception as error:  # a package may be missing
            print(f"{path.name}: not exported: {type(error).__name__}: {error}"[:200])


def write_optimized(folder: Path) -> None:
    """A BERT as ``torch.onnx.export`` writes it at its defaults."""
    import torch

    source = resolve("hf:bert?num_hidden_layers=2&vocab_size=1000")
    path = folder / "dynamo_bert_optimized.onnx"
    torch.onnx.export(source.module, source.args, path, kwargs=source.kwargs, external_data=False, verbose=False)


def measure(path: Path, after: Path) -> dict[str, Any]:
    """The certificate of one file, and both times in seconds of the processor."""
    start = time.process_time()
    fx2onnx.optimize(path, after)
    optimised = time.process_time()
    found = certify(path, after)
    return {
        "name": path.stem,
        "counts": dict(found.counts),
        "outputs": sorted(set(found.outputs.values())),
        "optimize": optimised - start,
        "certify": time.process_time() - optimised,
        "left": Counter(each.op_type for each in found.changed if each.kind not in ("proved", "bounded")),
    }


def by_onnxsim(python: str, before: Path, after: Path) -> tuple[list[str], float]:
    """The verdicts of onnxsim's certify on the outputs of a pair, and its seconds."""
    try:
        done = subprocess.run(
            [python, "-c", ONNXSIM],
            input=f"{before} {after}\n",
            text=True,
            stdout=subprocess.PIPE,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return [f"more than {SECONDS} s"], SECONDS
    kinds, seconds = next(
        (json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")), (["ended"], 0.0)
    )
    return kinds, seconds


def page(rows: list[dict[str, Any]]) -> str:
    """The table, and what it comes to."""
    total = sum((Counter(row["counts"]) for row in rows), Counter[str]())
    changed, unsure = sum(total.values()), sum((Counter(row["left"]) for row in rows), Counter[str]())
    ratios = sorted(row["certify"] / row["optimize"] for row in rows)
    known = [row for row in rows if row.get("onnxsim")]
    proved = [row for row in known if all(kind.startswith("proved") for kind in row["onnxsim"])]
    ours = [row for row in known if set(row["outputs"]) <= {"proved", "bounded"}]
    lines = [
        "# Certificates of optimized files",
        "",
        "`fx2onnx certify` on each file before and after `fx2onnx optimize`: files of other tools (`tests/data/foreign`, both exporters of",
        "PyTorch, the onnx package) and exports of the zoo and of libraries without rewrites. Written by `make certificates`.",
        "",
        describe(),
        "",
        f"- {len(rows)} files, {changed} changed nodes: "
        + ", ".join(f"{kind} {total[kind]} ({total[kind] / max(changed, 1):.1%})" for kind in KINDS if total[kind]),
        f"- time of a certificate by that of the optimization, which also compares: median {ratios[len(ratios) // 2]:.2f}, largest {ratios[-1]:.2f}; "
        f"more than {TIMES} times: {', '.join(row['name'] for row in rows if row['certify'] > TIMES * row['optimize']) or 'none'}",
    ]
    if unsure:
        lines += ["- neither proved nor bounded: " + ", ".join(f"{op} {count}" for op, count in unsure.most_common())]
    if known:
        lines += [
            f"- files with all outputs proved or bounded: {len(ours)} of {len(known)}; with all outputs proved by `onnxsim.certify` with z3 "
            f"(up to real numbers, 5 seconds a file): {len(proved)}; "
            "it skips what has sizes with names, and most operators but convolutions and sums",
        ]
    lines += [
        "",
        "| file | " + " | ".join(KINDS) + " | outputs | certify, CPU s | optimize, CPU s | onnxsim |",
        "|---|" + "---:|" * len(KINDS) + "---|---:|---:|---|",
    ]
    for row in rows:
        cells = [str(row["counts"].get(kind, "")) for kind in KINDS]
        cells += [
            ", ".join(row["outputs"]),
            f"{row['certify']:.2f}",
            f"{row['optimize']:.2f}",
            ", ".join(row.get("onnxsim", [])),
        ]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, keep each row, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnxsim", help="the Python of an environment with onnxsim and z3")
    parser.add_argument(
        "--folder", type=Path, default=Path("out/certificates"), help="where files and rows are kept: a run resumes"
    )
    parser.add_argument("--most", type=int, help="files to measure in this run")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    folder, kept = chosen.folder, chosen.folder / "rows.jsonl"
    (folder / "after").mkdir(exist_ok=True, parents=True)
    if not (folder / "done").exists():
        write_own(folder)
        write_large(folder)
        write_optimized(folder)
        (folder / "done").touch()
    rows = {row["name"]: row for row in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    paths = [path for place in (FOREIGN, PACKAGED, folder) for path in sorted(place.glob("*.onnx"))]
    for path in [path for path in paths if path.stem not in rows][: chosen.most]:
        after = folder / "after" / path.name
        try:
            row = measure(path, after)
            row["onnxsim"], row["onnxsim_s"] = by_onnxsim(chosen.onnxsim, path, after) if chosen.onnxsim else ([], 0.0)
        except Exception as error:  # a file that optimize refuses is none of a pair
            row = {"name": path.stem, "refused": f"{type(error).__name__}: {error}"[:200]}
        rows[path.stem] = row
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
    if chosen.write:
        write_page(PAGE, page([rows[path.stem] for path in paths if "counts" in rows.get(path.stem, {})]))


if __name__ == "__main__":
    main()
