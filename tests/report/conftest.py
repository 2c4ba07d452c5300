"""One small profile, made once: a model with two modules, exported for real, compared with itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.report.profile import Profile
from fx2onnx.report.profile_data import Point, Series
from tests.report.browsing import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x) + 1.0)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> fx2onnx.ExportResult:
    path, args = tmp_path_factory.mktemp("profile") / "net.onnx", (torch.randn(2, 6),)
    fx2onnx.export(
        Net().eval(), args, path, verify=True
    )  # the first of a process imports for so long that no operator is seen
    return fx2onnx.export(Net().eval(), args, path, profile=True, verify=True)


@pytest.fixture
def profile(exported: fx2onnx.ExportResult) -> Profile:
    """With a second exporter, one that failed, two sweeps and a depth."""
    found = exported.profile
    assert found is not None
    found = copy.deepcopy(found)
    found.source = "tests:<net> & co"
    events = found.exports[0].events
    assert events is not None
    verify = events.children.pop()  # takes so long on a busy machine that operators are narrower than a pixel
    assert verify.name == "verify"
    events.seconds -= verify.seconds
    twin = copy.deepcopy(found.exports[0])
    twin.exporter, twin.seconds = "torch", [seconds * 3 for seconds in twin.seconds]
    failed = type(twin)("torchscript", error="RuntimeError: </script> no such luck")
    found.exports += [twin, failed]
    points = [
        Point(size, name, [0.1 * k, 0.11 * k]) for size in (32, 64, 512) for name, k in (("fx2onnx", 1), ("torch", 20))
    ]
    found.sweeps = [
        Series("x, axis 0", [*points, Point(1024, "torch", error="too large")]),
        Series("x, axis 1", [Point(size, "fx2onnx", [0.1, 0.12]) for size in (6, 12)]),
    ]
    found.depth = Series("layers", [Point(layers, "fx2onnx", [0.01 * layers]) for layers in (1, 2, 4)])
    return found
