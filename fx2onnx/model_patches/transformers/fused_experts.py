"""Mixtures of experts as one operator, for runtimes that have it: of transformers' modules whose gate it knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.transformers.experts import stacked_experts
from fx2onnx.torchcompat.dispatch import no_modes

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
