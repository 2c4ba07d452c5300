"""Layers whose parameters do not fit are refused at every size as eager PyTorch refuses them, with a dynamic batch, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fx2onnx

SIDE = 40
"""So many elements that the real kernels are not tried on them."""
IMAGES, ROWS = (8, 6, SIDE, SIDE), (64, 300)
Layer = Callable[[torch.Tensor], torch.Tensor]
CASES: dict[str, tuple[tuple[int, ...], Layer]] = {
    "groups that do not divide": (IMAGES, lambda x: F.conv2d(x, x.new_ones(5, 3, 3, 3), groups=2)),
    "bias of a convolution": (IMAGES, lambda x: F.conv2d(x, x.new_ones(5, 6, 3, 3), x.new_ones(4))),
    "dilation of zero": (IMAGES, lambda x: F.conv2d(x, x.new_ones(5, 6, 3, 3), dilation=0)),
    "negative padding": (IMAGES, lambda x: F.conv2d(x, x.new_ones(5, 6, 3, 3), padding=-1)),
    "padding of a maximum": (IMAGES, lambda x: F.max_pool2d(x, 2, padding=2)),
    "padding of a mean": (IMAGES, lambda x: F.avg_pool2d(x, 3, padding=2)),
    "negative padding of a mean": (IMAGES, lambda x: F.avg_pool2d(x, 2, padding=-1)),
    "window of zero": (IMAGES, lambda x: F.max_pool2d(x, 0, stride=1)),
    "dilation of a maximum": (IMAGES, lambda x: F.max_pool2d(x, 2, dilation=0)),
    "weight of a batch norm": (IMAGES, lambda x: F.batch_norm(x, x.new_ones(6), x.new_ones(6), x.new_ones(7))),
    "variance of a batch norm": (IMAGES, lambda x: F.batch_norm(x, x.new_ones(6), x.new_ones(7))),
    "weight of a layer norm": (ROWS, lambda x: F.layer_norm(x, (300,), x.new_ones(299))),
    "bias of a group norm": (IMAGES, lambda x: F.group_norm(x, 3, None, x.new_ones(5))),
    "bias of a linear layer": (ROWS, lambda x: F.linear(x, x.new_ones(70, 300), x.new_ones(71))),
}


class Module(torch.nn.Module):
    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, is_dynamic: bool) -> None:
    shape, layer = CASES[case]
    module, x = Module(layer), torch.ones(shape)
    with pytest.raises(RuntimeError):
        module(x)
    with pytest.raises(fx2onnx.UserError, match="E101"):
        fx2onnx.export(module, (x,), None, dynamic_shapes=[{0: "batch"}] if is_dynamic else None)
