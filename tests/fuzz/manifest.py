"""``fx2onnx.json`` and the configs of an exported folder, and where the manifest's source leads."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

from fx2onnx.cli.generate import source_within
from fx2onnx.files.folder_commit import MANIFEST, VERSION
from fx2onnx.generation.opened import read_config
from fx2onnx.manifest.form import Manifest, read_manifest
from tests.fuzz.mutate import as_json, structurally

_TOKENS = {"name": "input_ids", "role": "tokens", "dtype": "int64", "shape": ["batch_size", "sequence_length"]}
_GRID = {"name": "image_grid_thw", "role": "media", "dtype": "int64", "shape": [1, 3]}
_SIZES = {"input": "image_grid_thw", "merge_size": 2}
_STATE = {"dtype": "float32", "shape": ["batch_size", 2, "past_sequence_length", 8], "axis": 2}
VALID = {
    "version": VERSION,
    "graphs": [
        {
            "file": "model.onnx",
            "kind": "decode",
            "inputs": [_TOKENS],
            "outputs": [{"name": "logits", "role": "logits", "dtype": "float32", "shape": [1, 2, 50]}],
            "cache": [
                {"name": "0.key", "input": "past.0", "output": "present.0", "length": "past", **_STATE},
                {"name": "1.key", "input": "past.1", "output": "present.1", "length": "window", "window": 4, **_STATE},
            ],
            "positions": "none",
        },
        {"file": "vision_encoder.onnx", "kind": "image", "inputs": [_GRID], "outputs": []},
    ],
    "source": "hf:.?n_layer=1",
    "task": "text-generation-with-past",
    "seed": 3,
    "options": {"dtype": "float16", "batch": None},
    "media": [{"kind": "image", "features": "image_features", "token": 7, "grid": _SIZES}],
    "baked": {"image_grid_thw": [[1, 4, 4]], "mask": [[True, False]]},
    "prompt_rewrite": {"left_out": 1, "first_token": 3},
    "codebook_delays": [0, 1, 2],
    "files": {"model.onnx": {"bytes": 12, "digest": "0123456789abcdef0123456789abcdef"}},
}
KEYS = [field.name for field in dataclasses.fields(Manifest)]
CONFIG = {
    "text_config": {"eos_token_id": 3, "vocab_size": 9},
    "eos_token_id": [1, 2],
    "pad_token_id": 0,
    "max_new_tokens": 5,
    "suppress_tokens": [-1, 3],
    "repetition_penalty": 1.5,
    "decoder": {"decoder_start_token_id": 1},
}
SOURCES = [
    "hf:gpt2", "hf:.", "hf:..", "hf:sub", "hf:link", "hf:sub/../..", "hf:/etc", "os:system?command=x", "hf:gpt2?a=b/c",
    "hf:" + "x" * 300, "hf:./" + "x" * 300,
]  # fmt: skip


def case(rng: random.Random, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder.parent)
    if rng.random() < 0.3:
        (folder / "config.json").write_bytes(as_json(structurally(CONFIG, rng, list(CONFIG)), rng))
        read_config(folder, "config.json")
        return
    stated = structurally(VALID | {"source": rng.choice(SOURCES)}, rng, KEYS)
    (folder / MANIFEST).write_bytes(as_json(stated, rng))
    found = read_manifest(folder)
    kind, _, name = source_within(folder, found).partition("?")[0].partition(":")
    home = os.path.realpath(folder)
    assert kind == "hf"
    assert "/" not in name or os.path.realpath(name) == home or os.path.realpath(name).startswith(home + os.sep)
    assert "/" in name or not os.path.exists(name)
