"""The public names, and the promise that torch.onnx.export's calls work unchanged."""

from __future__ import annotations

import inspect

import pytest
import torch

import fx2onnx

PUBLIC = {
    "ExportResult",
    "Fx2OnnxError",
    "InternalError",
    "Report",
    "UserError",
    "VerificationError",
    "__version__",
    "export",
    "export_folder",
    "load",
    "translates",
}


def test_public_names() -> None:
    assert set(fx2onnx.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(fx2onnx, name) is not None


def test_public_objects_have_docstrings() -> None:
    for name in PUBLIC - {"__version__"}:
        assert (getattr(fx2onnx, name).__doc__ or "").strip(), name


def test_keywords_of_torch_onnx_export_are_taken() -> None:
    ours = inspect.signature(fx2onnx.export).parameters
    theirs = inspect.signature(torch.onnx.export).parameters
    positional = [name for name, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(positional)] == positional
    from fx2onnx.api import _TORCH_ONLY

    keyword = {name for name, p in theirs.items() if p.kind is p.KEYWORD_ONLY and not name.startswith("_")}
    assert keyword - set(ours) - _TORCH_ONLY == set()


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(fx2onnx.UserError, match="opset_versoin") as caught:
        fx2onnx.export(torch.nn.Identity(), (torch.ones(1),), opset_versoin=17)
    assert caught.value.code == "E001"
