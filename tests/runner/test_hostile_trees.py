"""Tree ensembles whose nodes do not form trees, or name what is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
    "target_weights": [1.0, 2.0], "n_targets": 1,
}  # fmt: skip
SPLIT: dict[str, Any] = {
    "nodes_splits": helper.make_tensor("s", TensorProto.FLOAT, [1], [0.5]),
    "nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [1], [0]),
    "nodes_featureids": [1],
    "nodes_truenodeids": [0],
    "nodes_falsenodeids": [1],
    "nodes_trueleafs": [1],
    "nodes_falseleafs": [1],
    "leaf_targetids": [0, 0],
    "leaf_weights": helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]),
    "n_targets": 1,
    "tree_roots": [0],
}
X = np.array([[9, 0], [9, 1]], np.float32)


def run(op_type: str, version: int, attrs: dict[str, Any], x: np.ndarray = X) -> np.ndarray:
    node = helper.make_node(op_type, ["x"], ["y"], domain="ai.onnx.ml", **attrs)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.FLOAT, x.shape)], [info("y", TensorProto.FLOAT, None)]
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", version)]
    options = ort.SessionOptions()
    options.add_session_config_entry("fx2onnx.memory_limit_bytes", str(1 << 26))
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    (y,) = ort.InferenceSession(proto, options).run(None, {"x": x})
    return y


def test_a_tree_in_either_form() -> None:
    assert run("TreeEnsembleRegressor", 3, STUMP).tolist() == [[1], [2]]
    assert run("TreeEnsemble", 5, SPLIT).tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nodes_falsenodeids": [0, 0, 0]}, "cycle"),
        ({"nodes_modes": ["BRANCH_LEQ"] * 3, "nodes_truenodeids": [1, 2, 0], "nodes_falsenodeids": [1, 2, 0]}, "cycle"),
        ({"nodes_falsenodeids": [7, 0, 0]}, "7"),
        ({"nodes_featureids": [-1, 0, 0]}, "feature is out of range"),
        ({"nodes_featureids": [2, 0, 0]}, "feature is out of range"),
        ({"nodes_values": [0.5]}, "differ in length"),
        ({"nodes_nodeids": [0, 1, 1]}, "defined twice"),
        ({"target_ids": [0, -1]}, "target is out of range"),
        ({"target_ids": [0, 1]}, "target is out of range"),
        ({"n_targets": 1 << 40}, "E404"),
    ],
)
def test_old_forms(change: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        run("TreeEnsembleRegressor", 3, STUMP | change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nodes_falseleafs": [0], "nodes_falsenodeids": [0]}, "cycle"),
        ({"tree_roots": [5]}, "node or leaf is out of range"),
        ({"nodes_falsenodeids": [2]}, "node or leaf is out of range"),
        ({"nodes_falsenodeids": [-3]}, "node or leaf is out of range"),
        ({"nodes_featureids": [-2]}, "feature is out of range"),
        ({"leaf_targetids": [0, -1]}, "target is out of range"),
        ({"nodes_trueleafs": []}, "E303|differ in length"),
    ],
)
def test_new_form(change: dict[str, Any], text: str) -> None:
    given = {name: value for name, value in (SPLIT | change).items() if value != []}
    with pytest.raises(UserError, match=text):
        run("TreeEnsemble", 5, given)


@pytest.mark.long
def test_a_long_chain_of_nodes_is_walked_for_all_rows_at_once() -> None:
    """Row by row, these are ten million steps in Python."""
    depth = 2000
    count = 2 * depth + 1
    inner, leaves = range(depth), range(depth, count)
    chain = STUMP | {
        "nodes_treeids": [0] * count,
        "nodes_nodeids": list(range(count)),
        "nodes_featureids": [0] * count,
        "nodes_values": [0.5] * count,
        "nodes_modes": ["BRANCH_LEQ"] * depth + ["LEAF"] * len(leaves),
        "nodes_truenodeids": [depth + place for place in inner] + [0] * len(leaves),
        "nodes_falsenodeids": [place + 1 for place in inner] + [0] * len(leaves),
        "target_treeids": [0],
        "target_nodeids": [count - 1],
        "target_ids": [0],
        "target_weights": [1.0],
    }
    chain["nodes_falsenodeids"][depth - 1] = count - 1
    y = run("TreeEnsembleRegressor", 3, chain, np.ones((5_000, 1), np.float32))
    assert y.shape == (5_000, 1)
    assert (y == 1).all()
