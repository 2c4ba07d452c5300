"""Names that are no text, modules nested deep, and sizes at which an expression has no value: exported, or one clear error."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.support import check

HALF = "a\ud800b"
X = torch.randn(2, 3)


class Named(nn.Module):
    """A submodule, a weight and a buffer with half a character in their names."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(HALF, nn.Linear(3, 3))
        self.register_buffer("b\udfff", torch.ones(3))
        self.register_parameter("p\udc80", nn.Parameter(torch.ones(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = getattr(self, HALF)(x).relu() * getattr(self, "b\udfff")
        return y + getattr(self, "p\udc80")


class Keyed(nn.Module):
    def forward(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"first\udcff": data["\ud800"] * 2, "second\udcfe": data["\ud800"] + 1}


@pytest.mark.parametrize("options", [{}, {"verify": True}, {"functions": True}, {"metadata": "full"}])
def test_halves_of_characters_in_names_of_modules(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    fx2onnx.export(Named().eval(), (X,), path, **options)
    names = [value.name for value in InferenceSession(path).get_inputs()]
    assert names == ["x"]


def test_halves_of_characters_in_keys(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    fx2onnx.export(Keyed(), ({"\ud800": X},), path, verify=True)
    session = InferenceSession(path)
    assert [value.name for value in session.get_inputs()] == ["data_\\ud800"]
    assert [value.name for value in session.get_outputs()] == ["first\\udcff", "second\\udcfe"]


@pytest.mark.parametrize(("name", "said"), [(HALF, "no text that a file can hold"), ("", "gives an empty name")])
@pytest.mark.parametrize("argument", ["input_names", "output_names"])
def test_names_that_are_asked_for_are_refused(argument: str, name: str, said: str) -> None:
    with pytest.raises(fx2onnx.UserError, match=said) as caught:
        fx2onnx.export(nn.ReLU(), (X,), **{argument: [name]})
    assert caught.value.code == "E001"
    str(caught.value).encode()


def test_whole_characters_stay() -> None:
    result = fx2onnx.export(nn.ReLU(), (X,), input_names=["größe"], output_names=["結果"])
    assert [value.name for value in result.model.graph.inputs] == ["größe"]
    assert [value.name for value in result.model.graph.outputs] == ["結果"]


class Linked(nn.Module):
    """Modules inside each other that do not call each other."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.first: nn.Module | None = None
        for _ in range(levels):
            link = nn.Module()
            link.scale = nn.Parameter(torch.ones(3))
            link.next = self.first
            self.first = link

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.first, nn.Module)
        return x * self.first.scale


def nested(levels: int) -> nn.Module:
    module: nn.Module = nn.ReLU()
    for _ in range(levels):
        module = nn.Sequential(module)
    return module


@pytest.mark.parametrize("make", [Linked, nested])
def test_two_thousand_levels_are_exported(make: Callable[[int], nn.Module]) -> None:
    limit = sys.getrecursionlimit()
    result = fx2onnx.export(make(2_000), (X,))
    assert len(result.model.graph) == 1
    assert sys.getrecursionlimit() == limit


def test_what_is_deeper_than_the_stack_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx2onnx.base.stack_frames.MOST_LEVELS", 0)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(nested(2_500), (X,))
    assert caught.value.code == "E101"
    assert "recursion limit" in caught.value.what


def reciprocal(x: torch.Tensor) -> torch.Tensor:
    h = x.shape[0]
    return x if h == 1 else x * (2.0 / (h - 1))


def both_divide(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x * (1 / (n - 1)) if n > 1 else x * (1 / (2 * n - 1))


def logarithm(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x if n == 1 else x * (1.0 / math.log(n))


def root(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x if n <= 1 else x * math.sqrt(n - 2)


def power(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x if n == 1 else x * (n - 1) ** -0.5


def large(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x * 3 if n == 1 else x * math.exp(1000 / n - 400)


def quotient(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x if n == 1 else x[:, : 6 // (n - 1)]


def two_sizes(x: torch.Tensor) -> torch.Tensor:
    h, w = x.shape
    return x if h == 1 or w == 1 else x * (((w - 1) / (h - 1)) / (h / w))


def in_a_tensor(x: torch.Tensor) -> torch.Tensor:
    h, w = x.shape
    scale = torch.tensor([[2.0 / (1e-14 if w == 1 else w - 1.0), 0.0], [0.0, 2.0 / (1e-14 if h == 1 else h - 1.0)]])
    return x[:, :1] @ scale[:1]


PROGRAMS = (reciprocal, both_divide, logarithm, root, power, large, quotient, two_sizes, in_a_tensor)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("rows", [5, 1])
def test_expressions_without_a_value_at_one(function: Callable[[torch.Tensor], torch.Tensor], rows: int) -> None:
    others = [(torch.randn(*sizes),) for sizes in ((1, 3), (1, 1), (2, 1), (2, 4), (3, 2), (7, 5))]
    check(function, (torch.randn(rows, 3),), others=others, dynamic_shapes=({0: "h", 1: "w"},))
