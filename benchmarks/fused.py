"""Fused files beside those of onnxruntime's own tools, in onnxruntime: ``docs/measured/fused.md``.

``python -m benchmarks.fused prepare out/fused`` makes the files, ``python -m benchmarks.fused measure out/fused --write docs/measured/fused.md``
times them. Decoders: a folder for onnxruntime-genai beside that of its model builder, on the same checkpoint. Other models: our
file beside that of ``onnxruntime.transformers.optimizer`` made of ``torch.onnx.export``'s. Needs onnxruntime-genai, whose builder is
run as a script.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = (512, 1500)
STEPS = 24
ROUNDS = 15
CLOCKS = {1: time.process_time, 2: time.perf_counter}
"""The clock by the number of threads: for one the processor's, which other work on the machine moves least; two also
spend it waiting for each other."""
IN_A_ROW = {1: 1, 2: STEPS}
"""Tokens that one file makes before the next one does, by threads: those of another session spin for a while after its run."""
OURS, THEIRS = "ours", "theirs"
OPENED = (OURS, THEIRS, THEIRS, OURS)
"""Each is opened twice, once before the other: where its weights come to lie moves times by more than the files differ."""
DECODER = "Llama type, 8 layers of 512"
PRECISIONS = {"fp32": None, "int4": "int4"}
"""The builder's word for each precision, and ours for its weights."""


def _decoder() -> tuple[Any, Any]:
    """The checkpoint's model, and a tokenizer, without which onnxruntime-genai opens no folder."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({f"w{place}": place for place in range(100)}, unk_token="w0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="w1", eos_token="w2")
    return transformers.LlamaForCausalLM(config).eval(), tokenizer


def _text(length: int, vocabulary: int) -> Any:
    import torch

    return torch.arange(length)[None] * 37 % vocabulary


def _models() -> Iterator[tuple[str, str, dict[str, Any], Callable[[], tuple[Any, dict[str, Any]]]]]:
    """Name, the optimizer's word for the type and its options, and what makes the module with its inputs."""
    import torch
    import transformers as library

    class Scored(torch.nn.Module):
        """GPT-2 without ``logits_to_keep``, of which the older exporter makes an input that picks one position."""

        def __init__(self) -> None:
            super().__init__()
            self.model = library.GPT2LMHeadModel(library.GPT2Config(use_cache=False))

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    def bert() -> tuple[Any, dict[str, Any]]:
        ids = _text(128, 30522)
        return library.BertModel(library.BertConfig()), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def vit() -> tuple[Any, dict[str, Any]]:
        return library.ViTModel(library.ViTConfig()), {"pixel_values": torch.randn(1, 3, 224, 224)}

    def gpt2() -> tuple[Any, dict[str, Any]]:
        ids = _text(128, 50257)
        return Scored(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def t5() -> tuple[Any, dict[str, Any]]:
        ids = _text(128, 32128)
        config = library.T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8, use_cache=False)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :64]}
        return library.T5ForConditionalGeneration(config), inputs

    def whisper() -> tuple[Any, dict[str, Any]]:
        config = library.WhisperConfig(use_cache=False)
        inputs = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": _text(16, 51865)}
        return library.WhisperModel(config), inputs

    yield "BERT-base", "bert", {"num_heads": 12, "hidden_size": 768}, bert
    yield "ViT-B/16", "vit", {"num_heads": 12, "hidden_size": 768}, vit
    yield "GPT-2", "gpt2", {"num_heads": 12, "hidden_size": 768}, gpt2
    yield "T5-small", "t5", {"num_heads": 8, "hidden_size": 512}, t5
    yield "Whisper-tiny", "bart", {"num_heads": 6, "hidden_size": 384}, whisper


def _builder() -> Path:
    found = find_spec("onnxruntime_genai")
    if found is None or found.origin is None:
        raise SystemExit("onnxruntime-genai is not installed")
    return Path(found.origin).parent / "models" / "builder.py"


def prepare(folder: Path, parts: str) -> None:
    """Every file that is not there yet."""

    folder.mkdir(parents=True, exist_ok=True)
    if "decoder" in parts:
        _prepare_decoder(folder / "decoder")
    for name, kind, options, make in _models() if "others" in parts else ():
        place = folder / name.replace("/", "-")
        if not (place / "inputs.npz").exists():
            place.mkdir(exist_ok=True)
            _prepare_one(place, kind, options, make)


