"""Programs with data-dependent sizes: ways to get numbers from data, times uses of them, times dynamic axes.

Each program takes tokens ``x``, [batch, rows, 4], and ``data``, which tells one number or two. ``PROGRAMS`` holds them by
name; ``inputs`` makes the example inputs of a program, and others that eager PyTorch may or may not take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.capture import data_size_uses, two_data_size_uses


@dataclass(frozen=True)
class Way:
    """A way in which Python gets numbers from ``data``: ``read(x, data)`` gives those that ``tell(*numbers)`` has put
    there."""

    tell: Callable[..., Tensor]
    read: Callable[[Tensor, Tensor], Any]


def _marked(n: int) -> Tensor:
    """Twelve places of which ``n`` are marked."""
    return (torch.arange(14) * 5 % 14 < n).float()


def _peak(n: int) -> Tensor:
    return -((torch.arange(14) - n) ** 2).float()


def _factors(n: int) -> Tensor:
    return torch.tensor([2, n // 2] if n % 2 == 0 else [1, n])


WAYS: Mapping[str, Way] = {
    "int(max)": Way(lambda n: torch.tensor([0, n, n - 1]), lambda x, data: int(data.max())),
    "item": Way(lambda n: torch.tensor(n), lambda x, data: data.item()),
    "tolist": Way(lambda n: torch.tensor([n, 3]), lambda x, data: data.tolist()[0]),
    "nonzero": Way(_marked, lambda x, data: data.nonzero().shape[0]),
    "sum of a mask": Way(_marked, lambda x, data: (data > 0).sum().item()),
    "rows of a mask": Way(_marked, lambda x, data: data[data > 0].shape[0]),
    "unique": Way(lambda n: torch.arange(12) % max(n, 1), lambda x, data: data.unique().shape[0]),
    "int": Way(lambda n: torch.tensor(n), lambda x, data: int(data)),
    "max + 1": Way(lambda n: torch.tensor([-1, n - 1]), lambda x, data: data.max().item() + 1),
    "half": Way(lambda n: torch.tensor([2 * n + 1, 0]), lambda x, data: data[0].item() // 2),
    "tensor": Way(lambda n: torch.tensor([2 * n, 0]), lambda x, data: data[0] // 2),
    "product": Way(_factors, lambda x, data: data[0].item() * data[1].item()),
    "min with rows": Way(lambda n: torch.tensor(n), lambda x, data: min(data.item(), x.shape[1])),
    "len": Way(_marked, lambda x, data: len(data[data > 0])),
    "argmax": Way(_peak, lambda x, data: data.argmax().item()),
}

WAYS_OF_TWO: Mapping[str, Way] = {
    "tolist": Way(lambda h, w: torch.tensor([h, w]), lambda x, data: data.tolist()),
    "items": Way(lambda h, w: torch.tensor([[h, w]]), lambda x, data: (data[0, 0].item(), data[0, 1].item())),
    "int(max)": Way(lambda h, w: torch.tensor([[h, 1], [1, w]]), lambda x, data: (int(data[:, 0].max()), int(data[:, 1].max()))),
    "nonzero and max": Way(lambda h, w: torch.stack([_marked(h), _marked(1) * w]), lambda x, data: (data[0].nonzero().shape[0], int(data[1].max()))),
    "rows of a mask and item": Way(
        lambda h, w: torch.stack([_marked(h), _marked(1) * w]),
        lambda x, data: (data[0][data[0] > 0].shape[0], data[1, 0].long().item()),
    ),
}  # fmt: skip

AXES: Mapping[str, dict[int, str]] = {"": {}, "rows": {1: "rows"}, "batch and rows": {0: "batch", 1: "rows"}}

ROWS, NUMBER, NUMBERS = 8, 4, (2, 3)
"""The sizes of the example inputs."""
OTHERS = [(8, 2, 8), (8, 2, 1), (8, 2, 5), (8, 2, 0), (5, 2, 5), (11, 2, 7), (11, 3, 11), (6, 1, 3), (8, 2, 11)]
"""Rows, batch, number."""
OTHERS_OF_TWO = [
    (8, 2, 2, 4), (8, 2, 1, 1), (8, 2, 4, 2), (8, 2, 3, 2), (8, 2, 1, 4), (6, 2, 3, 2), (12, 2, 3, 4), (12, 3, 4, 1),
    (5, 1, 1, 3),
]  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program by its way, use and dynamic axes."""

    way: str
    use: str
    axes: str
    is_of_two: bool = False

    @property
    def name(self) -> str:
        kind = "two: " if self.is_of_two else ""
        return f"{kind}{self.use} | {self.way} | {self.axes or 'static'}"

    @functools.cached_property
    def module(self) -> nn.Module:
        if self.is_of_two:
            return OfTwo(two_data_size_uses.USES[self.use], WAYS_OF_TWO[self.way].read)
        return OfOne(data_size_uses.USES[self.use], WAYS[self.way].read)

    @property
    def dynamic_shapes(self) -> dict[str, Any] | None:
        return {"x": AXES[self.axes], "data": None} if self.axes else None

    def inputs(self) -> Iterator[tuple[tuple[int, ...], tuple[Tensor, Tensor]]]:
        """Rows, batch and numbers, with the tensors; the example inputs come first."""
        way = (WAYS_OF_TWO if self.is_of_two else WAYS)[self.way]
        numbers = NUMBERS if self.is_of_two else (NUMBER,)
        for rows, batch, *told in [(ROWS, 2, *numbers), *(OTHERS_OF_TWO if self.is_of_two else OTHERS)]:
            if (rows == ROWS or 1 in AXES[self.axes]) and (batch == 2 or 0 in AXES[self.axes]):
                yield (rows, batch, *told), (tokens(batch, rows), way.tell(*told))


def tokens(batch: int, rows: int) -> Tensor:
    return torch.randn(batch, rows, 4, generator=torch.Generator().manual_seed(batch * 100 + rows))


class OfOne(nn.Module):
    def __init__(self, use: Any, read: Any) -> None:
        super().__init__()
        self.use, self.read = use, read

    def forward(self, x: Tensor, data: Tensor) -> Any:
        return self.use(x, self.read(x, data))


class OfTwo(OfOne):
    def forward(self, x: Tensor, data: Tensor) -> Any:
        h, w = self.read(x, data)
        return self.use(x, h, w)


def _programs() -> Iterator[Program]:
    for axes in AXES:
        for way in WAYS:
            for use in data_size_uses.USES:
                yield Program(way, use, axes)
        for way in WAYS_OF_TWO:
            for use in two_data_size_uses.USES:
                yield Program(way, use, axes, is_of_two=True)


PROGRAMS: Mapping[str, Program] = {each.name: each for each in _programs()}
