"""A dynamic size that Python pads to a multiple of a block, and splits into blocks, holds at every length."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fx2onnx.sizes.bounds import certain
from fx2onnx.sizes.expr import Dim, apply, without_remainders
from tests.support import check

BLOCK = 4
N = Dim.symbol("n")


class PaddedByRemainder(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        if n % BLOCK != 0:
            x = nn.functional.pad(x, (0, 0, 0, -n % BLOCK))
        return _in_blocks(x, x.shape[1] // BLOCK)[:, :n]


class PaddedByWhatIsMissing(nn.Module):
    """What is missing to the next multiple is a whole block where nothing is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        if n % BLOCK:
            x = nn.functional.pad(x, (0, 0, 0, BLOCK - n % BLOCK), value=1.0)
        return _in_blocks(x, x.shape[1] // BLOCK)


class DividedAsTensors(nn.Module):
    """``torch.div`` of two numbers is a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        x = nn.functional.pad(x, (0, 0, 0, (BLOCK - n % BLOCK) % BLOCK))
        return _in_blocks(x, torch.div(x.size(1), BLOCK, rounding_mode="trunc"))


def _in_blocks(x: torch.Tensor, blocks: int | torch.Tensor) -> torch.Tensor:
    """[batch, blocks * BLOCK, width] -> the same, summed up within each block and normalized over all."""
    split = x.reshape(x.shape[0], blocks, BLOCK, x.shape[2])
    summed = split.cumsum(2) / split.shape[1]
    return summed.reshape(x.shape[0], -1, x.shape[2])


@pytest.mark.parametrize("kind", [PaddedByRemainder, PaddedByWhatIsMissing, DividedAsTensors])
def test_every_length_can_be_split_into_blocks(kind: type[nn.Module]) -> None:
    others = [(torch.randn(2, length, 3),) for length in (1, 4, 5, 8, 12, 14)]
    check(kind(), (torch.randn(2, 7, 3),), others=others, dynamic_shapes=({1: "n"},))


def test_a_size_and_what_pads_it_are_a_multiple() -> None:
    padded = N + apply("mod", -N, 16)
    blocks = padded // 16
    assert padded % 16 == 0
    assert certain("eq", blocks * 16, padded)
    assert apply("floordiv", padded, blocks) == 16
    assert apply("mod", 16 - N % 16, 16) == apply("mod", -N, 16)
    assert without_remainders(N) == N
    for size in range(1, 40):
        assert blocks.evaluate({"n": size}) == -(-size // 16)


def test_what_is_missing_is_a_whole_block_unless_python_asked() -> None:
    class Unasked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(x, (0, BLOCK - x.shape[0] % BLOCK))

    check(Unasked(), (torch.randn(7),), others=[(torch.randn(8),)], dynamic_shapes=({0: "n"},))


class OverlappingByStrides(nn.Module):
    """Windows of 3 rows, as Longformer and LED make them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x * 2).contiguous()
        batch, rows, width = x.shape
        return x.as_strided((batch, rows - 2, 3, width), (rows * width, width, width, 1), 0)


def test_windows_by_strides_are_made_at_every_length() -> None:
    others = [(torch.randn(3, 4, 3),), (torch.randn(1, 3, 3),)]
    check(OverlappingByStrides(), (torch.randn(2, 7, 3),), others=others, dynamic_shapes=({0: "b", 1: "n"},))
