"""One call of an overload: queries, numbers, results that are arguments, several results, decompositions."""

from __future__ import annotations

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.recording.aliasing import assign_data
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.torchcompat.capture_modes import capture_modes
from tests.capture.recorded import N, calls, info, inputs_of, recorded

aten = torch.ops.aten


def test_questions_about_types_are_no_nodes() -> None:
    tracer, result = recorded(lambda x: (x.is_floating_point(), x.dim(), x.is_contiguous(), x.numel()), (2, 3))
    assert result == (True, 2, True, 6)
    assert calls(tracer) == []


def test_a_node_has_its_type_and_operands() -> None:
    tracer, result = recorded(lambda x, y: torch.add(x, y, alpha=2), (2, 1), ((3,), torch.int32))
    node = tracer.values.node_of(result)
    assert [str(arg) for arg in node.args] == ["x0", "x1"]
    assert (node.kwargs, node.meta["val"]) == ({"alpha": 2}, info(2, 3))


def test_several_results_are_parts_of_one_node() -> None:
    tracer, (values, indices) = recorded(lambda x: x.max(1), (2, 3))
    assert calls(tracer) == ["max.dim", "<built-in function getitem>", "<built-in function getitem>"]
    node = tracer.values.node_of(values).args[0]
    assert node.meta["val"] == (info(2), info(2, dtype=torch.int64))
    assert tracer.values.node_of(indices).args == (node, 1)


def test_a_result_that_is_the_argument_is_no_node() -> None:
    tracer, result = recorded(lambda x: x.contiguous(), (2, 3))
    assert calls(tracer) == []
    assert tracer.values.node_of(result).op == "placeholder"


def test_views_share_the_memory_of_their_argument() -> None:
    tracer, (x, y, z) = recorded(lambda x: (x, x[:, 1:].t(), x + 1), (2, 3))
    assert tracer.values.view_of(y).memory is tracer.values.view_of(x).memory
    assert len(tracer.values.view_of(y).steps) == 2
    assert tracer.values.view_of(z).memory is not tracer.values.view_of(x).memory


def test_overloads_not_kept_are_decomposed() -> None:
    tracer = Tracer(ShapeEnv(), {}, lambda overload: overload is not aten.softplus.default)
    (x,) = inputs_of(tracer, (2,))
    with capture_modes(tracer.values.fake_mode, tracer.mode):
        torch.nn.functional.softplus(x)
    assert "softplus.default" not in calls(tracer)
    assert "log1p.default" in calls(tracer)


def test_numbers_of_constants_are_known_and_of_data_are_symbols() -> None:
    tracer, (known, size) = recorded(lambda x: ((torch.tensor(3) * 2).item(), x.sum().item()), ((4,), torch.int64))
    assert known == 6
    assert size.node.value.as_symbol() == "u0"
    symbol = tracer.values.symbols["u0"]
    assert (symbol.node.target, symbol.axis) == (aten.sum.default, None)


@pytest.mark.parametrize("question", [lambda x: float(x.sum()), lambda x: 1 if x.sum() > 0 else 2])
def test_other_numbers_of_data_are_refused_with_a_way_out(question: object) -> None:
    with pytest.raises(
        UserError, match=r"Python (control flow depends on tensor data|needs a data-dependent number)"
    ) as caught:
        recorded(question, (4,))  # type: ignore[arg-type]
    assert 'bake=["x0"] to make the values of the example inputs constants of the file' in caught.value.next


def test_types_are_recorded_for_symbolic_sizes() -> None:
    tracer, result = recorded(lambda x: torch.cat([x, x]) @ x.t(), (N, 2), hints={"n": 5})
    assert tracer.values.node_of(result).meta["val"] == info(2 * N, N)
    assert not tracer.sizes.specializations


def test_data_of_another_tensor_is_its_memory_from_then_on() -> None:
    tracer = Tracer(ShapeEnv(), {}, lambda overload: True)
    x, y = inputs_of(tracer, (2,), (2,))
    with capture_modes(tracer.values.fake_mode, tracer.mode):
        z = x + 1
        assign_data(tracer, z, y)
        assert tracer.values.node_of(z) is tracer.values.node_of(y)
        with pytest.raises(UserError, match="data of an input or weight is replaced"):
            assign_data(tracer, x, y)
