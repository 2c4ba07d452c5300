"""Attention over entries of so many tokens each: the patches make the entries and biases that the modules make."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fx2onnx.sources.seeding import seeded
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek  # noqa: E402

WIDTH, RANK, SPARSE, HEAVY = 16, 8, 2, 3


def _compares(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.compares(*(f"{deepseek.__name__}:{name}.forward" for name in names))


def _sample(length: int, skipped: int = 0) -> tuple[torch.Tensor, ...]:
    with seeded(length):
        places = (torch.arange(length) - torch.tensor([[0], [skipped]])).clamp(min=0)
        return torch.randn(2, length, WIDTH), torch.randn(2, length, RANK), places


class _WithoutCache(torch.nn.Module):
    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__()
        config = transformers.DeepseekV4Config(
            hidden_size=WIDTH,
            num_hidden_layers=2,
            head_dim=16,
            q_lora_rank=RANK,
            index_n_heads=12,
            index_head_dim=16,
            index_topk=2,
            layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
            mlp_layer_types=["moe"] * 2,
            compress_rates={"compressed_sparse_attention": SPARSE, "heavily_compressed_attention": HEAVY},
        )
        self.compressor = kind(config)
        for weight in self.parameters():
            torch.nn.init.normal_(weight, std=0.5)

    def forward(self, states: torch.Tensor, residual: torch.Tensor, places: torch.Tensor) -> Any:
        return self.compressor(states, residual, places, None, 0)


@pytest.mark.long_cases("DeepseekV4CSACompressor-lengths0")
@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        pytest.param(
            deepseek.DeepseekV4CSACompressor,
            (1, 2, 3, 13),
            marks=_compares("DeepseekV4CSACompressor", "DeepseekV4Indexer"),
        ),
        pytest.param(
            deepseek.DeepseekV4HCACompressor,
            (3, 5, 13),  # fewer tokens than make an entry: it gives no bias
            marks=_compares("DeepseekV4HCACompressor"),
        ),
    ],
)
def test_entries_of_whole_groups(kind: type[torch.nn.Module], lengths: tuple[int, ...]) -> None:
    with seeded(0):
        module = _WithoutCache(kind)
    axes = {1: "tokens"}
    others = [_sample(length, skipped) for length in lengths for skipped in (0, 1)]
    check(module, _sample(11), others=others, dynamic_shapes=(axes, axes, axes))


@_compares("DeepseekV4HCACompressor")
def test_a_bias_for_each_of_the_batch() -> None:
    """Also where one row of positions is for all."""
    with seeded(0):
        module = _WithoutCache(deepseek.DeepseekV4HCACompressor)
    sample, *others = [(states, residual, places[:1]) for states, residual, places in map(_sample, (11, 5, 13))]
    axes = {1: "tokens"}
    check(module, sample, others=others, dynamic_shapes=(axes, axes, axes))
