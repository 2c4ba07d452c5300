"""onnxruntime's own operators in the runner: the same numbers as in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import fx2onnx.runner as ort

Array = np.ndarray
MICROSOFT = "com.microsoft"
F16, F32, F64 = np.float16, np.float32, np.float64
ROUNDING = {F16: 4e-3, F32: 2e-6, F64: 1e-12}
"""Tolerances of numbers around 1: a few units in the last place, more of half precision, which is rounded at each
step."""


BEFORE_10 = {"Affine", "Crop", "DynamicSlice", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh"}
"""What onnxruntime has in ONNX's domain up to opset 9."""


def draw(*shape: int, dtype: Any = F32, seed: int = 0) -> Array:
    return np.random.default_rng(seed + len(shape)).standard_normal(shape).astype(dtype)


def model_of(op_type: str, feeds: Mapping[str, Array | None], outputs: str, domain: str, attrs: Any) -> bytes:
    """One node; an output called ``-`` is left out. onnxruntime wants to know the sizes of tables of embeddings."""
    is_sized = "Embed" in op_type or op_type == "GatherBlockQuantized"
    results = ["" if name == "-" else name for name in outputs.split()]
    names = [name if value is not None else "" for name, value in feeds.items()]
    node = helper.make_node(op_type, names, results, domain=domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape if is_sized else [None] * value.ndim
        )
        for name, value in feeds.items()
        if value is not None
    ]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_empty_tensor_value_info(name) for name in results if name]
    )
    imports = [helper.make_opsetid("", 9 if op_type in BEFORE_10 else 20), helper.make_opsetid(MICROSOFT, 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model.SerializeToString()


def results(
    op_type: str, feeds: Mapping[str, Array | None], outputs: str = "y", domain: str = MICROSOFT, **attrs: Any
) -> tuple[list[Array], list[Array]]:
    """The results of the runner, and of onnxruntime."""
    model = model_of(op_type, feeds, outputs, domain, attrs)
    given = {name: value for name, value in feeds.items() if value is not None}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return ort.InferenceSession(model).run(None, given), session.run(None, given)


def check(found: tuple[list[Array], list[Array]], tolerance: float) -> None:
    for ours, theirs in zip(*found, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours.astype(F64), theirs.astype(F64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("skip", [(2, 5, 24), (5, 24), (1, 5, 24)])
def test_skip_layer_normalization(dtype: Any, skip: tuple[int, ...]) -> None:
    x, other = draw(2, 5, 24, dtype=dtype), draw(*skip, dtype=dtype, seed=1)
    gamma, beta, bias = (draw(24, dtype=dtype, seed=seed) for seed in (2, 3, 4))
    for shift, more, outputs in ((beta, bias, "y - - s"), (None, None, "y"), (beta, None, "y")):
        feeds = {"x": x, "skip": other, "gamma": gamma, "beta": shift, "bias": more}
        check(results("SkipLayerNormalization", feeds, outputs, epsilon=1e-3), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", [F16, F32])
def test_skip_simplified_layer_normalization(dtype: Any) -> None:
    x, other, gamma, bias = (draw(*s, dtype=dtype, seed=i) for i, s in enumerate([(3, 4, 16)] * 2 + [(16,)] * 2))
    for more, outputs in ((bias, "y - - s"), (None, "y - - s"), (None, "y")):
        feeds = {"x": x, "skip": other, "gamma": gamma, "bias": more}
        check(results("SkipSimplifiedLayerNormalization", feeds, outputs, epsilon=1e-5), ROUNDING[dtype])


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_normalization(axis: int) -> None:
    x, scale = draw(3, 4, 8), draw(*(8,) if axis == -1 else (4, 8), seed=1)
    check(results("SimplifiedLayerNormalization", {"x": x, "scale": scale}, domain="", axis=axis), 2e-6)


def test_statistics_are_those_of_the_sum() -> None:
    """onnxruntime leaves them empty."""
    x, skip, gamma = draw(2, 3, 8), draw(2, 3, 8, seed=1), np.ones(8, F32)
    feeds = {"x": x, "skip": skip, "gamma": gamma}
    model = model_of("SkipLayerNormalization", feeds, "y mean rstd", MICROSOFT, {"epsilon": 1e-5})
    _, mean, rstd = ort.InferenceSession(model).run(None, feeds)
    total = (x + skip).astype(F64)
    np.testing.assert_allclose(mean, total.mean(-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(total.var(-1, keepdims=True) + 1e-5), rtol=1e-5)


def test_a_skip_that_does_not_fit() -> None:
    feeds = {"x": draw(2, 3, 8), "skip": draw(2, 1, 8), "gamma": draw(8)}
    model = model_of("SkipLayerNormalization", feeds, "y", MICROSOFT, {})
    with pytest.raises(Exception, match=r"skip of shape \[2, 1, 8\] does not fit \[2, 3, 8\]"):
        ort.InferenceSession(model).run(None, feeds)


def test_gelus() -> None:
    x, bias = 3 * draw(3, 5, 16), draw(16, seed=1)
    check(results("Gelu", {"x": x}), 2e-6)
    check(results("BiasGelu", {"x": x, "bias": bias}), 2e-6)
    check(results("FastGelu", {"x": x, "bias": bias}), 2e-6)
    check(results("FastGelu", {"x": x}), 2e-6)
    check(results("QuickGelu", {"x": x}), 2e-6)
    check(results("QuickGelu", {"x": x}, alpha=1.0), 2e-6)


@pytest.mark.parametrize("op_type", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_gelus_of_half_precision(op_type: str) -> None:
    """onnxruntime has no CPU kernel: as in float32, rounded."""
    narrow = {"x": draw(4, 16, dtype=F16)} | ({"bias": draw(16, dtype=F16)} if op_type == "BiasGelu" else {})
    wide = {name: value.astype(F32) for name, value in narrow.items()}
    found = (
        ort.InferenceSession(model_of(op_type, feeds, "y", MICROSOFT, {})).run(None, feeds)[0]
        for feeds in (narrow, wide)
    )
    ours, right = found
    assert ours.dtype == F16
    np.testing.assert_allclose(ours.astype(F32), right, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("left", "right", "attrs"),
    [
        ((3, 4), (4, 5), {}),
        ((2, 3, 4), (4, 5), {"alpha": 0.25}),
        ((2, 4, 3), (2, 4, 5), {"transA": 1}),
        ((2, 6, 3, 4), (2, 6, 5, 4), {"transB": 1, "alpha": -2.0}),
        ((2, 4, 3), (2, 5, 4), {"transA": 1, "transB": 1}),
        ((3, 2, 6, 4), (2, 6, 4, 5), {"transBatchA": 1}),
        ((2, 6, 3, 4), (5, 2, 6, 4), {"transBatchB": 1, "transB": 1}),
    ],
)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_fused_matmul(left: tuple[int, ...], right: tuple[int, ...], attrs: Any, dtype: Any) -> None:
    feeds = {"a": draw(*left, dtype=dtype), "b": draw(*right, dtype=dtype, seed=1)}
    found = results("FusedMatMul", feeds, **attrs)
    check(found, 10 * ROUNDING[dtype])


ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.3]), ("Clip", [-0.5, 0.7]),
    ("HardSigmoid", [0.3, 0.4]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), ACTIVATIONS)
@pytest.mark.parametrize("is_summed", [False, True])
def test_fused_convolution(name: str, parameters: list[float], is_summed: bool) -> None:
    for group, attrs in ((1, {"pads": [1, 1, 0, 1]}), (2, {"strides": [2, 2], "auto_pad": "SAME_UPPER"})):
        feeds: dict[str, Array | None] = {"x": draw(2, 4, 7, 8), "w": draw(6, 4 // group, 3, 3, seed=1), "b": draw(6)}
        shape = (2, 6, 6, 8) if group == 1 else (2, 6, 4, 4)
        feeds["z"] = draw(*shape, seed=2) if is_summed else None
        given = {"activation_params": parameters} if parameters else {}
        found = results("FusedConv", feeds, activation=name, group=group, **given, **attrs)
        check(found, 2e-5)


@pytest.mark.parametrize(("name", "parameters"), [*ACTIVATIONS[:4], ("Elu", [0.5]), ("ThresholdedRelu", [0.2])])
@pytest.mark.parametrize("transposed", [0, 1])
def test_fused_gemm(name: str, parameters: list[float], transposed: int) -> None:
    given = {f"activation_{key}": value for key, value in zip(("alpha", "beta"), parameters, strict=False)}
    b = draw(5, 4, seed=1) if transposed else draw(4, 5, seed=1)
    for c in (draw(5), draw(3, 1), None):
        feeds = {"a": draw(3, 4), "b": b, "c": c}
        check(results("FusedGemm", feeds, activation=name, alpha=0.5, beta=2.0, transB=transposed, **given), 1e-5)


def test_product_under_its_older_name() -> None:
    feeds = {"a": draw(2, 4, 3), "b": draw(2, 5, 4)}
    check(results("TransposeMatMul", feeds, transA=1, transB=1, alpha=0.5), 1e-5)


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [np.array([3]), np.array([[4, 0, 2], [1, 7, 5]])])
def test_rotary_embedding(dtype: Any, interleaved: int, positions: Array) -> None:
    cos, sin = draw(9, 4, dtype=dtype), draw(9, 4, dtype=dtype, seed=1)
    shapes: list[tuple[tuple[int, ...], dict[str, int]]] = [
        ((2, 3, 24), {}),
        ((2, 5, 3, 8), {}),
        ((2, 3, 32), {"num_heads": 2, "rotary_embedding_dim": 8}),
    ]
    for shape, attrs in shapes:
        feeds = {"x": draw(*shape, dtype=dtype), "positions": positions, "cos": cos, "sin": sin}
        found = results("RotaryEmbedding", feeds, interleaved=interleaved, **attrs)
        check(found, ROUNDING[dtype])


HEADS = 4


FORMS = [
    (form, mask)
    for form in ("apart", "cross", "past", "bias")
    for mask in ("none", "rows", "keys", "scores", "causal")
    if (form, mask) != ("cross", "causal")  # onnxruntime's last query then sees every key
]


@pytest.mark.parametrize(("form", "mask"), FORMS)
def test_multi_head_attention(form: str, mask: str) -> None:
    batch, new, past, depth = 2, 5, 3 if form == "past" else 0, 8
    width, keys = HEADS * depth, 5 + past
    q, k, v = (draw(batch, new, width, seed=seed) for seed in (1, 2, 3))
    feeds: dict[str, Array | None] = {"q": q, "k": k, "v": v, "bias": None, "mask": None, "scores": None}
    if form == "cross":
        keys = 7
        feeds |= {"k": draw(batch, HEADS, keys, depth, seed=2), "v": draw(batch, HEADS, keys, depth, seed=3)}
    if form == "bias":
        feeds["bias"] = draw(3 * width)
    if mask == "rows":
        feeds["mask"] = np.array([keys, keys - 2], np.int32)
    if mask == "keys":
        feeds["mask"] = (np.arange(keys) < np.array([[keys], [keys - 2]])).astype(np.int32)
    if mask == "scores":
        feeds["scores"] = draw(1, HEADS, new, keys)
    if form == "past":
        feeds |= {"pk": draw(batch, HEADS, past, depth), "pv": draw(batch, HEADS, past, depth, seed=4)}
    outputs = "y pk2 pv2" if form == "past" else "y"
    attrs = {"unidirectional": 1} if mask == "causal" else {}
    check(results("MultiHeadAttention", feeds, outputs, num_heads=HEADS, scale=0.3, **attrs), 1e-5)


def test_packed_heads() -> None:
    """onnxruntime has no CPU kernel: as with the three apart."""
    q, k, v = (draw(2, 5, HEADS, 8, seed=seed) for seed in (1, 2, 3))
    flat = {name: x.reshape(2, 5, -1) for name, x in zip("qkv", (q, k, v), strict=True)}
    forms: list[dict[str, Array]] = [
        flat,
        {"q": np.stack([q, k, v], axis=3)},
        {"q": flat["q"], "k": np.stack([k, v], axis=3)},
    ]
    apart, *packed = (
        ort.InferenceSession(model_of("MultiHeadAttention", feeds, "y", MICROSOFT, {"num_heads": HEADS})).run(
            None, feeds
        )[0]
        for feeds in forms
    )
    for y in packed:
        np.testing.assert_allclose(y, apart, atol=1e-6)


def cached(
    batch: int,
    new: int,
    past: int,
    *,
    heads: int = 4,
    groups: int = 2,
    depth: int = 16,
    dtype: Any = F32,
    packed: bool = False,
    rotated: int | None = None,
    capacity: int | None = None,
    lengths: list[int] | None = None,
    bias: bool = False,
    sink: bool = False,
    **attrs: Any,
) -> tuple[list[Array], list[Array]]:
    """One call of GroupQueryAttention."""
    q = draw(batch, new, heads * depth, dtype=dtype)
    k, v = (draw(batch, new, groups * depth, dtype=dtype, seed=seed) for seed in (1, 2))
    total = past + new
    feeds: dict[str, Array | None] = {
        "q": np.concatenate([q, k, v], axis=2) if packed else q,
        "k": None if packed else k,
        "v": None if packed else v,
        "past_k": draw(batch, groups, capacity or past, depth, dtype=dtype, seed=3),
        "past_v": draw(batch, groups, capacity or past, depth, dtype=dtype, seed=4),
        "last": np.array(lengths or [total] * batch, np.int32) - 1,
        "total": np.array([total], np.int32),
        "cos": draw(total + 2, rotated // 2, dtype=dtype) if rotated else None,
        "sin": draw(total + 2, rotated // 2, dtype=dtype, seed=5) if rotated else None,
        "positions": None,
        "bias": draw(1, 1, new, total, dtype=dtype) if bias else None,
        "sink": draw(heads, dtype=dtype) if sink else None,
    }
    while feeds[list(feeds)[-1]] is None:
        feeds.popitem()
    attrs |= {"num_heads": heads, "kv_num_heads": groups} | ({"do_rotary": 1} if rotated else {})
    return results("GroupQueryAttention", feeds, "y k2 v2", **attrs)


CALLS: dict[str, dict[str, Any]] = {
    "prompt": {"batch": 2, "new": 5, "past": 0},
    "step": {"batch": 2, "new": 1, "past": 6},
    "chunk": {"batch": 1, "new": 3, "past": 6},
    "one group a head": {"batch": 1, "new": 3, "past": 0, "groups": 4},
    "packed prompt": {"batch": 1, "new": 5, "past": 0, "packed": True, "rotated": 16},
    "packed step": {"batch": 2, "new": 1, "past": 6, "packed": True, "rotated": 16},
    "rotary chunk": {"batch": 1, "new": 3, "past": 6, "rotated": 16},
    "interleaved": {"batch": 1, "new": 3, "past": 6, "rotated": 16, "rotary_interleaved": 1},
    "partly rotary": {"batch": 1, "new": 3, "past": 6, "rotated": 16, "depth": 32},
    "window prompt": {"batch": 1, "new": 7, "past": 0, "local_window_size": 3},
    "window step": {"batch": 1, "new": 1, "past": 9, "local_window_size": 3},
    "window chunk": {"batch": 1, "new": 4, "past": 9, "local_window_size": 3},
    "soft cap": {"batch": 1, "new": 4, "past": 9, "softcap": 2.0, "scale": 0.5},
    "roomy cache": {"batch": 1, "new": 1, "past": 9, "capacity": 20, "rotated": 16},
    "roomy prompt": {"batch": 1, "new": 7, "past": 0, "capacity": 20},
    "rows of their own length": {"batch": 2, "new": 1, "past": 6, "lengths": [7, 4], "rotated": 16},
    "bias": {"batch": 1, "new": 4, "past": 9, "bias": True},
    "bias, cap and window": {"batch": 1, "new": 4, "past": 9, "bias": True, "softcap": 2.0, "local_window_size": 5},
    "sink": {"batch": 1, "new": 4, "past": 9, "sink": True},
}


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("name", CALLS)
def test_group_query_attention(name: str, dtype: Any) -> None:
    check(cached(dtype=dtype, **CALLS[name]), 4e-3 if dtype == F16 else 1e-5)


def test_padding_behind_a_prompt() -> None:
    """Rows of a prompt that are shorter: what their own tokens give."""
    ours, theirs = cached(2, 7, 0, lengths=[7, 4])
    np.testing.assert_allclose(ours[0][0], theirs[0][0], atol=1e-5)
    np.testing.assert_allclose(ours[0][1, :4], theirs[0][1, :4], atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": [9]}, "seqlens_k"),
        ({"capacity": 3}, "there are 3"),
        ({"kv_cache_bit_width": 8}, "kv_cache_bit_width"),
        ({"do_rotary": 1}, "cos_cache"),
    ],
)
def test_what_group_query_attention_refuses(wrong: Any, message: str) -> None:
    feeds: dict[str, Array] = {
        "q": draw(1, 1, 64),
        "k": draw(1, 1, 32),
        "v": draw(1, 1, 32),
        "past_k": draw(1, 2, wrong.pop("capacity", 6), 16),
        "past_v": draw(1, 2, 6, 16),
        "last": np.array(wrong.pop("lengths", [7]), np.int32) - 1,
        "total": np.array([7], np.int32),
    }
    attrs = {"num_heads": 4, "kv_num_heads": 2, **wrong}
    model = model_of("GroupQueryAttention", feeds, "y k2 v2", MICROSOFT, attrs)
    with pytest.raises(Exception, match=message):
        ort.InferenceSession(model).run(None, feeds)
