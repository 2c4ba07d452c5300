"""A torchvision that is missing or cannot be imported is one clear error, and the tests' hook leaves one that works alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from fx2onnx.base.errors import UserError
from fx2onnx.sources.torchvision import check_torchvision, import_torchvision


def run_python(code: str, *, path: Path | None = None) -> str:
    """The stdout of ``code`` in a fresh interpreter, ``path`` searched first."""
    setup = f"import sys; sys.path[:0] = {[str(path)] if path else []}\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_torchvision_works_with_the_hook() -> None:
    code = """
import torch
load_library = torch.ops.load_library
import torchvision
assert torch.ops.load_library == load_library and "load_library" not in vars(torch.ops)
boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3.9], [5, 5, 6, 6]])
print(torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist())
pooled = torchvision.ops.roi_align(torch.ones(1, 2, 8, 8), [boxes], 2)
print(tuple(pooled.shape), pooled.min().item(), pooled.max().item())
from torch._subclasses import FakeTensorMode
with FakeTensorMode():
    print(tuple(torchvision.ops.roi_align(torch.ones(1, 2, 8, 8), torch.ones(5, 5), 3).shape))
build = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn
torch.manual_seed(0)
model = build(weights=None, weights_backbone=None, min_size=64, max_size=64).eval()
with torch.no_grad():
    print(sorted(model([torch.rand(3, 64, 64)])[0]))
"""
    lines = run_python(code).splitlines()
    assert lines == ["[1, 2]", "(3, 2, 2, 2) 1.0 1.0", "(5, 2, 3, 3)", "['boxes', 'labels', 'scores']"]


def test_a_torchvision_that_imports_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("ops = 'its own'\n")
    code = """
import torchvision
print(torchvision.ops, "torch" in sys.modules)
"""
    assert run_python(code, path=tmp_path).strip() == "its own False"


@pytest.mark.long_cases("RuntimeError('compiled for another CUDA')")
@pytest.mark.parametrize("failure", ["ImportError('libcudart.so')", "RuntimeError('compiled for another CUDA')"])
def test_a_torchvision_broken_in_another_way_is_reported(tmp_path: Path, failure: str) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(f"raise {failure}\n")
    code = """
from fx2onnx.base.errors import UserError
from fx2onnx.sources.registry import resolve
for source in ("torchvision:resnet18", "timm:resnet18", "hf:gpt2"):
    try:
        resolve(source)
    except UserError as error:
        print(error.code, type(error.__cause__).__name__)
"""
    assert run_python(code, path=tmp_path).split() == ["E602", failure.split("(")[0]] * 3


def test_a_missing_torchvision_is_named_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        import_torchvision()
    assert (caught.value.code, caught.value.next) == ("E602", ("pip install torchvision",))
    check_torchvision()
