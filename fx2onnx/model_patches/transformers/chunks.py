"""Chunks, strides and windows whose number Python takes from the length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches

_CODECS = (("encodec", "Encodec"), ("mimi", "Mimi"), ("pocket_tts_audio_tokenizer", "PocketTTSAudioTokenizer"))


@patches(
    *(
        f"transformers.models.{folder}.modeling_{folder}:{name}Conv1d._get_extra_padding_for_conv1d"
        for folder, name in _CODECS
    ),
    around=True,
)
def extra_padding(original: Any, self: Any, hidden_states: Tensor) -> Any:
    """``EncodecConv1d._get_extra_padding_for_conv1d`` and its copies: ``ceil(length / stride) * stride - length``.

    Theirs is ``(ceil((length - kernel + padding) / stride + 1) - 1) * stride + kernel - padding - length``, where padding
    is ``kernel - stride``. It divides in float32, which is exact below 2**24 samples.
    Shapes:  hidden_states [batch, channels, length] -> a number.
    """
    length = hidden_states.shape[-1]
    if type(length) is int:
        return original(self, hidden_states)
    stride = int(self.conv.stride[0])
    return -(-length // stride) * stride - length


@patches("transformers.models.mobilenet_v1.modeling_mobilenet_v1:apply_tf_padding", around=True)
def tensorflow_padding(original: Any, features: Tensor, conv_layer: Any) -> Any:
    """``apply_tf_padding``: so many zeros that there are ``ceil(size / stride)`` windows, at most one more behind than before.

    Shapes:  features [batch, channels, height, width] -> [batch, channels, height + padding, width + padding].
    """
    return _padded(original, features, conv_layer, (1, 1))


@patches("transformers.models.mobilenet_v2.modeling_mobilenet_v2:apply_tf_padding", around=True)
def dilated_tensorflow_padding(original: Any, features: Tensor, conv_layer: Any) -> Any:
    """``apply_tf_padding``, by the dilation times as many zeros as ``tensorflow_padding``."""
    return _padded(original, features, conv_layer, conv_layer.dilation)


def _padded(original: Any, features: Tensor, conv_layer: Any, times: tuple[int, ...]) -> Any:
    """Theirs asks whether the size is a multiple of the stride; ``(size - 1) % stride`` is right for both."""
    if type(features.shape[2]) is int and type(features.shape[3]) is int:
        return original(features, conv_layer)
    padding: list[Any] = []
    for axis in (1, 0):
        size, stride, kernel = features.shape[2 + axis], conv_layer.stride[axis], conv_layer.kernel_size[axis]
        along = max(kernel - 1 - (size - 1) % stride, 0)
        before = along // 2
        padding += [before * times[axis], (along - before) * times[axis]]
    return torch.nn.functional.pad(features, padding)


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


@patches("transformers.models.reformer.modeling_reformer:LocalSelfAttention._retrieve_relevant_hidden_states")
def last_chunks(previous_hidden_states: Tensor, chunk_length: int, num_chunks_before: int) -> Tensor:
    """``LocalSelfAttention._retrieve_relevant_hidden_states``, for a past of any length: also where the first chunk
    would begin before it, which to a slice of Python means so many of the last tokens.

    Shapes:  previous_hidden_states [batch, past, width] -> [batch, kept, width].
    """
    past: Any = previous_hidden_states.shape[1]
    start = (past // chunk_length - num_chunks_before) * chunk_length
    is_before = torch.sym_min(torch.sym_max(-start, 0), 1)  # type: ignore[no-untyped-call]
    from_the_end = torch.sym_max((past + start) * is_before, 0)  # type: ignore[no-untyped-call]
    return previous_hidden_states[:, torch.sym_max(start, 0) + from_the_end :]  # type: ignore[no-untyped-call]
