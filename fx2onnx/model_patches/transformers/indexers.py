"""Patch of indexers whose Python goes through the queries one by one, since each sees another number of keys."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.operators import HIGHER_ORDER

_MODULE = "transformers.models.qwen4_exp.modeling_qwen4_exp"


@patches(f"{_MODULE}:Qwen4ExpTextQSAIndexer.forward")
def block_indexer(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor,
    cache: Any,
) -> Tensor:
    """``Qwen4ExpTextQSAIndexer``: the keys that a query sees stand in blocks, in their order; it keeps the blocks of the
    best scores, and the keys behind the last whole block.

    Shapes:  hidden_states [batch, queries, width], position_embeddings twice [batch, keys, rotated], attention_mask
        [batch, 1, queries, keys] -> bool [batch, 1, queries, keys].
    Numerics:  blocks of equal scores: the first are kept; torch.topk promises no order.
    """
    rotary = sys.modules[_MODULE].apply_rotary_pos_emb
    batch, length, _ = hidden_states.shape
    cos, sin = position_embeddings
    heads, ratio, width = self.index_n_heads, self.compress_ratio, self.index_head_dim
    query, keys = torch.split(self.index_qk_proj(hidden_states), [heads * width, self.index_kv_heads * width], dim=-1)
    query = self.q_layernorm(query.reshape(batch, length, -1, width))
    query = rotary(query, cos=cos[:, -length:], sin=sin[:, -length:], unsqueeze_dim=2)
    keys = keys.reshape(batch, length, -1, width).squeeze(2)
    if cache is not None:
        keys = cache.update_indexer(keys, self.layer_idx)

    visible = (attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0)[:, 0]
    counted = visible.to(torch.int64)
    whole = counted.sum(-1, keepdim=True) // ratio
    block_of = (counted.cumsum(-1) - 1) // ratio
    count = visible.shape[-1]
    blocks = count // ratio + 2  # more than there are: no size is special

    def scores_of(counted: Tensor) -> Tensor:
        """The scores of the blocks that each query sees, or that all see: [batch, queries or 1, keys] -> [batch, queries,
        blocks].
        """
        order = torch.argsort(1 - counted, dim=-1, stable=True)
        places = (torch.arange(blocks).unsqueeze(1) * ratio + torch.arange(ratio)).clamp(max=count - 1)
        order = order[..., places]
        pooled = _rows(keys, order).float().mean(dim=3).to(keys.dtype)
        turns = {"cos": _rows(cos, order[..., :1]).squeeze(3), "sin": _rows(sin, order[..., :1]).squeeze(3)}
        pooled = rotary(self.k_layernorm(pooled).unsqueeze(3), **turns, unsqueeze_dim=3).squeeze(3)
        scores = torch.matmul(query.float(), pooled.float().transpose(-1, -2))
        return torch.relu(scores).sum(dim=2) / math.sqrt(width)

    # Where each query sees the first so many of the keys that any does, as behind causal masks, its blocks are those of all.
    seen = counted.amax(dim=1, keepdim=True)
    are_first = (counted == seen * (seen.cumsum(-1) <= counted.sum(-1, keepdim=True))).all()
    scores: Tensor = HIGHER_ORDER["cond"](are_first, lambda: scores_of(seen), lambda: scores_of(counted), ())
    scores = torch.where(torch.arange(blocks) < whole, scores, -torch.inf)
    best = scores.topk(torch.sym_min(self.block_topk, blocks), dim=-1).indices  # type: ignore[no-untyped-call]
    kept = torch.zeros(batch, length, blocks, dtype=torch.bool).scatter(-1, best, True)
    selected: Tensor = visible & (kept.gather(-1, block_of.clamp(min=0)) | (block_of >= whole))
    return selected.unsqueeze(1)


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Shapes: values [batch, keys, width], places [batch, queries, n, m] -> [batch, queries, n, m, width]."""
    batch = torch.arange(values.shape[0]).view(-1, 1, 1, 1)
    return values[batch, places]
