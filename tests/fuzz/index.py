"""An index of shards, with links in and out of the folder."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from fx2onnx.sources.weight_files import check_files, map_checkpoint
from tests.fuzz.mutate import as_json, structurally

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "link", "out.safetensors"]
NAMES = [*SHARDS, "../secret.safetensors", "sub/../../secret.safetensors", "up/secret.safetensors", ""]
VALID = {"metadata": {"total_size": 8}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}


def shard(name: str) -> bytes:
    text = b'{"%s":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' % name.encode()
    return struct.pack("<Q", len(text)) + text + bytes(4)


def case(rng: random.Random, folder: Path) -> None:
    secret = folder.parent / "secret.safetensors"
    if not secret.exists():
        (folder / "made").write_bytes(shard("secret"))
        (folder / "made").rename(secret)  # writing there would be a fault of the case
    for name, file in zip("ab", SHARDS, strict=False):
        (folder / file).write_bytes(shard(name))
    (folder / "link").symlink_to(SHARDS[0])
    if rng.random() < 0.5:
        (folder / "up").symlink_to("..")
    if rng.random() < 0.3:
        (folder / "out.safetensors").symlink_to(
            rng.choice(["../secret.safetensors", secret, "out.safetensors", "/dev/zero"])
        )
    chosen = {rng.choice(["a", "b", "secret"]): rng.choice(NAMES) for _ in range(rng.randrange(3))}
    stated = VALID | {"weight_map": VALID["weight_map"] | chosen}  # type: ignore[operator]
    stated = structurally(stated, rng, [*stated, "a", "secret"]) if rng.random() < 0.5 else stated
    index = rng.choice(["model.safetensors.index.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"])
    (folder / index).write_bytes(as_json(stated, rng))
    if rng.random() < 0.5:
        check_files(folder)
    assert "secret" not in map_checkpoint(folder).state
