"""What ``export`` makes of a module with ``quantize=`` and ``target=`` is what ``optimize_model`` makes of its plain export."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import fx2onnx


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.Conv2d(64, 32, 3)
        self.head = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.norm(self.first(x))))).mean((2, 3)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
        self.head = nn.Linear(64, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.tokens(ids)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(64, 64, 2, batch_first=True, bidirectional=True), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0])  # type: ignore[no-any-return]


def cases() -> dict[str, tuple[nn.Module, torch.Tensor, dict[int, str]]]:
    torch.manual_seed(0)
    found: dict[str, tuple[nn.Module, torch.Tensor, dict[int, str]]] = {
        "convolutions": (Convolutions().eval(), torch.rand(2, 3, 8, 8), {0: "batch"}),
        "attention": (Attention().eval(), torch.randint(0, 50, (2, 7)), {0: "batch", 1: "length"}),
    }
    found["recurrent"] = (Recurrent().eval(), torch.rand(2, 5, 64), {0: "batch", 1: "steps"})
    for module, _, _ in found.values():
        for parameter in module.parameters():
            # Zeros and equal weights are worth edits that an export does not look for; a normalization's factor below 0 turns the
            # signs of codes and scale, where they are those of the folded weight.
            nn.init.uniform_(parameter, 0.1 if parameter.ndim == 1 else -1.0, 1.0)
    return found


def canonical(model: onnx.ModelProto) -> tuple[list[str], list[str], dict[str, np.ndarray[Any, Any]]]:
    """Nodes, types and weights, whatever weights are called: a file does not know what the module calls those it folded."""
    graph = onnx.ModelProto.FromString(model.SerializeToString()).graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    renamed: dict[str, str] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in weights:
                node.input[index] = renamed.setdefault(name, f"weight {len(renamed)}")
    types = [str(value) for value in (*graph.input, *graph.output)]
    types += sorted(str(value) for value in graph.value_info if value.name not in weights)
    return [str(node) for node in graph.node], types, {renamed[name]: array for name, array in weights.items()}


def assert_same(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    (*first, weights), (*second, others) = canonical(one), canonical(other)
    assert first == second
    assert weights.keys() == others.keys()
    for name, array in weights.items():
        assert (array.dtype, array.shape) == (others[name].dtype, others[name].shape)
        if array.dtype == np.float32:
            # The scales of a folded convolution: those of the module's weight times the factor, or of the product.
            np.testing.assert_allclose(array, others[name], rtol=2e-7, atol=0)
        else:
            assert array.tobytes() == others[name].tobytes()


CASES = cases()


@pytest.mark.parametrize("target", [None, "onnxruntime", "tensorrt"])
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_both_entrances_make_the_same_file(name: str, dynamic: bool, quantize: str | None, target: str | None) -> None:
    module, x, axes = CASES[name]
    shapes: Any = (axes,) if dynamic else None
    exported = fx2onnx.export(module, (x,), None, dynamic_shapes=shapes, quantize=quantize, target=target).model_proto
    plain = fx2onnx.export(module, (x,), None, dynamic_shapes=shapes, target=target).model_proto
    optimised = fx2onnx.optimize_model(plain, quantize=quantize, target=target, verify=False)
    assert_same(ir.to_proto(optimised.model), exported)
