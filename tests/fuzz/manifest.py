"""``fx2onnx.json`` and the configs of an exported folder, and where the manifest's source leads."""

from __future__ import annotations

import os
import random
from pathlib import Path

from fx2onnx.generation.configs import read_config
from fx2onnx.generation.manifest import FIELDS, MANIFEST_FILE, read_manifest, source_within
from tests.fuzz.mutate import as_json, structurally

VALID = {
    "source": "hf:.?n_layer=1",
    "task": "text-generation-with-past",
    "seed": 3,
    "dtype": "float16",
    "baked": {"image_grid_thw": [[1, 4, 4]], "mask": [[True, False]]},
    "own_prompt": {"left_out": 1, "first_token": 3},
    "codebook_delays": [0, 1, 2],
    "version": 1,
    "files": {"model.onnx": {"bytes": 12, "digest": "sha256:00"}},
}
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
    "hf:gpt2",
    "hf:.",
    "hf:..",
    "hf:sub",
    "hf:link",
    "hf:sub/../..",
    "hf:/etc",
    "os:system?command=x",
    "hf:gpt2?a=b/c",
    "hf:" + "x" * 300,
    "hf:./" + "x" * 300,
]


def case(rng: random.Random, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(folder.parent)
    if rng.random() < 0.3:
        (folder / "config.json").write_bytes(as_json(structurally(CONFIG, rng, list(CONFIG)), rng))
        read_config(folder, "config.json")
        return
    stated = structurally(VALID | {"source": rng.choice(SOURCES)}, rng, list(FIELDS))
    (folder / MANIFEST_FILE).write_bytes(as_json(stated, rng))
    found = read_manifest(folder)
    kind, _, name = source_within(folder, found).partition("?")[0].partition(":")
    home = os.path.realpath(folder)
    assert kind == "hf"
    assert "/" not in name or os.path.realpath(name) == home or os.path.realpath(name).startswith(home + os.sep)
    assert "/" in name or not os.path.exists(name)
