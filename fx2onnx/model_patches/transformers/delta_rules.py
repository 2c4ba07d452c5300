"""Patches of the gated delta rule, which transformers computes chunk by chunk: a scan over the chunks where the length is a
dynamic size.

Where the number of chunks is known, the functions are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.transformers.chunked import by_chunk, grouped, in_order, inverse_of, is_dynamic, later, scan

_MODELS = "transformers.models"
_SIZE = 32
"""Positions of a chunk at most: within a chunk the work grows with its size, and for a processor's matrix products this is
large enough.
"""


@patches(
    *(
        f"{_MODELS}.{kind}.modeling_{kind}:torch_chunk_gated_delta_rule"
        for kind in ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid")
    ),
    around=True,
)
@patches(f"{_MODELS}.lara_mini.modeling_lara_mini:torch_chunk_gated_delta_rule", around=True, versions=">=5.24")
def gated_delta_rule(
    original: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Any:
    """``torch_chunk_gated_delta_rule``: one decay for all channels of a head.

    Shapes:  query, key [batch, length, key heads, d], value [batch, length, heads, e], g and beta [batch, length, heads]
        -> [batch, length, heads, e], and the last state [batch, heads, d, e] or None.
    """
    given = (query, key, value, g, beta, chunk_size, initial_state, output_final_state, use_qk_l2norm_in_kernel)
    if not is_dynamic(key.shape[1]):
        return original(*given, **kwargs)
    return delta_rule(query, key, value, g.unsqueeze(-1), *given[4:])


@patches(
    *(
        f"{_MODELS}.{kind}.modeling_{kind}:chunk_kimi_delta_attention"
        for kind in ("kimi_linear", "bailing_hybrid", "glm5_next")
    ),
    around=True,
)
def kimi_delta_attention(
    original: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Any:
    """``chunk_kimi_delta_attention``: a decay for each channel of a key.

    Shapes:  query, key, g [batch, length, heads, d], value [batch, length, heads, e], beta [batch, length, heads]
        -> [batch, length, heads, e], and the last state [batch, heads, d, e] or None.
    """
    given = (query, key, value, g, beta, chunk_size, initial_state, output_final_state, use_qk_l2norm_in_kernel)
    return delta_rule(*given) if is_dynamic(key.shape[1]) else original(*given, **kwargs)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    size: int,
    state: Tensor | None,
    wants_state: bool,
    is_normalized: bool,
) -> tuple[Tensor, Tensor | None]:
    """state = exp(decay) * state + key beta (value - key exp(decay) state), output = query state, ``size`` positions at once.

    Heads that share keys and queries are an axis behind those of the keys.

    Shapes:  decay [batch, length, heads, 1 or d], the others as above.
    """
    length, dtype, size = key.shape[1], query.dtype, min(size, _SIZE)
    keys, heads = key.shape[2], value.shape[2]
    if is_normalized:
        query, key = (_normalized(part.float()) for part in (query, key))
    query, key = (by_chunk(part.float(), size).unsqueeze(3) for part in (query * query.shape[-1] ** -0.5, key))
    parts = (value, decay, beta.unsqueeze(-1))
    value, decay, beta = (grouped(by_chunk(part.float(), size), 2, keys) for part in parts)
    so_far, is_of_heads = decay.cumsum(dim=-2), decay.shape[-1] == 1
    between = (so_far.unsqueeze(-2) - so_far.unsqueeze(-3) + later(size).unsqueeze(-1)).exp()

    def scores(left: Tensor) -> Tensor:
        if is_of_heads:
            return left @ key.mT * between.squeeze(-1)
        return (left.unsqueeze(-2) * key.unsqueeze(-3) * between).sum(-1)

    written = inverse_of(scores(key) * beta) * beta.mT
    total, to_the_end = so_far[..., -1, :, None].exp(), (so_far[..., -1:, :] - so_far).exp()
    inputs = (query, key, value, written, scores(query), so_far.exp(), to_the_end, total)
    if state is None:
        state = value.new_zeros(key.shape[1], heads, key.shape[-1], value.shape[-1])

    def step(
        state: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        written: Tensor,
        within: Tensor,
        kept: Tensor,
        to_the_end: Tensor,
        total: Tensor,
    ) -> Any:
        new = written @ (value - (key * kept) @ state)
        return state * total + (key * to_the_end).mT @ new, (query * kept) @ state + within @ new

    (state,), (output,) = scan(step, [grouped(state.float(), 1, keys)], inputs, 1)
    output = in_order(output.flatten(2, 3), length).to(dtype)
    return output, state.flatten(1, 2) if wants_state else None


def _normalized(numbers: Tensor) -> Tensor:
    return numbers / torch.sqrt((numbers * numbers).sum(dim=-1, keepdim=True) + 1e-6)
