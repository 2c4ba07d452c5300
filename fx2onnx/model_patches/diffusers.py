"""diffusers' video autoencoders: convolutions of any number of frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches


@patches(
    "diffusers.models.autoencoders.autoencoder_kl_cogvideox:CogVideoXSafeConv3d.forward",
    reason="convolves all frames at once; diffusers takes inputs above 2 GB in parts",
)
def safe_conv3d(self: Any, input: Tensor) -> Tensor:
    """One convolution of all frames.

    Shapes:    input [N, C, F, H, W] -> [N, O, F', H', W'].
    Numerics:  the parts overlap by the kernel, so that both are the same sums.
    Source:    diffusers.models.autoencoders.autoencoder_kl_cogvideox.CogVideoXSafeConv3d.forward.
    """
    return torch.nn.Conv3d.forward(self, input)
