"""Where the windows of sound begin is put in a list of numbers, not of tensors, which have no data while they are captured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches

_LENGTHS = "_get_feat_extract_output_lengths"


@patches(
    *(f"transformers.models.{name}.modeling_{name}:get_audio_cu_seqlens" for name in ("qwen3_asr", "qwen3_omni_moe")),
    around=True,
)
def audio_cu_seqlens(
    original: Any,
    chunk_lengths: Tensor,
    feature_lens: Tensor,
    n_window_infer: int,
    n_window: int,
    kwargs: dict[str, Any] | None = None,
) -> Tensor:
    """``get_audio_cu_seqlens`` of Qwen's encoders of sound: each sample's frames in windows, cumulated.

    Shapes:  chunk_lengths [chunks], feature_lens [batch] -> int32 [windows + 1].
    """
    lengths_of: Any = original.__globals__.get(_LENGTHS)
    if lengths_of is None or (kwargs is not None and kwargs.get("cu_seqlens") is not None):
        ends: Tensor = original(chunk_lengths, feature_lens, n_window_infer, n_window, kwargs)
        return ends
    window = max(lengths_of(chunk_lengths, n_window).tolist()) * (n_window_infer // (n_window * 2))
    starts = [0]
    for length in lengths_of(feature_lens, n_window).tolist():
        rest = length % window
        starts += [window] * (length // window) + ([rest] if rest else [])
    return torch.tensor(starts, device=feature_lens.device).cumsum(-1, dtype=torch.int32)
