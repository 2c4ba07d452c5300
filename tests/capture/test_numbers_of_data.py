"""Tensors of one number where Python and torch take plain numbers: ``max(1, mask.sum())``, ``F.one_hot(ids, count)``."""

from __future__ import annotations

import datetime
import json
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.capture.shapes.python_sizes import are_numbers_of_data
from tests.support import agree, run_engines

X = torch.arange(24, dtype=torch.float32).reshape(6, 4) / 8 - 1

NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "at least one": lambda x, n: x.sum() / max(1, n),
    "at most four": lambda x, n: x[: min(n, 4)],
    "of a list": lambda x, n: x * min([n, x.shape[0], 4]),
    "of a size": lambda x, n: x[: max(n, x.shape[0] - 2)],
    "of two tensors": lambda x, n: max(x[0, 0] * n, x[1, 1]),
    "of many": lambda x, n: max(x.sum(), 0.5, x[n - 1, 0]),
    "float and int": lambda x, n: max(x.sum() - n, 0) * 2.0,
    "a shape": lambda x, n: torch.zeros(max(n, 2)) + x.sum(),
    "steps": lambda x, n: torch.linspace(0, 1, n) + x[0, 0],
    "steps of powers": lambda x, n: torch.logspace(0, 1, n) + x[0, 0],
    "classes": lambda x, n: F.one_hot(torch.arange(2), n) + x[0, 0],
    "classes by name": lambda x, n: F.one_hot(torch.arange(2), num_classes=max(n + 1, 2)) + x[0, 0],
    "a window": lambda x, n: torch.hann_window(n) + x[0, 0],
    "indices": lambda x, n: torch.tril_indices(n, n) + x[0, 0],
}


