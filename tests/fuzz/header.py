"""The header of a safetensors file."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from fx2onnx.sources.weight_files import map_file
from tests.fuzz.mutate import as_json, bytewise, structurally

VALID = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b.weight": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    "c": {"dtype": "I64", "shape": [], "data_offsets": [22, 30]},
    "d": {"dtype": "BOOL", "shape": [0, 7], "data_offsets": [30, 30]},
}
KEYS = ["dtype", "shape", "data_offsets", "__metadata__", "a", "b.weight"]
DTYPES = ["F64", "F16", "F8_E4M3", "F8_E8M0", "F4", "F6_E2M3", "C64", "U8", "F33"]


def case(rng: random.Random, folder: Path) -> None:
    stated = structurally(VALID, rng, KEYS) if rng.random() < 0.8 else {**VALID}
    if isinstance(stated, dict) and rng.random() < 0.3:
        start = rng.randint(-4, 34)
        stated["a"] = {
            "dtype": rng.choice(DTYPES),
            "shape": [rng.choice([0, 1, 2, 4, 2**32, 2**63, -1]) for _ in range(rng.randrange(4))],
            "data_offsets": [start, start + rng.choice([0, 4, 8, 16, 2**40])],
        }
    text = as_json(stated, rng)
    length = len(text) if rng.random() < 0.9 else rng.choice([0, 1, len(text) + 1, 2**31, 2**40, 2**64 - 1])
    data = struct.pack("<Q", length) + text + bytes(30)
    path = folder / "model.safetensors"
    path.write_bytes(bytewise(data, rng) if rng.random() < 0.2 else data)
    found = map_file(path)
    for value in found.state.values():
        assert value.nbytes <= path.stat().st_size
        value.clone()  # every byte of it can be read
