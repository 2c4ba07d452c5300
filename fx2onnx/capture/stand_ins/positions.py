"""Stand-ins for functions of transformers that make a plain number of a length, and a position of that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.capture.stand_ins.swap import StandIn


def prophetnet_positions(
    self: Any,
    inputs_shape: Any,
    device: Any,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    position_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``ProphetNetPositionalEmbeddings``, save that the length of the past may be a symbolic size.

    Shapes:  inputs_shape (batch, length) -> [batch or 1, length, width], int64 [batch or 1, length].
    """
    if position_ids is None and past_key_values is not None and past_key_values.get_seq_length() != 0:
        last = self.padding_idx + inputs_shape[1] + past_key_values.get_seq_length()
        position_ids = torch.ones((1, 1), dtype=torch.long, device=device) * last
    elif position_ids is None:
        if attention_mask is None:
            attention_mask = torch.ones(inputs_shape, dtype=torch.long, device=device)
        counted = torch.cumsum(attention_mask, dim=1).type_as(attention_mask) * attention_mask
        position_ids = (counted.long() + self.padding_idx).clamp(0, self.max_length - 1)
    return self._forward(position_ids), position_ids


def cpmant_mask(self: Any, input_ids: Tensor, span: Tensor, context: Tensor, length: Tensor) -> Tensor:
    """``CpmAntModel._prepare_attention_mask``, save that it counts the tokens from the last in the graph.

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


STAND_INS = (
    StandIn("transformers.models.cpmant.modeling_cpmant", "CpmAntModel._prepare_attention_mask", cpmant_mask, ""),
    StandIn(
        "transformers.models.prophetnet.modeling_prophetnet",
        "ProphetNetPositionalEmbeddings.forward",
        prophetnet_positions,
        "",
    ),
)
