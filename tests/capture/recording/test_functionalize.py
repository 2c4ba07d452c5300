"""The functional overload of every overload that writes, and writes as values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.capture.recording.functionalize import functional_overload
from fx2onnx.torchcompat.operators import is_decomposable
from tests.capture.recorded import calls, info, recorded

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "functional"),
    [
        (aten.add_.Tensor, aten.add.Tensor),
        (aten.clamp_.default, aten.clamp.default),
        (aten.add.out, aten.add.Tensor),
        (aten.floor_divide_.Tensor, aten.floor_divide.default),
        (aten.index_put_.default, aten.index_put.default),
        (aten.__iand__.Tensor, aten.__and__.Tensor),
        (aten._foreach_add_.List, aten._foreach_add.List),
        (aten.sort.values, aten.sort.default),
        (aten.random_.default, None),
    ],
    ids=str,
)
def test_functional_overload(func: Any, functional: Any) -> None:
    assert functional_overload(func) is functional


def test_a_write_is_a_value_that_later_reads_see() -> None:
    tracer, x = recorded(lambda x: x.mul_(2), (2, 3))
    assert calls(tracer) == ["mul.Tensor"]
    assert tracer.values.node_of(x).target is aten.mul.Tensor
    assert tracer.values.written.keys() == {id(tracer.values.view_of(x).memory)}


def test_results_are_given_to_out() -> None:
    tracer, out = recorded(lambda x, out: torch.add(x, 1, out=out), (2,), (2,))
    assert tracer.values.node_of(out).target is aten.add.Tensor


@pytest.mark.parametrize(
    ("write", "after"),
    [
        (lambda x, y: x.copy_(y), ["to.dtype", "expand.default"]),
        (lambda x, y: x.copy_(x + 1), ["add.Tensor"]),
        (lambda x, y: x.fill_(3), ["full_like.default"]),
        (lambda x, y: x.fill_(y[0]), ["select.int", "to.dtype", "expand.default"]),
        (lambda x, y: x.zero_(), ["full_like.default"]),
    ],
    ids=["broadcast", "same type", "number", "tensor", "zero"],
)
def test_what_does_not_depend_on_the_old_value(write: Any, after: list[str]) -> None:
    tracer, x = recorded(write, (2, 3), ((3,), torch.int32))
    assert calls(tracer) == after
    assert tracer.values.node_of(x).meta["val"] == info(2, 3)


def test_a_view_in_place_changes_the_type_and_keeps_the_memory() -> None:
    tracer, x = recorded(lambda x: x.t_(), (2, 3))
    assert tuple(x.shape) == (3, 2)
    assert tracer.values.node_of(x).meta["val"] == info(3, 2)
    assert [step.func for step in tracer.values.view_of(x).steps] == [aten.t.default]


def test_a_factory_makes_what_its_out_is() -> None:
    tracer, out = recorded(lambda x: torch.arange(4, out=torch.empty(4, dtype=torch.float16)), (1,))
    assert tracer.values.node_of(out).kwargs["dtype"] is torch.float16


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda x: x.resize_(6), "it changes the tensor's size in place"),
        (lambda x: x.set_(x.clone()), "it makes the tensor share other memory"),
        (lambda x: x.random_(), "no functional form"),
        (lambda x: torch.add(x, torch.ones(2, 1), out=x), "would change the size"),
        (lambda x: (lambda made: (made[:1], torch.add(x, 1, out=made)))(torch.ones(2, 3)), "would change the size"),
        (lambda x: x.fill_diagonal_(1, wrap=True), "fill_diagonal_ of this tensor is not known"),
    ],
    ids=["resize_", "set_", "random_", "input of another size", "out of another size with a view", "fill_diagonal_"],
)
def test_refusals(write: Any, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        recorded(write, (1, 3))
    assert caught.value.code == "E103"


@pytest.mark.parametrize(
    "function", [torch.ops.aten.batch_norm.default, torch.ops.aten._native_batch_norm_legit.default]
)
@pytest.mark.parametrize("training", [True, False])
def test_training_updates_the_running_statistics(function: Any, training: bool) -> None:
    def normalized(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
        rest = (False,) if function is aten.batch_norm.default else ()
        return function(x, weight, bias, mean, var, training, 0.1, 1e-5, *rest), mean, var

    tracer, (result, *statistics) = recorded(normalized, (4, 3, 2), (3,), (3,), (3,), (3,))
    written = [id(tracer.values.view_of(statistic).memory) in tracer.values.written for statistic in statistics]
    assert written == [training, training]
    first = result if isinstance(result, torch.Tensor) else result[0]
    assert tracer.values.node_of(first).meta["val"] == info(4, 3, 2)


def test_lists_of_tensors_are_recorded_one_by_one() -> None:
    tracer, result = recorded(lambda x, y: torch._foreach_add([x, y], [y, y], alpha=2), (2, 3), (3,))
    assert calls(tracer) == ["add.Tensor", "add.Tensor"]
    assert [tracer.values.node_of(each).meta["val"] for each in result] == [info(2, 3), info(3)]


def test_is_decomposable() -> None:
    assert is_decomposable(aten.softplus.default)
    assert not is_decomposable(aten.relu.default) or is_decomposable(aten.linear.default)
    assert not is_decomposable(aten.add.Tensor)
