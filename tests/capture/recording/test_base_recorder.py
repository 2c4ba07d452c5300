"""Symbols for sizes that depend on data, nested graphs, and numbers as tensors."""

from __future__ import annotations

import pytest
import torch

from fx2onnx.base.errors import UserError
from tests.capture.recorded import N, calls, handling, info, inputs_of, recorder_of

aten = torch.ops.aten


def test_unknown_sizes_have_names_and_hints_of_their_own() -> None:
    recorder = recorder_of({"n": 5})
    one, two = recorder.unknown_size(), recorder.unknown_size()
    env = recorder.shape_env
    assert [str(one), str(two)] == ["u0", "u1"]
    assert env.unbacked == {"u0", "u1"}
    assert len({env.hints[name] for name in ("n", "u0", "u1")}) == 3


def test_symbols_are_tied_to_the_first_axis_that_has_them() -> None:
    recorder = recorder_of({"n": 5})
    size = recorder.unknown_size()
    (x,) = inputs_of(recorder, (N, 2))
    dims = (N, 3, size, size, size + 1)
    first = recorder.call(aten.relu.default, (recorder.node_of(x),), {}, info(*dims))
    second = recorder.call(aten.relu.default, (first,), {}, info(size))
    recorder.tie_symbols(first)
    recorder.tie_symbols(second)
    assert {name: (symbol.node, symbol.axis) for name, symbol in recorder.symbols.items()} == {"u0": (first, 2)}


def test_a_new_fake_is_contiguous_and_symbolic() -> None:
    recorder = recorder_of({"n": 5})
    fake = recorder.new_fake((2, N, 3), torch.int64)
    assert fake.dtype == torch.int64
    assert isinstance(fake.shape[1], torch.SymInt)
    assert fake.stride()[0].node.value == 3 * N
    assert fake.is_contiguous()


def test_nodes_of_a_nested_graph_stay_inside() -> None:
    recorder = recorder_of()
    (x,) = inputs_of(recorder, (2,))
    with handling(recorder):
        with recorder.nested() as graph, recorder.mode:
            y = x.sigmoid()
        assert recorder.node_of(y).graph is graph
        with recorder.mode:
            x.tanh()
    assert calls(recorder) == ["tanh.default"]
    assert [node.target for node in graph.nodes] == [aten.sigmoid.default]


def test_writes_to_outer_tensors_are_refused_and_undone() -> None:
    recorder = recorder_of()
    (x,) = inputs_of(recorder, (2,))
    node = recorder.node_of(x)
    with handling(recorder):
        with pytest.raises(UserError, match="writes into a tensor from outside"), recorder.nested(), recorder.mode:
            x.add_(1)
        assert recorder.graph is recorder.root
    assert recorder.views[id(x)].node is node


@pytest.mark.parametrize(
    ("number", "dtype"), [(True, torch.bool), (2, torch.int64), (2.5, torch.float32), ("size", torch.int64)]
)
def test_numbers_become_tensors(number: object, dtype: torch.dtype) -> None:
    recorder = recorder_of({"n": 5})
    (x,) = inputs_of(recorder, (N,))
    with handling(recorder):
        made = recorder.as_tensor(x.shape[0] if number == "size" else number)
    node = recorder.node_of(made)
    assert (node.target, node.meta["val"]) == (aten.scalar_tensor.default, info(dtype=dtype))
    assert node.args[0] == (N if number == "size" else number)
    assert recorder.as_tensor(made) is made


def test_other_operands_of_control_flow_are_refused() -> None:
    with pytest.raises(UserError, match="control flow handles a str"):
        recorder_of().as_tensor("text")
