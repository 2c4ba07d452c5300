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
from fx2onnx import verify
from fx2onnx.exporting.options import TORCH_ONLY
from fx2onnx.runner import InferenceSession
from tests.support import Engines

X = (torch.randn(2, 3),)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dump_exported_program", True), ("artifacts_dir", "artifacts"), ("fallback", True), ("do_constant_folding", False),
        ("operator_export_type", torch.onnx.OperatorExportTypes.ONNX_ATEN_FALLBACK), ("autograd_inlining", False),
        ("strict", True), ("inline", False),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_a_warning(name: str, value: Any) -> None:
    with pytest.warns(fx2onnx.ExportWarning, match=f"{name}=") as caught:
        report = fx2onnx.export(nn.Linear(3, 2), X, **{name: value}).report
    assert [str(each.message) for each in caught] == report.warnings


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"dynamic_axes": {"nope": {0: "n"}, "input": {0: "n"}}}, "names 'nope', .* these are input, output"),
        ({"dynamic_axes": {0: {0: "n"}, "x": [0]}, "input_names": ["x"]}, "names 0, .* these are x, output"),
        ({"dynamic_axes": {"x": [0], "w": [0]}, "input_names": ["x", "w", "b"]}, r"\(input\): w, b have no effect"),
    ],
)
def test_a_name_that_the_file_cannot_have_is_a_warning(asked: dict[str, Any], said: str) -> None:
    module = nn.Linear(3, 2)
    with pytest.warns(fx2onnx.ExportWarning, match=said):
        result = fx2onnx.export(module, X, **asked)
    longer = torch.randn(5, 3)
    for (found,) in Engines(result.model_proto).run([longer]).values():
        np.testing.assert_allclose(found, module(longer).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("opset", "did you mean opset_version?"), ("onnx_shape_inference", "drop this keyword"),
        ("_retain_param_name", "drop this keyword"), ("use_external_data_format", "write external_data="),
    ],
)  # fmt: skip
def test_an_unknown_keyword_says_what_to_write(name: str, step: str) -> None:
    with pytest.raises(fx2onnx.UserError, match=f"has no argument '{name}'") as caught:
        fx2onnx.export(nn.Linear(3, 2), X, **{name: 17})
    assert caught.value.next[0].startswith(step)


@pytest.mark.parametrize(
    ("function", "name", "meant"),
    [
        (fx2onnx.export_folder, "opset", "opset_version"), (fx2onnx.export_folder, "quantise", "quantize"),
        (fx2onnx.export_folder, "image_sizes", "image_size"), (fx2onnx.attest, "sources", "source"),
        (fx2onnx.attest, "weight", "weights"),
    ],
)  # fmt: skip
def test_an_unknown_option_of_a_source_says_what_to_write(tmp_path: Path, function: Any, name: str, meant: str) -> None:
    with pytest.raises(fx2onnx.UserError, match=f"E001.*{function.__name__} has no argument '{name}'") as caught:
        function("hf:llama", tmp_path / "out", **{name: 17}) if function is fx2onnx.export_folder else function(
            "m.onnx", **{name: 17}
        )
    assert caught.value.next[0] == f"did you mean {meant}?"
    assert not list(tmp_path.iterdir())


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


onnxscript = pytest.importorskip("onnxscript")
op = onnxscript.opset18
aten = torch.ops.aten


def negated(self: Any) -> Any:
    return op.Neg(self)


@onnxscript.script()
def negated_size(X: Any) -> Any:
    return op.Neg(op.Abs(X))


def subtracted(x: Any, other: Any, alpha: float = 1.0) -> Any:
    return op.Mul(op.Sub(x, other), op.CastLike(alpha, x))


def of_any(*operands: Any) -> Any:
    return op.Max(*operands)


def summed(x: Any, dims: Any, keepdim: bool = False, dtype: int | None = None) -> Any:
    return op.Neg(op.ReduceSum(x, dims, keepdims=keepdim))


