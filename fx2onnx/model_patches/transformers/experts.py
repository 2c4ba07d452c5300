"""Patches of mixtures of experts whose Python loops over the experts that some token chose, and mixtures as one operator for runtimes that
have it.

Which those are depends on data, so all are run, on the tokens that chose them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.nn.functional import linear

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.dispatch import no_modes
from fx2onnx.torchcompat.operators import HIGHER_ORDER


@patches("transformers.models.switch_transformers.modeling_switch_transformers:SwitchTransformersExperts.forward")
def switch_experts(self: Any, hidden_states: Tensor, selected_experts: Tensor, routing_weights: Tensor) -> Tensor:
    """``SwitchTransformersExperts``: each expert on the tokens that chose it; on none it adds nothing.

    Shapes:  hidden_states [tokens, width], selected_experts int [tokens, choices, experts], routing_weights
        [tokens, choices] -> [tokens, width].
    """
    experts = [self[f"expert_{index}"] for index in range(self.num_experts)]
    if _are_alike(experts):
        first, names = experts[0], [name for name, _ in experts[0].named_parameters()]
        stacks = [torch.stack([expert.get_parameter(name) for expert in experts]) for name in names]

        def expert(x: Tensor, *parts: Tensor) -> Tensor:
            return functional_call(first, dict(zip(names, parts, strict=True)), (x,))  # type: ignore[no-any-return]

        return _by_expert(expert, stacks, hidden_states, selected_experts, routing_weights)
    total = torch.zeros_like(hidden_states)
    for index, module in enumerate(experts):
        token, choice = torch.where(selected_experts[..., index])
        output = module(hidden_states[token]) * routing_weights[token, choice, None]
        total.index_add_(0, token, output.to(hidden_states.dtype))
    return total


def _are_alike(experts: Sequence[torch.nn.Module]) -> bool:
    """Return whether the experts differ in the numbers of their parameters alone; an adapter of one of them is a hook."""

    def facts(expert: torch.nn.Module) -> list[object]:
        kinds = [(name, type(part)) for name, part in expert.named_modules()]
        return [kinds, [(name, each.shape, each.dtype) for name, each in expert.named_parameters()]]

    parts = [part for expert in experts for part in expert.modules()]
    has_more = any(part._forward_hooks or part._forward_pre_hooks or part._buffers for part in parts)
    return not has_more and all(facts(expert) == facts(experts[0]) for expert in experts[1:])


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

    def expert(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        both = x.float() @ up.float() + up_bias.float()
        outer: Tensor = self._apply_gate(both).float() @ down.float() + down_bias.float()
        return outer

    stacks = self.gate_up_proj, self.gate_up_proj_bias, self.down_proj, self.down_proj_bias
    return _by_expert(expert, stacks, hidden_states, router_indices, routing_weights.float())


@patches("transformers.models.step3p7.modeling_step3p7:Step3p7Experts.forward")
def step_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """``Step3p7Experts``: each expert on the tokens that chose it; ids from ``num_experts`` on belong to nobody.

    Shapes:  hidden_states [tokens, width], top_k_index and top_k_weights [tokens, choices] -> [tokens, width].
    """

    def expert(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return linear(self._apply_gate(linear(x, up)), down)

    return _by_expert(expert, (self.gate_up_proj, self.down_proj), hidden_states, top_k_index, top_k_weights)


@patches("transformers.models.dbrx.modeling_dbrx:DbrxExperts.forward")
def dbrx_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """``DbrxExperts``, whose weights stand one expert after the other in three matrices.

    Shapes:  hidden_states [batch, .., width], top_k_index and top_k_weights [tokens, choices] -> [batch, -1, width].
    """
    stacks = [
        weight.view(-1, self.ffn_hidden_size, self.hidden_size) for weight in (self.mlp.w1, self.mlp.v1, self.mlp.w2)
    ]
    states = hidden_states.reshape(-1, self.hidden_size)
    total = _by_expert(self.mlp, stacks, states, top_k_index, top_k_weights)
    return total.view(hidden_states.shape[0], -1, self.hidden_size)


@patches(
    "transformers.integrations.moe:grouped_mm_experts_forward",
    "transformers.integrations.moe:batched_mm_experts_forward",
    around=True,
)
def stacked_experts(
    original: Callable[..., Tensor], self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Experts whose weights are stacked, each on the tokens that chose it; ids from ``num_experts`` on belong to nobody.
    Gradients go through the products in groups.

    Shapes:  hidden_states [tokens, width], top_k_index and top_k_weights [tokens, choices] -> [tokens, width].
    """
    if torch.is_grad_enabled():
        return original(self, hidden_states, top_k_index, top_k_weights)

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self.is_transposed:
            return linear(x, weight, bias)
        return x @ weight if bias is None else x @ weight + bias

    def expert(
        x: Tensor, up: Tensor, down: Tensor, up_bias: Tensor | None = None, down_bias: Tensor | None = None
    ) -> Tensor:
        inner = product(x, up, up_bias)
        outer = product(self._apply_gate(inner) if self.has_gate else self.act_fn(inner), down, down_bias)
        return self.post_expert_norm(outer) if self.has_post_expert_norm else outer

    first = "gate_up_proj" if self.has_gate else "up_proj"
    names = [first, "down_proj", *([f"{first}_bias", "down_proj_bias"] if self.has_bias else ())]
    stacks = [getattr(self, name) for name in names]
    return _by_expert(expert, stacks, hidden_states, top_k_index, top_k_weights)


