"""Real-ESRGAN's generator: residual-in-residual dense blocks, four times the size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import DEFAULT_BATCH, Source

from .registry import zoo_model

_RESIDUAL_SCALE = 0.2


class DenseBlock(nn.Module):
    """Five convolutions, each reading all that came before. Source: ESRGAN, figure 4."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.grow = nn.ModuleList(nn.Conv2d(width + at * growth, growth, 3, padding=1) for at in range(4))
        self.last = nn.Conv2d(width + 4 * growth, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.grow:
            maps.append(F.leaky_relu(layer(torch.cat(maps, 1)), 0.2))
        y: Tensor = self.last(torch.cat(maps, 1)) * _RESIDUAL_SCALE + x
        return y


class ResidualBlock(nn.Module):
    """Three dense blocks inside a residual."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(DenseBlock(width, growth) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x) * _RESIDUAL_SCALE + x
        return y


class RrdbNet(nn.Module):
    """Image [N, 3, H, W] -> image [N, 3, 4 H, 4 W]."""

    def __init__(self, width: int, growth: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(ResidualBlock(width, growth) for _ in range(depth)))
        self.after_body = nn.Conv2d(width, width, 3, padding=1)
        self.up1 = nn.Conv2d(width, width, 3, padding=1)
        self.up2 = nn.Conv2d(width, width, 3, padding=1)
        self.before_last = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(image)
        x = x + self.after_body(self.body(x))
        for layer in (self.up1, self.up2):
            x = F.leaky_relu(layer(F.interpolate(x, scale_factor=2, mode="nearest")), 0.2)
        y: Tensor = self.last(F.leaky_relu(self.before_last(x), 0.2))
        return y


def _source(name: str, batch: int, image_size: int, seed: int, sizes: tuple[int, int, int]) -> Source:
    with seeded(seed):
        module = RrdbNet(*sizes).eval()
        move_constants(module, seed)
        image = torch.rand(batch, 3, image_size, image_size)
    axes = {0: "batch", 2: "height", 3: "width"}
    return Source(name, module, (image,), {}, {"image": axes}, ("upscaled",), f"zoo, random weights, seed {seed}")


@zoo_model("realesrgan_x4")
def realesrgan_x4(*, batch: int = DEFAULT_BATCH, image_size: int = 64, seed: int = 0) -> Source:
    """Real-ESRGAN's RRDBNet, four times the size, 23 blocks of width 64"""
    return _source("realesrgan_x4", batch, image_size, seed, (64, 32, 23))


@zoo_model("realesrgan_tiny")
def realesrgan_tiny(*, batch: int = DEFAULT_BATCH, image_size: int = 16, seed: int = 0) -> Source:
    """The architecture of Real-ESRGAN, 1 block of width 16, for fast tests"""
    return _source("realesrgan_tiny", batch, image_size, seed, (16, 8, 1))
