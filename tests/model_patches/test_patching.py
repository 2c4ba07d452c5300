"""The registry, and what is said of a library that is another than a patch knows."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.base.changes import Changes
from fx2onnx.model_patches import library, patching
from fx2onnx.model_patches.patching import Patch, apply_patches, patches

X = torch.linspace(-1, 1, 6)
TARGET = "made_library.parts:scaled"


def in_tensors(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return torch.where(x.sum() > 9, x * factor, x * factor + 1)


class Made:
    """A library of one function, and a registry for its patches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
            return x * factor if x.sum() > 9 else x * factor + 1

        self.patches: dict[str, Patch] = {}
        self.module: Any = ModuleType("made_library.parts")
        self.module.scaled = scaled
        monkeypatch.setitem(sys.modules, "made_library", SimpleNamespace(__version__="1.4.2"))  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "made_library.parts", self.module)
        monkeypatch.setattr(patching, "PATCHES", self.patches)
        monkeypatch.setattr(library, "PATCHES", self.patches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module.scaled(x)
        return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def _thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def test_a_target_has_one_patch(made: Made) -> None:
    patches(TARGET)(in_tensors)
    with pytest.raises(fx2onnx.InternalError) as caught:
        patches(TARGET)(_thrice)
    assert f"{TARGET} is patched twice" in caught.value.what
    for function in (in_tensors, _thrice):
        assert f"{__file__}:{function.__code__.co_firstlineno}" in caught.value.why
    assert made.patches[TARGET].compute is in_tensors


def test_one_function_for_several_targets(made: Made) -> None:
    patches(TARGET, "made_library.others:Kind.scaled", reason="why")(in_tensors)
    found = [(one.module, one.qualname, one.reason) for one in made.patches.values()]
    assert found == [("made_library.parts", "scaled", "why"), ("made_library.others", "Kind.scaled", "why")]
    assert fx2onnx.export(_thrice, (X,)).report.warnings == []  # a module that is not loaded is none that changed


def test_a_patch_that_fits_is_used_and_said(made: Made) -> None:
    patches(TARGET, reason="decides in tensors")(in_tensors)
    report = fx2onnx.export(made.forward, (X,)).report
    assert list(map(str, report.assumptions)) == ["made_library.parts.scaled decides in tensors"]
    assert report.warnings == []


def needs_more(x: Any, bias: Any = None, *, scale: Any) -> Any:
    return x


def renamed(y: Any, factor: float = 2.0) -> Any:
    return y


def other_default(x: Any, factor: float = 3.0) -> Any:
    return x


def by_keyword(x: Any, *, factor: float = 2.0) -> Any:
    return x


_CHANGED = [
    (needs_more, "it takes (x, bias=None, *, scale)"),
    (renamed, "it takes (y, factor=2.0)"),
    (other_default, "it takes (x, factor=3.0)"),
    (by_keyword, "it takes (x, *, factor=2.0)"),
]


@pytest.mark.parametrize(
    ("now", "change"),
    [(None, "this version of the library has no such function"), (torch.nn.ReLU(), "it is a ReLU, no plain function")],
)
def test_a_target_that_is_gone_is_a_warning(made: Made, now: Any, change: str) -> None:
    made.module.scaled = now
    patches(TARGET)(in_tensors)
    shapes = {"x": {0: "n"}}
    with pytest.warns(fx2onnx.ExportWarning, match="made_library"):
        (line,) = fx2onnx.export(lambda x: x[:4] * 3, (X,), dynamic_shapes=shapes).report.warnings
    assert line.startswith("tests's patch of made_library.parts.scaled does not fit made_library 1.4.2")
    assert change in line
    assert "install a version of made_library" in line


@pytest.mark.parametrize(("now", "change"), _CHANGED)
def test_a_changed_target_is_what_it_is_and_who_calls_it_is_told(made: Made, now: Any, change: str) -> None:
    made.module.scaled = now
    patches(TARGET)(in_tensors)
    assert fx2onnx.export(_thrice, (X,)).report.warnings == []
    more = {"scale": 1} if now is needs_more else {}
    with pytest.warns(fx2onnx.ExportWarning, match="made_library"):
        result = fx2onnx.export(lambda x: made.module.scaled(x, **more) * 3, (X,))
    (line,) = result.report.warnings
    assert line.startswith("tests's patch of made_library.parts.scaled does not fit made_library 1.4.2")
    assert change in line
    assert "install a version of made_library" in line
    assert [node.op_type for node in result.model.graph] == ["Mul"]


def test_a_call_that_says_more_is_the_functions_own(made: Made) -> None:
    def scaled(x: torch.Tensor, bias: float = 0.0, factor: float = 2.0) -> torch.Tensor:
        return x * factor + bias

    made.module.scaled = scaled
    patches(TARGET)(in_tensors)
    assert fx2onnx.export(lambda x: scaled(x, 0.0, factor=4.0), (X,)).report.warnings == []
    with pytest.warns(fx2onnx.ExportWarning, match="made_library"):
        result = fx2onnx.export(lambda x: scaled(x, 1.0), (X,))
    (line,) = result.report.warnings
    assert "it is called with bias;" in line
    assert [node.op_type for node in result.model.graph] == ["Mul", "Add"]


def test_an_export_that_fails_names_it_too(made: Made) -> None:
    def scaled(x: torch.Tensor, *, factor: float = 2.0) -> torch.Tensor:
        return x if x.sum() > 9 else -x

    made.module.scaled = scaled
    patches(TARGET)(in_tensors)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(made.forward, (X,), data_branches="error")
    assert caught.value.code == "E104"
    assert sum("does not fit made_library 1.4.2" in step for step in caught.value.next) == 1
    assert "does not fit made_library 1.4.2" in str(caught.value)


@pytest.mark.filterwarnings("ignore::fx2onnx.ExportWarning")
@pytest.mark.parametrize(("versions", "is_reported"), [(">=1.4,<2", True), ("<1.4", False), ("", True)])
def test_other_versions_are_none_of_its_concern(made: Made, versions: str, is_reported: bool) -> None:
    def scaled(y: torch.Tensor) -> torch.Tensor:
        return y

    ours, made.module.scaled = made.module.scaled, scaled
    patches(TARGET, versions=versions)(in_tensors)
    warnings = fx2onnx.export(made.forward, (X,)).report.warnings
    assert [("does not fit" in line) for line in warnings] == [True] * is_reported
    made.module.scaled = ours
    with Changes():
        applied = apply_patches(made.patches.values())
        made.forward(X)
    assert list(applied.called) == ["made_library.parts.scaled"] * is_reported


def test_a_function_of_torchvision_with_another_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.ops import boxes

    def batched_nms(boxes: Any, scores: Any, idxs: Any, threshold: float) -> Any:
        return idxs

    monkeypatch.setattr(boxes, "batched_nms", batched_nms)
    assert fx2onnx.export(_thrice, (X,)).report.warnings == []
    with pytest.warns(fx2onnx.ExportWarning, match="torchvision"):
        (line,) = fx2onnx.export(lambda x: boxes.batched_nms(x, x, x, 0.5) * 3, (X,)).report.warnings
    assert "torchvision.ops.boxes.batched_nms does not fit torchvision" in line
    assert "it takes (boxes, scores, idxs, threshold)" in line
