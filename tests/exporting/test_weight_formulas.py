"""Formulas of weights are weights of the file: weight norm, pruning masks, spectral norm in eval mode, standardised kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import fx2onnx


def pruned() -> nn.Module:
    module = nn.Conv1d(4, 3, 3)
    prune.l1_unstructured(module, "weight", 0.5)
    return module


class Standardised(nn.Conv1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight
        w = (w - w.mean((1, 2), keepdim=True)) / (w.var((1, 2), keepdim=True) + 1e-5).sqrt()
        return nn.functional.conv1d(x, w, self.bias)


class Ternary(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.weight.abs().mean()
        return nn.functional.linear(x, (self.weight / scale).round().clamp(-1, 1) * scale, self.bias)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.b = (nn.Parameter(torch.randn(*dims)) for dims in ((5, 5), (5, 2), (2, 5)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.w + self.a @ self.b * 0.5).t()


class Gain(nn.Module):
    """A number as one factor, as CLIP and Gemma have it."""

    def __init__(self) -> None:
        super().__init__()
        self.log, self.gain = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + self.gain).sigmoid() * self.log.exp()


class Twice(nn.Module):
    """The weight is read by the formula and by itself."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(rows, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ nn.functional.normalize(self.w).t(), self.w


class Turns(nn.Module):
    """A formula inside a loop of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = parametrizations.weight_norm(nn.Linear(5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[0]):
            x = self.cell(x).tanh()
        return x


class Shared(nn.Module):
    """A part of the weight is read by two formulas and by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.w[0]
        return x + torch.stack([first * 2, first, first.abs(), first.exp() * x.sum(), first])


def linear() -> nn.Module:
    return nn.Linear(5, 4)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "weight norm": (lambda: parametrizations.weight_norm(linear()), (2, 5), ["Gemm"]),
    "weight norm of all axes": (lambda: parametrizations.weight_norm(linear(), dim=None), (2, 5), ["Gemm"]),  # type: ignore[arg-type]
    "weight norm, transposed": (lambda: parametrizations.weight_norm(nn.ConvTranspose1d(4, 3, 3), dim=1), (2, 4, 6), ["ConvTranspose"]),
    "spectral norm": (lambda: parametrizations.spectral_norm(linear()), (2, 5), ["Gemm"]),
    "pruned": (pruned, (2, 4, 6), ["Conv"]),
    "standardised": (lambda: Standardised(4, 3, 3), (2, 4, 6), ["Conv"]),
    "ternary": (lambda: Ternary(5, 4), (2, 5), ["Gemm"]),
    "adapted": (Adapted, (2, 5), ["MatMul"]),
    "gain": (Gain, (2, 5), ["Mul", "Mul"]),
}  # fmt: skip


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def drawn(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(1))


def exported(module: nn.Module, x: torch.Tensor, **options: Any) -> tuple[fx2onnx.ExportResult, list[str]]:
    result = fx2onnx.export(module, (x,), dynamic_shapes=({0: "batch"},), **options)
    return result, [node.op_type for node in result.model_proto.graph.node]


@pytest.mark.parametrize("name", CASES)
def test_the_formula_is_a_weight_of_the_file(name: str) -> None:
    kind, dims, nodes = CASES[name]
    module = made(kind)
    result, found = exported(module, drawn(*dims))
    assert found == nodes
    assert fx2onnx.verify(result, module, (drawn(*dims),), effort="quick").ok
    assert exported(made(kind), drawn(*dims), optimize=False)[1] != nodes


def test_a_weight_that_is_read_elsewhere_is_not_stored_twice_where_it_is_large() -> None:
    assert exported(made(lambda: Twice(8)), drawn(2, 5))[1] == ["MatMul", "Identity"]
    assert "Div" in exported(made(lambda: Twice(70_000)), drawn(2, 5))[1]


def test_a_part_that_is_read_twice_is_in_both_formulas() -> None:
    module = made(Shared)
    assert fx2onnx.verify(exported(module, drawn(2, 5))[0], module, (drawn(2, 5),), effort="quick").ok


def test_weights_that_are_inputs_stay_what_they_are() -> None:
    found = exported(made(CASES["weight norm"][0]), drawn(2, 5), keep_initializers_as_inputs=True)[1]
    assert "ReduceL2" in found


def test_a_formula_in_a_loop_is_computed_once() -> None:
    module = made(Turns)
    result = fx2onnx.export(module, (drawn(3, 5),), dynamic_shapes=({0: "rows"},))
    assert fx2onnx.verify(result, module, (drawn(3, 5),), effort="quick").ok
    (loop,) = (node for node in result.model_proto.graph.node if node.op_type == "Loop")
    body = onnx.helper.get_attribute_value(next(item for item in loop.attribute if item.name == "body"))
    assert not {"ReduceL2", "Div"} & {node.op_type for node in body.node}


def test_other_weights_take_the_formula_along() -> None:
    module, other = made(CASES["weight norm"][0]), made(CASES["weight norm"][0])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 2
    result, _ = exported(module, drawn(2, 5))
    result.apply_weights(other.state_dict())
    assert fx2onnx.verify(result, other, (drawn(2, 5),), effort="quick").ok


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"functions": True}])
def test_what_is_made_of_weights_takes_the_formula(options: dict[str, Any]) -> None:
    module = made(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(64, 64)), nn.ReLU()))
    found = exported(module, drawn(2, 64), **options, verify=True)[1]
    assert "ReduceL2" not in found


def test_quantization_says_how_to_make_it_a_weight() -> None:
    module = made(lambda: parametrizations.weight_norm(nn.Linear(64, 64)))
    with pytest.raises(fx2onnx.UserError, match="remove_parametrizations"):
        exported(module, drawn(2, 64), quantize="int8")


def test_an_edited_module_is_seen(tmp_path: Path) -> None:
    module = made(CASES["weight norm"][0])
    exported(module, drawn(2, 5), f=tmp_path / "m.onnx")
    with torch.no_grad():
        module.parametrizations.weight.original0 *= 2  # type: ignore[union-attr, operator]
    wrong = fx2onnx.locate(tmp_path / "m.onnx", module, (drawn(2, 5),))
    assert wrong is not None
    assert "original0" in wrong.describe()