class TestTable:
    @pytest.mark.parametrize(
        ("overload", "function", "forward", "expected"),
        [
            (aten.relu.default, negated, torch.relu, lambda x, y: -x),
            (aten.relu.default, negated_size, torch.relu, lambda x, y: -x.abs()),
            (aten.add.Tensor, subtracted, torch.add, lambda x, y: x - y),
            (aten.add.Tensor, subtracted, lambda x, y: torch.add(x, y, alpha=3), lambda x, y: (x - y) * 3),
            (aten.maximum.default, of_any, torch.maximum, torch.maximum),
            (aten.sum.dim_IntList, summed, lambda x, y: x.sum(1), lambda x, y: -x.sum(1)),
            (aten.sum.dim_IntList, summed, lambda x, y: x.sum([0], keepdim=True), lambda x, y: -x.sum(0, keepdim=True)),
        ],
    )
    def test_its_functions_are_called(self, overload: Any, function: Any, forward: Any, expected: Any) -> None:
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        module = (
            forward
            if forward in (torch.add, torch.maximum)
            else (lambda x, y: forward(x) if forward is torch.relu else forward(x, y))
        )
        result = fx2onnx.export(module, (x, y), custom_translation_table={overload: function})
        assert result.report.warnings == []
        for outputs in Engines(result.model_proto).run([x, y][: len(result.report.input_names)]).values():
            np.testing.assert_allclose(outputs[0], expected(x, y).numpy(), rtol=1e-5, atol=1e-6)

    def test_custom_translations_come_first(self) -> None:
        own = {aten.relu.default: lambda op, self: op.Abs(self)}
        result = fx2onnx.export(
            torch.relu, X, custom_translation_table={aten.relu.default: negated}, custom_translations=own
        )
        assert [node.op_type for node in result.model.graph] == ["Abs"]

    @pytest.mark.parametrize("target", ["a", len, aten.relu])
    def test_what_is_no_overload(self, target: Any) -> None:
        with pytest.warns(fx2onnx.ExportWarning, match="no effect for .*: it is no overload"):
            fx2onnx.export(torch.relu, X, custom_translation_table={target: negated})

    @pytest.mark.parametrize(
        ("function", "code"),
        [
            (lambda self: op.Shape(self), "E203"),
            (lambda: None, "E203"),
            (lambda self: undefined, "E203"),  # type: ignore[name-defined]  # noqa: F821
            (lambda self: onnxscript.opset20.Gelu(self), "E202"),
            (3, "E001"),
        ],
    )
    def test_a_function_that_does_not_do(self, function: Any, code: str) -> None:
        with pytest.raises(fx2onnx.UserError, match="custom_translation_table") as caught:
            fx2onnx.export(
                lambda x: torch.relu(x), X, custom_translation_table={aten.relu.default: function}, opset_version=17
            )
        assert caught.value.code == code
        assert caught.value.where is not None or code == "E001"


def test_versions_of_other_operator_sets() -> None:
    def mine(op: Any, self: Any) -> Any:
        return op.custom("mine", "Relu", [self], op.result)

    asked = {"custom_translations": {aten.relu.default: mine}}
    for versions, found in (({"mine": 3}, 3), ({}, 1), (None, 1)):
        result = fx2onnx.export(torch.relu, X, custom_opsets=versions, **asked)
        assert result.report.warnings == []
        assert {each.domain: each.version for each in result.model_proto.opset_import}["mine"] == found
    with pytest.warns(fx2onnx.ExportWarning, match="custom_opsets has no effect for 'yours'"):
        fx2onnx.export(torch.relu, X, custom_opsets={"mine": 3, "yours": 1}, **asked)


def test_a_misspelt_argument_of_forward_or_quantize_is_named() -> None:
    module, x = torch.nn.Bilinear(3, 3, 2), torch.randn(2, 3)
    with pytest.raises(fx2onnx.UserError, match="E101") as caught:
        fx2onnx.export(module, (x,), kwargs={"imput2": x})
    assert caught.value.next[0] == "did you mean input2?"
    model = fx2onnx.export(module, (x, x)).model_proto
    for function, name, meant in (
        ("quantize", "verifi", "verify"), ("quantize", "kinds", "kind"), ("optimize", "levels", "level"), ("verify", "engine", "engines"),
    ):  # fmt: skip
        with pytest.raises(fx2onnx.UserError, match=f"E001.*{function} has no argument '{name}'") as caught:
            getattr(fx2onnx, function)(model, **{name: False})
        assert caught.value.next[0] == f"did you mean {meant}?"
