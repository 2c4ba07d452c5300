"""The road of an ordinary export: few of our frames are above the user's ``forward``, and nothing rare is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.capture import rare

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


PLAIN = """
import sys
import torch
from torch import nn
import fx2onnx
from fx2onnx.capture.rare import RARE

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)).softmax(-1)

sizes = {"static": None, "dynamic": ({0: "batch", 2: "height"},)}[sys.argv[1]]
report = fx2onnx.export(Net().eval(), (torch.ones(2, 3, 8, 8),), None, dynamic_shapes=sizes).report
assert len(report.attempts) == 1
rare = {f"fx2onnx.capture.{file}" for file in RARE.values()}
print(len(rare), sorted(rare & sys.modules.keys()))
"""


@pytest.mark.parametrize("sizes", ["static", "dynamic"])
def test_an_ordinary_export_imports_nothing_rare(sizes: str) -> None:
    done = subprocess.run([sys.executable, "-c", PLAIN, sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split(maxsplit=1)[1] == "[]\n"


def test_every_rare_name_is_there() -> None:
    for name, file in rare.RARE.items():
        assert getattr(rare, name).__module__ == f"fx2onnx.capture.{file}"
    with pytest.raises(AttributeError, match="no attribute"):
        rare.nothing  # type: ignore[attr-defined]  # noqa: B018
