"""Linear layers, attention and running statistics in training graphs, which are recorded whole, late or joined."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.base.code_patch import THREAD
from fx2onnx.exporting import pipeline
from tests.training.stepping import ENGINES


def drawn(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def squared(output: torch.Tensor) -> torch.Tensor:
    return (output * torch.linspace(0.5, 1.5, output.shape[-1])).square().mean()


class Function(nn.Module):
    """``function`` of a weight of each of the sizes, and of the input."""

    def __init__(self, function: Callable[..., torch.Tensor], *sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(drawn(*size, seed=place) for place, size in enumerate(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.weights)


def operators(module: nn.Module, x: torch.Tensor) -> list[str]:
    """The overloads of the graph, whose loss and gradients of every parameter and of the input are eager PyTorch's."""
    training = fx2onnx.Training(squared, inputs=("x",))
    result = fx2onnx.export(module, (x,), training=training, verify=True, metadata="full")
    assert set(ENGINES) <= set(result.report.verdict["versions"])
    return [
        entry.value for node in result.model_proto.graph.node for entry in node.metadata_props if entry.key == "aten"
    ]


BLIND = torch.ones(6, 6, dtype=torch.bool).tril()
BLIND[2] = False
HEADS = ((2, 3, 6, 4), (2, 3, 6, 4))
WHOLE: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "linear of a matrix": (Function(lambda *given: F.linear(*given), (5, 4), (5,)), drawn(3, 4)),
    "linear of many rows": (Function(lambda *given: F.linear(*given), (5, 4), (5,)), drawn(2, 3, 6, 4)),
    "linear without bias": (Function(lambda *given: F.linear(*given), (5, 4)), drawn(2, 3, 4)),
    "attention": (Function(lambda *given: F.scaled_dot_product_attention(*given), *HEADS), drawn(2, 3, 6, 4)),
    "attention of three axes": (Function(lambda *given: F.scaled_dot_product_attention(*given), (3, 5, 4), (3, 5, 7)), drawn(3, 6, 4)),
    "attention with a scale": (Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), *HEADS), drawn(2, 3, 6, 4)),
    "attention to itself": (Function(lambda x, w: F.scaled_dot_product_attention(x, x * w, x), (4,)), drawn(2, 3, 6, 4)),
    "blind rows": (Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, BLIND), *HEADS), drawn(2, 3, 6, 4)),
    "numbers as a mask": (Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, drawn(6, 6)), *HEADS), drawn(2, 3, 6, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_recorded_whole(name: str) -> None:
    module, x = WHOLE[name]
    kind = "linear" if name.startswith("linear") else "attention"
    assert f"fx2onnx.{kind}.default" in operators(module, x)


SPLIT: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "a mask with a gradient": (Function(lambda *given: F.scaled_dot_product_attention(*given), *HEADS, (6, 6)), drawn(2, 3, 6, 4)),
    "causal": (Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *HEADS), drawn(2, 3, 6, 4)),
    "grouped heads": (
        Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (2, 1, 6, 4), (2, 1, 6, 4)),
        drawn(2, 3, 6, 4),
    ),
    "a vector": (Function(lambda *given: F.linear(*given), (5, 4), (5,)), drawn(4)),
    "per sample": (Function(lambda x, w: torch.func.vmap(F.linear, (0, None))(x, w), (5, 4)), drawn(3, 2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_what_is_split(name: str) -> None:
    assert not [overload for overload in operators(*SPLIT[name]) if overload.startswith("fx2onnx.")]


@pytest.mark.parametrize("of_attention", [False, True])
def test_a_gradient_of_a_gradient(of_attention: bool) -> None:
    def penalised(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, weight, bias)
        y = F.scaled_dot_product_attention(y, y.tanh(), y, BLIND) if of_attention else y.tanh()
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y + slope

    operators(Function(penalised, (4, 4), (4,)), drawn(2, 3, 6, 4))


@pytest.mark.long
def test_attention_at_other_sizes() -> None:
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    training = fx2onnx.Training(squared)
    result = fx2onnx.export(
        module, (drawn(2, 6, 8),), training=training, dynamic_shapes={"src": {0: "batch", 1: "seq"}}, verify=True
    )
    assert set(ENGINES) <= set(result.report.verdict["versions"])


class Normalised(nn.Module):
    """One batch norm twice, and another whose running mean is read between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x))
        before = self.second.running_mean.clone()
        return self.first(x + before) + self.second.running_var


class Twice(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x) + x)  # type: ignore[no-any-return]


class WithoutGradients(nn.Sequential):
    """A backbone under no_grad, and a head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self[0](x).relu()
        return self[1](x)  # type: ignore[no-any-return]


def frozen_norm(kind: type[nn.Sequential] = nn.Sequential, *before: nn.Module) -> nn.Module:
    """Nothing that is trained stands before the batch norm, so that no gradient reads its statistics."""
    return kind(nn.Sequential(*before, nn.BatchNorm1d(4)).requires_grad_(False), nn.Linear(4, 2))


@pytest.mark.long_cases("read")
@pytest.mark.parametrize(
    "make",
    [
        Normalised,
        lambda: Twice(nn.BatchNorm1d(4)),
        frozen_norm,
        lambda: frozen_norm(nn.Sequential, nn.Linear(4, 4)),
        lambda: frozen_norm(WithoutGradients),
    ],
    ids=["read", "twice", "frozen", "frozen-linear", "no_grad"],
)
def test_running_statistics_at_their_time(make: Callable[[], nn.Module]) -> None:
    module = make().train()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    training = fx2onnx.Training(squared, optimizer=torch.optim.SGD(trained, lr=0.1))
    fx2onnx.export(module, (drawn(6, 4),), training=training, verify=True)


class Standardized(nn.Module):
    def __init__(self, before: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.before, self.norm = before, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.before(x)).relu()  # type: ignore[no-any-return]


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_batch_norm_is_one_operator(affine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, captured = F.batch_norm, []

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        captured.append(THREAD.captures)
        return plain(*args, **kwargs)

    monkeypatch.setattr(F, "batch_norm", counted)
    norm = nn.BatchNorm2d(4, momentum=0.3, eps=1e-3, affine=affine)
    made = operators(Standardized(nn.Conv2d(3, 4, 2), norm).train(), drawn(2, 3, 4, 5))
    assert "aten._native_batch_norm_legit_functional.default" in made
    assert "aten.native_batch_norm_backward.default" in made
    assert True not in captured
    with pytest.raises(fx2onnx.UserError, match="more than 1 value per channel"):
        operators(Standardized(nn.Linear(6, 6), nn.BatchNorm1d(6)).train(), drawn(1, 6))


@pytest.mark.long
def test_running_statistics_are_updated_together() -> None:
    module = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(5))).train()
    training = fx2onnx.Training(squared)
    result = fx2onnx.export(module, (drawn(6, 4),), training=training, verify=True)
    nodes = result.model_proto.graph.node
    updates = [node for node in nodes if any(name.endswith("running_mean") for name in node.input)]
    assert [node.op_type for node in updates] == ["Concat"]
    assert all("source" in {entry.key for entry in node.metadata_props} for node in updates)


@pytest.mark.long
def test_an_export_leaves_no_collection_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it made is old at once; where that is much, all is collected; what the user froze stays frozen."""
    module, seen = nn.Linear(4, 5), []
    gc.unfreeze()  # conftest.py freezes what it has imported
    gc.collect()
    gc.callbacks.append(lambda phase, info: seen.append(info["generation"]) if phase == "stop" else None)
    try:
        fx2onnx.export(module, (drawn(3, 4),))
        assert gc.get_count()[0] < 1000
        assert 2 not in seen
        assert not gc.get_freeze_count()
        monkeypatch.setattr(pipeline, "UNSEEN", 0)
        fx2onnx.export(module, (drawn(3, 4),))
        assert 2 in seen
        monkeypatch.undo()
        gc.freeze()
        fx2onnx.export(module, (drawn(3, 4),))
        assert gc.get_freeze_count() > 1000
    finally:
        gc.callbacks.pop()
        gc.freeze()


def kernels() -> list[Any]:
    many = {
        "at each place": ((1, 32, 17, 18), (3, 32, 3, 3), {"padding": 1}),
        "gathered, apart": ((1, 32, 17, 18), (3, 32, 3, 2), {"dilation": (2, 3)}),
        "gathered": ((1, 40, 5, 6), (9, 40, 3, 3), {"padding": (0, 1)}),
        "gathered, one column": ((1, 40, 5, 6), (9, 40, 3, 1), {}),
        "with steps": ((1, 32, 18, 17), (3, 32, 3, 3), {"stride": (1, 2)}),
        "of one axis": ((1, 60, 90), (3, 60, 5), {"padding": 2}),
        "of three axes": ((1, 12, 6, 7, 8), (2, 12, 2, 3, 3), {}),
    }
    return [pytest.param(*case, id=name) for name, case in many.items()]


@pytest.mark.parametrize(("image", "weight", "options"), kernels())
def test_weights_of_convolutions(image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]) -> None:
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(image) - 3]
    operators(Function(lambda x, w: convolve(x, w, **options), weight), drawn(*image))
