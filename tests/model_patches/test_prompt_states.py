"""What models keep behind a prompt, exported for prompts of every length."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fx2onnx.sources.seeding import move_constants, seeded
from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")
import transformers as T
from transformers.cache_utils import LinearAttentionLayer
from transformers.models.minimax import modeling_minimax as minimax

WIDTH = 4


def _ids(*lengths: int) -> list[Any]:
    with seeded(0):
        return [(torch.randint(1, 20, (2, length)),) for length in lengths]


def _every_length(forward: Callable[..., Any], samples: list[Any], atol: float = 1e-5, **names: Any) -> None:
    first, *others = samples
    result = check(forward, first, others=others, atol=atol, dynamic_shapes=names)
    assert not [each for each in result.report.assumptions if each.kind == "condition"]


@pytest.mark.compares("transformers.cache_utils:LinearAttentionLayer.update_conv_state")
def test_the_last_columns_of_prompts_that_are_shorter_than_what_is_kept() -> None:
    def forward(x: torch.Tensor) -> Any:
        layer, filled = LinearAttentionLayer(), LinearAttentionLayer()
        given = layer.update_conv_state(x, conv_kernel_size=WIDTH)
        filled.update_conv_state(torch.ones(2, 3, WIDTH))
        return given, layer.conv_states[0], filled.update_conv_state(x), filled.conv_states[0]

    samples = [(torch.randn(2, 3, length),) for length in (7, 1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 40)]
    _every_length(forward, samples, x={2: "length"})


@pytest.mark.long
@pytest.mark.compares("transformers.models.minimax.modeling_minimax:MiniMaxLightningAttention.forward")
@pytest.mark.parametrize("past", ["none", "empty", "state"])
def test_blocks_of_lightning_attention(past: str) -> None:
    config = T.MiniMaxConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, block_size=3)
    with seeded(1):
        layer = minimax.MiniMaxLightningAttention(config, 0).eval()
        state = torch.randn(2, 2, layer.head_dim, layer.head_dim)

    def forward(x: torch.Tensor, mask: torch.Tensor) -> Any:
        cache = None if past == "none" else minimax.MiniMaxCache()
        if past == "state":
            cache.set_linear_cache(0, state)
        kept = [] if cache is None or past == "none" else [cache]
        output = layer(x, None, mask, cache)
        return output, *(each.get_linear_cache(0) for each in kept)

    samples = []
    for length in (7, 1, 2, 3, 64, 65, 130):
        mask = torch.ones(2, length)
        mask[0, : length // 3] = 0
        samples.append((torch.randn(2, length, 16), mask))
    _every_length(forward, samples, x={1: "length"}, mask={1: "length"})


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.compares(f"transformers.models.{kind}.modeling_{kind}:mamba2_chunk_scan"))
        for kind in ("mamba2", "bamba", "nemotron_h", "granitemoehybrid", "zamba2", "falcon_h1")
    ],
)
def test_chunks_of_mamba2(kind: str) -> None:
    scan = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}").mamba2_chunk_scan
    with seeded(4):
        weights = [torch.randn(5, heads, width) for heads, width in ((4, 3), (4, 1), (2, 6), (2, 6))]
        state = torch.randn(1, 4, 3, 6)

    def forward(x: torch.Tensor) -> Any:
        inputs, dt, write, read = (torch.einsum("blc,chw->blhw", x, weight) for weight in weights)
        given = (inputs, dt[..., 0], -torch.arange(1.0, 5), write, read, 8)
        more = {"dt_softplus": True, "dt_limit": (0.1, 1.0), "initial_states": state.expand(len(x), -1, -1, -1)}
        whole = scan(*given, torch.ones(4), torch.ones(4) / 2, return_final_states=True, **more)
        return whole, scan(*given[:1], given[1].abs(), *given[2:])

    with seeded(5):
        samples = [(torch.randn(2, length, 5),) for length in (7, 1, 64, 65, 130)]
    _every_length(forward, samples, atol=2e-4, x={0: "batch", 1: "length"})  # of sums of up to 30


@pytest.mark.long
@pytest.mark.compares(
    "transformers.models.xlstm.modeling_xlstm:xLSTMModel.forward",
    "transformers.models.xlstm.modeling_xlstm:xLSTMForCausalLM.forward",
)
def test_sequences_that_transformers_cuts_into_pieces() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_blocks": 1, "num_heads": 2, "vocab_size": 20}
    config = T.xLSTMConfig(**sizes, qk_dim_factor=1.0, max_inference_chunksize=5, chunk_size=4)
    with seeded(2):
        model = T.xLSTMForCausalLM(config).eval()
    move_constants(model)
    assert model.config.max_inference_chunksize == 5
    _every_length(lambda ids: model(ids, use_cache=True).logits, _ids(3, 1, 5, 6, 17), ids={1: "length"})
    assert model.config.max_inference_chunksize == 5
