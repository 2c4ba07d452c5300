"""Attention to the keys that an indexer scores best: the keys that eager PyTorch keeps, the first of equally good ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers as T

import fx2onnx
from fx2onnx.runner import InferenceSession
from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.torchcompat.dispatch import TorchDispatchMode
from tests.decoding.test_decoders import assert_same_tokens, exported, prompts

KEPT = 4
MANY, FEW = 32, 2
"""Index heads: where all of them are cut to 0 a key's score is 0, which among few heads several keys' is."""
AXES = {"input_ids": {0: "batch", 1: "tokens"}}
FIELDS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_topk": KEPT,
    "index_head_dim": 8,
    "first_k_dense_replace": 1,
    "vocab_size": 60,
    "pad_token_id": None,
    "initializer_range": 0.2,
}
MODELS: dict[str, Callable[[int], Any]] = {
    "deepseek_v32": lambda heads: T.DeepseekV32ForCausalLM(T.DeepseekV32Config(**FIELDS, index_n_heads=heads)),
    "glm_moe_dsa": lambda heads: T.GlmMoeDsaForCausalLM(T.GlmMoeDsaConfig(**FIELDS, index_n_heads=heads, indexer_types=["full", "shared"])),
    "axk2": lambda heads: T.AXK2ForCausalLM(T.AXK2Config(**FIELDS, index_n_heads=heads)),
    "hy_v4": lambda heads: T.HYV4ForCausalLM(T.HYV4Config(**FIELDS, index_n_heads=heads)),
    "dots3_note": lambda heads: T.Dots3NoteForCausalLM(
        T.Dots3NoteTextConfig(
            **FIELDS,
            index_n_heads=heads,
            layer_types=["indexed_attention", "sliding_attention"],
            sliding_window=KEPT,
            shared_experts_intermediate_size=16,
            head_dim=16,
        )
    ),
}  # fmt: skip

NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("axk2", "hy_v4", "dots3_note") else name for name in MODELS
]


class FirstOfEqual(TorchDispatchMode):
    """``topk`` takes the first of equal numbers, as ONNX's does: PyTorch promises no order among them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.topk.default:
            return func(*args, **(kwargs or {}))
        numbers, count = args[0], args[1]
        assert args[2:] in ((), (-1,), (-1, True, False))
        values, indices = torch.sort(numbers, dim=-1, descending=True, stable=True)
        return values[..., :count], indices[..., :count]


def _model(name: str, heads: int) -> Any:
    with seeded(0):
        model = MODELS[name](heads).eval()
    move_constants(model)
    return model


def _ids(batch: int, tokens: int) -> torch.Tensor:
    with seeded(tokens):
        return torch.randint(5, 60, (batch, tokens))


class _Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


class _Exported:
    """A model, and its export in both engines."""

    def __init__(self, name: str, heads: int) -> None:
        self.eager = _Logits(_model(name, heads))
        model = fx2onnx.export(self.eager, (_ids(2, 9),), dynamic_shapes=AXES).model_proto.SerializeToString()
        self.sessions = [InferenceSession(model), onnxruntime.InferenceSession(model)]

    def check(self, ids: torch.Tensor, expected: torch.Tensor) -> None:
        for session in self.sessions:
            (got,) = session.run(None, {"input_ids": ids.numpy()})
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-5, err_msg=type(session).__module__)


@pytest.mark.long_cases("deepseek_v32", "glm_moe_dsa")
@pytest.mark.parametrize("name", NAMES)
def test_texts_shorter_and_longer_than_what_is_kept(name: str) -> None:
    done = _Exported(name, MANY)
    for batch, tokens in ((1, 1), (3, KEPT - 1), (2, KEPT), (2, KEPT + 1), (2, 40)):
        ids = _ids(batch, tokens)
        with torch.no_grad():
            done.check(ids, done.eager(ids))


@pytest.mark.long_cases("deepseek_v32", "glm_moe_dsa")
@pytest.mark.parametrize("name", NAMES)
def test_of_equally_good_keys_the_first_are_kept(name: str) -> None:
    done = _Exported(name, FEW)
    longer = _ids(2, 30)
    ids = longer[:, :-1]
    with torch.no_grad():
        chosen, later = done.eager(ids), done.eager(longer)[:, :-1]
        with FirstOfEqual():
            first, still = done.eager(ids), done.eager(longer)[:, :-1]
    assert (chosen - later).abs().max() > 1e-3  # eager PyTorch's choice changes with a token that is not seen
    torch.testing.assert_close(first, still)
    done.check(ids, first)


@pytest.mark.long_cases("glm_moe_dsa")
@pytest.mark.parametrize("name", ["glm_moe_dsa", pytest.param("deepseek_v32", marks=pytest.mark.slow)])
def test_tokens_of_prompts_longer_than_what_is_kept(name: str, tmp_path: Path) -> None:
    model, done = exported(lambda: MODELS[name](MANY), tmp_path / "out")
    assert not done.notes
    assert "past_key_values.0.indexer_keys" in done.sources["model.onnx"].kwargs
    assert_same_tokens(model, done, prompts((1,)), prompts((13, 7, 3)), new=6)