def _prepare_decoder(folder: Path) -> None:
    import fx2onnx

    source = folder / "checkpoint"
    if not source.exists():
        for part in _decoder():
            part.save_pretrained(source)
    for precision, kind in PRECISIONS.items():
        place = folder / precision
        place.mkdir(exist_ok=True)
        if (place / THEIRS).exists():
            continue
        quantize = fx2onnx.Quantize(kind, accuracy=False) if kind else None
        fx2onnx.export_folder(f"hf:{source}", place / OURS, target="onnxruntime-genai", quantize=quantize)
        command = [sys.executable, "-m", "benchmarks.fused", "build", str(source), str(place / THEIRS)]
        subprocess.run(
            [*command, "--precision", precision], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def _prepare_one(place: Path, kind: str, options: dict[str, Any], make: Callable[[], Any]) -> None:
    import torch
    from onnxruntime.transformers import optimizer

    import fx2onnx

    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    fx2onnx.export(model, (), place / f"{OURS}.onnx", kwargs=inputs, fused=True)
    exporter = ""
    with warnings.catch_warnings(action="ignore"):
        for is_new in (True, False):  # the newer exporter stops at some models, the optimizer at some of its files
            try:
                torch.onnx.export(
                    model, (), str(place / "torch.onnx"), kwargs=inputs, dynamo=is_new, input_names=list(inputs)
                )
                optimized = optimizer.optimize_model(str(place / "torch.onnx"), kind, **options)
            except (IndexError, KeyError, ValueError, RuntimeError, TypeError) as error:
                print(f"{place.name}, dynamo={is_new}: {type(error).__name__}: {str(error)[:200]}")
            else:
                optimized.save_model_to_file(str(place / f"{THEIRS}.onnx"), use_external_data_format=True)
                exporter = f"dynamo={is_new}"
                break
    (place / "exporter.txt").write_text(exporter)
    np.savez(place / "inputs.npz", **{name: value.numpy() for name, value in inputs.items()})


def build(source: Path, target: Path, precision: str) -> None:
    """onnxruntime-genai's model builder, which is a script beside its modules."""

    script = _builder()
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), "-i", str(source), "-o", str(target), "-p", precision, "-e", "cpu"]
    runpy.run_path(str(script), run_name="__main__")


class Times:
    """Seconds of each opening of ours and theirs. The first of each does not count."""

    def __init__(self) -> None:
        self._seconds: list[list[float]] = [[] for _ in OPENED]
        self._seen: set[int] = set()

    def add(self, place: int, seconds: float) -> None:
        """Add the seconds of one run of the file at this place of ``OPENED``; the first run of a file does not
        count."""
        if place in self._seen:
            self._seconds[place].append(seconds)
        self._seen.add(place)

    def numbers(self) -> list[str]:
        """Medians in ms, their ratio, and the ratio of the slower to the faster of two openings of one file."""
        found = {
            name: [seconds for which, seconds in zip(OPENED, self._seconds, strict=True) if which == name]
            for name in (OURS, THEIRS)
        }
        ours, theirs = (statistics.median(chain.from_iterable(each)) for each in found.values())
        openings = [sorted(map(statistics.median, each)) for each in found.values()]
        alike = max(slow / fast for fast, slow in openings)
        return [f"{ours * 1e3:.1f}", f"{theirs * 1e3:.1f}", f"{ours / theirs:.2f}", f"{alike:.2f}"]


def _orders(rounds: int) -> Iterator[Sequence[int]]:
    """In which order the opened files run, round by round."""
    places = range(len(OPENED))
    for number in range(rounds + 1):
        yield places if number % 2 else places[::-1]


def _decoder_rows(folder: Path, threads: int, rounds: int) -> Iterator[list[str]]:
    for precision in PRECISIONS:
        for row in _decoder_rows_in(folder / precision, threads, rounds):
            yield [f"{precision}: {row[0]}", *row[1:]]


