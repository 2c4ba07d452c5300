"""What forward replaces by equal things, or in places that few look at, is as before after an export."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from tests.support import check


class Holder:
    def __init__(self) -> None:
        self.count = 1


class Net(torch.nn.Module):
    def __init__(self, way: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.way, self.count, self.h = way, 1, torch.zeros(3)
        self.table, self.chosen = {1: "a"}, {1, 2}
        self.objects = np.empty(3, object)
        self.objects[:] = [{"k": torch.ones(3)}, Holder(), [1]]
        self.view, self.holder = memoryview(bytearray(b"abc")), Holder()
        self.numbers = memoryview(np.arange(3.0))
        self.views = [memoryview(bytearray(b"abcd"))[::-2], memoryview(np.arange(6.0).reshape(2, 3).T)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.way(self, x)
        return x + 1

    def state(self) -> str:
        contents = (self.table, self.chosen, self.objects[0], vars(self.objects[1]), self.objects[2], bytes(self.view))
        views = [view.tolist() for view in (self.numbers, *self.views)]
        return repr((*contents, views, vars(self.holder), self.count, self.h))


def _key(net: Net, x: torch.Tensor) -> None:
    net.table[True] = net.table.pop(1)  # type: ignore[assignment]


def _real_key(net: Net, x: torch.Tensor) -> None:
    net.table[1.0] = net.table.pop(1)  # type: ignore[index, assignment]


def _element(net: Net, x: torch.Tensor) -> None:
    net.chosen.discard(1)
    net.chosen.add(True)


def _dict_in_an_array(net: Net, x: torch.Tensor) -> None:
    net.objects[0]["k"] = x * 2


def _object_in_an_array(net: Net, x: torch.Tensor) -> None:
    net.objects[1].count = 2


def _list_in_an_array(net: Net, x: torch.Tensor) -> None:
    net.objects[2].append(2)


def _bytes(net: Net, x: torch.Tensor) -> None:
    net.view[0] = 90


def _numbers(net: Net, x: torch.Tensor) -> None:
    net.numbers[1] = 9.0


def _every_other_byte(net: Net, x: torch.Tensor) -> None:
    net.views[0][0] = 90
    net.chosen.add(3)


def _columns(net: Net, x: torch.Tensor) -> None:
    net.views[1][2, 1] = 9.0
    net.chosen.add(3)


def _attributes(net: Net, x: torch.Tensor) -> None:
    net.__dict__ = {**net.__dict__, "count": 2, "h": net.h + x}


def _attributes_of_an_object(net: Net, x: torch.Tensor) -> None:
    net.holder.__dict__ = {"count": 2}


UNTOLD = [_key, _real_key, _element, _list_in_an_array]
TOLD = [
    _dict_in_an_array,
    _object_in_an_array,
    _bytes,
    _numbers,
    _every_other_byte,
    _columns,
    _attributes,
    _attributes_of_an_object,
]


@pytest.mark.parametrize("way", UNTOLD + TOLD)
def test_it_is_as_before_and_told(way: Callable[[Any, torch.Tensor], None]) -> None:
    net = Net(way)
    before, own = net.state(), [vars(net), vars(net.holder)]
    with warnings.catch_warnings(record=True, action="always") as caught:
        fx2onnx.export(net, (torch.ones(3),))
    assert net.state() == before
    assert all(one is other for one, other in zip(own, [vars(net), vars(net.holder)], strict=True))
    assert any("forward changes the attribute" in str(each.message) for each in caught) == (way in TOLD)


def test_a_tensor_in_a_dict_that_forward_gives_the_module_is_state() -> None:
    result = fx2onnx.export(Net(_attributes), (torch.ones(3),), state="io")
    assert "h" in [value.name for value in result.model_proto.graph.input]


def test_arrays_of_tensors_give_no_warning() -> None:
    class Read(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (
                x * torch.from_numpy(self.b.numpy()) + torch.as_tensor(self.b.numpy()) + torch.asarray(self.b.numpy())
            )

    with warnings.catch_warnings(action="error"):
        check(Read(), (torch.ones(3),))
