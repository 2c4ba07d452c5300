"""onnxruntime's operators of language models in the runner: the same numbers as in onnxruntime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_contrib import F16, F32, MICROSOFT, Array, check, draw, model_of, results

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

U8 = np.uint8


def table(bits: int, *, has_points: bool, dtype: Any = F32) -> dict[str, Array | None]:
    """Six rows of 40 numbers in blocks of 16, packed into bytes."""
    packed = np.random.default_rng(bits).integers(0, 256, (6, 40 * bits // 8)).astype(U8)
    points = np.random.default_rng(1).integers(0, 256, (6, -(-3 * bits // 8))).astype(U8)
    steps = (0.01 + np.abs(draw(6, 3))).astype(dtype)
    return {"x": packed, "i": np.array([[0, 5], [3, -1]]), "s": steps, "z": points if has_points else None}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_points", [False, True])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_rows_of_a_packed_table(bits: int, has_points: bool, dtype: Any) -> None:
    feeds = table(bits, has_points=has_points, dtype=dtype)
    found = results("GatherBlockQuantized", feeds, bits=bits, block_size=16)
    check(found, 2e-3 if dtype == F16 else 1e-6)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("axis", [0, -1])
def test_slices_of_a_table_of_4_bits(axis: int, dtype: Any) -> None:
    low = -8 if dtype is ml_dtypes.int4 else 0
    x = np.random.default_rng(0).integers(low, low + 16, (6, 40)).astype(dtype)
    steps = 0.01 + np.abs(draw(6, 3) if axis == 0 else draw(1, 40))
    feeds = {"x": x, "i": np.array([1, 4, 0]), "s": steps}
    model = model_of(
        "GatherBlockQuantized",
        feeds,
        "y",
        MICROSOFT,
        {"gather_axis": axis, "quantize_axis": 1 if axis == 0 else 0, "block_size": 16},
    )
    (y,) = ort.InferenceSession(model).run(None, feeds)
    wide = x.astype(F32) * (np.repeat(steps, 16, axis=1)[:, :40] if axis == 0 else steps)
    np.testing.assert_allclose(y, np.take(wide, feeds["i"], axis=axis), rtol=1e-6)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("shape", [(2, 5, 24), (2, 2, 5, 12)])
def test_rotation_by_three_positions(shape: tuple[int, ...], interleaved: int, layout: int) -> None:
    positions = np.random.default_rng(0).integers(0, 9, (3, 2, 5))
    feeds = {"x": draw(*shape), "p": positions, "c": draw(9, 6), "s": draw(9, 6, seed=1)}
    attrs: dict[str, Any] = {"mrope_section": [2, 2, 2], "mrope_layout": layout, "interleaved": interleaved}
    attrs |= {"num_heads": 2} if len(shape) == 3 else {}
    check(results("MRotaryEmbedding", feeds, **attrs), 1e-5)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule: str) -> None:
    feeds: dict[str, Array | None] = {name: 0.3 * draw(2, 5, 8, seed=seed) for seed, name in enumerate("qkv")}
    feeds["past"] = draw(2, 2, 4, 4)
    feeds["decay"] = -np.abs(draw(2, 5, 2)) if "gated" in rule else None
    feeds["beta"] = np.abs(draw(2, 5, 2)) if "delta" in rule else None
    check(results("LinearAttention", feeds, "y s", q_num_heads=2, kv_num_heads=2, update_rule=rule), 2e-5)


@pytest.mark.parametrize(("batch", "steps", "last"), [(0, 5, 0), (2, 0, 0), (0, 0, 0), (2, 70, np.nan), (2, 5, np.inf)])
def test_linear_attention_of_nothing_and_to_infinity(batch: int, steps: int, last: float) -> None:
    """Steps before one that is no number do not read it."""
    feeds: dict[str, Array | None] = {name: 0.3 * draw(batch, steps, 8, seed=seed) for seed, name in enumerate("qkv")}
    feeds["past"], values = draw(batch, 2, 4, 4), feeds["v"]
    assert values is not None
    values[:, -1:, :3] = last
    for rule, rest in (("linear", {}), ("gated", {"decay": -np.abs(draw(batch, steps, 2))})):
        found = results("LinearAttention", feeds | rest, "y s", q_num_heads=2, kv_num_heads=2, update_rule=rule)
        check(found, 2e-5)


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(activation: str) -> None:
    feeds = {"x": draw(2, 3, 6), "w": draw(3, 1, 4), "b": draw(3), "p": draw(2, 3, 3)}
    check(results("CausalConvWithState", feeds, "y s", activation=activation), 1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("k", [1, 2])
def test_experts(activation: str, k: int) -> None:
    inner = 12 if activation == "swiglu" else 6
    feeds = {"x": draw(2, 5, 8), "r": draw(10, 4), "w1": draw(4, inner, 8), "b1": draw(4, inner)}
    feeds |= {"w2": draw(4, 8, 6, seed=2), "b2": draw(4, 8)}
    attrs = {"activation_type": activation, "k": k, "normalize_routing_weights": k - 1}
    if activation == "swiglu":
        attrs |= {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.0}
    check(results("MoE", feeds, **attrs), 5e-5)


def quantized(bits: int, block: int, *, has_zeros: bool, inner: int = 64) -> dict[str, Array | None]:
    """Four experts of codes over 32 and ``inner`` / 2 columns."""
    seeded, feeds = np.random.default_rng(bits), {}
    for name, rows, columns in (("1", inner, 32), ("2", 32, inner // 2)):
        blocks = columns // block if block else 1
        feeds[f"w{name}"] = seeded.integers(0, 256, (4, rows, columns * bits // 8)).astype(U8)
        feeds[f"s{name}"] = (0.01 + 0.1 * np.abs(draw(4, rows, blocks) if block else draw(4, rows))) / (1 << bits - 4)
        packed = (rows, -(-blocks * bits // 8)) if block else (-(-rows * bits // 8),)
        feeds[f"z{name}"] = seeded.integers(0, 256, (4, *packed)).astype(U8) if has_zeros else None
    x, router = draw(2, 5, 32), draw(10, 4)
    ordered = {"x": x, "r": router, "w1": feeds["w1"], "s1": feeds["s1"], "b1": draw(4, inner), "w2": feeds["w2"]}
    ordered |= {"s2": feeds["s2"], "b2": draw(4, 32), "w3": None, "s3": None, "b3": None}
    return ordered | {"z1": feeds["z1"], "z2": feeds["z2"], "z3": None, "rw": None}


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 0), (8, 0)])
@pytest.mark.parametrize("router", ["probabilities", "weights", "scaled weights"])
def test_quantized_experts(bits: int, block: int, has_zeros: bool, router: str) -> None:
    feeds = quantized(bits, block, has_zeros=has_zeros)
    feeds["rw"] = None if router == "probabilities" else np.abs(draw(10, 4, seed=3))
    attrs: dict[str, Any] = {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.0}
    attrs |= {"block_size": block} if block else {}
    attrs |= {"k": 2, "expert_weight_bits": bits, "normalize_routing_weights": int(router == "scaled weights")}
    check(results("QMoE", feeds, activation_type="swiglu", **attrs), 5e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_quantized_experts_without_a_gate(activation: str) -> None:
    feeds = quantized(4, 16, has_zeros=False)
    feeds |= {"w2": feeds["w1"][:, :32].repeat(2, axis=2), "s2": feeds["s1"][:, :32].repeat(2, axis=2)}  # type: ignore[index]
    check(results("QMoE", feeds, block_size=16, k=1, activation_type=activation), 5e-5)


@pytest.mark.parametrize(
    ("op_type", "feeds", "attrs", "message"),
    [
        ("GatherBlockQuantized", table(4, has_points=False) | {"i": np.array([9])}, {"block_size": 16}, "indices from"),
        ("GatherBlockQuantized", table(4, has_points=False), {"block_size": 32}, "3 scales for 40"),
        ("MoE", {"x": draw(2, 8), "r": draw(3, 4), "w1": draw(4, 6, 8), "b": None, "w2": draw(4, 8, 6)}, {}, "router_probs"),
        ("CausalConvWithState", {"x": draw(2, 3, 6), "w": draw(3, 1, 4)}, {"dilation": 2}, "only one spatial axis"),
    ],
)  # fmt: skip
def test_what_does_not_fit(op_type: str, feeds: Any, attrs: Any, message: str) -> None:
    outputs = "y s" if op_type == "CausalConvWithState" else "y"
    model = model_of(op_type, feeds, outputs, MICROSOFT, attrs)
    with pytest.raises(UserError, match=message):
        ort.InferenceSession(model).run(None, {name: value for name, value in feeds.items() if value is not None})