def _decoder_rows_in(folder: Path, threads: int, rounds: int) -> Iterator[list[str]]:
    import onnxruntime_genai as genai

    models, clock = [], CLOCKS[threads]
    for name in OPENED:
        config = genai.Config(str(folder / name))
        session = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
        config.overlay(json.dumps(session))
        models.append(genai.Model(config))
    for length in PROMPTS:
        ids = np.random.default_rng(0).integers(5, 30000, (1, length)).astype(np.int32)
        prompts, steps = Times(), Times()
        for order in _orders(rounds):
            generators = [_generator(genai, model, length) for model in models]
            for place in order:
                start = clock()
                generators[place].append_tokens(ids)
                generators[place].get_logits()
                prompts.add(place, clock() - start)
            for _ in range(STEPS // IN_A_ROW[threads]):
                for place in order:
                    for _ in range(IN_A_ROW[threads]):
                        start = clock()
                        generators[place].generate_next_token()
                        steps.add(place, clock() - start)
        mine, other = (list(generator.get_sequence(0)) for generator in generators[:2])
        alike = next(
            (place for place, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1]), len(mine)
        )
        said = f"{length} tokens, {alike - length} of {len(mine) - length} behind them equal"
        for what, times in (("prompt", prompts), ("a token behind it", steps)):
            yield [f"{DECODER}, {said}: {what}", str(threads), *times.numbers()]


def _generator(genai: Any, model: Any, length: int) -> Any:
    options = genai.GeneratorParams(model)
    options.set_search_options(max_length=length + STEPS + 2, do_sample=False)
    return genai.Generator(model, options)


def _other_rows(folder: Path, threads: int, rounds: int) -> Iterator[list[str]]:
    import onnxruntime

    clock = CLOCKS[threads]

    for name, _, _, _ in _models():
        files = folder / name.replace("/", "-")
        exporter = (files / "exporter.txt").read_text()
        if not exporter:
            yield [name, str(threads), "", "neither exporter and the optimizer make a file", "", ""]
            continue
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        sessions = [
            onnxruntime.InferenceSession(files / f"{which}.onnx", options, providers=["CPUExecutionProvider"])
            for which in OPENED
        ]
        given = dict(np.load(files / "inputs.npz"))
        feeds = [{entry.name: given[entry.name] for entry in session.get_inputs()} for session in sessions]
        outputs = [session.run(None, feed)[0] for session, feed in zip(sessions, feeds, strict=True)]
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-2, atol=1e-2)

        times = Times()
        for order in _orders(rounds):
            for place in order:
                start = clock()
                sessions[place].run(None, feeds[place])
                times.add(place, clock() - start)
        yield [f"{name} ({exporter})", str(threads), *times.numbers()]


def measure(folder: Path, rounds: int, parts: str, threads: Sequence[int]) -> str:
    """The tables."""

    from benchmarks.machine import describe

    head = ["| model | threads | ours, ms | theirs, ms | ratio | one file, opened twice |", "|---|---|---|---|---|---|"]
    lines = [
        "# Fused files beside those of other tools",
        "",
        "Time of a run in onnxruntime of a file with its own operators (`fused=True`), and of one that another tool makes of the same model. "
        f"Each is opened twice, in both orders, in one process; all run in turn, medians; of one thread the processor's time, of two the clock's. The last column is how far apart the two openings of one file are. Written by `make fused`. {describe()}.",
        "",
    ]
    for word, title, rows in (
        ("decoder", "Decoders, beside onnxruntime-genai's model builder", _decoder_rows),
        (
            "others",
            "Other models, beside `onnxruntime.transformers.optimizer` on the file of `torch.onnx.export`",
            _other_rows,
        ),
    ):
        if word in parts:
            place = folder / "decoder" if word == "decoder" else folder
            lines += [f"## {title}", "", *head]
            lines += [f"| {' | '.join(row)} |" for count in threads for row in rows(place, count, rounds)]
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("prepare", "build", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", default=",".join(map(str, CLOCKS)))
    parser.add_argument("--parts", default="decoder,others")
    parser.add_argument("--precision", default="fp32", choices=tuple(PRECISIONS))
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    if asked.what == "prepare":
        prepare(asked.folder, asked.parts)
    elif asked.what == "build":
        build(asked.folder, asked.target, asked.precision)
    else:
        text = measure(asked.folder, asked.rounds, asked.parts, [int(count) for count in asked.threads.split(",")])
        print(text)
        if asked.write is not None:
            asked.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
