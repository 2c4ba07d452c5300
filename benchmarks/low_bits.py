"""Time and size of low-bit weights in onnxruntime: ``docs/measured/low_bits.md``.

``python -m benchmarks.low_bits [--write docs/measured/low_bits.md]`` times single products, the files of one decoder with the options that
docs/serving.md names, a GPTQ checkpoint by reference and copied, and the fitting of one weight. One thread, the processor's time, all
files of a table in turn in one process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import cpu_name, describe, unpinned

ROUNDS = 9
PROMPT = 128
FOLDERS = (
    "",
    "--dtype float16",
    "--quantize int8",
    "--quantize int4",
    "--fused",
    "--fused --quantize int4",
    "--kv int8",
)
"""Options of ``fx2onnx export-folder``, of which each makes one row."""
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False}
Table = tuple[str, list[list[str]]]
"""The head of a table in Markdown, and its rows."""


def least(runs: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS, least_s: float = 0.01) -> dict[str, float]:
    """The least seconds of processor time of each run, all in turn; a run is repeated within a round until it takes ``least_s``."""
    repeats = {}
    for name, run in runs.items():
        run()
        start = time.process_time()
        run()
        repeats[name] = max(1, round(least_s / max(time.process_time() - start, 1e-6)))
    found = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                run()
            found[name] = min(found[name], (time.process_time() - start) / repeats[name])
    return found


def opened(model: Any) -> Any:
    """A session of onnxruntime with one thread, of a path or of bytes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def of_products() -> Table:
    """Products of ``rows`` tokens with a weight in 4 or 8 bits, by what the file has for them."""
    import torch

    import fx2onnx

    forms = {
        "float32 weight": None,
        "4 bits, `MatMulNBits`": ("int4", "matmulnbits"),
        "8 bits, `MatMulNBits`": ("int8", "matmulnbits"),
        "4 bits, `DequantizeLinear`": ("int4", "qdq"),
        "8 bits, `DequantizeLinear`": ("int8", "qdq"),
    }
    rows = []
    for tokens, wide, out in ((3, 256, 512), (1, 2048, 2048)):
        runs = {}
        for name, form in forms.items():
            torch.manual_seed(0)
            quantize = form and fx2onnx.Quantize(form[0], format=form[1], accuracy=False)
            target = None if form is None else "onnxruntime"
            made = fx2onnx.export(
                torch.nn.Linear(wide, out, bias=False), (torch.randn(tokens, wide),), quantize=quantize, target=target
            )
            session = opened(made.model_proto.SerializeToString())
            runs[name] = _run(session, {session.get_inputs()[0].name: np.ones((tokens, wide), np.float32)})
        times = least(runs)
        rows += [[f"{tokens} x {wide} x {out}", name, f"{seconds * 1e6:,.0f}"] for name, seconds in times.items()]
    return "| tokens x inputs x outputs | weight | us |\n|---|---|---:|", rows


def _run(session: Any, feeds: dict[str, Any]) -> Callable[[], Any]:
    return lambda: session.run(None, feeds)


def of_folders(folder: Path) -> Table:
    """Bytes, a prompt and a token of one decoder, by the options of the export."""
    from benchmarks.fused import _decoder

    for part in _decoder():
        part.save_pretrained(folder / "checkpoint")
    sizes, prompts, tokens = {}, {}, {}
    for number, options in enumerate(FOLDERS):
        made = export_folder(folder / "checkpoint", folder / str(number), options.split())
        sizes[options] = sum(file.stat().st_size for file in made.iterdir())
        session = opened(made / "model.onnx")
        prompts[options] = _run(session, feeds_of(session, PROMPT, 0))
        tokens[options] = _run(session, feeds_of(session, 1, PROMPT))
    prompt_s, token_s = least(prompts), least(tokens)
    rows = [
        [
            f"`{options}`" if options else "none",
            f"{sizes[options] / 1e6:.0f} MB",
            f"{prompt_s[options] * 1e3:.0f} ms",
            f"{token_s[options] * 1e3:.1f} ms",
        ]
        for options in FOLDERS
    ]
    return f"| options | folder | prompt of {PROMPT} tokens | a token |\n|---|---:|---:|---:|", rows


def export_folder(checkpoint: Path, target: Path, options: Sequence[str]) -> Path:
    """The folder that ``fx2onnx export-folder`` writes with ``options``."""
    command = [
        sys.executable,
        "-m",
        "fx2onnx",
        "export-folder",
        f"hf:{checkpoint}",
        "-o",
        str(target),
        "--no-verify",
        "-q",
    ]
    subprocess.run([*command, *options], check=True)
    return target