def _by_expert(
    expert: Callable[..., Tensor], stacks: Sequence[Tensor], x: Tensor, index: Tensor, shares: Tensor
) -> Tensor:
    """The sum over the experts of their results for the tokens that chose them, times the shares. A scan over the weights, so that
    the graph does not grow with the experts, and a runtime reads no weight of one that nobody chose; a Python loop where
    gradients are on.

    expert: takes tokens and its part of each stack.
    Shapes:  stacks [experts, ..], x [tokens, width], index and shares [tokens, choices] -> [tokens, width]; index may be
        what each expert takes instead, [tokens, choices, experts].
    """
    places = torch.arange(x.shape[0], device=x.device)[:, None].expand_as(shares).reshape(-1)
    is_mask = index.dim() > shares.dim()
    operands = x, places, index.reshape(-1)[:0] if is_mask else index.reshape(-1), shares.reshape(-1, 1)

    def turn(total: Tensor, number: Tensor, *rest: Tensor) -> tuple[Tensor]:
        x, places, index, shares = rest[len(stacks) :]
        chosen = (number if is_mask else index == number).nonzero().reshape(-1)
        token = places[chosen]
        result = expert(x[token], *rest[: len(stacks)]) * shares[chosen]
        return (total.index_add(0, token, result.to(total.dtype)),)

    numbers = torch.arange(stacks[0].shape[0], device=x.device)
    if is_mask:
        numbers = index.permute(2, 0, 1).reshape(stacks[0].shape[0], -1)
    total = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))  # in which few bits are lost
    if torch.is_grad_enabled():
        for parts in zip(numbers, *stacks, strict=True):
            (total,) = turn(total, *parts, *operands)
    else:
        (total,) = HIGHER_ORDER["scan"](turn, [total], [numbers, *stacks], operands)
    return total.to(x.dtype)


_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "experts(Tensor x, Tensor index, Tensor shares, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, "
    "str activation, float alpha, float beta, float limit, bool interleaved, bool turned) -> Tensor"
)


class Gate(NamedTuple):
    """The step between the two products of an expert: ``activation``, or swiglu, min(g, limit) * sigmoid(alpha * min(g,
    limit)) * (clip(u, -limit, limit) + beta), of numbers g and u that stand in turn (interleaved) or in halves.
    """

    activation: str
    alpha: float = 1.0
    beta: float = 0.0
    limit: float = math.inf
    interleaved: bool = False

    def of(self, x: Tensor) -> Tensor:
        """The activations of the expert for the results of its first product."""
        if self.activation != "swiglu":
            return ACTIVATIONS[self.activation](x)
        gate, up = (x[..., 0::2], x[..., 1::2]) if self.interleaved else x.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate * torch.sigmoid(self.alpha * gate) * (up + self.beta)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "identity": lambda x: x,
}
"""The activations that onnxruntime's operator has for an expert without a gate."""
SMALL, WIDE = 1 / 128, 1e4
"""Numbers that every limit is between."""


