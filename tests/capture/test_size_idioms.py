"""Windows, halves, paddings and blocks of any length as people write them: one file, right at other sizes in both
engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from tests.support import check

Program = Callable[..., Any]


def rolling_mean(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 0, 2, 0)).unfold(0, 3, 1).mean(-1)


def parts_of_computed_sizes(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    first, second, third = torch.split(x, [n // 4, n // 2, n - n // 4 - n // 2])
    return torch.cat([third, second, first])


def attention_in_blocks(x: torch.Tensor) -> torch.Tensor:
    n, width = x.shape
    more = -n % 4
    blocks = F.pad(x, (0, 0, 0, more)).view((n + more) // 4, 4, width)
    is_there = torch.arange(n + more) < n
    scores = (blocks @ blocks.transpose(-1, -2)).masked_fill(~is_there.view(-1, 1, 4), -1e9)
    return (scores.softmax(-1) @ blocks).reshape(-1, width)[:n]


def overlap_and_add(x: torch.Tensor) -> torch.Tensor:
    frames = F.pad(x, (0, 0, 0, -x.shape[0] % 2)).t().unfold(-1, 4, 2)
    width, count, length = frames.shape
    whole = F.fold(frames.transpose(1, 2), (1, (count - 1) * 2 + length), (1, length), stride=(1, 2))
    return whole.view(width, -1)


def groups_of_three(x: torch.Tensor) -> torch.Tensor:
    groups = math.ceil(x.shape[0] / 3)
    return F.pad(x, (0, 0, 0, groups * 3 - x.shape[0])).reshape(groups, -1)


def the_last_six(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (0, 0, max(6 - x.shape[0], 0), 0))[-6:]


def last_half_over_first(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[0] // 2
    y = x.clone()
    y[:half] = x[-half:]
    return y.flip(0)


def last_half_first(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[0] // 2
    return torch.cat([x[-half:], x[:-half]])


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (rolling_mean, (8, 1, 5, 31)),
        (parts_of_computed_sizes, (8, 3, 5, 31)),
        (attention_in_blocks, (9, 1, 4, 31)),
        (overlap_and_add, (8, 3, 4, 31)),
        (groups_of_three, (8, 1, 5, 30)),
        (the_last_six, (8, 1, 6, 31)),
        (last_half_over_first, (8, 2, 3, 31)),
        (last_half_first, (9, 1, 2, 31)),
    ],
)
def test_of_any_length(program: Program, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    sample, *others = ((torch.randn(size, 4),) for size in sizes)
    check(program, sample, others=others, dynamic_shapes=({0: "n"},), rtol=1e-4)


@pytest.mark.parametrize("length", [5, 8])
def test_that_there_is_one_block_decides_nothing(length: int) -> None:
    result = fx2onnx.export(attention_in_blocks, (torch.ones(length, 4),), dynamic_shapes=({0: "n"},))
    assert not result.report.assumptions


def to_a_square(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2:]
    below, beside = (max(height, width) - side for side in (height, width))
    return F.pad(x, (beside // 2, beside - beside // 2, below // 2, below - below // 2))


def square_in_the_middle(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return x[..., top : top + side, left : left + side] * 2


def quarter_over_quarter(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2] // 2, x.shape[-1] // 2
    y = x.clone()
    y[..., :height, :width] = x[..., -height:, -width:]
    return y.flip(-1)


def shifted_windows(x: torch.Tensor) -> torch.Tensor:
    *_, height, width = x.shape
    padded = F.pad(x, (0, -width % 4, 0, -height % 4))
    rows, columns = (side // 4 for side in padded.shape[-2:])
    windows = padded.roll((-2, -2), (-2, -1)).view(1, 2, rows, 4, columns, 4).transpose(3, 4)
    windows = windows - windows.mean((-1, -2), keepdim=True)
    whole = windows.transpose(3, 4).reshape(padded.shape).roll((2, 2), (-2, -1))
    return whole[..., :height, :width]


def without_the_border(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2:]
    border = torch.zeros(height, width, dtype=torch.bool)
    border[0] = border[height - 1] = True
    border[:, 0] = border[:, width - 1] = True
    return x.masked_fill(border, 0)


def written_at_places_of_sizes(x: torch.Tensor) -> torch.Tensor:
    height, width = x.shape[-2:]
    y = x.clone()
    y[..., width // 2] = x[None, ..., 0] * 3
    y[0, 1:, height // 2, -1] = width
    y[0, 0, height - 1, width - 1] += 7
    return y


@pytest.mark.parametrize(
    "program",
    [
        to_a_square,
        square_in_the_middle,
        quarter_over_quarter,
        shifted_windows,
        without_the_border,
        written_at_places_of_sizes,
    ],
)
def test_of_images_of_any_size(program: Program) -> None:
    torch.manual_seed(0)
    sample, *others = ((torch.randn(1, 2, *size),) for size in ((9, 7), (8, 12), (2, 3), (16, 16)))
    check(program, sample, others=others, dynamic_shapes=({2: "h", 3: "w"},), rtol=1e-4)


def largest_of_the_others(x: torch.Tensor) -> torch.Tensor:
    return x[1:].max() if x.shape[0] > 1 else x.sum()


def largest_along_the_rest(x: torch.Tensor) -> torch.Tensor:
    rest = x[:, 1:]
    return rest.max(1).values if rest.shape[1] else x[:, 0]


def differences_to_the_largest(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 1:
        return x[0] * 2
    if x.shape[0] == 2:
        return x[1:].amax(0)
    return x[2:].amax(0) - x[1:].amax(0)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("program", [largest_of_the_others, largest_along_the_rest, differences_to_the_largest])
def test_a_need_that_python_asked_about_is_no_condition(program: Program, rows: int) -> None:
    others = [(torch.randn(*sizes),) for sizes in ((1, 5), (2, 2), (4, 1), (1, 1), (7, 3))]
    result = check(program, (torch.randn(rows, rows),), others=others, dynamic_shapes=({0: "n", 1: "t"},))
    assert all("both branches" in str(each) for each in result.report.assumptions)