def feeds_of(session: Any, tokens: int, cached: int) -> dict[str, Any]:
    """Inputs of a decoder for ``tokens`` behind ``cached`` ones; the cache is zeros."""
    feeds = {}
    for entry in session.get_inputs():
        if entry.name == "input_ids":
            feeds[entry.name] = np.arange(tokens)[None] % 100
        elif entry.name == "position_ids":
            feeds[entry.name] = np.arange(cached, cached + tokens)[None]
        elif entry.name == "attention_mask":
            feeds[entry.name] = np.ones((1, cached + tokens), np.int64)
        else:
            named = {"batch_size": 1, "past_sequence_length": cached}
            shape = [each if isinstance(each, int) else named[each] for each in entry.shape]
            dtype = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}[entry.type]
            feeds[entry.name] = np.zeros(shape, dtype)
    return feeds


def of_checkpoint(folder: Path) -> Table:
    """A GPTQ checkpoint of two layers: referred to, and copied."""
    source = folder / "gptq"
    make_gptq(source)
    forms = {
        "copied: `MatMulNBits`": export_folder(source, folder / "copied", ["--target", "onnxruntime"]),
        "by reference: `DequantizeLinear`, `MatMul`": export_folder(source, source, ["--weights", "reference"]),
    }
    sessions = {name: opened(place / "model.onnx") for name, place in forms.items()}
    sizes = {
        name: sum(file.stat().st_size for file in place.glob("model.onnx*")) / 1e6 for name, place in forms.items()
    }
    found = [
        least({name: _run(session, feeds_of(session, tokens, 0)) for name, session in sessions.items()})
        for tokens in (1, 16, 256)
    ]
    rows = [[name, f"{sizes[name]:.1f} MB", *(f"{times[name] * 1e3:.3g}" for times in found)] for name in forms]
    return (
        "| GPTQ, 2 layers 1,024 wide, ms | file | 1 token | 16 tokens | 256 tokens |\n|---|---:|---:|---:|---:|",
        rows,
    )


def make_gptq(folder: Path) -> None:
    """A Llama type of two layers whose products have drawn codes: every bit pattern is eight of them."""
    import torch
    import transformers
    from safetensors.torch import save_file

    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=2, num_attention_heads=16,
        num_key_value_heads=16, max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    tensors = {}
    for name, value in model.state_dict().items():
        if "proj" not in name:
            tensors[name] = value.contiguous()
            continue
        out, wide = value.shape
        stem, groups = name.removesuffix("weight"), wide // GPTQ["group_size"]
        tensors |= {
            f"{stem}qweight": torch.randint(-(2**31), 2**31, (wide // 8, out)).int(),
            f"{stem}qzeros": torch.full((groups, out // 8), 0x77777777, dtype=torch.int32),  # 8 for each column
            f"{stem}scales": (torch.rand(groups, out) * 0.002).half(),
            f"{stem}g_idx": (torch.arange(wide) // GPTQ["group_size"]).int(),
        }
    config.quantization_config = GPTQ
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def of_fitting() -> Table:
    """Seconds that one weight takes to be rounded with ``gptq``."""
    from fx2onnx.quantize.gptq import gptq
    from fx2onnx.quantize.schemes import SCHEMES

    rng, rows = np.random.default_rng(0), []
    for size in (1024, 4096):
        weight = rng.standard_normal((size, size), np.float32)
        inputs = rng.standard_normal((2 * size, size), np.float32)
        gram = inputs.T @ inputs
        fit = partial(gptq, weight, gram, SCHEMES["int4"], 32, np.dtype(np.float32))
        times = least({"": fit}, 2)
        rows.append([f"{size} x {size}", f"{times['']:.2g}"])
    return "| weight, int4, `--method gptq` | s |\n|---|---:|", rows


def page() -> str:
    """All tables."""
    with tempfile.TemporaryDirectory(prefix="fx2onnx-low-bits-") as folder:
        parts: Iterator[tuple[str, Callable[[], Table]]] = iter(
            (
                ("One product", of_products),
                ("A decoder: Llama type, 8 layers of 512, 32,000 words", lambda: of_folders(Path(folder))),
                ("A GPTQ checkpoint, by reference and copied", lambda: of_checkpoint(Path(folder))),
                ("Fitting", of_fitting),
            )
        )
        lines = [
            "# Low-bit weights: time and size",
            "",
            f"`make low-bits`, {date.today()}: onnxruntime, one thread, least of {ROUNDS} rounds of all files in turn, the processor's time. {cpu_name()}, {describe()}.",
        ]
        for title, table in parts:
            head, rows = table()
            lines += ["", f"## {title}", "", head, *(f"| {' | '.join(row)} |" for row in rows)]
            print(json.dumps(rows), flush=True)
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    text = page()
    if asked.write is None:
        print(text)
    else:
        asked.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    unpinned()
    main()
