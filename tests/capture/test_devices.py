"""Modules that lie on another device than the CPU: here on one made in Python, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices made in Python",
)

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
import torch
from tests.capture.fake_device import DEVICE, READ
import fx2onnx

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

torch.manual_seed(0)
net, x = Net(), torch.randn(3, 64)
"""


def run(folder: Path, code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("sample", ["x", "x.to(DEVICE)"], ids=["sample on the CPU", "sample on the device"])
def test_the_file_is_the_same(tmp_path: Path, sample: str) -> None:
    code = f"""
fx2onnx.export(net, (x,), "here.onnx", dynamic_shapes=({{0: "batch"}},), metadata="none")
net.to(DEVICE)
fx2onnx.export(net, ({sample},), "there.onnx", dynamic_shapes=({{0: "batch"}},), metadata="none")
assert {{p.device for p in net.parameters()}} == {{DEVICE}}
print(Path("here.onnx").read_bytes() == Path("there.onnx").read_bytes(), bool(READ))
"""
    assert run(tmp_path, code) == ["True", "True"]


def test_nothing_is_computed_there_and_nothing_read_before_the_file_is_written(tmp_path: Path) -> None:
    code = """
net.to(DEVICE)
result = fx2onnx.export(net, (x.to(DEVICE),))
print(max(READ, default=0) <= 96)
"""
    assert run(tmp_path, code) == ["True"]


def test_weights_are_read_piece_by_piece(tmp_path: Path) -> None:
    code = """
from fx2onnx.irx import data_file
data_file.BUFFER_BYTES = 4096
net.to(DEVICE)
fx2onnx.export(net, (x.to(DEVICE),), "there.onnx", external_data=True)
print(max(READ), sum(READ) >= 64 * 96 * 4)
"""
    largest, is_all = run(tmp_path, code)
    assert int(largest) <= 4096
    assert is_all == "True"


def test_it_is_verified_there(tmp_path: Path) -> None:
    code = """
net.to(DEVICE)
result = fx2onnx.export(net, (x.to(DEVICE),), "there.onnx", dynamic_shapes=({0: "batch"},), verify=True)
print(result.report.verdict["ok"])
"""
    assert run(tmp_path, code) == ["True"]


def test_the_device_is_one(tmp_path: Path) -> None:
    code = """
y = x.to(DEVICE)
print(y.device, torch.equal(y.cpu(), x), torch.equal((y @ y.t()).cpu(), x @ x.t()), y.t().is_contiguous(), len(READ))
"""
    assert run(tmp_path, code) == ["apart:0", "True", "True", "False", "2"]
