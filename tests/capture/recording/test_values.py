"""Tensor objects and graph values: which tensors are one weight, one memory, one constant."""

from __future__ import annotations

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.recording.nested import nested
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import NeedsDecomposition, dims_of, tensor_info
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.torchcompat.fake_tensors import fake_view
from tests.capture.recorded import N, info, inputs_of, tracer_of

WEIGHT = torch.nn.Parameter(torch.ones(2, 3))


def with_weight(whole: bool = True) -> Tracer:
    return Tracer(ShapeEnv(), {id(WEIGHT): ("layer.weight", "parameter", WEIGHT)}, lambda overload: True, whole)


def test_a_parameter_is_one_weight_under_every_object() -> None:
    tracer = with_weight()
    node = tracer.values.node_of(WEIGHT)
    assert (node.op, node.target, node.meta["val"]) == ("get_attr", "layer.weight", info(2, 3))
    assert tracer.values.node_of(WEIGHT.data) is node
    assert tracer.values.node_of(WEIGHT.detach()[:]) is node
    assert list(tracer.values.weights) == ["layer.weight"]
    assert tracer.values.weights["layer.weight"].tensor is WEIGHT


def test_other_real_tensors_are_constants_in_order() -> None:
    tracer = with_weight()
    one, two = torch.ones(2), torch.ones(2)
    tracer.values.node_of(one), tracer.values.node_of(two), tracer.values.node_of(one)
    assert {name: weight.kind for name, weight in tracer.values.weights.items()} == {
        "constant_0": "constant",
        "constant_1": "constant",
    }


def test_weights_stand_before_the_first_call() -> None:
    tracer = with_weight()
    (x,) = inputs_of(tracer, (2, 3))
    tracer.values.call(torch.ops.aten.relu.default, (tracer.values.node_of(x),), {}, info(2, 3))
    tracer.values.node_of(WEIGHT)
    assert [node.op for node in tracer.values.graph.nodes] == ["placeholder", "get_attr", "call_function"]


def test_a_real_tensor_has_one_fake_of_its_type() -> None:
    tracer = with_weight()
    column = WEIGHT.data[:, 1:]
    fake = tracer.values.fake_of(column)
    assert tracer.values.fake_mode.holds(fake)
    assert fake is tracer.values.fake_of(column) is tracer.values.fake_of(fake)
    assert (fake.shape, fake.stride(), fake.dtype) == (column.shape, column.stride(), column.dtype)
    assert tracer.values.storage_offsets == {id(column): 1}


def test_arguments_are_taken_apart() -> None:
    tracer = with_weight()
    (x,) = inputs_of(tracer, (2, 3))
    node, weight = tracer.values.node_of(x), tracer.values.node_of(WEIGHT)
    args, kwargs = tracer.values.to_nodes(([x, (WEIGHT, None)], 2.5), {"dtype": torch.float32, "other": x})
    assert (args, kwargs) == (([node, (weight, None)], 2.5), {"dtype": torch.float32, "other": node})
    fakes, fake_kwargs = tracer.values.to_fakes(([x, (WEIGHT, None)], 2.5), {"other": WEIGHT})
    assert fakes == ([x, (tracer.values.fake_of(WEIGHT), None)], 2.5)
    assert fake_kwargs["other"] is tracer.values.fake_of(WEIGHT)


def test_another_object_over_an_inputs_memory_is_that_input() -> None:
    tracer = with_weight()
    (x,) = inputs_of(tracer, (2, 3))
    alias = fake_view(tracer.values.fake_mode, x, (2, 3), (3, 1), 0)
    assert tracer.values.view_of(alias).memory is tracer.values.view_of(x).memory
    assert tracer.values.view_of(alias).tensor is alias


@pytest.mark.parametrize(("whole", "error"), [(True, NeedsDecomposition), (False, UserError)])
def test_a_fake_of_unknown_origin(whole: bool, error: type[BaseException]) -> None:
    tracer = with_weight(whole)
    with pytest.raises(error):
        tracer.values.node_of(tracer.values.new_fake((5, 5), torch.float32))


def test_inputs_of_nested_graphs_are_no_sources() -> None:
    tracer = tracer_of()
    (x,) = inputs_of(tracer, (2,))
    with nested(tracer.values) as graph:
        node = tracer.values.add_input("arg_0", tracer.values.new_fake((2,), torch.float32))
    assert node.graph is graph
    assert list(tracer.values.sources) == [tracer.values.node_of(x)]


def test_values_of_constants_are_known() -> None:
    tracer = tracer_of()
    (x,) = inputs_of(tracer, (2,))
    constant = tracer.values.constant(torch.tensor([3, 4]))
    doubled = tracer.values.call(
        torch.ops.aten.mul.Scalar, (tracer.values.node_of(constant), 2), {}, info(2, dtype=torch.int64)
    )
    assert tracer.values.value_of(doubled).tolist() == [6, 8]
    assert tracer.values.value_of(tracer.values.node_of(x)) is None


def test_sizes_are_as_the_graph_has_them() -> None:
    tracer = tracer_of({"n": 3})
    (x,) = inputs_of(tracer, (N, 2))
    assert dims_of(x) == [N, 2]
    assert tensor_info(x) == info(N, 2)
