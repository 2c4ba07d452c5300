"""What dynamic sizes cost beside static ones, in calls of functions (by sys.setprofile), so that a busy machine changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions

IMAGE = torch.ones(2, 3, 64, 96)
DIMS = ({0: "batch", 2: "height", 3: "width"},)


def calls(run: Callable[[], Any]) -> int:
    """Of Python functions and C functions, once the same ran before."""
    run()
    count = 0

    def called(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


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
            found[is_dynamic].append(calls(partial(capture, module, (IMAGE,), {}, options)))
    dynamic, static = (found[way][1] - found[way][0] for way in (True, False))
    assert dynamic < 1.3 * static
