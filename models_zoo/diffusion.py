"""The parts of a latent diffusion UNet, once each: time embedding, residual blocks, attention over image and text."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import DEFAULT_BATCH, Source

from .registry import zoo_model

LATENT_CHANNELS, TEXT_LENGTH = 4, 8


def timestep_embedding(timestep: Tensor, width: int) -> Tensor:
    """Sines and cosines of ``timestep`` [N] at ``width / 2`` frequencies -> [N, width]. Source: DDPM, appendix B."""
    steps = torch.arange(width // 2, dtype=torch.float32, device=timestep.device)
    angles = timestep.float().unsqueeze(1) * torch.exp(-math.log(10_000.0) * steps / (width // 2))
    return torch.cat((angles.cos(), angles.sin()), -1)


class ResidualBlock(nn.Module):
    """Group norm, SiLU and convolution twice, the time added in between."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        y = self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))
        return y


class Attention(nn.Module):
    """Pixels attend to ``context`` [N, L, C'], or to each other."""

    def __init__(self, width: int, context_width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(context_width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        normed = self.norm(x)
        key, value = self.key_value(normed if context is None else context).chunk(2, -1)
        query, key, value = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.query(normed), key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        y: Tensor = x + self.out(mixed)
        return y


class TransformerBlock(nn.Module):
    """Attention over the image, over the text, and a gated feed-forward."""

    def __init__(self, width: int, text_width: int) -> None:
        super().__init__()
        self.over_image, self.over_text = Attention(width, width), Attention(width, text_width)
        self.norm, self.widen, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 8 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        y = x.flatten(2).transpose(1, 2)
        y = self.over_text(self.over_image(y), text)
        value, gate = self.widen(self.norm(y)).chunk(2, -1)
        y = y + self.narrow(value * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(batch, channels, height, width)


class UNet(nn.Module):
    """Noisy latent [N, 4, H, W], timestep [N], text [N, L, C'] -> noise [N, 4, H, W]; H and W even."""

    def __init__(self, width: int = 16, text_width: int = 32) -> None:
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(LATENT_CHANNELS, width, 3, padding=1)
        self.down = ResidualBlock(width, width, time)
        self.halve = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = ResidualBlock(2 * width, 2 * width, time)
        self.attend = TransformerBlock(2 * width, text_width)
        self.refine = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = ResidualBlock(2 * width, width, time)
        self.norm, self.last = nn.GroupNorm(4, width), nn.Conv2d(width, LATENT_CHANNELS, 3, padding=1)

    def forward(self, latent: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        time = self.time(timestep_embedding(timestep, self.width).to(latent.dtype))
        fine = self.down(self.first(latent), time)
        coarse = self.attend(self.middle(self.halve(fine), time), text)
        raised = self.refine(F.interpolate(coarse, scale_factor=2.0, mode="nearest"))
        noise: Tensor = self.last(F.silu(self.norm(self.up(torch.cat((raised, fine), 1), time))))
        return noise


@zoo_model("diffusion_unet")
def diffusion_unet(*, batch: int = DEFAULT_BATCH, image_size: int = 16, seed: int = 0) -> Source:
    """A diffusion UNet with one block of each kind: time embedding, group norm, self- and cross-attention"""
    with seeded(seed):
        module = UNet().eval()
        move_constants(module, seed)
        latent = torch.randn(batch, LATENT_CHANNELS, image_size, image_size)
        timestep = torch.randint(0, 1000, (batch,))
        text = torch.randn(batch, TEXT_LENGTH, 32)
    axes = {"latent": {0: "batch"}, "timestep": {0: "batch"}, "text": {0: "batch", 1: "text_length"}}
    args = (latent, timestep, text)
    return Source("diffusion_unet", module, args, {}, axes, ("noise",), f"zoo, random weights, seed {seed}")
