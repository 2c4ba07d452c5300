"""Sizes that nobody asked for by name (``"auto"``, proposals): static only where no other size does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fx2onnx.capture.shapes.dynamic import Proposed
from fx2onnx.sizes.assumptions import Condition
from tests.support import check


class Codec(torch.nn.Module):
    """Strides of 2 and 4 down, and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.ModuleList([torch.nn.Conv1d(2, 4, 4, 2, 1), torch.nn.Conv1d(4, 4, 8, 4, 2)])
        self.up = torch.nn.ModuleList(
            [torch.nn.ConvTranspose1d(4, 4, 8, 4, 2), torch.nn.ConvTranspose1d(4, 2, 4, 2, 1)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in (*self.down, *self.up):
            y = layer(y).relu()
        return x + y


def unet(x: torch.Tensor) -> torch.Tensor:
    half = F.max_pool2d(x, 2)
    inner = F.interpolate(F.max_pool2d(half, 2), scale_factor=2)
    return torch.cat([x, F.interpolate(torch.cat([half, inner], 1), scale_factor=2)], 1)


def windows(x: torch.Tensor) -> torch.Tensor:
    b, h, w, c = x.shape
    x = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c).softmax(1)
    return x.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)


def padded(x: torch.Tensor) -> torch.Tensor:
    x = F.pad(x, (0, -x.shape[1] % 8))
    return x.view(x.shape[0], -1, 8).mean(-1)


def padded_if(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] % 8:
        x = F.pad(x, (0, 8 - x.shape[1] % 8))
    return x.view(x.shape[0], -1, 8).mean(-1)


def heads(x: torch.Tensor) -> torch.Tensor:
    b, n, c = x.shape
    return x.view(b, n, 4, c // 4).transpose(1, 2).softmax(-1)


def checks(x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] % 4:
        raise ValueError("no multiple of 4")
    return x.unflatten(-1, (-1, 4)).sum(-1)


def halved(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=0.5, mode="bilinear") + F.avg_pool2d(x, 2)


def turns(x: torch.Tensor) -> torch.Tensor:
    total = x[:, :1] * 0
    for turn in range(x.shape[1] // 4):
        total = total + x[:, turn * 4 : turn * 4 + 1]
    return total


def chunks(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(x.chunk(3, -1)).sum(0)


ALIKE = "(-2*(({0} + 2) // 3) + {0} <= 0) or (-2*(({0} + 2) // 3) + {0} == (({0} + 2) // 3))"
"""The parts of ``chunks`` are: there are two at most, or the third is as long as the first."""


def squares(x: torch.Tensor) -> torch.Tensor:
    side = int(x.shape[1] ** 0.5)
    return x.view(x.shape[0], side, side).transpose(1, 2)


ALL: Any = object()
"""Every axis is dynamic."""
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[tuple[int, ...]], dict[int, str], Any]] = {
    "unet": (unet, (2, 3, 16, 24), [(1, 2, 4, 8), (3, 5, 20, 4)], {2: "{} % 4 == 0", 3: "{} % 4 == 0"}, ALL),
    "view": (lambda x: x.view(x.shape[0], -1, 4).sum(1), (2, 16), [(3, 20), (5, 4)], {1: "{} % 4 == 0"}, ALL),
    "view of rows": (lambda x: x.reshape(-1, 4, x.shape[1]).sum(1), (8, 5), [(12, 3)], {0: "{} % 4 == 0"}, ALL),
    "windows": (windows, (2, 8, 12, 3), [(1, 4, 4, 5), (3, 16, 4, 2)], {1: "{} % 4 == 0", 2: "{} % 4 == 0"}, ALL),
    "padded": (padded, (2, 16), [(3, 19), (1, 8), (2, 31)], {}, ALL),
    "padded if": (padded_if, (2, 19), [(3, 16), (1, 5), (2, 31)], {}, ALL),
    "codec": (Codec(), (2, 2, 32), [(1, 2, 8), (3, 2, 40)], {2: "{} % 8 == 0"}, {1: 2}),
    "heads": (heads, (2, 5, 16), [(1, 7, 20), (3, 2, 4)], {2: "{} % 4 == 0"}, ALL),
    "checks": (checks, (2, 8), [(3, 12), (1, 4)], {1: "{} % 4 == 0"}, ALL),
    "chunks": (chunks, (2, 9), [(1, 6), (3, 3), (2, 1), (1, 2), (2, 4)], {1: ALIKE}, ALL),
    "halved": (halved, (1, 2, 8, 12), [(2, 3, 6, 10), (1, 1, 9, 7)], {2: "{} >= 2", 3: "{} >= 2"}, ALL),
    "table": (lambda x: x + torch.arange(64.0)[: x.shape[1]], (2, 16), [(1, 64), (3, 5)], {1: "{} <= 64"}, ALL),
    "turns": (turns, (2, 13), [(3, 12), (1, 15)], {1: "{0} >= 12 and {0} <= 15"}, ALL),
    "squares": (squares, (2, 16), [(3, 16), (2, 1), (1, 25), (3, 100)], {}, ALL),
}


@pytest.mark.parametrize("how", ["auto", "proposed"])
@pytest.mark.parametrize("name", CASES)
def test_a_size_stays_dynamic_with_its_condition(name: str, how: str) -> None:
    module, sample, others, conditions, static = CASES[name]
    torch.manual_seed(0)
    module = module.eval() if isinstance(module, torch.nn.Module) else module
    proposed = ({axis: Proposed(f"axis{axis}") for axis in range(len(sample))},)
    result = check(
        module,
        (torch.randn(sample),),
        others=[(torch.randn(size),) for size in others],
        dynamic_shapes="auto" if how == "auto" else proposed,
    )
    shape = result.model.graph.inputs[0].shape
    assert shape is not None
    assert {axis: size for axis, size in enumerate(shape) if isinstance(size, int)} == ({} if static is ALL else static)
    found = {each.name: each.expression for each in result.report.assumptions if isinstance(each, Condition)}
    assert found == {str(shape[axis]): text.format(shape[axis]) for axis, text in conditions.items()}
