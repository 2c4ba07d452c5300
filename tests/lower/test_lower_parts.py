"""The parts of the lowering: what a layer is, faults of translations, weights as ONNX tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.fx

from fx2onnx.aten_map import TABLE
from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.lower import layers, preflight
from fx2onnx.lower.preflight import nodes_with_depth
from fx2onnx.lower.weights import as_onnx


@pytest.mark.parametrize(
    ("path", "depth", "layer"),
    [
        ("encoder.layer.3.attention", 0, "encoder.layer.3"),
        ("encoder.layer_3.attention", 0, "encoder.layer_3"),
        ("stages.1.blocks.2.norm", 1, "stages.1.blocks.2"),
        ("stages.1.norm", 1, None),
        ("conv2d", 0, None),
        ("", 0, None),
    ],
)
def test_a_layer_ends_at_a_number(path: str, depth: int, layer: str | None) -> None:
    assert layers._layer(path, depth) == layer


def test_layers_are_looked_for_down_to_a_limit() -> None:
    path = ".".join(map(str, range(1000)))
    assert len(layers._layers(path)) == layers.DEEPEST


def node() -> torch.fx.Node:
    graph = torch.fx.Graph()
    made = graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),))
    made.meta["module"] = "head"
    return made


def entry() -> Any:
    found = TABLE.find(torch.ops.aten.relu.default, 20, False)
    assert found is not None
    return found


def test_a_fault_of_our_entry_is_ours() -> None:
    error = preflight.failed(node(), entry(), ZeroDivisionError("by zero"), {})
    assert isinstance(error, InternalError)
    assert (error.code, error.module_path) == ("E900", "head")
    assert "ZeroDivisionError: by zero" in error.why
    wrong = preflight.mistaken(node(), entry(), "INT64[]", "FLOAT[2]", {})
    assert "gives INT64[], PyTorch FLOAT[2]" in wrong.what


def test_a_fault_of_a_user_s_entry_is_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_PACKAGE", "/elsewhere/")
    assert isinstance(preflight.failed(node(), entry(), ValueError("no"), {}), UserError)
    assert preflight.mistaken(node(), entry(), "a str", "one tensor", {}).code == "E001"


def test_an_error_keeps_what_it_says_of_its_place() -> None:
    plain = preflight.located(UserError("E202", "too old", why="because", next="newer"), node())
    assert (plain.code, plain.why, plain.module_path) == ("E202", "because", "head")
    assert "relu" in plain.node
    named = preflight.located(UserError("E202", "too old", node="%other", module_path="tail"), node())
    assert (named.node, named.module_path) == ("%other", "tail")


def test_nodes_of_the_main_graph_have_depth_0() -> None:
    assert [(item.name, depth) for item, depth in nodes_with_depth(node().graph)] == [("x", 0), ("relu_default", 0)]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(24.0).reshape(2, 3, 4)[:, ::2],
        torch.tensor(3, dtype=torch.int64),
        torch.zeros(0, 2),
    ],
    ids=["contiguous", "transposed", "strided", "scalar", "empty"],
)
def test_a_weight_has_the_tensor_s_numbers(tensor: torch.Tensor) -> None:
    weight = as_onnx(tensor, "w")
    np.testing.assert_array_equal(weight.numpy(), tensor.numpy())
    assert weight.tobytes() == tensor.contiguous().numpy().tobytes()


def test_reading_a_weight_is_noted() -> None:
    reads: list[int] = []
    weight = as_onnx(torch.ones(2), "w", reads)
    assert reads == []
    weight.numpy()
    assert reads == [id(weight)]
