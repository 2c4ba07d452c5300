"""Language models for onnxruntime beside those of transformers' exporter and of mobius: ``docs/measured/language_models.md``.

``python -m benchmarks.language_models out/language_models --write docs/measured/language_models.md`` makes the files that are not
there yet and times them: one graph without a cache beside ``OnnxConfig(ort_fusions="cpu")`` of transformers, and a prompt and the
tokens behind it beside mobius, where that is installed and builds the model.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

LENGTH, STEPS = 128, 16
CLOCKS = {1: time.process_time, 2: time.perf_counter}
"""The clock by the number of threads, as in ``benchmarks.fused``."""
PLAIN, FUSED, TRANSFORMERS, MOBIUS = "ours", "ours, fused", "transformers", "mobius"
WAYS: dict[str, dict[str, Any]] = {PLAIN: {}, FUSED: {"fused": True}}
SIZES = {"vocab_size": 1000, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
WIDE = SIZES | {"hidden_size": 512, "intermediate_size": 1376}
NARROW = SIZES | {"hidden_size": 256, "intermediate_size": 512}
LINEAR = {f"linear_{name}": size for name, size in {"num_value_heads": 8, "num_key_heads": 4, "key_head_dim": 32, "value_head_dim": 32}.items()}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", WIDE),
    "GPT-2": ("GPT2LMHeadModel", {"vocab_size": 1000, "n_embd": 512, "n_layer": 4, "n_head": 8}),
    "Mixtral": ("MixtralForCausalLM", NARROW | {"num_hidden_layers": 2, "num_local_experts": 8}),
    "BERT": ("BertModel", {"vocab_size": 1000, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}),
    "Qwen3": ("Qwen3ForCausalLM", WIDE | {"head_dim": 64}),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        NARROW | LINEAR | {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    ),
}
GRAPHS, DECODERS = ("Llama", "GPT-2", "Mixtral", "BERT", "Qwen3"), ("Llama", "Qwen3", "Mixtral", "Qwen3-Next")
HEAD = "| model | threads | file | nodes | {} | of theirs |"


def model_of(name: str) -> Any:
    """The model with random weights."""
    import torch
    import transformers

    kind, sizes = MODELS[name]
    model_class = getattr(transformers, kind)
    torch.manual_seed(0)
    return model_class(model_class.config_class(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)).eval()


def _inputs() -> dict[str, Any]:
    import torch

    ids = torch.arange(LENGTH)[None] * 37 % 1000
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def make_graphs(folder: Path, name: str) -> None:
    """One file without a cache each: ours, and that of transformers."""
    import torch
    from transformers.exporters import OnnxConfig, OnnxExporter

    import fx2onnx

    folder.mkdir(parents=True, exist_ok=True)
    model, inputs = model_of(name), _inputs()
    model.config.use_cache = False
    with torch.no_grad():
        np.save(folder / "wanted.npy", model(**inputs)[0].numpy())
    shapes = {key: {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=1024)} for key in inputs}
    for way, options in WAYS.items():
        path = folder / f"{way}.onnx"
        fx2onnx.export(model, (), path, kwargs=inputs, target="onnxruntime", dynamic_shapes=shapes, **options)
    if not (folder / f"{TRANSFORMERS}.onnx").exists():
        exporter = OnnxExporter()
        program, _ = exporter.export_program(model, dict(inputs), OnnxConfig(dynamic=True, ort_fusions="cpu"))
        exporter.save_program(program, folder / f"{TRANSFORMERS}.onnx")


def make_decoders(folder: Path, name: str) -> None:
    """A folder with a cache each: ours, and that of mobius."""
    import fx2onnx

    model_of(name).save_pretrained(folder / "checkpoint")
    for way, options in WAYS.items():
        if not (folder / way).exists():
            fx2onnx.export_folder(
                f"hf:{folder}/checkpoint", folder / way, target="onnxruntime", verify=False, **options
            )
    if not (folder / MOBIUS).exists() and find_spec("mobius"):
        command = [sys.executable, "-m", "mobius", "build", "--config", f"{folder}/checkpoint", f"{folder}/{MOBIUS}"]
        subprocess.run([*command, "--ep", "cpu", "--optimize"], capture_output=True, check=False)


class Opened:
    """A folder or a file in onnxruntime, and the cache of the tokens so far."""

    def __init__(self, path: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        first = path / "prompt_model.onnx"
        files = [path] if path.suffix else [first if first.exists() else path / "model.onnx", path / "model.onnx"]
        self._sessions = [onnxruntime.InferenceSession(each, options, ["CPUExecutionProvider"]) for each in files]
        self._clock = CLOCKS[threads]

    def start(self) -> None:
        """Forget all tokens."""
        self._length, self._cache = 0, {}
        for entry in self._sessions[-1].get_inputs():
            if entry.name.startswith("past"):
                sizes = [size if isinstance(size, int) else int(axis == 0) for axis, size in enumerate(entry.shape)]
                self._cache[entry.name] = np.zeros(sizes, np.float32)

    def step(self, ids: Any) -> tuple[float, Any]:
        """Seconds and first output of a run on further tokens."""
        session, new = self._sessions[self._length > 0 and len(self._sessions) > 1], ids.shape[1]
        every = {
            "input_ids": ids,
            "attention_mask": np.ones((1, self._length + new), np.int64),
            "position_ids": np.arange(self._length, self._length + new)[None],
            **self._cache,
        }
        feed = {entry.name: every[entry.name] for entry in session.get_inputs()}
        begun = self._clock()
        outputs = session.run(None, feed)
        seconds = self._clock() - begun
        self._length += new
        present = [
            value for entry, value in zip(session.get_outputs(), outputs, strict=True) if "present" in entry.name
        ]
        self._cache = dict(zip(self._cache, present, strict=False))
        return seconds, outputs[0]


Turn = Callable[[Opened], tuple[list[float], Any]]
"""Runs an opened file: the seconds of each part, and a result that all files share."""


def graph_turn(opened: Opened) -> tuple[list[float], Any]:
    """A run on all tokens."""
    opened.start()
    seconds, result = opened.step(_inputs()["input_ids"].numpy())
    return [seconds], result


def decoder_turn(opened: Opened) -> tuple[list[float], Any]:
    """The prompt, and the mean of the tokens behind it, which are the result."""
    opened.start()
    prompt, logits = opened.step(_inputs()["input_ids"].numpy())
    tokens, steps = [], []
    for _ in range(STEPS):
        tokens.append(int(logits[0, -1].argmax()))
        seconds, logits = opened.step(np.array([[tokens[-1]]]))
        steps.append(seconds)
    return [prompt, statistics.median(steps)], tokens


def rows(name: str, files: dict[str, Path], turn: Turn, threads: int, rounds: int) -> Iterator[str]:
    """The lines of a model: the fastest of all runs of each file, two openings each, all in turn."""
    import onnx

    opened = [(way, Opened(path, threads)) for way, path in [*files.items(), *reversed(files.items())]]
    times: dict[str, list[list[float]]] = {way: [] for way in files}
    results: dict[str, Any] = {}
    for number in range(rounds + 1):
        for way, each in opened if number % 2 else reversed(opened):
            seconds, results[way] = turn(each)
            if number:
                times[way].append(seconds)
    least = {way: [min(part) for part in zip(*found, strict=True)] for way, found in times.items()}
    theirs = least.get(TRANSFORMERS) or least.get(MOBIUS)
    for way, path in files.items():
        file = path if path.suffix else path / "model.onnx"
        count = len(onnx.load(file, load_external_data=False).graph.node)
        said = " / ".join(f"{part * 1e3:.2f}" for part in least[way])
        ratio = " / ".join(f"{mine / other:.2f}" for mine, other in zip(least[way], theirs or [], strict=False))
        alike = np.allclose(results[way], results[PLAIN], rtol=1e-3, atol=1e-4)
        yield f"| {name} | {threads} | {way}{'' if alike else ', other results'} | {count} | {said} | {ratio} |"


def measure(folder: Path, rounds: int, threads: Sequence[int]) -> str:
    """The page."""
    from benchmarks.machine import describe

    lines = [
        "# Language models for onnxruntime beside other exporters",
        "",
        f'{LENGTH} tokens, random weights; `target="onnxruntime"`, with and without `fused=True`. All files of a model run in turn in one',
        "process, two openings each; the fastest run counts, of one thread by the processor's time, of two by the clock. Four layers 512 wide;",
        f"Mixtral two of 256, Qwen3-Next four of 256, with eight experts. Written by `python -m benchmarks.language_models`. {describe()}.",
        "",
    ]
    parts = (
        ('One graph without a cache, beside transformers\' `ort_fusions="cpu"`', "ms", GRAPHS, make_graphs, graph_turn),
        ("Prompt, and a token behind it, beside mobius", "prompt / token, ms", DECODERS, make_decoders, decoder_turn),
    )
    for title, unit, names, make, turn in parts:
        lines += [f"## {title}", "", HEAD.format(unit), "|---|---|---|---:|---:|---:|"]
        for name in names:
            place = folder / make.__name__ / name
            make(place, name)
            ways = {
                way: place / (f"{way}.onnx" if turn is graph_turn else way) for way in (*WAYS, TRANSFORMERS, MOBIUS)
            }
            files = {way: path for way, path in ways.items() if path.exists()}
            lines += [line for count in threads for line in rows(name, files, turn, count, rounds)]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    text = measure(asked.folder, asked.rounds, [int(count) for count in asked.threads.split(",")])
    print(text)
    if asked.write is not None:
        asked.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
