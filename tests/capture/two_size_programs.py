"""Programs of two sizes at random: steps over images, [1, 2, h, w], drawn with three small numbers, beside those of one axis."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tests.capture.wide_programs import STEPS, Step


def _windows(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    n, channels, height, width = x.shape
    parts = x.view(n, channels, height // (b + 1), b + 1, width // (b + 1), b + 1)
    return parts.transpose(3, 4).flip(-1).transpose(3, 4).reshape(x.shape)


def _padded_windows(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    height, width = x.shape[-2:]
    below, beside = -height % (b + 1), -width % (b + 1)
    y = F.pad(x, (0, beside, 0, below))
    parts = y.view(1, 2, (height + below) // (b + 1), b + 1, width + beside)
    y = parts.sum(3, keepdim=True).expand(-1, -1, -1, b + 1, -1).reshape(y.shape)
    if beside > 0 or below > 0:
        y = y[:, :, :height, :width]
    return y


def _square(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    side = min(x.shape[-1], x.shape[-2])
    return x[..., :side, :side] + x[..., :side, :side].mT


def _middle(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    height, width = x.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return x[..., top : top + side, left : left + side]


def _if_both_even(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    height, width = x.shape[-2:]
    return F.avg_pool2d(x, 2) if height % 2 == 0 and width % 2 == 0 else x


def _positions(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    return x + torch.arange(x.shape[-2])[:, None] * 0.1 - torch.arange(x.shape[-1]) * 0.2


def _down_and_up(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    return x + F.interpolate(F.avg_pool2d(x, 2, ceil_mode=bool(c)), size=x.shape[-2:])


def _strips(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    strips = x.flatten(2)
    return F.avg_pool1d(strips, x.shape[-2])[:, :, None] if c else F.max_pool1d(strips, x.shape[-1])[..., None]


TWO_SIZE_STEPS: Mapping[str, Step] = {
    "windows": _windows,
    "padded windows": _padded_windows,
    "product": lambda x, a, b, c: x @ x.mT if c else x.mT @ x,
    "square": _square,
    "middle": _middle,
    "if wider": lambda x, a, b, c: x * 2 if x.shape[-1] > x.shape[-2] else x + 1,
    "if both even": _if_both_even,
    "if many": lambda x, a, b, c: x[..., 1:, :] if x.shape[-2] * x.shape[-1] > 8 * a else x,
    "flat": lambda x, a, b, c: x.flatten(2).flip(-1).view(x.shape),
    "strips": _strips,
    "turned": lambda x, a, b, c: x.mT,
    "rows of": lambda x, a, b, c: x.reshape(1, 2, x.shape[-2] * x.shape[-1] // (a * b), a * b),
    "resized": lambda x, a, b, c: F.interpolate(x, size=(x.shape[-2] + a, max(x.shape[-1] - c, 1))),
    "larger": lambda x, a, b, c: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "joined": lambda x, a, b, c: torch.cat([x, F.interpolate(F.avg_pool2d(x, 2), scale_factor=2)], 1)[:, :2],
    "down and up": _down_and_up,
    "triangles": lambda x, a, b, c: x.tril(c) - x.triu(a),
    "outer": lambda x, a, b, c: x.mean(-1, keepdim=True) * x.sum(-2, keepdim=True),
    "positions": _positions,
    "tokens": lambda x, a, b, c: x.flatten(2).transpose(1, 2).softmax(1).transpose(1, 2).reshape(x.shape),
    "unshuffled": lambda x, a, b, c: F.pixel_unshuffle(x, b + 1).mean(1, keepdim=True).expand(-1, 2, -1, -1),
    "rolled": lambda x, a, b, c: x.roll((-a, -b), (-2, -1)),
}


def drawn(draw: random.Random) -> tuple[Callable[[torch.Tensor], torch.Tensor], list[Any]]:
    """A program, and what it was made of."""
    steps: list[tuple[str, int, int, int, int]] = []
    for _ in range(draw.choice([2, 3, 3, 4])):
        numbers = draw.randint(1, 4), draw.randint(1, 3), draw.randint(0, 2)
        axis = draw.choice([0, 0, 0, 1, 2])
        steps.append((draw.choice([*(STEPS if axis else TWO_SIZE_STEPS)]), axis, *numbers))

    def program(x: torch.Tensor) -> torch.Tensor:
        for name, axis, *numbers in steps:
            if axis == 0:
                x = TWO_SIZE_STEPS[name](x, *numbers)
            elif axis == 1:
                x = STEPS[name](x, *numbers)
            else:
                x = STEPS[name](x.mT, *numbers).mT
        return x

    return program, steps
