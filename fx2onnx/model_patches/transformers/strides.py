"""Codecs of sound pad it to whole strides; by how much, they compute in tensors, and Python reads the numbers.

Here that is said in sizes, so that one graph is right at every length.
"""

from __future__ import annotations

from typing import Any

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
