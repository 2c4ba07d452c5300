"""Gated delta rules, which transformers computes chunk by chunk, exported for every length."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import fx2onnx
from tests.support import check

pytest.importorskip("transformers", reason="transformers is not installed")

CHUNK = 8
GATED = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid", "lara_mini")
KIMI = ("kimi_linear", "bailing_hybrid", "glm5_next")
RULES = [
    pytest.param(kind, name, marks=pytest.mark.compares(f"transformers.models.{kind}.modeling_{kind}:{name}"), id=kind)
    for kinds, name in ((GATED, "torch_chunk_gated_delta_rule"), (KIMI, "chunk_kimi_delta_attention"))
    for kind in kinds
]


def _rule(kind: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"), name)


def _forward(rule: Any, heads: int) -> Any:
    """Twice: from a state and from none, with and without normalized keys."""
    weights = [torch.randn(5, heads, width) for width in (4, 4, 3, 4, 1)]
    state = torch.randn(1, heads, 4, 3)

    def forward(x: torch.Tensor) -> Any:
        query, key, value, decay, beta = (torch.einsum("blc,chw->blhw", x, weight) for weight in weights)
        per_head = rule.__name__.startswith("torch")
        decay = -torch.nn.functional.softplus(decay[..., 0] if per_head else decay)
        keys = 1 if per_head else heads
        given = (query[:, :, :keys], key[:, :, :keys], value, decay, beta[..., 0].sigmoid())
        before = state.expand(x.shape[0], -1, -1, -1)
        normalized = rule(*given, CHUNK, before, output_final_state=True, use_qk_l2norm_in_kernel=True)
        return normalized, rule(given[0] * 0.2, given[1] * 0.2, *given[2:], chunk_size=CHUNK, initial_state=None)[0]

    return forward


def _samples(*lengths: int) -> list[Any]:
    torch.manual_seed(0)
    return [(torch.randn(2, length, 5),) for length in lengths]


@pytest.mark.long_cases(but=["olmo_hybrid", "lara_mini"])
@pytest.mark.parametrize(("kind", "name"), RULES)
def test_every_length(kind: str, name: str) -> None:
    sample, *others = _samples(2 * CHUNK + 3, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK)
    dims = {"x": {0: "batch", 1: "length"}}
    result = check(_forward(_rule(kind, name), 2), sample, others=others, dynamic_shapes=dims)
    assert not [each for each in result.report.assumptions if each.kind == "condition"]


@pytest.mark.long
def test_a_fixed_number_of_chunks_is_stepped_through() -> None:
    rule = _rule("kimi_linear", "chunk_kimi_delta_attention")
    result = fx2onnx.export(_forward(rule, 2), _samples(CHUNK + 1)[0])
    assert "Loop" not in {node.op_type for node in result.model.graph}
