"""Padding to whole strides: by how much, codecs of sound compute in tensors, and Python reads the numbers; ported networks
of TensorFlow decide by remainders.

Here that is said in sizes, so that one graph is right at every size.
"""

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
