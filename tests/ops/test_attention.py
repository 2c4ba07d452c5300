"""Scaled dot-product attention in every argument, and PyTorch's fused multi-head modules."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.ops import harness
from tests.ops.judge import Case, aten, case, judge, judge_at_other_sizes

R = torch.randn
torch.manual_seed(0)
SDPA = aten.scaled_dot_product_attention.default
Q, K, V = R(2, 4, 5, 8), R(2, 4, 6, 8), R(2, 4, 6, 7)
K2, V2 = R(2, 2, 6, 8), R(2, 2, 6, 7)
MASK = torch.rand(5, 6) > 0.4
MASK[1] = False  # a row that may attend to nothing: PyTorch gives zeros
BIAS = torch.zeros(5, 6).masked_fill(~MASK, -float("inf"))

CASES = [
    case(SDPA, Q, K, V, nodes=5),
    case(SDPA, Q, K, V, MASK, nodes=9),
    case(SDPA, Q, K, V, BIAS, nodes=10),
    case(SDPA, Q, K, V, R(2, 1, 5, 6)),
    case(SDPA, Q, K, V, is_causal=True, nodes=6),
    case(SDPA, K, Q, R(2, 4, 5, 7), is_causal=True),
    case(SDPA, Q, K, V, scale=0.3),
    case(SDPA, Q, K, V, scale=1.0, nodes=4),
    case(SDPA, Q, K, V, MASK[None].expand(4, 5, 6).contiguous()),
    case(SDPA, Q, K, V, MASK[:, :1].contiguous()),
    case(SDPA, Q, K, V, torch.rand(2, 1, 1, 6) > 0.3),
    case(SDPA, Q[0], K[0], V[0], MASK),
    case(SDPA, Q[0, 0], K[0, 0], V[0, 0]),
    case(SDPA, Q[None], K[None], V[None], is_causal=True),
    case(SDPA, Q, K2, V2, enable_gqa=True, nodes=9),
    case(SDPA, Q, K2, V2, MASK.expand(2, 4, 5, 6).contiguous(), enable_gqa=True),
    case(SDPA, Q, K2, V2, MASK.expand(2, 1, 5, 6).contiguous(), enable_gqa=True),
    case(SDPA, Q, K2, V2, is_causal=True, enable_gqa=True),
    case(SDPA, Q.double(), K.double(), V.double(), MASK),
    case(SDPA, Q.half(), K.half(), V.half(), MASK),
    case(SDPA, Q.bfloat16(), K.bfloat16(), V.bfloat16(), MASK),
    case(SDPA, R(1, 1, 100, 8), R(1, 1, 100, 8), R(1, 1, 100, 8), is_causal=True, nodes=8),
    case(aten._scaled_dot_product_flash_attention_for_cpu.default, Q, K, R(2, 4, 6, 8)),
    case(aten._scaled_dot_product_attention_math.default, Q, K, V, BIAS),
]
X = R(2, 3, 8)
PROJECTIONS = (R(24, 8), R(24), R(8, 8), R(8))
PADDING = torch.tensor([[False, True, True], [False] * 3])
MULTI_HEAD = aten._native_multi_head_attention.default
CASES += [
    case(MULTI_HEAD, X, X, X, 8, 2, *PROJECTIONS),
    case(MULTI_HEAD, X, X, X, 8, 2, *PROJECTIONS, PADDING[0].expand(3, 3).contiguous(), True, False, 0),
    case(MULTI_HEAD, X, X, X, 8, 2, *PROJECTIONS, PADDING, True, True, 1),
]
LAYER = (R(8), R(8), R(8), R(8), R(16, 8), R(16), R(8, 16), R(8))
CASES += [
    case(aten._transformer_encoder_layer_fwd.default, X, 8, 2, *PROJECTIONS, gelu, first, 1e-5, *LAYER, PADDING, 1)
    for gelu, first in itertools.product((False, True), (False, True))
]


@pytest.mark.parametrize("given_case", CASES, ids=lambda item: str(item)[:90])
def test_case(given_case: Case):
    judge(given_case)


@pytest.mark.parametrize("opset", [23, 24])
def test_one_attention_node_where_it_means_the_same(opset):
    for given_case in (
        case(SDPA, Q, K, V),
        case(SDPA, Q, K2, V2, enable_gqa=True),
        case(SDPA, Q, K, V, is_causal=True),
    ):
        call = harness.call_of(given_case.overload, *given_case.args, **given_case.kwargs)
        assert harness.check(call, opset).op_types == ["Attention"]


def test_a_finite_bias_needs_no_care_for_empty_rows():
    bias = harness.call_of(SDPA, Q, K, V, R(1, 4, 5, 6))
    assert "Where" not in harness.build(bias, 20, fixed=True).op_types
    masked = harness.call_of(SDPA, Q, K, V, BIAS)
    assert "Where" in harness.build(masked, 20, fixed=True).op_types


def test_other_sizes():
    others = [(R(3, 4, 7, 8), R(3, 4, 9, 8), R(3, 4, 9, 8))]
    symbols = {11: "n", 13: "rows", 14: "columns"}
    judge_at_other_sizes(SDPA, (R(11, 4, 13, 8), R(11, 4, 14, 8), R(11, 4, 14, 8)), others, symbols, is_causal=True)
