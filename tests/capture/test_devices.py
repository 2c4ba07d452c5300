"""Modules that lie on another device than the CPU: here on one made in Python, in a process of its own for all tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices made in Python",
)

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json
import traceback
from pathlib import Path
import torch
from tests.capture.fake_device import DEVICE, READ
import fx2onnx
from fx2onnx.irx import data_file

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 96)
        self.last = torch.nn.Linear(96, 8)
        self.turned = torch.nn.Parameter(torch.randn(96, 48).t())
        self.register_buffer("mask", torch.ones(96, dtype=torch.bool))
        self.register_buffer("narrow", torch.ones(96, dtype=torch.bfloat16))

    def forward(self, x):
        y = torch.relu(self.first(x))
        y = torch.where(self.mask, y * self.narrow.float(), torch.zeros(1, device=y.device))
        return self.last(y + self.turned[:1]) + torch.full((8,), 0.5, device=x.device)


def fresh():
    torch.manual_seed(0)
    READ.clear()
    return Net(), torch.randn(3, 64)

def same_file(move):
    net, x = fresh()
    fx2onnx.export(net, (x,), "here.onnx", dynamic_shapes=({0: "batch"},), metadata="none")
    net.to(DEVICE)
    fx2onnx.export(net, (move(x),), "there.onnx", dynamic_shapes=({0: "batch"},), metadata="none")
    assert {p.device for p in net.parameters()} == {DEVICE}
    return Path("here.onnx").read_bytes() == Path("there.onnx").read_bytes() and bool(READ)

def read_before_the_file_is_written():
    net, x = fresh()
    net.to(DEVICE)
    result = fx2onnx.export(net, (x.to(DEVICE),))
    return max(READ, default=0)

def read_in_pieces():
    net, x = fresh()
    net.to(DEVICE)
    size, data_file.BUFFER_BYTES = data_file.BUFFER_BYTES, 4096
    fx2onnx.export(net, (x.to(DEVICE),), "pieces.onnx", external_data=True)
    data_file.BUFFER_BYTES = size
    return [max(READ), sum(READ)]

def verified():
    net, x = fresh()
    net.to(DEVICE)
    result = fx2onnx.export(net, (x.to(DEVICE),), "judged.onnx", dynamic_shapes=({0: "batch"},), verify=True)
    return result.report.verdict["ok"]

def device():
    _, x = fresh()
    y = x.to(DEVICE)
    equal = [torch.equal(y.cpu(), x), torch.equal((y @ y.t()).cpu(), x @ x.t())]
    return [str(y.device), *equal, y.t().is_contiguous(), len(READ)]

parts = {
    "sample on the CPU": lambda: same_file(lambda x: x),
    "sample on the device": lambda: same_file(lambda x: x.to(DEVICE)),
    "before": read_before_the_file_is_written,
    "pieces": read_in_pieces,
    "verified": verified,
    "device": device,
}
for name, part in parts.items():
    try:
        print(json.dumps([name, part()]))
    except Exception:  # of one part, which its test shows; the others go on
        print(json.dumps([name, traceback.format_exc()]))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each part of the program gives, or how it failed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path_factory.mktemp("devices"),
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("sample", ["sample on the CPU", "sample on the device"])
def test_the_file_is_the_same(sample: str, found: dict[str, Any]) -> None:
    assert found[sample] is True


def test_nothing_is_computed_there_and_nothing_read_before_the_file_is_written(found: dict[str, Any]) -> None:
    assert found["before"] <= 96


def test_weights_are_read_piece_by_piece(found: dict[str, Any]) -> None:
    largest, in_all = found["pieces"]
    assert largest <= 4096
    assert in_all >= 64 * 96 * 4


def test_it_is_verified_there(found: dict[str, Any]) -> None:
    assert found["verified"] is True


def test_the_device_is_one(found: dict[str, Any]) -> None:
    assert found["device"] == ["apart:0", True, True, False, 2]
