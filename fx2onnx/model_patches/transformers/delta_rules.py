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
from fx2onnx.model_patches.transformers.chunked import chunks, is_dynamic, scanned, solved

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
    groups = value.shape[2] // key.shape[2]
    if groups > 1:
        query, key = (part.repeat_interleave(groups, dim=2) for part in (query, key))
    return _chunked(query, key, value, g.unsqueeze(-1), *given[4:])


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
    return _chunked(*given) if is_dynamic(key.shape[1]) else original(*given, **kwargs)


def _chunked(
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

    Shapes:  decay [batch, length, heads, 1 or d], the others as above.
    """
    length, dtype, size = key.shape[1], query.dtype, min(size, _SIZE)
    if is_normalized:
        query, key = (_normalized(part.float()) for part in (query, key))
    parts = (query * query.shape[-1] ** -0.5, key, value, decay, beta.unsqueeze(-1))
    query, key, value, decay, beta = (chunks(part.transpose(1, 2).float(), size) for part in parts)
    so_far = decay.cumsum(dim=3)
    between = so_far.unsqueeze(4) - so_far.unsqueeze(3)
    later = torch.ones(size, size, dtype=torch.bool).triu(1)
    between = between.masked_fill(later[..., None], -torch.inf).exp()

    def scores(left: Tensor) -> Tensor:
        if decay.shape[-1] == 1:
            return left @ key.mT * between[..., 0]
        return (left.unsqueeze(4) * key.unsqueeze(3) * between).sum(-1)

    right = torch.cat([value * beta, key * beta * so_far.exp()], dim=-1)
    both = solved(scores(key * beta), right)
    added, read = both[..., : value.shape[-1]], both[..., value.shape[-1] :]
    to_the_end = (so_far[..., -1:, :] - so_far).exp()
    inputs = (query * so_far.exp(), (key * to_the_end).mT, added, read, scores(query), so_far[..., -1, :, None].exp())
    if state is None:
        state = value.new_zeros(key.shape[0], key.shape[1], key.shape[-1], value.shape[-1])

    def step(
        state: Tensor, query: Tensor, key: Tensor, added: Tensor, read: Tensor, within: Tensor, decay: Tensor
    ) -> Any:
        new = added - read @ state
        return state * decay + key @ new, query @ state + within @ new

    state, output = scanned(step, [state.float()], inputs, axis=2)
    output = output.flatten(2, 3)[:, :, :length].transpose(1, 2).to(dtype)
    return output, state if wants_state else None


def _normalized(numbers: Tensor) -> Tensor:
    return numbers / torch.sqrt((numbers * numbers).sum(dim=-1, keepdim=True) + 1e-6)
