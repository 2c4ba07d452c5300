"""The source of an overload's form: our entry, PyTorch's decomposition, onnxscript's torchlib, or one refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch

import fx2onnx
from fx2onnx.aten_map import TABLE
from fx2onnx.aten_map.table.families import load_all
from fx2onnx.lower import torchlib, translations

aten = torch.ops.aten
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes overloads away: our entries, and (unless ``split``) PyTorch's decompositions."""

    def take(*overloads: Any, split: bool = False) -> None:
        load_all()
        monkeypatch.setattr(TABLE, "registers", TABLE.entries.__contains__)
        real = translations.is_decomposable
        for overload in overloads:
            monkeypatch.delitem(TABLE.entries, overload)
            monkeypatch.delitem(TABLE.complex_entries, overload, raising=False)
        monkeypatch.setattr(translations, "is_decomposable", lambda o: real(o) and (split or o not in overloads))

    return take


def exported(function: Callable[..., Any], opset: int = 20) -> fx2onnx.ExportResult:
    return fx2onnx.export(function, (X,), opset_version=opset)


def agree(result: fx2onnx.ExportResult, function: Callable[..., Any]) -> None:
    session = onnxruntime.InferenceSession(result.model_proto.SerializeToString())
    found = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    wanted = function(X)
    for got, want in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(torch.from_numpy(got), want)


def test_our_entry_comes_first() -> None:
    result = exported(torch.nn.functional.silu)
    assert result.report.resorts == {}


def test_then_pytorchs_decomposition(lacking: Callable[..., None]) -> None:
    lacking(aten.silu.default, split=True)
    result = exported(torch.nn.functional.silu)
    assert result.report.resorts == {"aten.silu.default": "decomposition"}
    agree(result, torch.nn.functional.silu)


TRACED = {
    aten.atan2.default: lambda x: torch.atan2(x, x + 1),
    aten.gelu.default: torch.nn.functional.gelu,
    aten.layer_norm.default: lambda x: torch.nn.functional.layer_norm(x, [4]),
    aten.softplus.default: torch.nn.functional.softplus,
    aten.view.default: lambda x: x.view(2, 6),
    aten.topk.default: lambda x: torch.topk(x, 2),
}
SCRIPTED = {
    aten.amax.default: lambda x: aten.amax(x, [1]),
    aten.addcmul.default: lambda x: torch.addcmul(x, x, x, value=2),
}


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("overload", [*TRACED, *SCRIPTED], ids=str)
def test_then_torchlib_in_the_opset_asked_for(lacking: Callable[..., None], overload: Any, opset: int) -> None:
    function = {**TRACED, **SCRIPTED}[overload]
    lacking(overload)
    result = exported(function, opset)
    assert result.report.resorts == {str(overload): "torchlib"}
    assert result.model.opset_imports[""] == opset
    agree(result, function)


def test_torchlib_below_its_opset_is_refused_where_it_needs_more(lacking: Callable[..., None]) -> None:
    lacking(aten.softplus.default)
    with pytest.raises(fx2onnx.UserError, match="torchlib is written for opset 18: CastLike does not exist") as caught:
        exported(torch.nn.functional.softplus, 13)
    assert caught.value.code == "E202"
    assert caught.value.where is not None
    assert "opset_version=18" in caught.value.next[0]


def test_torchlib_below_its_opset_is_used_where_nothing_is_newer(lacking: Callable[..., None]) -> None:
    lacking(aten.atan2.default)
    result = exported(TRACED[aten.atan2.default], 11)
    assert result.model.opset_imports[""] == 11
    agree(result, TRACED[aten.atan2.default])


def test_what_torchlib_gets_wrong_in_type_is_refused(lacking: Callable[..., None]) -> None:
    """torchlib sums bools to a bool; PyTorch to int64."""
    lacking(aten.sum.dim_IntList)
    with pytest.raises(fx2onnx.UserError) as caught:
        exported(lambda x: torch.sum(x > 0, [1]))
    assert caught.value.code == "E203"
    assert "torchlib" in caught.value.what


def test_without_onnxscript_one_error_lists_what_is_missing(
    lacking: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking(aten.softplus.default, aten.atan2.default)
    monkeypatch.setattr(torchlib, "_registry", dict)
    with pytest.raises(fx2onnx.UserError) as caught:
        exported(lambda x: torch.nn.functional.softplus(torch.atan2(x, x)))
    assert caught.value.code == "E201"
    assert "aten.softplus.default" in str(caught.value)
    assert "aten.atan2.default" in str(caught.value)
    assert "no decomposition in PyTorch, no function in torchlib" in caught.value.why


def test_refusals_come_in_one_error() -> None:
    """Two kinds of call that opset 13 cannot express: both are named, with their lines and what to do."""

    def forward(x: torch.Tensor) -> Any:
        grid = torch.stack([x, x], -1)[None]
        sampled = torch.nn.functional.grid_sample(x[None, None], grid, align_corners=False)
        places = torch.stack([x, x, x], -1)[None, None]
        return sampled, torch.nn.functional.grid_sample(x[None, None, None], places, align_corners=False)

    with pytest.raises(fx2onnx.UserError) as caught:
        exported(forward, 13)
    error = caught.value
    assert error.code == "E202"
    assert "grid_sample of a 4-D tensor needs opset 16" in error.why
    assert "grid_sample of a 5-D tensor needs opset 20" in error.why
    assert error.why.count("test_resort.py:") == 2
    assert any("opset_version=20" in step for step in error.next)
    assert exported(forward, 20).model.opset_imports[""] == 20


@pytest.mark.parametrize("name", ["mm", "bmm"])
def test_the_closest_overload_is_of_the_same_operator(name: str) -> None:
    shape = (2, 3, 3) if name == "bmm" else (3, 3)
    overload = getattr(torch.ops.aten, name).dtype
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(lambda a, b: overload(a, b, torch.float32), (torch.ones(shape), torch.ones(shape)))
    assert caught.value.code == "E201"
    assert f"closest: aten.{name}.default" in caught.value.why


def test_a_complex_call_of_an_overload_for_real_numbers_says_so() -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        exported(lambda x: torch.acos(torch.complex(x, x)))
    assert caught.value.code == "E201"
    assert "real numbers only" in caught.value.why
    assert "torch.view_as_real" in caught.value.next[1]
