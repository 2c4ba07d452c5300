"""The road of an ordinary export: few of our frames are above the user's forward, and rare roads are imported when they are met."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.capture.python import random_draws
from fx2onnx.capture.rare_roads import RARE_ROADS, RunPlugin, road
from tests.support import calls_of

PACKAGE = os.path.dirname(fx2onnx.__file__) + os.sep
MOST_FRAMES = 14
MOST_LINES = {"static": 11_500, "dynamic": 12_250}
MOST_FILES = {"static": 47, "dynamic": 50}


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


ORDINARY = """
import pathlib
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

def export():
    sizes = {"static": None, "dynamic": {"x": {0: "batch", 2: "height"}}}[sys.argv[1]]
    report = fx2onnx.export(Net().eval(), (torch.ones(2, 3, 8, 8),), None, dynamic_shapes=sizes).report
    assert len(report.attempts) == 1, report.attempts

def entered(frame, event, _):
    if event == "call" and frame.f_code.co_name != "<module>":
        files.add(frame.f_code.co_filename)

files = set()
export()
sys.setprofile(entered)
export()
sys.setprofile(None)
rare = {f"fx2onnx.capture.{file}" for file in RARE_ROADS.values()}
print(sorted(rare & sys.modules.keys()))
rooms = tuple(str(pathlib.Path(fx2onnx.__file__).with_name(room)) for room in ("capture", "sizes", "torchcompat", "base"))
road = [len(pathlib.Path(file).read_text().splitlines()) for file in files if file.startswith(rooms)]
print(sum(road), len(road))
"""


@pytest.mark.long
@pytest.mark.parametrize("sizes", ["static", "dynamic"])
def test_an_ordinary_export_imports_none_and_enters_few_files(sizes: str) -> None:
    done = subprocess.run([sys.executable, "-c", ORDINARY, sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rare, road = done.stdout.splitlines()
    assert rare == "[]"
    lines, files = map(int, road.split())
    assert lines <= MOST_LINES[sizes], "of files that a second export enters"
    assert files <= MOST_FILES[sizes]


@pytest.mark.parametrize("name", RARE_ROADS)
def test_each_is_there(name: str) -> None:
    plugin = getattr(road(name), "PLUGIN", None)
    assert plugin is None or issubclass(plugin, RunPlugin)


IMAGE = torch.ones(2, 3, 64, 96)
DIMS = ({0: "batch", 2: "height", 3: "width"},)


def convolutions(depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, stride=2, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers).eval()


def test_a_layer_asks_little_more_of_dynamic_sizes() -> None:
    """A tensor of a type that was made before is made without a question: each asked a hundred."""
    found: dict[bool, list[int]] = {True: [], False: []}
    for depth in (4, 24):
        module = convolutions(depth)
        for is_dynamic in found:
            options = CaptureOptions(dynamic_shapes=DIMS if is_dynamic else None)
            run = partial(capture, module, (IMAGE,), {}, options)
            run()  # what is done once in a process is done
            found[is_dynamic].append(calls_of(run))
    dynamic, static = (found[way][1] - found[way][0] for way in (True, False))
    assert dynamic < 1.3 * static


class OwnTime(nn.Module):
    """Has a part of a clock's name."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.time(x)


class OwnTimeAndClock(OwnTime):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import time

        return self.time(x) + time.time()


@pytest.mark.parametrize(("kind", "runs"), [(OwnTime, 0), (OwnTimeAndClock, 1)])
def test_an_attribute_with_the_name_of_a_clock_costs_no_further_run(
    kind: type[OwnTime], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    monkeypatch.setattr(random_draws, "notes_on_clocks", lambda *_: asked.append(None) or [])
    fx2onnx.export(kind(), (torch.rand(2, 3),))
    assert len(asked) == runs
