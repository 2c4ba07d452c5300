"""Random operators: dtype, shape and distribution. A seed makes a node repeat itself; without one each run differs.

Bounds are five standard errors of the statistic, so that a right generator fails once in a million tests; without a seed
the number of draws is the same.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort

COUNT = 40_000
SIGMAS = 5.0

DTYPES = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}


def draw(op_type: str, feeds: list[np.ndarray] = (), opset: int = 22, n_outputs: int = 1, **attrs: Any) -> list[Any]:
    names = [f"x{place}" for place in range(len(feeds))]
    outputs = [f"y{place}" for place in range(n_outputs)]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(feed.dtype), feed.shape)
        for name, feed in zip(names, feeds, strict=True)
    ]
    node = helper.make_node(op_type, names, outputs, **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(name) for name in outputs])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    session = ort.InferenceSession(proto)
    given = dict(zip(names, feeds, strict=True))
    runs = [session.run(None, given) for _ in range(3)]
    repeated = all(np.array_equal(runs[0][0], run[0]) for run in runs[1:])
    assert repeated == ("seed" in attrs), "a seed must make the node repeat itself, and only a seed"
    return runs[2]


def check_mean(values: np.ndarray, mean: float, deviation: float) -> None:
    assert abs(values.mean() - mean) < SIGMAS * deviation / math.sqrt(values.size)


def check_cumulative(values: np.ndarray, cumulative: Any) -> None:
    """Kolmogorov and Smirnov: the largest gap between the drawn and the wanted distribution."""
    ordered = np.sort(values.ravel())
    wanted = cumulative(ordered)
    steps = np.arange(1, ordered.size + 1) / ordered.size
    assert max(np.abs(steps - wanted).max(), np.abs(wanted - steps + 1 / ordered.size).max()) < 2.7 / math.sqrt(
        ordered.size
    )


def normal_share(z: np.ndarray) -> np.ndarray:
    return np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])


SEEDS = [{}, {"seed": 3.5}]


@pytest.mark.parametrize("seed", SEEDS, ids=["free", "seed"])
@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("like", [False, True])
def test_normal(code: int, like: bool, seed: dict[str, float]) -> None:
    attrs = {"mean": 1.5, "scale": 2.0, "dtype": code, **seed}
    if like:
        (y,) = draw("RandomNormalLike", [np.zeros((200, COUNT // 200), np.int32)], **attrs)
    else:
        (y,) = draw("RandomNormal", shape=[200, COUNT // 200], **attrs)
    assert (y.shape, y.dtype) == ((200, COUNT // 200), DTYPES[code])
    wide = y.astype(np.float64)
    check_mean(wide, 1.5, 2.0)
    check_mean((wide - 1.5) ** 2, 4.0, 4.0 * math.sqrt(2))
    if code in (TensorProto.FLOAT, TensorProto.DOUBLE):
        check_cumulative((wide - 1.5) / 2, normal_share)


@pytest.mark.parametrize("seed", SEEDS, ids=["free", "seed"])
@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("like", [False, True])
def test_uniform(code: int, like: bool, seed: dict[str, float]) -> None:
    attrs = {"low": -1.0, "high": 3.0, "dtype": code, **seed}
    if like:
        (y,) = draw("RandomUniformLike", [np.zeros((200, COUNT // 200), np.float32)], **attrs)
    else:
        (y,) = draw("RandomUniform", shape=[200, COUNT // 200], **attrs)
    assert (y.shape, y.dtype) == ((200, COUNT // 200), DTYPES[code])
    wide = y.astype(np.float64)
    assert wide.min() >= -1
    assert wide.max() <= 3
    check_mean(wide, 1.0, 4 / math.sqrt(12))
    if code in (TensorProto.FLOAT, TensorProto.DOUBLE):
        check_cumulative(wide, lambda x: (x + 1) / 4)


def test_like_takes_the_dtype_of_its_input() -> None:
    for op_type in ("RandomNormalLike", "RandomUniformLike"):
        (y,) = draw(op_type, [np.zeros((5, 7), np.float64)])
        assert (y.shape, y.dtype) == ((5, 7), np.float64)


@pytest.mark.parametrize("seed", SEEDS, ids=["free", "seed"])
@pytest.mark.parametrize("dtype", [None, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.BOOL])
def test_bernoulli(dtype: int | None, seed: dict[str, float]) -> None:
    shares = np.repeat(np.array([0.0, 0.1, 0.5, 0.9, 1.0], np.float32), COUNT).reshape(5, COUNT)
    (y,) = draw("Bernoulli", [shares], **seed, **({} if dtype is None else {"dtype": dtype}))
    assert y.dtype == (np.float32 if dtype is None else helper.tensor_dtype_to_np_dtype(dtype))
    assert set(np.unique(y).tolist()) <= {0, 1}
    assert not y[0].any()
    assert y[4].all()
    for row, share in zip(y[1:4], (0.1, 0.5, 0.9), strict=True):
        check_mean(row.astype(np.float64), share, math.sqrt(share * (1 - share)))


@pytest.mark.parametrize("seed", SEEDS, ids=["free", "seed"])
@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
def test_multinomial(dtype: int, seed: dict[str, float]) -> None:
    shares = np.array([[0.5, 0.0, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], np.float32)
    with np.errstate(divide="ignore"):
        logs = np.log(shares) + np.array([[3.0], [-7.0]], np.float32)  # not normalized
    (y,) = draw("Multinomial", [logs], sample_size=COUNT, dtype=dtype, **seed)
    assert (y.shape, y.dtype) == ((2, COUNT), helper.tensor_dtype_to_np_dtype(dtype))
    for row, wanted in zip(y, shares, strict=True):
        found = np.bincount(row, minlength=4) / COUNT
        assert found.size == 4
        assert (np.abs(found - wanted) <= SIGMAS * np.sqrt(wanted * (1 - wanted) / COUNT)).all()
    assert abs(np.corrcoef(y[0], y[1])[0, 1]) < SIGMAS / math.sqrt(COUNT)


@pytest.mark.parametrize("seed", [{}, {"seed": 3}], ids=["free", "seed"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
def test_dropout_in_training(share: float, seed: dict[str, int]) -> None:
    x = np.linspace(1, 2, COUNT, dtype=np.float32).reshape(100, -1)
    y, mask = draw("Dropout", [x, np.array(share, np.float32), np.array(True)], n_outputs=2, **seed)
    assert (y.shape, y.dtype, mask.shape, mask.dtype) == (x.shape, np.float32, x.shape, np.bool_)
    check_mean(mask.astype(np.float64), 1 - share, math.sqrt(share * (1 - share)))
    np.testing.assert_allclose(y, np.where(mask, x / np.float32(1 - share), 0), rtol=1e-6)
    check_mean(mask[:, ::2].astype(np.float64) - mask[:, 1::2], 0.0, math.sqrt(2 * share * (1 - share)))


def test_nodes_without_a_seed_differ_from_each_other() -> None:
    nodes = [helper.make_node("RandomNormal", [], [name], shape=[1000]) for name in "ab"]
    infos = [helper.make_empty_tensor_value_info(name) for name in "ab"]
    graph = helper.make_graph(nodes, "g", [], infos)
    proto = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    a, b = ort.InferenceSession(proto).run(None, {})
    assert abs(np.corrcoef(a, b)[0, 1]) < SIGMAS / math.sqrt(1000)
