"""Fused forms: the numbers of eager PyTorch in the runner and in onnxruntime, whatever the attention is given."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.targets.form import find

HEADS, WIDTH = 2, 8


class Attention(nn.Module):
    """Projections around ``scaled_dot_product_attention``, as models have them."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=bias) for bias in (True, False, True))
        self.keywords = keywords

    def forward(self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (
            part(z).view(z.shape[0], z.shape[1], HEADS, WIDTH).transpose(1, 2)
            for part, z in ((self.q, x), (self.k, y), (self.v, y))
        )
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.keywords)
        return out.transpose(1, 2).reshape(x.shape[0], x.shape[1], 16)


def exported(module: nn.Module, *args: Any, **keywords: Any) -> Counter[str]:
    """The operators of the fused file, which is verified."""
    result = fx2onnx.export(module.eval(), args, None, fused=True, verify=True, **keywords)
    assert result.report.verdict is not None
    assert result.report.verdict["ok"]
    return Counter(node.op_type for node in result.model.graph)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


X, Y = some(2, 5, 16), some(2, 7, 16) + 1
MASKS: dict[str, torch.Tensor] = {
    "rows and columns": some(5, 7),
    "for each head": some(2, HEADS, 5, 7),
    "bool": some(2, 1, 5, 7) > 0,
    "bool with a row of nothing": torch.tensor([[True] * 7, *[[False] * 7] * 2, *[[True, False] * 3 + [True]] * 2]),
    "columns alone": some(2, 1, 1, 7) > 0,
    "minus infinity": torch.zeros(5, 7).index_fill(0, torch.tensor([2]), float("-inf")),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    found = exported(Attention(), X, Y, MASKS[name])
    assert (found["MultiHeadAttention"], found["Softmax"]) == (1, 0)
    assert found["Transpose"] == (2 if name == "for each head" else 0)


@pytest.mark.parametrize("keywords", [{}, {"scale": 0.3}, {"is_causal": True}], ids=str)
@pytest.mark.parametrize("other", [X, Y], ids=["self", "cross"])
def test_without_a_mask(keywords: Any, other: torch.Tensor) -> None:
    found = exported(Attention(**keywords), X, other)
    assert (found["MultiHeadAttention"], found["Add"], found["Transpose"], found["Mul"]) == (1, 0, 0, 0)


@pytest.mark.long
def test_dynamic_sizes() -> None:
    shapes = {"x": {0: "batch", 1: "new"}, "y": {0: "batch", 1: "all"}, "mask": {0: "batch", 2: "new", 3: "all"}}
    assert exported(Attention(), X, Y, MASKS["bool"], dynamic_shapes=shapes)["MultiHeadAttention"] == 1
    causal = {"x": {0: "batch", 1: "length"}, "y": {0: "batch", 1: "length"}}
    assert exported(Attention(is_causal=True), X, X, dynamic_shapes=causal)["MultiHeadAttention"] == 1


class Plain(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=q.dim() == 4 and q.shape[1] != k.shape[1])


@pytest.mark.parametrize(
    ("query", "keys", "dtype"),
    [((2, 4, 5, 8), (2, 2, 5, 8), torch.float32), ((4, 5, 8), (4, 5, 8), torch.float32), ((2, 2, 5, 8), (2, 2, 5, 8), torch.float16)],
    ids=["grouped", "rank 3", "float16"],
)  # fmt: skip
def test_what_the_operator_does_not_take(query: Any, keys: Any, dtype: torch.dtype) -> None:
    q, k, v = some(*query).to(dtype), some(*keys).to(dtype), some(*keys).to(dtype)
    assert exported(Plain(), q, k, v)["MultiHeadAttention"] == 0


def test_values_of_another_width() -> None:
    assert exported(Plain(), some(2, 2, 5, 8), some(2, 2, 5, 8), some(2, 2, 5, 12))["MultiHeadAttention"] == 1


def test_a_scaled_query() -> None:
    class Scaled(Attention):
        def forward(self, x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            q, k, v = (z.view(2, 5, HEADS, WIDTH).transpose(1, 2) for z in (self.q(x) * 0.25, self.k(y), self.v(y)))
            return functional.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).reshape(2, 5, 16)

    found = exported(Scaled(), X, X)
    assert (found["MultiHeadAttention"], found["Mul"]) == (1, 0)


def test_an_encoder_layer() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
    generator = torch.Generator().manual_seed(5)
    for weight in layer.parameters():
        nn.init.normal_(weight, generator=generator)
    found = exported(layer, X)
    assert (found["SkipLayerNormalization"], found["BiasGelu"]) == (2, 1)


def test_options() -> None:
    assert ExportOptions(fused=True).opset == ExportOptions(target="onnxruntime-genai").opset == 23
    assert ExportOptions(fused=True, opset_version=20).opset == 20
    assert not ExportOptions(target="onnxruntime").is_fused
    assert not ExportOptions(target="onnxruntime-genai", fused=False).is_fused
    assert find("onnxruntime-genai-0.18").kernels("com.microsoft", "GroupQueryAttention")
    for name in ("openvino", "tract", "onnx"):
        with pytest.raises(UserError) as caught:
            ExportOptions(target=name, fused=True)
        assert caught.value.code == "E001"


def test_older_opsets() -> None:
    found = exported(Attention(), X, Y, opset_version=17)
    assert found["MultiHeadAttention"] == 1
