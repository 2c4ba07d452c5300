"""The operators of ai.onnx.ml against onnxruntime, over random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_models
import ml_trees
import numpy as np
import pytest
from ml_models import Made, Rng, one_node

import fx2onnx.runner as ort

onnxruntime = pytest.importorskip("onnxruntime")

MAKERS = [
    maker
    for module in (ml_models, ml_trees)
    for name, maker in sorted(vars(module).items())
    if name.startswith(("a_", "an_"))
]
PER_MAKER = 30


def same(ours: Any, theirs: Any, what: str) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, (what, ours.shape, theirs.shape)
    if theirs.dtype.kind in "OUS":
        assert ours.astype(str).tolist() == theirs.astype(str).tolist(), what
        return
    assert ours.dtype == theirs.dtype, (what, ours.dtype, theirs.dtype)
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=what)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_random_models(maker: Callable[[Rng], Made]) -> None:
    for seed in range(PER_MAKER):
        model, feeds = maker(np.random.default_rng(seed))
        what = f"seed {seed}: {model.graph.node[0].attribute}"
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        theirs = session.run(None, feeds)
        ours = ort.InferenceSession(model).run(None, feeds)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, what[:1500])


def test_zip_map() -> None:
    model, _ = one_node("ZipMap", {"x": np.zeros((2, 3), np.float32)}, 1, 1, classlabels_strings=["a", "b", "c"])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (rows,) = ort.InferenceSession(model).run(None, {"x": x})
    assert rows == [{"a": 0.0, "b": 1.0, "c": 2.0}, {"a": 3.0, "b": 4.0, "c": 5.0}]
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert rows == wanted.run(None, {"x": x})[0]


def test_probit_outside_shares() -> None:
    """Scores of trees need not be shares: below 0 and above 1 the inverse is NaN, at 0 and 1 infinite."""
    x = np.array([[-0.5, 0.0, 0.01, 0.25, 0.5, 0.9, 1.0, 3.0]], np.float32)
    model, feeds = one_node(
        "LinearRegressor", {"x": x}, 1, 1, coefficients=np.eye(8).ravel(), targets=8, post_transform="PROBIT"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    same(ort.InferenceSession(model).run(None, feeds)[0], session.run(None, feeds)[0], "PROBIT")
