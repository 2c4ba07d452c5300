"""Tensor objects and graph values: which tensors are one weight, one memory, one constant."""

from __future__ import annotations

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.recording.recorder import Recorder
from fx2onnx.capture.recording.tensor_tracker import NeedsDecomposition, dims_of, tensor_info
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.torchcompat.fake_tensors import fake_view
from tests.capture.recorded import N, info, inputs_of, recorder_of

WEIGHT = torch.nn.Parameter(torch.ones(2, 3))


def with_weight(whole: bool = True) -> Recorder:
    return Recorder(ShapeEnv(), {id(WEIGHT): ("layer.weight", "parameter", WEIGHT)}, lambda overload: True, whole)


def test_a_parameter_is_one_weight_under_every_object() -> None:
    recorder = with_weight()
    node = recorder.node_of(WEIGHT)
    assert (node.op, node.target, node.meta["val"]) == ("get_attr", "layer.weight", info(2, 3))
    assert recorder.node_of(WEIGHT.data) is node
    assert recorder.node_of(WEIGHT.detach()[:]) is node
    assert list(recorder.weights) == ["layer.weight"]
    assert recorder.weights["layer.weight"].tensor is WEIGHT


def test_other_real_tensors_are_constants_in_order() -> None:
    recorder = with_weight()
    one, two = torch.ones(2), torch.ones(2)
    recorder.node_of(one), recorder.node_of(two), recorder.node_of(one)
    assert {name: weight.kind for name, weight in recorder.weights.items()} == {
        "constant_0": "constant",
        "constant_1": "constant",
    }


def test_weights_stand_before_the_first_call() -> None:
    recorder = with_weight()
    (x,) = inputs_of(recorder, (2, 3))
    recorder.call(torch.ops.aten.relu.default, (recorder.node_of(x),), {}, info(2, 3))
    recorder.node_of(WEIGHT)
    assert [node.op for node in recorder.graph.nodes] == ["placeholder", "get_attr", "call_function"]


def test_a_real_tensor_has_one_fake_of_its_type() -> None:
    recorder = with_weight()
    column = WEIGHT.data[:, 1:]
    fake = recorder.fake_of(column)
    assert recorder.fake_mode.holds(fake)
    assert fake is recorder.fake_of(column) is recorder.fake_of(fake)
    assert (fake.shape, fake.stride(), fake.dtype) == (column.shape, column.stride(), column.dtype)
    assert recorder.storage_offsets == {id(column): 1}


def test_arguments_are_taken_apart() -> None:
    recorder = with_weight()
    (x,) = inputs_of(recorder, (2, 3))
    node, weight = recorder.node_of(x), recorder.node_of(WEIGHT)
    args, kwargs = recorder.to_nodes(([x, (WEIGHT, None)], 2.5), {"dtype": torch.float32, "other": x})
    assert (args, kwargs) == (([node, (weight, None)], 2.5), {"dtype": torch.float32, "other": node})
    fakes, fake_kwargs = recorder.to_fakes(([x, (WEIGHT, None)], 2.5), {"other": WEIGHT})
    assert fakes == ([x, (recorder.fake_of(WEIGHT), None)], 2.5)
    assert fake_kwargs["other"] is recorder.fake_of(WEIGHT)


def test_another_object_over_an_inputs_memory_is_that_input() -> None:
    recorder = with_weight()
    (x,) = inputs_of(recorder, (2, 3))
    alias = fake_view(recorder.fake_mode, x, (2, 3), (3, 1), 0)
    assert recorder.view_of(alias).memory is recorder.view_of(x).memory
    assert recorder.view_of(alias).tensor is alias


@pytest.mark.parametrize(("whole", "error"), [(True, NeedsDecomposition), (False, UserError)])
def test_a_fake_of_unknown_origin(whole: bool, error: type[BaseException]) -> None:
    recorder = with_weight(whole)
    with pytest.raises(error):
        recorder.node_of(recorder.new_fake((5, 5), torch.float32))


def test_inputs_of_nested_graphs_are_no_sources() -> None:
    recorder = recorder_of()
    (x,) = inputs_of(recorder, (2,))
    with recorder.nested() as graph:
        node = recorder.add_input("arg_0", recorder.new_fake((2,), torch.float32))
    assert node.graph is graph
    assert list(recorder.sources) == [recorder.node_of(x)]


def test_values_of_constants_are_known() -> None:
    recorder = recorder_of()
    (x,) = inputs_of(recorder, (2,))
    constant = recorder.constant(torch.tensor([3, 4]))
    doubled = recorder.call(torch.ops.aten.mul.Scalar, (recorder.node_of(constant), 2), {}, info(2, dtype=torch.int64))
    assert recorder.value_of(doubled).tolist() == [6, 8]
    assert recorder.value_of(recorder.node_of(x)) is None


def test_sizes_are_as_the_graph_has_them() -> None:
    recorder = recorder_of({"n": 3})
    (x,) = inputs_of(recorder, (N, 2))
    assert dims_of(x) == [N, 2]
    assert tensor_info(x) == info(N, 2)
