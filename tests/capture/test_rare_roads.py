"""Rare roads: what an ordinary export never enters it never imports, and each is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fx2onnx.capture.rare_roads import RARE_ROADS, road
from fx2onnx.capture.recording.plugins import RunPlugin

ORDINARY = """
import sys
import torch
from torch import nn
import fx2onnx
from fx2onnx.capture.rare_roads import RARE_ROADS

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x, mask=None):
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.flatten(x, 2).transpose(1, 2)
        n, length = x.shape[:2]
        x = self.attention(x, x, x, need_weights=False)[0].view(n, length, 2, 2).mean(1)
        return self.head(x.reshape(n, -1)).softmax(-1)

sizes = {"static": None, "dynamic": {"x": {0: "batch", 2: "height"}}}[sys.argv[1]]
report = fx2onnx.export(Net().eval(), (torch.ones(2, 3, 8, 8),), None, dynamic_shapes=sizes).report
assert len(report.attempts) == 1, report.attempts
rare = {f"fx2onnx.capture.{file}" for file in RARE_ROADS.values()}
print(sorted(rare & sys.modules.keys()))
"""


@pytest.mark.parametrize("sizes", ["static", "dynamic"])
def test_an_ordinary_export_imports_none(sizes: str) -> None:
    done = subprocess.run([sys.executable, "-c", ORDINARY, sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", RARE_ROADS)
def test_each_is_there(name: str) -> None:
    plugin = getattr(road(name), "PLUGIN", None)
    assert plugin is None or issubclass(plugin, RunPlugin)
