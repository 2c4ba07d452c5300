"""Symbols for sizes that depend on data, graphs within the graph, and numbers as tensors."""

from __future__ import annotations

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.recording.control_flow import _as_tensor
from fx2onnx.capture.recording.nested import nested
from tests.capture.recorded import N, calls, handling, info, inputs_of, tracer_of

aten = torch.ops.aten


def test_unknown_sizes_have_names_and_hints_of_their_own() -> None:
    tracer = tracer_of({"n": 5})
    one, two = tracer.sizes.new_unbacked(), tracer.sizes.new_unbacked()
    env = tracer.sizes
    assert [str(one), str(two)] == ["u0", "u1"]
    assert env.unbacked == {"u0", "u1"}
    assert len({env.hints[name] for name in ("n", "u0", "u1")}) == 3


def test_symbols_are_tied_to_the_first_axis_that_has_them() -> None:
    tracer = tracer_of({"n": 5})
    size = tracer.sizes.new_unbacked()
    (x,) = inputs_of(tracer, (N, 2))
    dims = (N, 3, size, size, size + 1)
    first = tracer.values.call(aten.relu.default, (tracer.values.node_of(x),), {}, info(*dims))
    second = tracer.values.call(aten.relu.default, (first,), {}, info(size))
    tracer.values.tie_symbols(first)
    tracer.values.tie_symbols(second)
    assert {name: (symbol.node, symbol.axis) for name, symbol in tracer.values.symbols.items()} == {"u0": (first, 2)}


def test_a_new_fake_is_contiguous_and_symbolic() -> None:
    tracer = tracer_of({"n": 5})
    fake = tracer.values.new_fake((2, N, 3), torch.int64)
    assert fake.dtype == torch.int64
    assert isinstance(fake.shape[1], torch.SymInt)
    assert fake.stride()[0].node.value == 3 * N
    assert fake.is_contiguous()


def test_nodes_of_a_nested_graph_stay_inside() -> None:
    tracer = tracer_of()
    (x,) = inputs_of(tracer, (2,))
    with handling(tracer):
        with nested(tracer.values) as graph, tracer.mode:
            y = x.sigmoid()
        assert tracer.values.node_of(y).graph is graph
        with tracer.mode:
            x.tanh()
    assert calls(tracer) == ["tanh.default"]
    assert [node.target for node in graph.nodes] == [aten.sigmoid.default]


def test_writes_to_outer_tensors_are_refused_and_undone() -> None:
    tracer = tracer_of()
    (x,) = inputs_of(tracer, (2,))
    node = tracer.values.node_of(x)
    with handling(tracer):
        with pytest.raises(UserError, match="writes into a tensor from outside"), nested(tracer.values), tracer.mode:
            x.add_(1)
        assert tracer.values.graph is tracer.values.root
    assert tracer.values.views[id(x)].node is node


@pytest.mark.parametrize(
    ("number", "dtype"), [(True, torch.bool), (2, torch.int64), (2.5, torch.float32), ("size", torch.int64)]
)
def test_numbers_become_tensors(number: object, dtype: torch.dtype) -> None:
    tracer = tracer_of({"n": 5})
    (x,) = inputs_of(tracer, (N,))
    with handling(tracer):
        made = _as_tensor(tracer, x.shape[0] if number == "size" else number)
    node = tracer.values.node_of(made)
    assert (node.target, node.meta["val"]) == (aten.scalar_tensor.default, info(dtype=dtype))
    assert node.args[0] == (N if number == "size" else number)
    assert _as_tensor(tracer, made) is made


def test_other_operands_of_control_flow_are_refused() -> None:
    with pytest.raises(UserError, match="control flow handles a str"):
        _as_tensor(tracer_of(), "text")
