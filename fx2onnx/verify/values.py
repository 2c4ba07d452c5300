"""Values of inputs: of the sample's kind, over the whole range that a module takes, and at the ends of it.

What an input means is read from the sample and from what eager PyTorch does with it: zeros and ones are a mask, which gets
real padding on both sides; integers that pick rows of a table are drawn over all of its rows; other integers go up to some
times the sample's, where eager PyTorch takes such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Role = Literal["floats", "ids", "mask", "empty"]

KINDS = ("sample", "seed", "large", "ties", "small", "zeros")
"""``sample``: its own content. ``seed``: like the sample, ids over the whole range, masks padded on both sides. ``large``,
``small``: 16 and 1/512 times that. ``ties``: few different numbers. ``zeros``: zeros, the lowest ids, nothing masked."""
AT_SAMPLE_SIZES = ("ties", "small", "large", "zeros")
_SCALES = {"large": 16.0, "small": 1 / 512}


@dataclass(frozen=True, slots=True)
class Values:
    """What an input may hold: floats of a mean and a deviation, integers from ``low`` to ``high``, or a mask."""

    role: Role
    low: int = 0
    high: int = 0
    is_open: bool = False
    """Whether nothing is known of the largest integer: eager PyTorch decides whether it takes larger ones."""
    mean: float = 0.0
    deviation: float = 1.0

    @staticmethod
    def of(tensor: torch.Tensor, rows: tuple[int, int] | None) -> Values:
        """Those of the sample; ``rows`` are the least and the largest integer that picks a row of a table."""
        if not tensor.numel() or tensor.is_complex():
            return Values("empty")
        if rows is not None and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            return Values("ids", *rows)
        if tensor.dtype == torch.bool or _is_mask(tensor):
            return Values("mask")
        wide = tensor.to(torch.float64)
        if tensor.is_floating_point():
            return Values("floats", mean=float(wide.mean()), deviation=float(wide.std(correction=0)) or 1.0)
        return Values("ids", int(tensor.min()), int(tensor.max()), is_open=True)

    def draw(self, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
        """Numbers of the kind in the shape and dtype of ``like``, which has the sample's content."""
        if kind == "sample" or self.role == "empty":
            return like
        return _DRAW[self.role](self, like, kind, generator)

    def tamer(self, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The same where the whole range is too much: numbers that stand repeatedly in the sample stay in their places, and
        others are its own, shuffled.
        """
        if self.role == "floats":
            return self.draw(like, "seed", generator)
        if self.role == "mask":
            return like
        flat = like.reshape(-1).clone()
        values, index, counts = torch.unique(flat, return_inverse=True, return_counts=True)
        once = torch.nonzero(counts[index] == 1).reshape(-1) if len(values) > 1 else index[:0]
        flat[once] = flat[once[torch.randperm(len(once), generator=generator)]]
        return flat.reshape(like.shape)


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether it holds zeros and ones alone, and of floats some ones: zeros are states and biases, too."""
    if tensor.numel() < 2:
        return False
    is_one, is_zero = tensor == 1, tensor == 0
    return bool((is_one | is_zero).all()) and (bool(is_one.any()) or not tensor.is_floating_point())


def _draw_floats(values: Values, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    if kind == "zeros":
        return torch.zeros_like(like)
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32)
    if kind == "ties":
        drawn = drawn.round()
    return ((drawn * values.deviation + values.mean) * _SCALES.get(kind, 1.0)).to(like.dtype)


def _draw_ids(values: Values, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """With both ends of the range, and with the lowest numbers, which often mean something: padding, begin, end."""
    low, high = values.low, values.high
    if kind == "large" and values.is_open:
        high = min(4 * abs(high) + 8, torch.iinfo(like.dtype).max - 1)
    if kind == "zeros" or low == high:
        return torch.full_like(like, low)
    count = like.numel()
    drawn = torch.randint(low, high + 1, (count,), generator=generator)
    if kind == "ties":
        drawn = drawn[torch.randint(max(count // 4, 1), (count,), generator=generator)]
    if kind == "large":
        drawn = high - (high - drawn) % min(8, high - low + 1)
    if kind == "small":
        drawn = low + (drawn - low) % min(4, high - low + 1)
    if kind == "seed" and count > 4:
        places = torch.randperm(count, generator=generator)
        drawn[places[0]], drawn[places[1]], drawn[places[2]] = high, low, min(low + 1, high)
    return drawn.reshape(like.shape).to(like.dtype)


def _draw_mask(values: Values, like: torch.Tensor, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Of each row some are masked: at its end, at its begin in every other row; all alternate where rows are short. Bools of
    one a row are switches, which are turned.
    """
    if like.dtype == torch.bool and (not like.dim() or like.shape[-1] == 1):  # a switch: nothing is padded
        return like.logical_not() if kind in ("seed", "large", "ties") else like
    if kind == "zeros" or not like.dim():
        return torch.ones_like(like)
    length = like.shape[-1]
    if not length:
        return like
    rows = like.numel() // length
    kept = torch.randint((length + 1) // 2, length + 1, (rows, 1), generator=generator)
    if length > 2:
        kept[0] = min(int(kept[0]), length - 1)
    place = torch.arange(length)
    turn = torch.arange(rows)[:, None] + (kind in ("ties", "large"))
    mask = torch.where(turn % 2 == 0, place < kept, place >= length - kept)
    if kind == "small":
        mask = torch.rand((rows, length), generator=generator) < 0.5
        mask[:, 0] = True
    return mask.reshape(like.shape).to(like.dtype)


_DRAW: dict[str, Callable[[Values, torch.Tensor, str, torch.Generator], torch.Tensor]] = {
    "floats": _draw_floats,
    "ids": _draw_ids,
    "mask": _draw_mask,
}
