"""The base installation: what runs where neither torch nor onnxruntime is installed, and what the rest says."""

from __future__ import annotations

import json
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


@pytest.mark.long_cases(but=["--version"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "m.onnx"),
        ("inspect", "m.onnx"),
        ("diff", "m.onnx", "m.onnx"),
        ("optimize", "m.onnx", "o.onnx", "--fix", "batch=2"),
        ("testcase", "m.onnx", "-o", "case"),
        ("--version",),
        ("ops", "softmax"),
        ("list", "zoo"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_tools_on_files_need_no_torch(folder: Path, arguments: tuple[str, ...]) -> None:
    result = command(*arguments, folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.long_cases(but=["export-torch"])
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("export", "zoo:mnist_cnn", "-o", "x.onnx"), "torch"),
        (("verify", "m.onnx", "zoo:mnist_cnn"), "torch"),
        (("locate", "m.onnx", "zoo:mnist_cnn"), "torch"),
        (("profile", "zoo:mnist_cnn"), "torch"),
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


EXPRESSIONS = (
    "fx2onnx.export(None, (), 'x.onnx')",
    "fx2onnx.export_folder('hf:x', 'x')",
    "fx2onnx.export_training(None, (), 'x', loss=None)",
    "fx2onnx.translates",
    "__import__('fx2onnx.verify').verify.verify",
)


@pytest.mark.long
def test_the_api_says_so_too(folder: Path) -> None:
    code = "import fx2onnx\n" + "\n".join(
        f"try: {expression}\nexcept fx2onnx.UserError as error: print(error.code, *error.next)"
        for expression in EXPRESSIONS
    )
    result = run(code, folder=folder)
    assert result.stdout.splitlines() == ["E602 pip install 'fx2onnx[torch]'"] * len(EXPRESSIONS), result.stderr


@pytest.mark.long
def test_the_runner_runs(folder: Path) -> None:
    code = (
        "import numpy as np; from fx2onnx.runner import InferenceSession; "
        "print(InferenceSession('m.onnx').run(None, {'input': np.ones((5, 4), np.float32)})[0].shape)"
    )
    result = run(code, folder=folder)
    assert result.stdout.strip() == "(5, 2)", result.stderr


HARMS = {
    "of a class": ("import torch\ndel torch._C._TorchDispatchModeKey.FAKE", "type object 'torch._C._TorchDispatchModeKey' has no attribute 'FAKE'"),
    "an import": ("import torch._decomp\ndel torch._decomp.core_aten_decompositions", "'core_aten_decompositions'"),
    "of a module": ("import torch\ndel torch._ops.OpOverload", "module 'torch._ops' has no attribute 'OpOverload'"),
}  # fmt: skip
HARMED = """
import json, os, sys
import torch

for name, harm in json.loads(sys.argv[1]).items():
    if child := os.fork():  # torch is imported once, and harmed in a process of its own each time
        os.waitpid(child, 0)
        continue
    exec(harm)
    import fx2onnx
    try:
        fx2onnx.export(torch.nn.ReLU(), (torch.ones(2),))
    except fx2onnx.UserError as error:
        print(json.dumps([name, error.code, str(error)]))
    sys.exit()
"""


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each harm leads to: a code and a text."""
    done = subprocess.run(
        [sys.executable, "-c", HARMED, json.dumps({name: harm for name, (harm, _) in HARMS.items()})],
        cwd=tmp_path_factory.mktemp("harmed"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return {name: said for name, *said in map(json.loads, done.stdout.splitlines())} or pytest.fail(done.stderr)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="harms torch in processes that are forked")
@pytest.mark.parametrize("name", HARMS)
def test_a_version_that_was_never_tried_says_what_it_lacks(harmed: dict[str, list[str]], name: str) -> None:
    code, text = harmed[name]
    assert code == "E602"
    assert f"torch {torch.__version__} lacks what fx2onnx needs" in text
    assert HARMS[name][1] in text
    assert "pip install 'torch>=2.8,<2.16'" in text
