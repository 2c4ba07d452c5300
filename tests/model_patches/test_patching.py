"""The registry, and what is said of a library that is another than a patch knows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.base.changes import Changes
from fx2onnx.model_patches import library, patching
from fx2onnx.model_patches.patching import Patch, apply_patches, patches
from fx2onnx.sources.torchvision_compat import prepare

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


def more(x: Any, factor: float = 2.0, bias: float = 0.0) -> Any: ...
def renamed(y: Any, factor: float = 2.0) -> Any: ...
def other_default(x: Any, factor: float = 3.0) -> Any: ...
def by_keyword(x: Any, *, factor: float = 2.0) -> Any: ...


@pytest.mark.parametrize(
    ("now", "change"),
    [
        (None, "the library no longer has it"),
        (torch.nn.ReLU(), "it is a ReLU, no plain function"),
        (more, "it takes (x, factor=2.0, bias=0.0)"),
        (renamed, "it takes (y, factor=2.0)"),
        (other_default, "it takes (x, factor=3.0)"),
        (by_keyword, "it takes (x, *, factor=2.0)"),
    ],
)
def test_a_changed_target_is_a_warning(made: Made, now: Any, change: str) -> None:
    made.module.scaled = now
    patches(TARGET)(in_tensors)
    shapes = {"x": {0: "n"}}
    (line,) = fx2onnx.export(lambda x: x[:4] * 3, (X,), dynamic_shapes=shapes).report.warnings
    assert line.startswith("tests's patch of made_library.parts.scaled does not fit made_library 1.4.2")
    assert change in line
    assert "install a version of made_library" in line


def test_an_export_that_fails_names_it_too(made: Made) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 9 else -x

    made.module.scaled = scaled
    patches(TARGET)(in_tensors)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(made.forward, (X,), data_branches="error")
    assert caught.value.code == "E104"
    assert sum("does not fit made_library 1.4.2" in step for step in caught.value.next) == 1
    assert "does not fit made_library 1.4.2" in str(caught.value)


@pytest.mark.parametrize(("versions", "is_reported"), [(">=1.4,<2", True), ("<1.4", False), ("", True)])
def test_other_versions_are_none_of_its_concern(made: Made, versions: str, is_reported: bool) -> None:
    patches(TARGET, versions=versions)(renamed)
    warnings = fx2onnx.export(_thrice, (X,)).report.warnings
    assert [("does not fit" in line) for line in warnings] == [True] * is_reported
    made.patches.clear()
    patches(TARGET, versions=versions)(in_tensors)
    with Changes():
        applied = apply_patches(made.patches.values())
        made.forward(X)
    assert list(applied.called) == ["made_library.parts.scaled"] * is_reported


def _first(original: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return original(x, *args, **kwargs)


def _all(original: Any, x: Any, factor: float = 2.0) -> Any:
    return original(x, factor)


@pytest.mark.parametrize(
    ("compute", "names", "now", "fits"),
    [
        (_first, (), more, True),
        (_first, (), renamed, False),
        (_first, ("factor",), more, True),
        (_first, ("factor", "bias"), renamed, False),
        (_first, ("bias",), other_default, False),
        (_all, (), more, False),
        (_all, (), other_default, False),
    ],
)
def test_what_a_patch_around_uses_is_there(
    made: Made, compute: Callable[..., Any], names: tuple[str, ...], now: Any, fits: bool
) -> None:
    patches(TARGET, around=True, names=names)(compute)
    assert (patching.change_of(made.patches[TARGET], now) == "") == fits


def test_a_function_of_torchvision_with_another_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare(), "the tests' environment has torchvision"
    from torchvision.ops import boxes

    def batched_nms(boxes: Any, scores: Any, idxs: Any, threshold: float) -> Any: ...

    assert fx2onnx.export(_thrice, (X,)).report.warnings == []
    monkeypatch.setattr(boxes, "batched_nms", batched_nms)
    (line,) = fx2onnx.export(_thrice, (X,)).report.warnings
    assert "torchvision.ops.boxes.batched_nms does not fit torchvision" in line
    assert "it takes (boxes, scores, idxs, threshold)" in line
