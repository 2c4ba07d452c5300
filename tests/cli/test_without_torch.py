"""The base installation: what runs where neither torch nor onnxruntime is installed, and what the rest says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fx2onnx

ROOT = Path(__file__).parents[2]
MISSING = ("torch", "onnxruntime", "onnxscript", "transformers", "torchvision", "timm", "sklearn", "openvino")
"""What an installation without extras lacks."""


def run(code: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({MISSING!r}))\n"
    command = [sys.executable, "-c", hidden + code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run("from fx2onnx.cli.main import main; main()", *arguments, folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bare")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    fx2onnx.export(module, (torch.randn(3, 4),), path / "m.onnx", dynamic_shapes=({0: "batch"},))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "m.onnx"),
        ("show", "m.onnx"),
        ("diff", "m.onnx", "m.onnx"),
        ("optimize", "m.onnx", "o.onnx", "--fix", "batch=2"),
        ("testcase", "m.onnx", "-o", "case"),
        ("--version",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_tools_on_files_need_no_torch(folder: Path, arguments: tuple[str, ...]) -> None:
    result = command(*arguments, folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("export", "zoo:mnist_cnn", "-o", "x.onnx"), "torch"),
        (("verify", "m.onnx", "zoo:mnist_cnn"), "torch"),
        (("debug", "m.onnx", "zoo:mnist_cnn"), "torch"),
        (("profile", "zoo:mnist_cnn"), "torch"),
        (("ops",), "torch"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_what_needs_a_package_names_the_command_that_brings_it(
    folder: Path, arguments: tuple[str, ...], extra: str
) -> None:
    result = command(*arguments, folder=folder)
    assert result.returncode != 0
    assert "E602" in result.stderr
    assert f"pip install 'fx2onnx[{extra}]'" in result.stderr
    assert not (folder / "x.onnx").exists()


@pytest.mark.parametrize(
    "expression",
    [
        "fx2onnx.export(None, (), 'x.onnx')",
        "fx2onnx.export_folder('hf:x', 'x')",
        "fx2onnx.export_training(None, (), 'x', loss=None)",
        "fx2onnx.translates",
        "__import__('fx2onnx.verify').verify.verify",
    ],
)
def test_the_api_says_so_too(folder: Path, expression: str) -> None:
    code = f"import fx2onnx\ntry: {expression}\nexcept fx2onnx.UserError as error: print(error.code, *error.next)"
    result = run(code, folder=folder)
    assert result.stdout.strip() == "E602 pip install 'fx2onnx[torch]'", result.stderr


def test_the_runner_runs(folder: Path) -> None:
    code = (
        "import numpy as np; from fx2onnx.runner import InferenceSession; "
        "print(InferenceSession('m.onnx').run(None, {'input': np.ones((5, 4), np.float32)})[0].shape)"
    )
    result = run(code, folder=folder)
    assert result.stdout.strip() == "(5, 2)", result.stderr


@pytest.mark.parametrize(
    ("harm", "lacks"),
    [
        ("import torch\ndel torch.fx.Tracer.trace", "type object 'Tracer' has no attribute 'trace'"),
        ("import torch._decomp\ndel torch._decomp.core_aten_decompositions", "'core_aten_decompositions'"),
        ("import torch\ndel torch._ops.OpOverload", "module 'torch._ops' has no attribute 'OpOverload'"),
    ],
    ids=["of a class", "an import", "of a module"],
)
def test_a_version_that_was_never_tried_says_what_it_lacks(tmp_path: Path, harm: str, lacks: str) -> None:
    code = f"""
{harm}
import fx2onnx
try:
    fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),))
except fx2onnx.UserError as error:
    print(error.code, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("E602 "), done.stderr
    assert f"torch {torch.__version__} lacks what fx2onnx needs" in done.stdout
    assert lacks in done.stdout
    assert "pip install 'torch>=2.8,<2.16'" in done.stdout
