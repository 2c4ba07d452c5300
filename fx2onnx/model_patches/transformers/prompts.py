"""Prompts of detectors and documents."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches

_MODULE = "transformers.models.udop.modeling_udop"


@patches(
    f"{_MODULE}:combine_image_text_embeddings",
    reason="counts the patches without words: they are sorted to the front",
)
def combine_image_text_embeddings(
    image_embeddings: Tensor,
    inputs_embeds: Tensor,
    bbox: Tensor,
    visual_bbox: Tensor | None,
    attention_mask: Tensor | None = None,
    num_patches: int = 14,
    max_len: int = 0,
    image_size: int = 224,
    patch_size: int = 16,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Words get the patch in which they lie; the patches without words follow in their order, filled up with zeros.

    Shapes:  image_embeddings [batch, patches, width], inputs_embeds [batch, words, width], bbox [batch, words, 4]
        -> [batch, words + patches, width], [batch, words + patches, 4], and a mask [batch, words + patches].
    """
    middle_x, middle_y = ((bbox[:, :, side] + bbox[:, :, side + 2]) / 2.0 * num_patches for side in (0, 1))
    column, row = (torch.clip(torch.floor(middle).long(), 0, num_patches - 1) for middle in (middle_x, middle_y))
    places = column + row * num_patches
    bbox = bbox.to(torch.float64)
    mean = bbox.mean(-1)
    under = image_embeddings.gather(1, places.unsqueeze(-1).expand(-1, -1, image_embeddings.shape[-1]))
    inputs_embeds += torch.where(((mean == 0.0) | (mean == 1.0)).unsqueeze(-1), 0.0, under)

    free = torch.ones_like(image_embeddings[:, :, 0], dtype=torch.bool).scatter(1, places, False)
    order = torch.argsort((~free).to(torch.int64), dim=1, stable=True)
    if visual_bbox is None:
        made: Tensor = sys.modules[_MODULE].get_visual_bbox(image_size=image_size, patch_size=patch_size)
        visual_bbox = made.unsqueeze(0).repeat(image_embeddings.shape[0], 1, 1).to(image_embeddings.device)
    wanted = image_embeddings.shape[1] if max_len == 0 else max_len - inputs_embeds.shape[1]
    kept = free.gather(1, order)

    def packed(values: Tensor) -> Tensor:
        """``values`` [batch, patches, n] of the free patches, then zeros, ``wanted`` in all."""
        sorted_values = values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
        filled = torch.where(kept.unsqueeze(-1), sorted_values, torch.zeros_like(sorted_values))
        missing = max(wanted - values.shape[1], 0)
        return torch.nn.functional.pad(filled, (0, 0, 0, missing))[:, :wanted]

    if attention_mask is not None:
        ones = packed(torch.ones_like(kept, dtype=attention_mask.dtype).unsqueeze(-1)).squeeze(-1)
        attention_mask = torch.cat([attention_mask, ones], 1)
    joined = torch.cat([inputs_embeds, packed(image_embeddings)], 1)
    return joined, torch.cat([bbox, packed(visual_bbox)], 1), attention_mask


_OMDET = "transformers.models.omdet_turbo.modeling_omdet_turbo:OmDetTurboPreTrainedModel"
_ANEW = "keeps embeddings by tokens: all are computed anew"


@patches(f"{_OMDET}.get_cached_class_embeddings", reason=_ANEW)
def class_embeddings(self: Any, classes_input_ids: Tensor, classes_attention_mask: Tensor) -> Tensor:
    """``OmDetTurboPreTrainedModel.get_cached_class_embeddings``, of every class anew.

    Shapes:  classes_input_ids and classes_attention_mask [classes, length] -> [classes, width].
    """
    embeddings: Tensor = self.language_backbone(classes_input_ids, encode_type="class")
    return embeddings.to(self.device)


@patches(f"{_OMDET}.get_cached_task_embeddings", reason=_ANEW)
def task_embeddings(self: Any, tasks_input_ids: Tensor, tasks_attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """``OmDetTurboPreTrainedModel.get_cached_task_embeddings``, of every task anew.

    Shapes:  tasks_input_ids and tasks_attention_mask [batch, length] -> [length, batch, width] and [batch, length].
    """
    features, masks = self.language_backbone(tasks_input_ids, mask=tasks_attention_mask, encode_type="task")
    return features.to(self.device), masks.to(self.device)
