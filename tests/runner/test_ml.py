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


@pytest.mark.parametrize("version", [2, 4])
def test_keys_that_stand_twice(version: int) -> None:
    """The first value of a key counts; NaN is a key from version 4 on."""
    nan = float("nan")
    cases: list[tuple[np.ndarray, dict[str, Any]]] = [
        (np.array([1, 2, 3]), {"keys_int64s": [1, 1, 2, 2], "values_floats": [1.0, 2.0, 3.0, nan]}),
        (np.array(["a", "b", "c"], object), {"keys_strings": ["a", "b", "a"], "values_int64s": [1, 2, 3]}),
        (np.array([nan, 1, 0, -0.0], np.float32), {"keys_floats": [-0.0, nan, 0.0, nan, 1, 1], "values_strings": [*"abcdef"]}),
        (np.array([nan, 1], np.float32), {"keys_floats": [nan, 1, 1], "values_floats": [nan, 1.0, 2.0], "default_float": 7.0}),
    ]  # fmt: skip
    for x, attrs in cases:
        model, feeds = one_node("LabelEncoder", {"x": x}, 1, version, **attrs)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        same(ort.InferenceSession(model).run(None, feeds)[0], session.run(None, feeds)[0], str(attrs))


@pytest.mark.parametrize(("op", "n_base"), [("TreeEnsembleRegressor", 1), ("TreeEnsembleClassifier", 4)])
def test_base_values_that_do_not_fit(op: str, n_base: int) -> None:
    nodes = {"treeids": [0], "nodeids": [0], "featureids": [0], "modes": ["LEAF"], "values": [0.0]}
    nodes |= {"truenodeids": [0], "falsenodeids": [0]}
    prefix, names = (
        ("target", {"n_targets": 3}) if op.endswith("Regressor") else ("class", {"classlabels_int64s": [0, 1, 2]})
    )
    votes = {"treeids": [0], "nodeids": [0], "ids": [1], "weights": [2.0]}
    attrs = {f"nodes_{name}": one for name, one in nodes.items()} | {
        f"{prefix}_{name}": one for name, one in votes.items()
    }
    for count, does_fit in ((n_base, False), (0, True), (3, True)):
        n_outputs = 1 if prefix == "target" else 2
        model, feeds = one_node(
            op, {"x": np.ones((2, 1), np.float32)}, n_outputs, 3, base_values=[0.5] * count or None, **attrs, **names
        )
        for module in (ort, onnxruntime):
            if does_fit:
                module.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
                continue
            with pytest.raises(Exception, match="base_values"):
                module.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
