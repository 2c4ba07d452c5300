"""Every function on models takes a path, bytes, protobuf, onnx_ir and results of exports, or says what it takes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch

import fx2onnx
from tests.cli.support import invoke

_X = torch.ones(2, 3)
_MODULE = torch.nn.Linear(3, 2)
_RESULT = fx2onnx.export(_MODULE, (_X,))
_PROTO = _RESULT.model_proto
_GIVEN = {
    "bytes": _PROTO.SerializeToString(),
    "BytesIO": io.BytesIO(_PROTO.SerializeToString()),
    "ModelProto": _PROTO,
    "Model": ir.from_proto(_PROTO),
    "ExportResult": _RESULT,
    "SimpleNamespace": SimpleNamespace(model_proto=_PROTO),  # as torch's ONNXProgram has it
}
_FUNCTIONS: dict[str, Callable[[Any, str], Any]] = {
    "lint": lambda model, path: fx2onnx.lint(model) == fx2onnx.lint(path),
    "diff": lambda model, path: fx2onnx.diff(model, path).interface == [],
    "inspect": lambda model, path: fx2onnx.inspect(model)["inputs"] == fx2onnx.inspect(path)["inputs"],
    "certify": lambda model, path: fx2onnx.certify(model, path).after == path,
    "value_ranges": lambda model, path: bool(fx2onnx.value_ranges(model, {"input": (0, 1)})),
    "testcase": lambda model, path: fx2onnx.testcase(model, Path(path).parent / "case"),
    "verify": lambda model, path: fx2onnx.verify(model, _MODULE, (_X,), engines=["runner"], effort="quick").ok,
    "locate": lambda model, path: fx2onnx.locate(model, _MODULE, (_X,), engines=["runner"], effort="quick") is None,
}


@pytest.mark.parametrize(
    "function",
    [pytest.param(name, marks=pytest.mark.long) if name in ("verify", "locate") else name for name in _FUNCTIONS],
)
@pytest.mark.parametrize("kind", [*_GIVEN, "written"])
def test_a_model_of_each_kind(kind: str, function: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(_PROTO, path)
    model = fx2onnx.export(_MODULE, (_X,), tmp_path / "own.onnx") if kind == "written" else _GIVEN[kind]
    assert _FUNCTIONS[function](model, str(path))


@pytest.mark.parametrize("function", [*_FUNCTIONS, "attest"])
@pytest.mark.parametrize("other", [None, _MODULE])
def test_anything_else_is_told_what_is_taken(function: str, other: Any, tmp_path: Path) -> None:
    with pytest.raises(fx2onnx.Fx2OnnxError, match="E001"):
        fx2onnx.attest(other) if function == "attest" else _FUNCTIONS[function](other, str(tmp_path / "m.onnx"))


def test_a_statement_is_about_a_written_export(tmp_path: Path) -> None:
    written = fx2onnx.export(_MODULE, (_X,), tmp_path / "own.onnx")
    assert fx2onnx.attest(written)["subject"][0]["name"] == "own.onnx"
    with pytest.raises(fx2onnx.Fx2OnnxError, match="E001"):
        fx2onnx.attest(_PROTO)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"quantize": "int8"},
        {"quantize": "int4"},
        {"dtype": "float16"},
        {"dtype": "mixed"},
        {"dtype": "bfloat16", "io": "float32"},
    ],
)
def test_a_case_of_a_smaller_file_is_what_the_file_computes(options: dict[str, Any], tmp_path: Path) -> None:
    """PyTorch's outputs have the file's weights and dtypes, so that a run of the case agrees."""
    torch.manual_seed(0)
    module, x = (
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8)),
        torch.randn(2, 64),
    )
    fx2onnx.export(module, (x,), tmp_path / "m.onnx", **options)
    fx2onnx.testcase(tmp_path / "m.onnx", tmp_path / "case", module=module, args=(x,))
    done = invoke("run", tmp_path / "case")
    assert done.exit_code == 0, done.output
