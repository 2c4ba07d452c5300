"""Patches of functions that keep the embeddings of prompts by their tokens: here the tokens are an input."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fx2onnx.model_patches.patching import patches

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
