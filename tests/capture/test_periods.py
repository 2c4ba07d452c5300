"""Sizes from an array that NumPy has of data: periods by which a series is folded, and lists of parts of such sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support import check


def lengths_of(x: torch.Tensor, count: int) -> np.ndarray:
    """As many numbers from 1 on, all different."""
    return 1 + x.sum(0).topk(count)[1].numpy()


class Folded(nn.Module):
    """Series [B, T, N] as images of as many columns as a period has, convolved and put back."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        batch, time, channels = x.shape
        strength = torch.fft.rfft(x, dim=1).abs()
        mean = strength.mean(0).mean(-1)
        mean[0] = 0
        places = mean.topk(self.count)[1].detach().cpu().numpy()
        periods = time // places
        found = []
        for number in range(self.count):
            period = periods[number]
            if time % period != 0:
                length = (time // period + 1) * period
                out = torch.cat([x, torch.zeros([batch, length - time, channels])], 1)
            else:
                length, out = time, x
            out = self.conv(out.reshape(batch, length // period, period, channels).permute(0, 3, 1, 2).contiguous())
            found.append(out.permute(0, 2, 3, 1).reshape(batch, -1, channels)[:, :time])
        weight = strength.mean(-1)[:, places].softmax(1)[:, None, None].repeat(1, time, channels, 1)
        return (torch.stack(found, -1) * weight).sum(-1) + x


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.long)])
def test_folded_by_periods(count: int) -> None:
    others = [(torch.randn(batch, 12, 3),) for batch in (1, 4, 3)]
    check(Folded(count), (torch.randn(2, 12, 3),), others=others, dynamic_shapes={"x": {0: "batch"}})


@pytest.mark.long
def test_folded_at_any_length() -> None:
    others = [(torch.randn(2, time, 3),) for time in (13, 16, 24)]
    check(Folded(2), (torch.randn(2, 12, 3),), others=others, dynamic_shapes={"x": {0: "batch", 1: "time"}})


TAKES = {
    "padded": lambda x, n: F.pad(x, (0, n, n, 0)),
    "repeated": lambda x, n: x.repeat(n, 1),
    "narrowed": lambda x, n: x.narrow(1, 0, n),
    "rolled": lambda x, n: x.roll(n, 1),
    "made": lambda x, n: torch.arange(n).sum() + torch.ones(n, 2).sum() + x.new_zeros((n, 3)).sum() + x,
    "asked for its attributes": lambda x, n: x * 2 if hasattr(n, "__next__") or hasattr(n, "own") else x[:, :n],
}


@pytest.mark.parametrize("name", TAKES)
def test_an_element_of_an_array_as_a_size(name: str) -> None:
    torch.manual_seed(0)
    others = [(torch.randn(rows, 7),) for rows in (4, 3, 6)]
    check(
        lambda x: TAKES[name](x, lengths_of(x, 2)[0]),
        (torch.randn(4, 7),),
        others=others,
        dynamic_shapes=({0: "rows"},),
    )


def parts_of_data(x: torch.Tensor) -> torch.Tensor:
    found = []
    for number in lengths_of(x, 5):
        length = int(number)
        found.append(x[:, :length] * 2 if length % 2 else x.cumsum(1)[:, :length])
    return torch.cat(found, 1)


def grown_by_data(x: torch.Tensor) -> torch.Tensor:
    lengths, out = 1 + x.sum(0).topk(5)[1], x[:, :0]
    for number in range(5):
        length = int(lengths[number])
        if length % 2:
            out = torch.cat([out, x[:, :length] * 2], 1)
        else:
            out = torch.cat([out, x.cumsum(1)[:, :length]], 1)
    return out


def cut_to_a_size(x: torch.Tensor) -> torch.Tensor:
    lengths, found = 1 + x.sum(0).topk(5)[1], []
    for number in range(5):
        length = int(lengths[number])
        y = x[:, :length] * 2 if length % 2 else x.cumsum(1)[:, :length]
        found.append(torch.cat([y, x], 1)[:, :4])
    return torch.cat(found, 1)


@pytest.mark.parametrize("forward", [parts_of_data, grown_by_data, cut_to_a_size])
@pytest.mark.parametrize("is_dynamic", [False, pytest.param(True, marks=pytest.mark.long)])
def test_loops_whose_turns_make_a_tensor_longer(forward: object, is_dynamic: bool) -> None:
    """onnxruntime refuses a Scan of which a branch gives a state of other sizes."""
    torch.manual_seed(1)
    others = [(torch.randn(rows, 7),) for rows in ((2, 5, 3) if is_dynamic else (4, 4))]
    shapes = ({0: "rows"},) if is_dynamic else None
    check(forward, (torch.randn(4, 7),), others=others, dynamic_shapes=shapes)  # type: ignore[arg-type]
