"""Every model of the zoo at its published size: the file is valid, runner and onnxruntime agree with eager PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

import fx2onnx
from fx2onnx.verify import verify
from models_zoo.registry import build


@pytest.fixture
def folder() -> Iterator[Path]:
    """Emptied after each test: the files are hundreds of megabytes."""
    with tempfile.TemporaryDirectory(prefix="fx2onnx-zoo-") as path:
        yield Path(path)


PROMISED = (
    "mnist_cnn",
    "mnist_cnn_same",
    "resnet18",
    "resnet50",
    "mobilenet_v3_large",
    "vit_b_16",
    "bert_base_mlm",
    "gpt2",
    "t5_small",
)
TINY = ("vit_tiny", "bert_tiny", "gpt2_tiny", "t5_tiny", "llama_tiny")


@pytest.mark.parametrize("name", [*PROMISED, *TINY])
def test_static(name: str, folder: Path) -> None:
    entry = build(name)
    path = folder / "model.onnx"
    result = fx2onnx.export(entry.module, entry.args, path, kwargs=entry.kwargs)
    onnx.checker.check_model(str(path), full_check=True)
    verdict = verify(result, entry.module, entry.args, entry.kwargs, seeds=() if name in PROMISED else (1, 2))
    assert verdict.ok, verdict.describe()
    assert {row.engine for row in verdict.rows} == {"runner", "onnxruntime"}


@pytest.mark.parametrize("name", ["mnist_cnn", "resnet18", *TINY])
def test_dynamic(name: str, folder: Path) -> None:
    entry = build(name)
    path = folder / "model.onnx"
    result = fx2onnx.export(entry.module, entry.args, path, kwargs=entry.kwargs, dynamic_shapes=entry.dynamic_shapes)
    onnx.checker.check_model(str(path), full_check=True)
    assert any(value.shape.is_dynamic() for value in result.model.graph.inputs)
    verdict = verify(result, entry.module, entry.args, entry.kwargs)
    assert verdict.ok, verdict.describe()
    assert any(row.inputs.startswith("sizes") for row in verdict.rows), verdict.notes


@pytest.mark.parametrize("opset", [11, 13, 17, 23])
@pytest.mark.parametrize("name", ["mnist_cnn_same", "vit_tiny", "bert_tiny", "t5_tiny"])
def test_opsets(name: str, opset: int) -> None:
    entry = build(name)
    result = fx2onnx.export(entry.module, entry.args, kwargs=entry.kwargs, opset_version=opset)
    assert result.model.opset_imports[""] == opset
    verdict = verify(result, entry.module, entry.args, entry.kwargs, seeds=())
    assert verdict.ok, verdict.describe()
