"""Capture alone: against one bare run of the module on fake tensors, static and dynamic, by depth and by input size.

``python -m benchmarks.capture_time [--rounds 5] [--zoo]``. One process, warm, variants in turn, medians; ratios are printed.
``--zoo``: only the first table, of every model of the zoo.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from benchmarks import machine


def timed(variants: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, float]:
    """Median seconds of each variant, run in turn after one warm-up of each."""
    for function in variants.values():
        function()
    taken: dict[Any, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, function in variants.items():
            gc.collect()  # none pays for another's garbage
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def bare_run(module: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """The module on fake tensors with nothing recorded."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def run() -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(arg) for arg in args]
        named = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        with torch.no_grad(), mode:
            module(*fakes, **named)

    return run


DECIDES_BY_DATA = ("yolov5",)
"""Models that do not run on fake tensors as they are."""
SOME = ("resnet50", "mobilenet_v3_large", "vit_b_16", "bert_base_mlm", "gpt2", "t5_small")


def capture(*given: Any) -> object:
    """One capture as an export makes it: the patches are those of the libraries that are imported by now."""
    from fx2onnx.capture.driver import capture as plain_capture
    from fx2onnx.model_patches.library import LibraryPatches

    return plain_capture(*given, patches=LibraryPatches())


def models(rounds: int, names: Iterable[str]) -> None:
    from fx2onnx.capture.options import CaptureOptions
    from models_zoo.registry import build

    print("\n| model | bare fake run s | capture s | capture / bare | dynamic s | dynamic / static |")
    print("|---|---|---|---|---|---|")
    for name in names:
        entry = build(name)
        module, args, kwargs = entry.module.eval(), entry.args, entry.kwargs
        options = CaptureOptions(dynamic_shapes=entry.dynamic_shapes)
        variants = {
            "static": partial(capture, module, args, kwargs),
            "dynamic": partial(capture, module, args, kwargs, options),
        }
        if name not in DECIDES_BY_DATA:
            variants["bare"] = bare_run(module, args, kwargs)
        found = timed(variants, rounds)
        static, dynamic = found["static"], found["dynamic"]
        beside = (
            f"{found['bare']:.3f} | {static:.3f} | {static / found['bare']:.2f}"
            if "bare" in found
            else f"| {static:.3f} |"
        )
        print(f"| {name} | {beside} | {dynamic:.3f} | {dynamic / static:.2f} |", flush=True)


def depth(rounds: int) -> None:
    import torch
    from transformers import BertConfig, BertModel

    sample = torch.ones(1, 32, dtype=torch.long)
    variants = {}
    for layers in (6, 12, 24, 48, 96):
        config = BertConfig(num_hidden_layers=layers, hidden_size=64, num_attention_heads=4, intermediate_size=128)
        module = BertModel(config).eval()
        variants[layers] = lambda module=module: capture(module, (sample,))
    found = timed(variants, rounds)
    print("\n| layers | capture s | ms a layer | against 12 layers |")
    print("|---|---|---|---|")
    base = found[12] / 12
    for layers, seconds in found.items():
        each = seconds / layers
        print(f"| {layers} | {seconds:.3f} | {each * 1000:.2f} | {each / base:.2f} |")


def size(rounds: int) -> None:
    import torch

    from models_zoo.registry import build

    entry = build("t5_tiny")
    tokens = {}
    for length in (32, 128, 512, 2048, 8192):
        ids = torch.ones(1, length, dtype=torch.long)
        kwargs = {"input_ids": ids, "attention_mask": ids, "decoder_input_ids": ids}
        tokens[f"T5, {length} tokens"] = lambda kwargs=kwargs: capture(entry.module, (), kwargs)
    resnet = build("resnet18")
    pixels = {
        f"ResNet-18, {side} pixels": functools.partial(capture, resnet.module, (torch.empty(1, 3, side, side),))
        for side in (64, 256, 1024, 2048)
    }
    print("\n| input | capture s | against the smallest |")
    print("|---|---|---|")
    for variants in (tokens, pixels):
        found = timed(variants, rounds)
        smallest = next(iter(found.values()))
        for name, seconds in found.items():
            print(f"| {name} | {seconds:.3f} | {seconds / smallest:.2f} |")


def main() -> None:
    machine.unpinned()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--zoo", action="store_true", help="the first table, of every model")
    given = parser.parse_args()
    rounds = given.rounds
    print(machine.describe())
    if given.zoo:
        from fx2onnx.sources import names

        models(rounds, names("zoo"))
        return
    models(rounds, SOME)
    depth(rounds)
    size(rounds)


if __name__ == "__main__":
    main()
