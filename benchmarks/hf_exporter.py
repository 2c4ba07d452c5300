"""Exports of transformers models to finished files: fx2onnx against ``transformers.exporters.OnnxExporter``.

One process, warm, in turn, medians of ``--rounds``, CPU seconds; dynamic shapes in both. Without cache: one forward. With cache: ours is
one graph that serves prompt and later steps; theirs with ``multi_token_decode`` writes a decoder of the same kind beside a
prefill graph, and only the decoder's export is counted (capturing its inputs by running ``generate`` is not).

    python -m benchmarks.hf_exporter [--rounds 3] [--models gpt2,llama]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import machine


def _models() -> dict[str, Callable[[], Any]]:

    import transformers as hf

    llama = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
    return {
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig()),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config()),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**llama, num_key_value_heads=4, vocab_size=8000)),
        "gemma3": lambda: hf.Gemma3ForCausalLM(
            hf.Gemma3TextConfig(**llama, num_key_value_heads=4, head_dim=64, vocab_size=8000, sliding_window=64)
        ),
    }


def _timed(function: Callable[[], Any]) -> float:
    """CPU seconds: others may stop or slow this process while it measures."""
    start = time.process_time()
    function()
    return time.process_time() - start


def _plain(model: Any) -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    """Ours and theirs for one forward without cache."""
    import torch
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    import fx2onnx

    ids = torch.randint(10, 100, (2, 16))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    shapes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    model.config.use_cache = False

    def ours(folder: Path) -> None:
        fx2onnx.export(model, (), folder / "model.onnx", kwargs=inputs, dynamic_shapes=shapes)

    def theirs(folder: Path) -> None:
        OnnxExporter().export(model, dict(inputs), OnnxConfig(dynamic=True)).save_pretrained(folder)

    return ours, theirs


def _cached(model: Any) -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    """Ours and theirs for the decoder with its cache."""
    import copy

    import torch
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter
    from transformers.exporters.utils import decompose_prefill_decode

    from fx2onnx.decoding.parts import Assembly, cached_parts
    from fx2onnx.exporting.folder import export_assembly
    from fx2onnx.sources.source import Source

    model.config.use_cache = True
    model.generation_config.eos_token_id = None
    ids = torch.randint(10, 100, (2, 16))
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    part, inputs = decompose_prefill_decode(model, prompt, multi_token_decode=True)["decode"]

    def ours(folder: Path) -> None:
        export_assembly(Assembly(model, cached_parts(Source("model", model)), None, ""), folder)

    def theirs(folder: Path) -> None:
        OnnxExporter().export(part, copy.deepcopy(inputs), OnnxConfig(dynamic=True)).save_pretrained(folder)

    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="bert,gpt2,llama,gemma3")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import logging

    logging.disable(logging.ERROR)
    models = _models()
    print(f"{machine.describe()}\n")
    print("| model | cache | fx2onnx CPU s | OnnxExporter CPU s | times faster |\n|---|---|---|---|---|")
    for name in options.models.split(","):
        for label, variant in (("no", _plain), ("yes", _cached)):
            if name == "bert" and variant is _cached:
                continue
            ours, theirs = variant(models[name]().eval())
            seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
            problem = ""
            for turn in range(options.rounds + 1):  # the first pays for imports
                for key, export in (("ours", ours), ("theirs", theirs)):
                    with tempfile.TemporaryDirectory() as folder:
                        try:
                            taken = _timed(lambda export=export, folder=folder: export(Path(folder)))
                        except Exception as error:  # a row says so, whatever it is
                            problem = f"{key}: {type(error).__name__} {str(error).splitlines()[0][:80]}"
                            continue
                    if turn:
                        seconds[key].append(taken)
            medians = {key: statistics.median(values) if values else None for key, values in seconds.items()}
            if all(medians.values()):
                cells = f"{medians['ours']:.2f} | {medians['theirs']:.2f} | {medians['theirs'] / medians['ours']:.1f}"  # type: ignore[operator]
            else:
                cells = f"{medians['ours'] or '-'} | {medians['theirs'] or '-'} | {problem}"
            print(f"| {name} | {label} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
