"""Every table at 80, 120 and 200 columns and without a terminal: nothing is cut off, no line is too long."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.cli import main, many, progress
from fx2onnx.report.console import PlainConsole
from tests.cli.support import invoke

SOURCE = """
import torch
from torch import nn

class ANameOfSomeLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_convolution_with_a_long_name = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Conv2d(4, 4, 3))
    def forward(self, x):
        return torch.softmax(self.a_convolution_with_a_long_name(x), 1)

def net():
    return ANameOfSomeLength(), torch.randn(1, 3, 8, 8)
"""
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run --profile": (("run", "net.onnx", "--profile"), ("Conv", "Gelu", "Softmax", "share")),
    "inspect": (("inspect", "net.onnx"), ("Conv", "Softmax", "[1, 3, 8, 8]")),
    "diff": (("diff", "net.onnx", "other.onnx"), ("Relu", "1/Relu")),
    "ops": (("ops", "aten.conv*"), ("aten.conv2d.default", "aten.convolution.default")),
    "list": (("list",), ("zoo", "torchvision")),
    "lint": (("lint", "wide.onnx"), ("Conv", "float")),
    "verify": (("verify", "net.onnx", "widths_source:net"), ("runner", "onnxruntime")),
    "export": (("export", "widths_source:net", "-o", "again.onnx"), ("again.onnx",)),
    "export-many": (("export-many", "widths_source:net", "zoo:mnist_cnn", "-o", "out", "--jobs", "1"), ("zoo:mnist_cnn",)),
    "attest": (("attest", "net.onnx"), ("sha256", "net.onnx")),
    "certify": (("certify", "net.onnx", "net.onnx"), ("changed", "proved")),
    "run": (("run", "net.onnx"), ("output", "float32")),
    "doctor": (("doctor",), ("onnx_ir", "engines", "BLAS")),
    "optimize": (("optimize", "other.onnx", "small.onnx", "--explain"), ("small.onnx", "verified")),
    "profile": (("profile", "widths_source:net", "--repeat", "1", "--no-verify"), ("capture", "aten.conv2d.default")),
    "train": (("train", "training", "--data", "rows.npz", "--steps", "3", "--batch-size", "3"), ("loss", "->")),
}  # fmt: skip
NO_TABLES = {
    "generate": "prints what the model says",
    "locate": "prints sentences",
    "export-folder": "shows what export shows, for each file",
    "export-training": "shows what export shows, for each file",
    "quantize": "shows what optimize shows",
    "testcase": "prints one sentence",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("widths")
    (place / "widths_source.py").write_text(SOURCE)
    scope: dict[str, Any] = {}
    exec(SOURCE, scope)
    module, x = scope["net"]()
    fx2onnx.export(module.eval(), (x,), place / "net.onnx")
    fx2onnx.export(nn.Sequential(module, nn.ReLU()).eval(), (x,), place / "other.onnx")
    fx2onnx.export(module.double().eval(), (x.double(),), place / "wide.onnx", target="onnx")
    loss = nn.functional.cross_entropy
    linear = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    targets = torch.zeros(3).long()
    fx2onnx.export_training(
        linear,
        (torch.randn(3, 4),),
        place / "training",
        loss=loss,
        targets=targets,
        optimizer=optimizer,
        dynamic_shapes={"input": {0: "n"}, "target": {0: "n"}},
    )
    np.savez(place / "rows.npz", input=np.ones((30, 4), np.float32), target=np.zeros(30, np.int64))
    return place


def shown(arguments: tuple[str, ...], width: int | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints on a terminal of that width, or into a pipe."""
    if width is None:
        return invoke(*arguments).stdout
    screen = io.StringIO()

    def console(*, stderr: bool = False) -> PlainConsole:
        return PlainConsole(
            file=io.StringIO() if stderr else screen, force_terminal=True, width=width, color_system=None
        )

    for place in (progress, many):
        monkeypatch.setattr(place, "console", console)
    monkeypatch.setattr(progress, "is_terminal", lambda stream: True)
    invoke(*arguments)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())


WIDTHS = (80, 120, 200, None)
SLOW = ("export-many", "profile", "train", "optimize")
RUNS = [(name, width) for name in COMMANDS for width in WIDTHS if name not in SLOW or width in (80, None)]
"""The runs: of commands that take seconds, the narrowest width and a pipe."""


def test_every_command_is_here() -> None:
    assert set(main.COMMANDS) == {name.split()[0] for name in COMMANDS} | set(NO_TABLES)


@pytest.mark.long_cases(
    "run --profile-80",
    "ops-80",
    "ops-120",
    "ops-200",
    "export-many-80",
    "export-many-None",
    "profile-80",
    "profile-None",
)
@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("name", "width"), RUNS)
def test_tables_fit(name: str, width: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    arguments, wanted = COMMANDS[name]
    with torch.random.fork_rng():
        text = shown((*arguments, "--again") if name == "export-many" else arguments, width, monkeypatch)
    assert text.strip()
    assert "…" not in text
    assert not width or max(len(line.rstrip()) for line in text.splitlines()) <= width
    for word in wanted:
        assert word in text, text
