"""Patches of attention over entries that are made of so many tokens each, whose Python checks whether there is one."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches

_MODULE = "transformers.models.deepseek_v4.modeling_deepseek_v4"


@patches(f"{_MODULE}:DeepseekV4HCACompressor.forward")
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


@patches(f"{_MODULE}:DeepseekV4CSACompressor.forward")
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


@patches(f"{_MODULE}:DeepseekV4Indexer.forward")
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
    turned: Tensor = sys.modules[_MODULE].apply_rotary_pos_emb(values, cos, sin)
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
"""So many groups of nothing behind the last are worked on, too: no number of groups is a special one."""


def _grouped(numbers: Tensor, ratio: int) -> Tensor:
    """Shapes: [batch, groups * ratio, width] -> [batch, groups + _EMPTY, ratio, width]."""
    batch, length, width = numbers.shape
    filled = torch.nn.functional.pad(numbers, (0, 0, 0, _EMPTY * ratio))
    return filled.reshape(batch, length // ratio + _EMPTY, ratio, width)


def _with_the_group_before(
    values: Tensor, gates: Tensor, groups: Any, name: str, layer: Any, head: int
) -> tuple[Tensor, Tensor]:
    """Beside the second half of each group's numbers, the first half of those of the group before; ``groups`` are filled.

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
