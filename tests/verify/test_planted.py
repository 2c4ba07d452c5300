"""Faults planted in a copy of the package: ``fx2onnx locate`` alone has to name the stage and the file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

MODELS = """
import torch
from torch import nn


class Writes(nn.Module):
    def forward(self, x):
        y = torch.relu(x) + 1.0
        y.narrow(1, 1, 2).mul_(3.0)
        y[:, 0].add_(x[:, 1])
        y[:, :, 5].fill_(2.0)
        y.transpose(1, 2).movedim(0, 1).sub_(0.5)
        return torch.sin(y) * 2.0


class Chunks(nn.Module):
    def forward(self, x):
        y = x * 1.0
        first, second, third = y.unbind(1)
        second.add_(first)
        part = y.tensor_split(3, dim=2)[1]
        part.mul_(2.0)
        return y + 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.line, self.layer_norm = nn.Linear(4, 6), nn.LayerNorm(6)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        x = self.layer_norm(self.line(x)) * torch.nn.functional.gelu(x[:, :1])
        return torch.softmax(x, -1).transpose(0, 1).transpose(0, 1).cumsum(1)


def writes():
    return Writes(), torch.randn(2, 3, 6)


def chunks():
    return Chunks(), torch.randn(2, 3, 6)


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.relu(torch.sin(x) @ self.weight + self.bias)


def flat():
    torch.manual_seed(0)
    return Flat(), torch.randn(2, 6)


def net():
    torch.manual_seed(0)
    made = Net().eval()
    torch.nn.init.uniform_(made.norm.running_var, 0.5, 2.0)
    torch.nn.init.normal_(made.norm.running_mean)
    return made, torch.randn(2, 3, 8, 8)
"""


@dataclass(frozen=True)
class Fault:
    """A text of a file that becomes another, the source to export, and the stage that has to be named."""

    stage: str
    file: str
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.file}: {self.after[:40]}"


ALIASING, NORM = "capture/recording/aliasing.py", "semantics/kernels/norm.py"
FAULTS = [
    Fault("capture", ALIASING, "(before, new, axis, start, start + length, 1)", "(before, new, axis, 0, length, 1)", "writes"),
    Fault("capture", ALIASING, "(before, new, *step.args[1:])", "(before, new, step.args[1], 2)", "writes"),
    Fault("capture", ALIASING, "select_scatter.default, (axis, step.output)", "select_scatter.default, (axis, 2)", "chunks"),
    Fault("capture", ALIASING, "    for info in step.siblings[: step.output]:", "    for info in step.siblings[:0]:", "chunks"),
    Fault("capture", "capture/recording/functionalize.py", "torch.full_like(self, source)", "torch.full_like(self, source + 1)", "writes"),
    Fault("translation", "aten_map/normalization.py", "return (op.LayerNormalization(value, scale, shift, axis=-count, epsilon=float(eps)),)",
          "return (op.LayerNormalization(value, scale, shift, axis=-count, epsilon=0.5),)", "net"),
    Fault("translation", "aten_map/reductions.py", 'return reduce(op, "ReduceMean", value', 'return reduce(op, "ReduceMax", value', "net"),
    Fault("translation", "aten_map/activations.py", 'op.Gelu(value, approximate=None if approximate == "none" else approximate)', "op.Relu(value)", "net"),
    Fault("translation", "aten_map/activations.py", "op.Mul(self, op.Sigmoid(self))", "op.Mul(self, op.Tanh(self))", "zoo:llama_tiny"),
    Fault("rewrite", "optimize/rewrites/linear_layers.py", "m.bias, **attributes(m.product))", "m.bias, **(attributes(m.product) | {\"beta\": 2.0}))", "flat"),
    Fault("rewrite", "optimize/rewrites/linear_layers.py", "np.sqrt(variance.astype(np.float64) + epsilon)", "(variance.astype(np.float64) + epsilon)", "net"),
    Fault("engine", NORM, 'matrix[1] * attrs.get("epsilon", 1e-5)', "matrix[1] * 0.1", "zoo:bert_tiny"),
    Fault("engine", "semantics/kernels/norm.py", "np.divide(y, total, out=y)", "np.divide(y, np.maximum.reduce(y, axis=axis, keepdims=True), out=y)", "zoo:bert_tiny"),
    Fault("engine", "semantics/kernels/gather.py", "np.take(x, chosen, axis=axis, out=out[0], mode=\"clip\")", "np.take(x, chosen * 0, axis=axis, out=out[0], mode=\"clip\")", "zoo:bert_tiny"),
    Fault("engine", "semantics/kernels/activation.py", "np.multiply(first, _HALF, out=first)", "np.multiply(first, _ONE, out=first)", "zoo:bert_tiny"),
]  # fmt: skip


def debugged(fault: Fault, folder: Path) -> dict[str, Any]:
    """What ``fx2onnx locate`` says of a file that a copy of the package with the fault has written."""
    shutil.copytree(ROOT / "fx2onnx", folder / "fx2onnx", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "models_zoo").symlink_to(ROOT / "models_zoo")
    (folder / "planted_models.py").write_text(MODELS)
    path = folder / "fx2onnx" / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.before, fault.after))
    source = fault.source if ":" in fault.source else f"planted_models:{fault.source}"
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fx2onnx", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    done = run("export", source, "-o", "model.onnx", "--no-verify", "-q")
    assert done.returncode == 0, done.stderr
    done = run("locate", "model.onnx", source, "--json")
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["first_wrong"]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_code_of_a_fault_stands_there_once(fault: Fault) -> None:
    assert (ROOT / "fx2onnx" / fault.file).read_text().count(fault.before) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_traced_to_its_file(fault: Fault, tmp_path: Path) -> None:
    found = debugged(fault, tmp_path)
    assert found is not None, "nothing was found"
    assert (found["stage"], fault.file in found["blame"]) == (fault.stage, True), found
