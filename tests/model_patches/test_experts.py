"""Mixtures of experts whose Python loops over the experts that were chosen, which only the data tells."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fx2onnx.sources.seeding import seeded
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.dbrx import modeling_dbrx as dbrx  # noqa: E402
from transformers.models.longcat_flash import modeling_longcat_flash as longcat  # noqa: E402
from transformers.models.openai_privacy_filter import modeling_openai_privacy_filter as privacy_filter  # noqa: E402
from transformers.models.step3p7 import modeling_step3p7 as step  # noqa: E402
from transformers.models.switch_transformers import modeling_switch_transformers as switch  # noqa: E402

EXPERTS, TOKENS, WIDTH = 4, 7, 8


def _filled(module: torch.nn.Module) -> torch.nn.Module:
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return module


def _switch() -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    config = transformers.SwitchTransformersConfig(d_model=WIDTH, d_ff=16, num_experts=EXPERTS)
    return switch.SwitchTransformersExperts(config), lambda index: torch.nn.functional.one_hot(index[:, :1], EXPERTS)


def _hooked() -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    """One expert does more than the others, as with an adapter."""
    module, chosen = _switch()
    module.get_submodule("expert_1.wi").register_forward_hook(lambda _, __, made: made * 2)
    return module, chosen


def _longcat() -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    config = transformers.LongcatFlashConfig(
        hidden_size=WIDTH, expert_ffn_hidden_size=16, n_routed_experts=2, zero_expert_num=EXPERTS - 2
    )
    return _filled(longcat.LongcatFlashExperts(config)), lambda index: index


def _privacy_filter() -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    config = transformers.OpenAIPrivacyFilterConfig(
        hidden_size=WIDTH, intermediate_size=16, num_local_experts=EXPERTS, num_experts_per_tok=2
    )
    return _filled(privacy_filter.OpenAIPrivacyFilterExperts(config)), lambda index: index


def _step() -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    config = SimpleNamespace(num_local_experts=3, hidden_size=WIDTH, moe_intermediate_size=16, hidden_act="silu")
    return _filled(step.Step3p7Experts(config, swiglu_limit=0.5)), lambda index: index


def _dbrx() -> tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    config = SimpleNamespace(
        hidden_size=WIDTH, ffn_hidden_size=16, moe_num_experts=EXPERTS, ffn_act_fn={"name": "silu"}
    )
    return _filled(dbrx.DbrxExperts(config)), lambda index: index


def _case(build: Callable[[], object], kind: type[torch.nn.Module]) -> Any:
    return pytest.param(build, marks=pytest.mark.compares(f"{kind.__module__}:{kind.__name__}.forward"))


@pytest.mark.long_cases("_privacy_filter")
@pytest.mark.parametrize(
    "build",
    [
        _case(_switch, switch.SwitchTransformersExperts),
        _case(_hooked, switch.SwitchTransformersExperts),
        _case(_longcat, longcat.LongcatFlashExperts),
        _case(_privacy_filter, privacy_filter.OpenAIPrivacyFilterExperts),
        _case(_step, step.Step3p7Experts),
        _case(_dbrx, dbrx.DbrxExperts),
    ],
)
def test_every_expert_runs_on_the_tokens_that_chose_it(
    build: Callable[[], tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]],
) -> None:
    with seeded(0):
        module, chosen = build()
        states, weights = torch.randn(TOKENS, WIDTH), torch.rand(TOKENS, 2)
        scattered = torch.tensor([[0, 3], [1, 2], [3, 0], [2, 1], [1, 0], [3, 2], [0, 1]])
        crowded = torch.tensor([[1, 3]] * 3)  # some experts get no token
    width = chosen(scattered).shape[1]
    args = (states, chosen(scattered), weights[:, :width])
    others = [
        (states[:3], chosen(crowded), weights[:3, :width]),
        (states[:3], chosen(crowded - 1), weights[:3, :width]),
    ]
    result = check(module, args, others=others, dynamic_shapes=({0: "n"}, {0: "n"}, {0: "n"}))
    has_hooks = any(part._forward_hooks for part in module.modules())
    products = sum(node.op_type in ("MatMul", "Gemm") for node in result.model.graph.all_nodes())
    assert products <= (2 * EXPERTS if has_hooks else 3)  # else one Scan has the products of all experts