def _experts(
    x: Tensor,
    index: Tensor,
    shares: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    activation: str,
    alpha: float,
    beta: float,
    limit: float,
    interleaved: bool,
    turned: bool,
) -> Tensor:
    gate, total = Gate(activation, alpha, beta, limit, interleaved), torch.zeros_like(x)
    for expert in range(len(up)):
        token, choice = torch.where(index == expert)
        first, second = (up[expert].T, down[expert].T) if turned else (up[expert], down[expert])
        inner = functional.linear(x[token], first, None if up_bias is None else up_bias[expert])
        outer = functional.linear(gate.of(inner), second, None if down_bias is None else down_bias[expert])
        total.index_add_(0, token, (outer * shares[token, choice, None]).to(x.dtype))
    return total


_LIBRARY.impl("experts", _experts, "CompositeExplicitAutograd")
torch.library.register_fake("fx2onnx::experts", lambda x, *_: torch.empty_like(x), lib=_LIBRARY)
EXPERTS: Any = torch.ops.fx2onnx.experts.default


@patches(
    "transformers.integrations.moe:grouped_mm_experts_forward",
    "transformers.integrations.moe:batched_mm_experts_forward",
    around=True,
    is_fused=True,
)
def experts(
    original: Callable[..., Tensor], self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The experts as one operator, where it can say what they compute; else a scan.

    Shapes:  hidden_states [tokens, width], top_k_index and top_k_weights [tokens, choices] -> [tokens, width].
    """
    plain = self._is_expert_parallel or self.has_post_expert_norm or hidden_states.dtype != torch.float32
    gate = None if plain else gate_of(self)
    if gate is None:
        return stacked_experts(original, self, hidden_states, top_k_index, top_k_weights)
    first = "gate_up_proj" if self.has_gate else "up_proj"
    up_bias, down_bias = (getattr(self, f"{name}_bias") if self.has_bias else None for name in (first, "down_proj"))
    operands = (hidden_states, top_k_index, top_k_weights, getattr(self, first), up_bias, self.down_proj, down_bias)
    found: Tensor = EXPERTS(*operands, *gate, self.is_transposed)
    return found


def gate_of(module: Any) -> Gate | None:
    """The gate of a module of experts, as its own function shows it on a few numbers; None where the operator has no such."""
    with no_modes(), torch.no_grad():
        try:
            if module.has_gate:
                return next(filter(None, (_swiglu(module._apply_gate, each) for each in (False, True))), None)
            x = torch.linspace(-9, 9, 41, dtype=torch.float64)[None]
            given = module.act_fn(x)
            return next((Gate(name) for name, one in ACTIVATIONS.items() if torch.allclose(given, one(x))), None)
        except Exception:  # a gate of its own kind, which takes other numbers
            return None


def _swiglu(function: Callable[[Tensor], Tensor], interleaved: bool) -> Gate | None:
    """The numbers of the swiglu that ``function`` computes; None where it is none."""

    def at(gates: list[float], ups: list[float]) -> Tensor:
        pair = torch.tensor(gates, dtype=torch.float64)[:, None], torch.tensor(ups, dtype=torch.float64)[:, None]
        return function(torch.cat(pair, dim=-1))[:, 0]

    without, little, much = at([SMALL] * 3, [0.0, SMALL, WIDE]).tolist()
    gated = (little - without) / SMALL
    share = gated / SMALL
    if not 0 < share < 1:
        return None
    reach = (much - without) / gated
    numbers = math.log(share / (1 - share)) / SMALL, without / gated, reach if reach < WIDE / 2 else math.inf
    alpha, beta, limit = (float(np.float32(number)) for number in numbers)
    found = Gate("swiglu", alpha, beta, limit, interleaved)
    most = 3 * limit if limit < math.inf else 20.0
    line = torch.linspace(-most, most, 24, dtype=torch.float64)
    x = torch.cartesian_prod(line, line).T.reshape(1, 2, -1)
    whole = (x.transpose(1, 2) if interleaved else x).reshape(1, -1)
    return found if torch.allclose(function(whole), found.of(whole), rtol=1e-5, atol=1e-6) else None
