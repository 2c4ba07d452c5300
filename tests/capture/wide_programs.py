"""Programs of size arithmetic at random: steps over the last axis of an image, [1, 2, rows, n], drawn with three small numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

Step = Callable[[torch.Tensor, int, int, int], torch.Tensor]
"""A function of the tensor and numbers from 1 to 4, 1 to 3, and 0 to 2."""


def _cut_if_long(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    return x * 2 if x.shape[-1] > 5 * a + b else x[..., :a] + 1


def _by_remainder(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    if x.shape[-1] % (b + 1) != c % 2:
        return x[..., 1:] + 1
    return x.exp() if c % 2 else x.unflatten(-1, (-1, b + 1)).flip(-1).flatten(-2)


def _by_length(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    if x.shape[-1] >= 4 * a:
        return x[..., : 4 * a].unflatten(-1, (2, 2 * a)).sum(-2)
    return x * 3 if x.shape[-1] == b else x


def _padded(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    rest = x.shape[-1] % (a + 1)
    return F.pad(x, (0, a + 1 - rest)) if rest else x


def _turns(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    for turn in range(min(x.shape[-1], a)):
        x = x + turn * x[..., turn : turn + 1]
    return x


def _asserted(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    assert x.shape[-1] % b == 0
    return x + 1


def _halves(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    return torch.stack([x[..., : x.shape[-1] // 2], x[..., (x.shape[-1] + 1) // 2 :]]).sum(0)


def _window(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    n = x.shape[-1]
    return x.view(*x.shape[:-1], n // (a + 1), a + 1).flip(-1).reshape(*x.shape[:-1], -1)


STEPS: Mapping[str, Step] = {
    "conv": lambda x, a, b, c: F.conv2d(x, torch.ones(2, 2, 1, a) / 4, stride=(1, b), padding=(0, c)),
    "dilated": lambda x, a, b, c: F.conv2d(x, torch.ones(2, 2, 1, a) / 4, dilation=(1, b), padding=(0, c)),
    "transposed": lambda x, a, b, c: F.conv_transpose2d(x, torch.ones(2, 2, 1, a) / 4, stride=(1, b)),
    "max_pool": lambda x, a, b, c: F.max_pool2d(x, (1, a), (1, b), (0, min(c, a // 2)), ceil_mode=c == 1),
    "avg_pool": lambda x, a, b, c: F.avg_pool2d(x, (1, a), (1, b), (0, min(c, a // 2)), ceil_mode=c == 2),
    "adaptive": lambda x, a, b, c: F.adaptive_avg_pool2d(x, (None, a + 1)),
    "pad": lambda x, a, b, c: F.pad(x, (a - 2, b)),
    "reflect": lambda x, a, b, c: F.pad(x, (a - 1, b, 0, 0), mode="reflect"),
    "replicate": lambda x, a, b, c: F.pad(x, (a - 1, b, 0, 0), mode="replicate"),
    "circular": lambda x, a, b, c: F.pad(x, (a - 1, b, 0, 0), mode="circular"),
    "slice": lambda x, a, b, c: x[..., c::b],
    "cut": lambda x, a, b, c: x[..., -a * 3 : x.shape[-1] - c],
    "even": lambda x, a, b, c: x[..., : x.shape[-1] // a * a],
    "window": _window,
    "merged": lambda x, a, b, c: x.reshape(*x.shape[:-1], -1, a + 1).sum(-1),
    "unflattened": lambda x, a, b, c: x.unflatten(-1, (a + 1, -1)).sum(-2),
    "unfolded": lambda x, a, b, c: x.unfold(-1, a, b).mean(-1),
    "scaled": lambda x, a, b, c: F.interpolate(x, scale_factor=(1.0, b + 1.0)),
    "sized": lambda x, a, b, c: F.interpolate(x, size=(x.shape[2], x.shape[-1] // b + c + 1)),
    "bilinear": lambda x, a, b, c: F.interpolate(x, size=(x.shape[2], x.shape[-1] * b // 2 + c), mode="bilinear"),
    "narrowed": lambda x, a, b, c: x.narrow(-1, c, x.shape[-1] - b - c),
    "joined": lambda x, a, b, c: torch.cat([x, x[..., :a]], -1),
    "halves": _halves,
    "interleaved": lambda x, a, b, c: torch.stack([x[..., ::2], x[..., 1::2]], -1).sum(-1),
    "a part": lambda x, a, b, c: x.chunk(b + 1, -1)[0 if c else -1] * 2,
    "all parts": lambda x, a, b, c: torch.cat([part * place for place, part in enumerate(x.chunk(b + 1, -1))], -1),
    "equal parts": lambda x, a, b, c: torch.stack(x.chunk(b + 1, -1)).sum(0),
    "split": lambda x, a, b, c: x.split([x.shape[-1] // (b + 1), x.shape[-1] - x.shape[-1] // (b + 1)], -1)[c % 2],
    "places": lambda x, a, b, c: x[..., [0, a, c]],
    "index_select": lambda x, a, b, c: x.index_select(-1, torch.tensor([c, a, 0])),
    "rolled": lambda x, a, b, c: x.roll(x.shape[-1] // b, -1).flip(-1),
    "repeated": lambda x, a, b, c: x.repeat_interleave(b, -1)[..., c:],
    "broadcast": lambda x, a, b, c: x * x[..., :1] + x.mean(-1, keepdim=True),
    "softmax": lambda x, a, b, c: x.softmax(-1) - x.amax(-1, keepdim=True),
    "counted": lambda x, a, b, c: x + torch.arange(x.shape[-1]) * x.shape[-1],
    "topk": lambda x, a, b, c: x.topk(a, -1)[0],
    "masked": lambda x, a, b, c: x.masked_fill(torch.arange(x.shape[-1]) >= x.shape[-1] // b, 0.5),
    "limited": lambda x, a, b, c: x[..., : min(x.shape[-1], 5 * a)] * max(x.shape[-1], 3 * b),
    "lengthened": lambda x, a, b, c: F.pad(x, (0, max(4 * a - x.shape[-1], 0))),
    "cut if long": _cut_if_long,
    "by remainder": _by_remainder,
    "by length": _by_length,
    "padded": _padded,
    "turns": _turns,
    "asserted": _asserted,
}


def drawn(draw: random.Random) -> tuple[Callable[[torch.Tensor], torch.Tensor], list[Any]]:
    """A program, and what it was made of."""
    steps = [
        (draw.choice([*STEPS]), draw.randint(1, 4), draw.randint(1, 3), draw.randint(0, 2))
        for _ in range(draw.randint(1, 5))
    ]

    def program(x: torch.Tensor) -> torch.Tensor:
        for name, *numbers in steps:
            x = STEPS[name](x.contiguous(), *numbers)
        return x * 2

    return program, steps
