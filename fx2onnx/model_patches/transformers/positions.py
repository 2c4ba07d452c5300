"""Patches of functions of transformers that make a plain number of a length, and a position of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches


@patches("transformers.models.prophetnet.modeling_prophetnet:ProphetNetPositionalEmbeddings.forward")
def prophetnet_positions(
    self: Any,
    inputs_shape: Any,
    device: Any,
    attention_mask: Tensor | None = None,
    cache: Any = None,
    position_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``ProphetNetPositionalEmbeddings``, except that the length of the past may be a symbolic size.

    Shapes:  inputs_shape (batch, length) -> [batch or 1, length, width], int64 [batch or 1, length].
    """
    if position_ids is None and cache is not None and cache.get_seq_length() != 0:
        last = self.padding_idx + inputs_shape[1] + cache.get_seq_length()
        position_ids = torch.ones((1, 1), dtype=torch.long, device=device) * last
    elif position_ids is None:
        if attention_mask is None:
            attention_mask = torch.ones(inputs_shape, dtype=torch.long, device=device)
        counted = torch.cumsum(attention_mask, dim=1).type_as(attention_mask) * attention_mask
        position_ids = (counted.long() + self.padding_idx).clamp(0, self.max_length - 1)
    return self._forward(position_ids), position_ids


@patches("transformers.models.cpmant.modeling_cpmant:CpmAntModel._prepare_attention_mask")
def cpmant_mask(self: Any, input_ids: Tensor, span: Tensor, context: Tensor, length: Tensor) -> Tensor:
    """``CpmAntModel._prepare_attention_mask``, except that it counts the tokens from the last in the graph.

    Shapes:  input_ids, span, context [batch, prompt + tokens], length [batch] -> bool [batch, all, all].
    """
    batch, total = input_ids.shape
    place = torch.arange(total, device=input_ids.device)
    seen = context[:, None, :] | (
        context[:, :, None].logical_not() & (place <= place.view(-1, 1)).view(1, total, total)
    )
    seen = seen & (span[:, None, :] == span[:, :, None])
    from_last = torch.arange(total - self.prompt_length, device=input_ids.device).flip(0)[None].repeat(batch, 1)
    learned = torch.ones(batch, self.prompt_length, dtype=torch.bool, device=input_ids.device)
    kept = torch.cat((learned, from_last < length[:, None]), dim=1)
    return kept.view(batch, total, 1) & kept.view(batch, 1, total) & seen


@patches("transformers.models.reformer.modeling_reformer:AxialPositionEmbeddings.forward", around=True)
def axial_positions(original: Callable[..., Tensor], self: Any, position_ids: Tensor) -> Tensor:
    """``reformer.AxialPositionEmbeddings`` in one look-up, where Python goes through the batch.

    Shapes:  position_ids [batch, length], self.weights [rows, 1, w0] and [1, columns, w1] -> [batch, length, w0 + w1].
    """
    if self.training:
        return original(self, position_ids)
    table = torch.cat([weight.expand(*self.axial_pos_shape, -1) for weight in self.weights], dim=-1)
    return torch.nn.functional.embedding(position_ids, table.flatten(0, -2))


@dataclass(frozen=True, slots=True)
class _Places:
    """A list of positions: perhaps a head, then ``first``, ``first + step``, ..., ``count`` of them."""

    first: int
    step: int
    count: Any
    head: int | None = None

    def start(self) -> int:
        return self.first if self.head is None else self.head

    def length(self) -> Any:
        return self.count if self.head is None else self.count + 1

    def last(self) -> Any:
        """The last position; with a ``count`` of 0 it is one step before ``first``."""
        return self.first + self.step * (self.count - 1)

    def pooled(self, config: Any, block_index: int) -> _Places:
        """Every second one; the token of the class stays by itself. Source: FunnelAttentionStructure.stride_pool_pos."""
        kept, head = self, None
        if config.separate_cls:
            head = 1 - 2**block_index
            if self.head is None:
                kept = replace(kept, first=self.first + self.step, count=self.count - 1)
            if config.truncate_seq:
                kept = replace(kept, count=torch.sym_max(kept.count - 1, 0))  # type: ignore[no-untyped-call]
        return _Places(kept.first, 2 * kept.step, (kept.count + 1) // 2, head)


@patches("transformers.models.funnel.modeling_funnel:FunnelAttentionStructure.get_position_embeds", around=True)
def funnel_positions(
    original: Callable[..., Any], self: Any, seq_len: Any, dtype: torch.dtype, device: torch.device
) -> Any:
    """``FunnelAttentionStructure.get_position_embeds``, whose lists of positions are as long as the sequence.

    Shapes:  seq_len -> for each block [of its own positions, of pooled ones to the block's before], each [distances, width].
    """
    config = self.config
    if type(seq_len) is not torch.SymInt or config.attention_type == "factorized":
        return original(self, seq_len, dtype, device)
    half = config.d_model // 2
    inverse = 1 / (10000 ** (torch.arange(0, half, 1.0, dtype=torch.int64, device=device).to(dtype) / half))

    def embedded(places: _Places, pooled: _Places, stride: int, shift: int) -> Tensor:
        """The embeddings of the distances that ``relative_pos`` lists, from the greatest down."""
        greatest = pooled.start() - places.start() + shift * pooled.length() * stride
        distances = torch.arange(
            greatest, pooled.start() - places.last() - 1, -stride, dtype=torch.int64, device=device
        )
        angles = distances.to(dtype)[:, None] * inverse[None]
        return torch.cat([self.sin_dropout(torch.sin(angles)), self.cos_dropout(torch.cos(angles))], dim=-1)

    places, embeddings = _Places(0, 1, seq_len), []
    for block in range(config.num_blocks):
        before, pooling = places, None
        if block:
            places = before.pooled(config, block)
            pooling = embedded(before, places, 2 ** (block - 1), 2)
        embeddings.append([embedded(places, places, 2**block, 1), pooling])
    return embeddings


@patches("transformers.models.sam3.modeling_sam3:Sam3ViTEmbeddings._tile_position_embeddings", around=True)
def tiled_positions(
    original: Callable[..., Tensor], self: Any, position_embeddings: Tensor, height: Any, width: Any
) -> Tensor:
    """``Sam3ViTEmbeddings._tile_position_embeddings``, which asks whether there is more than one tile.

    Shapes:  position_embeddings [1, size * size, width] -> [1, height * width, width].
    """
    if type(height) is int and type(width) is int:
        return original(self, position_embeddings, height, width)
    size = int(position_embeddings.shape[1] ** 0.5)
    row, column = (torch.arange(count) % size for count in (height, width))
    return position_embeddings.index_select(1, (row[:, None] * size + column).flatten())
