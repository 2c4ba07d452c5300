"""The length of the road of an ordinary export: few of our frames are above the user's ``forward``."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx

PACKAGE = os.path.dirname(fx2onnx.__file__) + os.sep
MOST_FRAMES = 14


class Deep(nn.Module):
    """Keeps the frames of fx2onnx above its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frame, found = sys._getframe(), []
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                found.append(f"{frame.f_code.co_filename.removeprefix(PACKAGE)}: {frame.f_code.co_qualname}")
            frame = frame.f_back  # type: ignore[assignment]
        ABOVE[:] = found
        return torch.relu(self.inner(x))


ABOVE: list[str] = []


@pytest.mark.parametrize("dynamic_shapes", [None, ({0: "batch"},)])
def test_few_frames_of_ours_are_above_forward(dynamic_shapes: Any) -> None:
    fx2onnx.export(Deep(), (torch.ones(3, 4),), None, dynamic_shapes=dynamic_shapes)
    assert 5 < len(ABOVE) <= MOST_FRAMES, "\n".join(ABOVE)
