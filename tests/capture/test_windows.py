"""Windows and parts of which the sample has one: views are by the sizes that are asked for, not by what is 1 at the sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support import check

Program = Callable[[torch.Tensor], torch.Tensor]
SIDE = 7


def partitioned(x: torch.Tensor) -> torch.Tensor:
    """[b, h, w, c] padded to windows: [b, rows, columns, side, side, c], not contiguous."""
    b, h, w, c = x.shape
    down, right = (SIDE - h % SIDE) % SIDE, (SIDE - w % SIDE) % SIDE
    x = F.pad(x, (0, 0, 0, right, 0, down))
    x = x.view(b, (h + down) // SIDE, SIDE, (w + right) // SIDE, SIDE, c)
    return x.permute(0, 1, 3, 2, 4, 5)


def viewed(x: torch.Tensor) -> torch.Tensor:
    windows = partitioned(x).contiguous().view(-1, SIDE, SIDE, x.shape[3])
    return windows * windows.shape[1] + windows.softmax(0)


def reshaped(x: torch.Tensor) -> torch.Tensor:
    windows = partitioned(x).reshape(-1, SIDE * SIDE, x.shape[3])
    return windows @ windows.mT * windows.shape[1]


def flattened(x: torch.Tensor) -> torch.Tensor:
    return partitioned(x).flatten(0, 2).flatten(1, 2).cumsum(1)


def with_decision(x: torch.Tensor) -> torch.Tensor:
    y = x.sum(-1, keepdim=True) if x.shape[1] == SIDE and x.shape[2] == SIDE else x.mean(-1, keepdim=True)
    return viewed(x + y)


@pytest.mark.parametrize("program", [viewed, reshaped, flattened, with_decision])
@pytest.mark.parametrize("sample", [(2, 7, 7), (1, 5, 6), (2, 14, 7)])
def test_windows_at_other_sizes(program: Program, sample: tuple[int, int, int]) -> None:
    def patches(x: torch.Tensor) -> torch.Tensor:
        return program(F.avg_pool2d(x, 2).permute(0, 2, 3, 1))

    torch.manual_seed(0)
    shapes = [(1, 14, 7), (3, 21, 20), (2, 7, 7), (2, 3, 29), (1, 28, 8)]
    first, *others = ((torch.randn(b, 3, 2 * h, 2 * w),) for b, h, w in (sample, *shapes))
    check(patches, first, others=others, dynamic_shapes={"x": {0: "b", 2: "H", 3: "W"}})


def crossed(x: torch.Tensor, side: int) -> torch.Tensor:
    """Stripes across and along of [b, c, h, w], and back: how many images there were is a quotient of two products of sizes."""
    b, c, h, w = x.shape
    found = []
    for down, right in ((h, side), (side, w)):
        parts = x.view(b, c, h // down, down, w // right, right).permute(0, 2, 4, 3, 5, 1).reshape(-1, down * right, c)
        images = parts.softmax(1).shape[0] // ((h * w) // (down * right))
        whole = parts.softmax(1).view(images, h // down, w // right, down, right, -1)
        found.append(whole.permute(0, 1, 3, 2, 4, 5).contiguous().view(images, h, w, -1).view(b, -1, c))
    return torch.cat(found, 2) + torch.cat([x.flatten(2).mT] * 2, 2)


SHRUNK: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int, list[int]]] = {
    "by a stride": (lambda x: x[..., ::2], 2, [12, 16, 19, 3]),
    "by a pool": (lambda x: F.avg_pool2d(x, (1, 2)), 2, [12, 16, 17]),
    "twice": (lambda x: F.max_pool2d(F.max_pool2d(x, (1, 3), (1, 2), (0, 1)), (1, 3), (1, 2), (0, 1)), 4, [16, 31, 48]),
    "from the second on": (lambda x: x[..., 1::2], 4, [8, 17, 40]),
}


@pytest.mark.parametrize("way", SHRUNK)
def test_stripes_of_a_size_that_was_divided(way: str) -> None:
    shrink, side, widths = SHRUNK[way]
    first, *others = ((torch.randn(b, 3, 8, width),) for b, width in zip((2, 1, 3, 2, 2), [32, *widths], strict=False))
    shapes = {"x": {0: "b", 3: "W"}}
    check(lambda x: crossed(shrink(x), side), first, others=others, dynamic_shapes=shapes)


def turned(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([part.cumsum(0) * len(parts) for part in parts[::-1]])


SPLITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of three": lambda x: turned(x.split((x.shape[0] + 2) // 3)),
    "of two": lambda x: turned(x.split((x.shape[0] + 1) // 2)),
    "of four, by ceil": lambda x: turned(x.split(math.ceil(x.shape[0] / 4))),
    "of three, by a negative quotient": lambda x: turned(torch.split(x, -(-x.shape[0] // 3))),
    "of a half": lambda x: turned(x[: x.shape[0] // 2 + 1].split((x.shape[0] // 2 + 3) // 3)),
    "of the columns": lambda x: turned(x.t().split((x.shape[0] + 2) // 3, dim=1)[:1]),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_parts_of_a_size_that_is_rounded_up(name: str, dtype: torch.dtype) -> None:
    def sample(size: int) -> torch.Tensor:
        return (torch.arange(2.0 * size).reshape(size, 2) - 3).to(dtype)

    others = [(sample(size),) for size in (*range(1, 10), 14, 25)]
    result = check(SPLITS[name], (sample(10),), others=others, dynamic_shapes=({0: "n"},))
    assert not [found for found in result.report.assumptions if found.kind in ("condition", "specialization")]
