"""onnxruntime's blocks of encoders in the runner: the same numbers as in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_contrib import F32, MICROSOFT, Array, check, draw, model_of, results
from test_contrib_quantized import codes, scale, zero

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

I32 = np.int32
BATCH, NEW, HEADS, DEPTH = 2, 5, 4, 6
WIDTH = HEADS * DEPTH


def masks(past: int) -> dict[str, Array | None]:
    keys = NEW + past
    lengths = np.array([keys, keys - 2], I32)
    return {
        "none": None,
        "lengths": lengths,
        "ends and starts": np.concatenate([lengths, np.array([1, 0], I32)]),
        "keys": (np.arange(keys) < lengths[:, None]).astype(I32),
        "queries": (np.arange(keys) < lengths[:, None, None] - np.arange(NEW)[:, None] % 3).astype(I32),
    }


@pytest.mark.parametrize("mask", masks(0))
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask: str, past: int, unidirectional: int) -> None:
    feeds: dict[str, Array | None] = {
        "x": draw(BATCH, NEW, 10),
        "w": draw(10, 3 * WIDTH, seed=1),
        "b": draw(3 * WIDTH),
        "mask": masks(past)[mask],
        "past": draw(2, BATCH, HEADS, past, DEPTH) if past else None,
        "bias": draw(1, HEADS, NEW, NEW + past) if mask == "keys" and not past else None,
    }
    outputs = "y present" if past else "y"
    check(results("Attention", feeds, outputs, num_heads=HEADS, unidirectional=unidirectional, scale=0.2), 2e-5)


def test_attention_with_values_of_another_size() -> None:
    feeds = {"x": draw(BATCH, NEW, 10), "w": draw(10, 2 * WIDTH + 8, seed=1), "b": draw(2 * WIDTH + 8)}
    check(results("Attention", feeds, num_heads=HEADS, qkv_hidden_sizes=[WIDTH, WIDTH, 8]), 2e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("mask", ["none", "lengths", "keys"])
def test_quantized_attention(mask: str, by_column: bool, dtype: Any) -> None:
    for past in (0, 3):
        feeds: dict[str, Array | None] = {
            "x": codes(BATCH, NEW, 10),
            "w": codes(10, 3 * WIDTH, dtype=dtype),
            "b": draw(3 * WIDTH),
            "x_scale": scale(0.01),
            "w_scale": np.linspace(0.005, 0.01, 3 * WIDTH, dtype=F32) if by_column else scale(0.01),
            "mask": masks(past)[mask],
            "x_zero": zero(120, np.uint8),
            "w_zero": np.full(3 * WIDTH, 5, dtype) if by_column else zero(125, dtype),
            "past": draw(2, BATCH, HEADS, past, DEPTH) if past else None,
        }
        check(results("QAttention", feeds, "y present" if past else "y", num_heads=HEADS, unidirectional=1), 5e-5)


def embedded(**given: Array | None) -> dict[str, Array | None]:
    ids = np.random.default_rng(0).integers(0, 9, (BATCH, NEW)).astype(I32)
    feeds: dict[str, Array | None] = {
        "ids": ids, "segments": ids % 2, "word": draw(9, 8), "position": draw(7, 8, seed=1),
        "segment": draw(2, 8, seed=2), "gamma": draw(8), "beta": draw(8, seed=3), "mask": None, "positions": None,
    }  # fmt: skip
    return feeds | given


def test_embeddings() -> None:
    mask = (np.arange(NEW) < np.array([[5], [3]])).astype(I32)
    positions = np.array([[1, 2, 3, 4, 6]], I32)
    for given in ({}, {"segments": None, "segment": None}, {"mask": mask}, {"positions": positions}):
        outputs = "y lengths total" if "positions" in given else "y lengths"
        check(results("EmbedLayerNormalization", embedded(**given), outputs, epsilon=1e-5), 1e-5)


def test_quantized_embeddings() -> None:
    names = ("word", "position", "segment", "gamma", "beta")
    shapes = ((9, 8), (7, 8), (2, 8), (8,), (8,))
    tables = {name: codes(*shape, seed=place) for place, (name, shape) in enumerate(zip(names, shapes, strict=True))}
    mask = (np.arange(NEW) < np.array([[5], [3]])).astype(I32)
    feeds = {key: value for key, value in embedded(**tables, mask=mask).items() if key != "positions"}
    feeds |= {f"{name}_scale": scale(0.01 + 0.01 * place) for place, name in enumerate(names)}
    feeds |= {f"{name}_zero": zero(120 + place, np.uint8) for place, name in enumerate(names)}
    check(results("QEmbedLayerNormalization", feeds, "y lengths", epsilon=1e-5), 1e-5)


@pytest.mark.parametrize(
    ("op_type", "changed", "attrs", "message"),
    [
        ("EmbedLayerNormalization", {"ids": np.full((2, 5), 99, I32)}, {}, "has 9 rows"),
        ("EmbedLayerNormalization", {"gamma": draw(7)}, {}, "gamma has the shape"),
        ("Attention", {}, {"num_heads": 5}, "Attention"),
        ("Attention", {"mask": np.ones((3, 4, 5), I32)}, {"num_heads": 4}, "a mask of shape"),
        ("Attention", {}, {"num_heads": 4, "do_rotary": 1}, "not computed"),
    ],
)
def test_what_does_not_fit_is_an_error(op_type: str, changed: Any, attrs: Any, message: str) -> None:
    whole = {"x": draw(2, 5, 10), "w": draw(10, 3 * WIDTH), "b": draw(3 * WIDTH)}
    feeds = (embedded() if op_type.startswith("Embed") else whole) | changed
    outputs = "y lengths" if op_type.startswith("Embed") else "y"
    model = model_of(op_type, feeds, outputs, MICROSOFT, attrs)
    with pytest.raises(UserError, match=message):
        ort.InferenceSession(model).run(None, {name: value for name, value in feeds.items() if value is not None})
