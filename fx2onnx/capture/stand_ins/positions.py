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


STAND_INS = (
    StandIn(
        "transformers.models.prophetnet.modeling_prophetnet",
        "ProphetNetPositionalEmbeddings.forward",
        prophetnet_positions,
        "",
    ),
)