class Program(nn.Module):
    def __init__(self, program: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        return self.program(x, n)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_number_that_data_tells_is_in_the_graph(name: str, dynamic: bool) -> None:
    module = Program(NUMBERS[name])
    result = fx2onnx.export(module, (X, torch.tensor(3)), dynamic_shapes={"x": {0: "r"}} if dynamic else None)
    assert "If" not in {node.op_type for node in result.model.graph}
    names = result.report.input_names
    for count, rows in ((3, 6), (2, 6), (5, 9 if dynamic else 6), (6, 7 if dynamic else 6)):
        x, n = X[:1].repeat(rows, 1) * (count - 4), torch.tensor(count)
        feeds = [x if name == "x" else n for name in names]
        for outputs in run_engines(result.model_proto, feeds).values():
            torch.testing.assert_close(torch.from_numpy(outputs[0]), torch.as_tensor(module(x, n)))


def _on_its_own_line(x: Any) -> Any:
    count = math.ceil(x.sum().abs().item() / 2)
    return x[:count]


ROUNDED: dict[str, Callable[[Any], Any]] = {
    "int": lambda x: x[: int(x.sum().abs().item())],
    "round": lambda x: x[: round(x.sum().abs().item())],
    "floor": lambda x: x[: math.floor(x.sum().abs().item())],
    "ceil": _on_its_own_line,
    "trunc": lambda x: torch.zeros(math.trunc(x.sum().abs().item() * 1.5)) + x[0, 0],
    "below 0": lambda x: x * round(x.sum().item()),
    "whole quotient": lambda x: x * (x.sum().item() // 0.75),
    "quotient of a number": lambda x: x * (7.5 // x.sum().item()),
    "rest": lambda x: x * (x.sum().item() % 0.75),
    "rest of a number": lambda x: x * (7.5 % x.sum().item()),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_real_number_of_data_is_rounded_as_python_does(name: str) -> None:
    module = Program(lambda x, n: ROUNDED[name](x) + n)
    x, n = torch.zeros(6, 4), torch.tensor(3)
    x[0, 0] = 1.25
    result = fx2onnx.export(module, (x, n))
    for number in (0.5, 1.5, 2.5, 1.49, -0.7, -2.5, 4.0, 1e30 if name in ("int", "round", "floor", "ceil") else 3.0):
        x[0, 0] = number
        agree(module, result.model_proto, (x, n))


class Lazy(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise ImportError(f"{name} of a package that is not installed")


def test_modules_that_import_when_they_are_asked_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lazy_module_of_a_test", Lazy("lazy_module_of_a_test"))
    result = fx2onnx.export(lambda x: x[: int((x > 0).sum())] * 2, (X,))
    for (got,) in run_engines(result.model_proto, [X]).values():
        assert got.shape == X[: int((X > 0).sum())].shape


def test_digits_of_a_number_of_data_are_not_said() -> None:
    with pytest.raises(UserError, match="E104"):
        fx2onnx.export(Program(lambda x, n: x * round(x.sum().item(), 2)), (X, torch.tensor(3)))


def test_not_a_number_is_beyond_nothing() -> None:
    """As Python finds it: ``max(nan, 1.0)`` is nan, and ``max(1.0, nan)`` is 1."""
    module = Program(lambda x, n: (max(x[0, 0], 1.0), max(1.0, x[0, 0]), min(x[0, 0], x[0, 1])))
    result = fx2onnx.export(module, (X, torch.tensor(3)))
    x = X.clone()
    x[0, 0] = torch.nan
    agree(lambda x, n: [*map(torch.as_tensor, module(x, n))], result.model_proto, (x, torch.tensor(3)))


def test_numbers_of_another_kind_are_decided_between() -> None:
    """An integer where the tensor has fractions beside it: the answer has one of two dtypes."""
    module = Program(lambda x, n: x * max(n, 2.5))
    result = fx2onnx.export(module, (X, torch.tensor(3)))
    agree(module, result.model_proto, *((X, torch.tensor(count)) for count in (2, 3)))


@pytest.mark.parametrize(
    ("dtype", "number", "has_room"),
    [
        (torch.uint8, 255, True),
        (torch.uint8, -1, False),
        (torch.int8, 300, False),
        (torch.int32, 2**31, False),
        (torch.int64, -(2**63), True),
        (torch.float16, 1e6, False),
        (torch.float32, 1e6, True),
        (torch.int64, 2.5, False),
    ],
)
def test_numbers_without_room_in_the_dtype_are_decided_between(
    dtype: torch.dtype, number: float, has_room: bool
) -> None:
    """In the tensor's dtype they would be others: -1 is 255 in bytes."""
    assert are_numbers_of_data([torch.tensor(3, dtype=dtype), number]) == has_room


def test_a_number_beyond_float16() -> None:
    module = Program(lambda x, n: x * (2.0 if max(n, 1e6) == 1e6 else 3.0))
    n = torch.tensor(3, dtype=torch.float16)
    result = fx2onnx.export(module, (X, n))
    feeds = [tensor for name, tensor in (("x", X), ("n", n)) if name in result.report.input_names]
    for outputs in run_engines(result.model_proto, feeds).values():
        torch.testing.assert_close(torch.from_numpy(outputs[0]), module(X, n))


def _one_hot(indices: torch.Tensor, length: int) -> torch.Tensor:
    return F.one_hot(indices, max(indices.max() + 1, length))[..., :length]


class Dispatch(nn.Module):
    """Experts with room for a few tokens each; the rest is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, expert = self.gate(x).softmax(-1).max(-1)
        chosen = F.one_hot(expert, 3)
        place = (chosen.cumsum(0) - chosen) * chosen
        sends = chosen[..., None] * _one_hot(place.sum(-1), 2)[:, None]
        sends = sends * weight[:, None, None]
        routed = torch.einsum("nd,nec->ecd", x, (sends > 0).float())
        return torch.einsum("ecd,edf,nec->nf", routed, self.experts, sends)


@pytest.mark.long
def test_routing_with_a_capacity() -> None:
    torch.manual_seed(0)
    module = Dispatch().eval()
    result = fx2onnx.export(module, (torch.randn(7, 4),), dynamic_shapes=({0: "n"},), verify=True)
    agree(module, result.model_proto, *((torch.randn(count, 4),) for count in (1, 5, 12)))


NUMBERS_BEFORE: dict[str, Any] = {
    "int": lambda x: x[:, : int(x.argmax())],
    "int of item": lambda x: x[:, : int(x.argmax().item())],
    "the larger of two": lambda x: x[:, : max(int(x.argmax()), int(x.argmin()))],
    "len of a mask": lambda x: x[:, : int((x > 0).sum())],
    "float": lambda x: x if float(x.sum()) > 3 else x[:, :2],
    "bool": lambda x: x[:, :2] if bool(x.sum() > 3) else x,
    "tolist": lambda x: x[:, : sum(x.argmax(0).tolist())],
}
MISTAKES_BEHIND: dict[str, tuple[Any, str]] = {
    "width": (lambda x: F.linear(x.t(), torch.ones(2, 7)), "E101"),
    "operand": (lambda x: x + "a", r"E101(?s:.)*'Tensor' and 'str'"),
    "keyword": (lambda x: x.sum(axes=1), r"E101(?s:.)*axes"),
    "sizes": (lambda x: torch.cat([x, torch.ones(2, 9)]), "E101"),
    "attribute": (lambda x: x.nothing, r"E101(?s:.)*nothing"),
    "result": (lambda x: None, "E107"),
}


@pytest.mark.parametrize("mistake", MISTAKES_BEHIND)
@pytest.mark.parametrize("number", NUMBERS_BEFORE)
def test_a_mistake_behind_a_plain_number_is_named(number: str, mistake: str) -> None:
    makes, wanted = MISTAKES_BEHIND[mistake]
    for shapes in (None, ({0: "n"},)):
        with pytest.raises(UserError, match=wanted) as caught:
            fx2onnx.export(lambda x: makes(NUMBERS_BEFORE[number](x)), (X,), dynamic_shapes=shapes)
        assert caught.value.code != "E104"


@pytest.mark.parametrize(
    "use",
    [
        lambda x, number: x * len("ab" * number),
        lambda x, number: x.sum(number),
        lambda x, number: x * len(json.dumps(number)),
        lambda x, number: x * datetime.timedelta(number).days,
        lambda x, number: x * [1, 2, 3][number],
    ],
)
def test_a_plain_number_that_is_needed_is_the_report(use: Any) -> None:
    with pytest.raises(UserError, match="E104"):
        fx2onnx.export(lambda x: use(x, int((x > x.max()).sum())), (X,))
