"""Patches of attention over entries that are made of so many tokens each, whose Python checks whether there is one, and of indexers whose
Python goes through the queries one by one, since each sees another number of keys.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.operators import HIGHER_ORDER

_COMPRESSORS = "transformers.models.deepseek_v4.modeling_deepseek_v4"


@patches(f"{_COMPRESSORS}:DeepseekV4HCACompressor.forward")
def heavy_compressor(
    self: Any, hidden_states: Tensor, q_residual: Tensor, position_ids: Tensor, cache: Any, layer_idx: int
) -> tuple[Tensor, Tensor]:
    """``DeepseekV4HCACompressor``: a query sees the entries of whole groups before it, a single query sees all.

    Shapes:  hidden_states [batch, queries, width] -> [batch, 1, entries, head], bias [batch, 1, queries, entries].
    """
    entries = _entries(self, "compressor", hidden_states, _layer(cache, layer_idx))
    known = (position_ids + 1) // self.compress_rate
    hidden = torch.arange(entries.shape[1]) >= known[:, None, :, None]
    hidden = hidden & (torch.scalar_tensor(hidden_states.shape[1]) != 1)
    bias = torch.where(hidden, -torch.inf, 0.0).to(entries.dtype)
    return entries.unsqueeze(1), bias.expand(hidden_states.shape[0], -1, -1, -1)


@patches(f"{_COMPRESSORS}:DeepseekV4CSACompressor.forward")
def sparse_compressor(
    self: Any, hidden_states: Tensor, q_residual: Tensor, position_ids: Tensor, cache: Any, layer_idx: int
) -> tuple[Tensor, Tensor]:
    """``DeepseekV4CSACompressor``: entries of groups that overlap; a query sees those that its indexer picks.

    Shapes:  hidden_states [batch, queries, width] -> [batch, 1, entries, head], bias [batch, 1, queries, entries].
    """
    layer = _layer(cache, layer_idx)
    entries = _entries(self, "compressor", hidden_states, layer, overlapping=True)
    picked = self.indexer(hidden_states, q_residual, position_ids, cache, layer_idx)
    count = entries.shape[1]
    bias = entries.new_full((hidden_states.shape[0], hidden_states.shape[1], count + 1), -torch.inf)
    bias = bias.scatter(-1, torch.where(picked >= 0, picked, count), 0.0)
    return entries.unsqueeze(1), bias[:, None, :, :-1]


@patches(f"{_COMPRESSORS}:DeepseekV4Indexer.forward")
def indexer(
    self: Any, hidden_states: Tensor, q_residual: Tensor, position_ids: Tensor, cache: Any, layer_idx: int
) -> Tensor:
    """``DeepseekV4Indexer``: the entries of the best scores among those of whole groups before a query, else -1.

    Shapes:  hidden_states [batch, queries, width] -> int64 [batch, queries, index_topk or fewer].
    """
    entries = _entries(self, "indexer", hidden_states, _layer(cache, layer_idx), overlapping=True)
    batch, length, _ = hidden_states.shape
    cos, sin = self.rotary_emb(hidden_states, position_ids=position_ids, layer_type=self.rope_layer_type)
    query = self.q_b_proj(q_residual).view(batch, length, -1, self.head_dim).transpose(1, 2)
    query = _rotary(query, cos, sin).transpose(1, 2)
    known = ((position_ids + 1) // self.compress_rate).unsqueeze(-1)
    scores = self.scorer(query, entries, hidden_states)
    scores = torch.where(torch.arange(entries.shape[1]) >= known, -torch.inf, scores)
    best = scores.topk(torch.sym_min(self.index_topk, entries.shape[1]), dim=-1).indices  # type: ignore[no-untyped-call]
    return torch.where(best >= known, -1, best)


def _layer(cache: Any, index: int) -> Any:
    return None if cache is None else cache.layers[index]


def _rotary(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned: Tensor = sys.modules[_COMPRESSORS].apply_rotary_pos_emb(values, cos, sin)
    return turned


def _entries(self: Any, name: str, states: Tensor, layer: Any, *, overlapping: bool = False) -> Tensor:
    """All entries so far [batch, entries, head]: each the mean of its group's tokens, weighted by their gates."""
    batch, ratio = states.shape[0], self.compress_rate
    values, gates, first = self.kv_proj(states), self.gate_proj(states), 0
    if layer is None:
        whole = values.shape[1] // ratio * ratio
        values, gates = values[:, :whole], gates[:, :whole]
    else:
        values, gates, first = layer.store_compression_weights(name, values, gates)
    groups = values.shape[1] // ratio
    values, gates = _grouped(values, ratio), _grouped(gates, ratio) + self.position_bias
    if overlapping:
        values, gates = _with_the_group_before(values, gates, groups, name, layer, self.head_dim)
    weights = gates.softmax(dim=2, dtype=torch.float32).to(values.dtype)
    entries = self.kv_norm((values * weights).sum(dim=2))
    places = (torch.arange(groups + _EMPTY) * ratio + first).unsqueeze(0).expand(batch, -1)
    cos, sin = self.rotary_emb(entries, position_ids=places, layer_type=self.rope_layer_type)
    entries = _rotary(entries.unsqueeze(1), cos, sin).squeeze(1)[:, :groups]
    return entries if layer is None else layer.update_compressor_states(name, entries)


_EMPTY = 2
"""The number of empty groups behind the last that are worked on, too: no number of groups is a special one."""


def _grouped(numbers: Tensor, ratio: int) -> Tensor:
    """Shapes: [batch, groups * ratio, width] -> [batch, groups + _EMPTY, ratio, width]."""
    batch, length, width = numbers.shape
    filled = torch.nn.functional.pad(numbers, (0, 0, 0, _EMPTY * ratio))
    return filled.reshape(batch, length // ratio + _EMPTY, ratio, width)


def _with_the_group_before(
    values: Tensor, gates: Tensor, groups: Any, name: str, layer: Any, head: int
) -> tuple[Tensor, Tensor]:
    """The second half of each group's numbers beside the first half of those of the group before; ``groups`` are
    filled.

    Shapes:  values, gates [batch, .., tokens, 2 * head] -> twice [batch, .., 2 * tokens, head].
    """
    if layer is None:
        before = values.new_zeros(values.shape[0], values.shape[2], head), gates.new_full((), -torch.inf)
        before = before[0], before[1].expand_as(before[0])
    else:
        before = layer.update_overlap_state(name, values[:, :groups], gates[:, :groups], head)
    joined = []
    for left, numbers in zip(before, (values, gates), strict=True):
        lagging = torch.cat([left[:, None].to(numbers.dtype), numbers[..., :head]], dim=1)[:, :-1]
        joined.append(torch.cat([lagging, numbers[..., head:]], dim=2))
    return joined[0], joined[1]


_INDEXERS = "transformers.models.qwen4_exp.modeling_qwen4_exp"


@patches(f"{_INDEXERS}:Qwen4ExpTextQSAIndexer.forward")
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
    rotary = sys.modules[_INDEXERS].apply_rotary_pos_emb
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
