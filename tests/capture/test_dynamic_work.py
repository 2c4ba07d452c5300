"""What dynamic sizes cost beside static ones, in calls of functions (by sys.setprofile), so that a busy machine changes nothing."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from tests.support import calls_of

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
