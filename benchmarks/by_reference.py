"""Export by reference: seconds, memory and bytes written for a checkpoint too large to copy.

``python -m benchmarks.by_reference [--size 7b|1b] [--folder DIR] [--run]`` makes a Llama-type checkpoint of random numbers
in shards, exports it in a process of its own, opens the result in onnxruntime and, with ``--run``, compares its logits with
eager PyTorch. The checkpoint (13.5 GB for 7b, 4.4 GB for 1b) is deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARD_BYTES = 2 << 30


@dataclass(frozen=True)
class Size:
    """A published Llama-type config, by what it is called."""

    config: dict[str, Any]
    dtype: str


SIZES = {
    "7b": Size(
        {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32000,
        },
        "float16",
    ),
    "1b": Size(
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
        },
        "float32",
    ),
}


def make_checkpoint(folder: Path, size: Size) -> int:
    """Config and shards of random numbers as ``save_pretrained`` lays them out. Returns the bytes of the weights."""
    import torch
    import transformers
    from safetensors.torch import save_file

    dtype = getattr(torch, size.dtype)
    config = transformers.LlamaConfig(**size.config, tie_word_embeddings=False, dtype=size.dtype)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {
            name: value.shape for name, value in transformers.LlamaForCausalLM(config).to(dtype).state_dict().items()
        }
    itemsize = dtype.itemsize
    largest = max(shape.numel() for shape in shapes.values())
    # Drawing billions of numbers would take minutes: all weights are windows of one drawn block.
    block = torch.empty(largest + 4096).normal_(0, 0.02).to(dtype)
    shards = list(_shards({name: shape.numel() * itemsize for name, shape in shapes.items()}))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {
            name: block[7 * at % 4096 :][: shapes[name].numel()].reshape(shapes[name]).clone()
            for at, name in enumerate(names)
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    total_bytes = sum(shape.numel() for shape in shapes.values()) * itemsize
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total_bytes


def _shards(sizes: dict[str, int]) -> Iterator[list[str]]:
    names: list[str] = []
    for name, size_bytes in sizes.items():
        if names and sum(sizes[held] for held in names) + size_bytes > SHARD_BYTES:
            yield names
            names = []
        names.append(name)
    yield names


def export_here(folder: Path) -> dict[str, Any]:
    """Export ``folder`` in this process; seconds, peak memory above the import, bytes written."""
    import resource

    import psutil
    import torch

    import fx2onnx
    from fx2onnx.sources import resolve
    from fx2onnx.sources.hf.kind import _transformers

    _transformers()
    fx2onnx.export(torch.nn.Linear(2, 2), torch.ones(1, 2))  # the first export pays for imports
    before = set(folder.iterdir())
    imported_bytes = psutil.Process().memory_info().rss
    start = time.perf_counter()
    source = resolve(f"hf:{folder}", weights="reference")
    built = time.perf_counter()
    result = fx2onnx.export(
        source.module,
        f=folder / "model.onnx",
        kwargs=source.kwargs,
        dynamic_shapes=source.dynamic_shapes,
        weight_files=source.weight_files,
    )
    end = time.perf_counter()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "build_s": built - start,
        "export_s": end - built,
        "total_s": end - start,
        "imported_mb": imported_bytes / 1e6,
        "peak_above_import_mb": (peak_bytes - imported_bytes) / 1e6,
        "written_mb": sum(path.stat().st_size for path in set(folder.iterdir()) - before) / 1e6,
        "nodes": result.report.nodes_onnx,
        "warnings": result.report.warnings,
    }


def load_here(folder: Path, *, optimised: bool, run: bool) -> dict[str, Any]:
    """Open the model in onnxruntime in this process; with ``run``, its logits beside eager PyTorch's."""
    import resource

    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    found: dict[str, Any] = {"load_s": time.perf_counter() - start}
    found["load_peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    if run:
        import torch

        from fx2onnx.sources import resolve

        ids = torch.arange(10, 18).reshape(1, 8)
        feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        start = time.perf_counter()
        logits = session.run(None, {name: value.numpy() for name, value in feeds.items()})[0]
        found["run_s"] = time.perf_counter() - start
        del session
        source = resolve(f"hf:{folder}", weights="reference")
        with torch.no_grad():
            expected = source.module(**feeds).logits.float().numpy()
        found["largest_logit"] = float(np.abs(expected).max())
        found["largest_error"] = float(np.abs(logits.astype(np.float32) - expected).max())
    return found


def in_process(step: str, folder: Path, *flags: str) -> dict[str, Any]:
    """The result of one step in a process of its own, whose memory is measured."""
    command = [sys.executable, "-m", "benchmarks.by_reference", "--step", step, "--folder", str(folder), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {f"{step} failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--folder", type=Path, help="where the checkpoint is made; default: a temporary one")
    parser.add_argument("--plain", action="store_true", help="open it in onnxruntime without graph optimisations")
    parser.add_argument("--run", action="store_true", help="also run it, beside eager PyTorch")
    parser.add_argument("--step", choices=("make", "export", "load"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "make":
        print(json.dumps({"weights_gb": make_checkpoint(options.folder, SIZES[options.size]) / 1e9}))
    elif options.step == "export":
        print(json.dumps(export_here(options.folder)))
    elif options.step == "load":
        print(json.dumps(load_here(options.folder, optimised=not options.plain, run=options.run)))
    else:
        folder = Path(tempfile.mkdtemp(prefix="fx2onnx-by-reference-", dir=options.folder))
        try:
            flags = [flag for flag in ("--plain", "--run") if getattr(options, flag[2:])]
            found = in_process("make", folder, "--size", options.size)
            found |= in_process("export", folder)
            found |= in_process("load", folder, *flags)
        finally:
            shutil.rmtree(folder)
        for name, value in found.items():
            print(f"{name:<22} {value:.3f}" if isinstance(value, float) else f"{name:<22} {value}", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sys.exit(main())
