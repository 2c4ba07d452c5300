"""Patches of mixtures of experts whose Python loops over the experts that some token chose.

Which those are depends on data, so all are run, on the tokens that chose them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches


@patches("transformers.models.switch_transformers.modeling_switch_transformers:SwitchTransformersExperts.forward")
def switch_experts(self: Any, hidden_states: Tensor, selected_experts: Tensor, routing_weights: Tensor) -> Tensor:
    """``SwitchTransformersExperts``: each expert on the tokens that chose it; on none it adds nothing.

    Shapes:  hidden_states [tokens, width], selected_experts int [tokens, choices, experts], routing_weights
        [tokens, choices] -> [tokens, width].
    """
    total = torch.zeros_like(hidden_states)
    for index in range(self.num_experts):
        token, choice = torch.where(selected_experts[..., index])
        output = self[f"expert_{index}"](hidden_states[token]) * routing_weights[token, choice, None]
        total.index_add_(0, token, output.to(hidden_states.dtype))
    return total


@patches("transformers.models.longcat_flash.modeling_longcat_flash:LongcatFlashExperts.forward")
def longcat_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """``LongcatFlashExperts``: the experts with weights in groups, as transformers runs them elsewhere; the others,
    counted after those, return what they get.

    Shapes:  hidden_states [tokens, width], top_k_index and top_k_weights [tokens, choices] -> [tokens, width].
    """
    from transformers.integrations.moe import grouped_mm_experts_forward

    count = self.num_routed_experts
    kept = torch.where(top_k_index >= count, top_k_weights, 0).sum(dim=-1, keepdim=True)
    total = (hidden_states * kept).to(hidden_states.dtype)
    if self.gate_up_proj is None:
        return total
    routed = SimpleNamespace(
        num_experts=count,
        _is_expert_parallel=True,  # ids from ``count`` on belong to nobody
        has_gate=True,
        has_bias=False,
        is_transposed=False,
        has_post_expert_norm=False,
        gate_up_proj=self.gate_up_proj[:count],
        down_proj=self.down_proj,
        _apply_gate=partial(_gated, self.act_fn),
    )
    grouped: Tensor = grouped_mm_experts_forward(routed, hidden_states, top_k_index, top_k_weights)
    return total + grouped


def _gated(activation: Callable[[Tensor], Tensor], both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return activation(gate) * up


@patches("transformers.models.openai_privacy_filter.modeling_openai_privacy_filter:OpenAIPrivacyFilterExperts.forward")
def privacy_filter_experts(
    self: Any, hidden_states: Tensor, router_indices: Any = None, routing_weights: Any = None
) -> Tensor:
    """``OpenAIPrivacyFilterExperts``: each expert, in float32, on the tokens that chose it.

    Shapes:  hidden_states [tokens, width], router_indices and routing_weights [tokens, choices] -> [tokens, width].
    """
    total = torch.zeros_like(hidden_states, dtype=torch.float32)
    for index in range(self.num_experts):
        token, choice = torch.where(router_indices == index)
        both = hidden_states[token].float() @ self.gate_up_proj[index].float() + self.gate_up_proj_bias[index].float()
        output = self._apply_gate(both).float() @ self.down_proj[index].float() + self.down_proj_bias[index].float()
        total.index_add_(0, token, output * routing_weights[token, choice, None].float())
    return total.to(hidden_states.dtype)


@patches("transformers.models.step3p7.modeling_step3p7:Step3p7Experts.forward")
def step_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """``Step3p7Experts``: each expert on the tokens that chose it; ids from ``num_experts`` on belong to nobody.

    Shapes:  hidden_states [tokens, width], top_k_index and top_k_weights [tokens, choices] -> [tokens, width].
    """
    total = torch.zeros_like(hidden_states)
    for index in range(self.num_experts):
        token, choice = torch.where(top_k_index == index)
        gated = self._apply_gate(torch.nn.functional.linear(hidden_states[token], self.gate_up_proj[index]))
        output = torch.nn.functional.linear(gated, self.down_proj[index]) * top_k_weights[token, choice, None]
        total.index_add_(0, token, output.to(total.dtype))
    return total


@patches("transformers.models.dbrx.modeling_dbrx:DbrxExperts.forward")
def dbrx_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """``DbrxExperts``, whose weights stand one expert after the other in three matrices.

    Shapes:  hidden_states [batch, .., width], top_k_index and top_k_weights [tokens, choices] -> [batch, -1, width].
    """
    states = hidden_states.reshape(-1, self.hidden_size)
    total = torch.zeros_like(states)
    w1, v1, w2 = (
        weight.view(-1, self.ffn_hidden_size, self.hidden_size) for weight in (self.mlp.w1, self.mlp.v1, self.mlp.w2)
    )
    for index in range(self.num_experts):
        token, choice = torch.where(top_k_index == index)
        output = self.mlp(states[token], w1[index], v1[index], w2[index])
        total.index_add_(0, token, output * top_k_weights[token, choice, None])
    return total.view(hidden_states.shape[0], -1, self.hidden_size)
