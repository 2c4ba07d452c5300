"""Keywords of torch.onnx.export: each works, or says that it has no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.exporting.options import TORCH_ONLY
from fx2onnx.runner import InferenceSession
from fx2onnx.verify import verify

X = (torch.randn(2, 3),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dump_exported_program", True), ("artifacts_dir", "artifacts"), ("fallback", True), ("do_constant_folding", False),
        ("operator_export_type", torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK), ("autograd_inlining", False),
        ("custom_opsets", {"mine": 1}), ("custom_translation_table", {"a": print}),
        ("strict", True), ("inline", False),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_a_warning(name: str, value: Any) -> None:
    (text,) = [text for text in fx2onnx.export(nn.Linear(3, 2), X, **{name: value}).report.warnings if name in text]
    assert text.startswith(f"{name}=")


def test_a_keyword_that_nobody_knows_is_one_that_was_meant() -> None:
    with pytest.raises(fx2onnx.UserError, match="has no argument 'opset'") as caught:
        fx2onnx.export(nn.Linear(3, 2), X, opset=17)
    assert "did you mean opset_version?" in caught.value.next


def test_defaults_are_no_warning() -> None:
    usual = {name: values[0] for name, (values, _) in TORCH_ONLY.items()}
    usual["operator_export_type"] = torch.onnx.OperatorExportTypes.ONNX
    assert fx2onnx.export(nn.Linear(3, 2), X, **usual).report.warnings == []


def test_weights_are_inputs_too(tmp_path: Path) -> None:
    module, path = nn.Linear(3, 2), tmp_path / "model.onnx"
    fx2onnx.export(module, X, path, keep_initializers_as_inputs=True)
    assert verify(path, module, X).ok
    weight = np.ones((2, 3), np.float32)
    for session in (InferenceSession(path), onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])):
        assert [each.name for each in session.get_inputs()][:1] == ["input"]
        assert {each.name for each in session.get_overridable_initializers()} >= {"bias"}
        (found,) = session.run(None, {"input": X[0].numpy(), "bias": np.zeros(2, np.float32)})
        expected = X[0].numpy() @ module.weight.detach().numpy().T
        assert np.allclose(found, expected, atol=1e-6), weight.shape
