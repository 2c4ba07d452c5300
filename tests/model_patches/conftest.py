"""A test marked ``compares("module:qualname", ...)`` compares those patches with what they replace, so it has to call them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from fx2onnx.model_patches import library
from fx2onnx.model_patches.patching import PATCHES, Applied, Patch, apply_patches


@pytest.fixture(autouse=True)
def patches_are_called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    wanted = {PATCHES[target].name for mark in request.node.iter_markers("compares") for target in mark.args}
    applied: list[Applied] = []

    def noted(patches: Iterable[Patch]) -> Applied:
        applied.append(apply_patches(patches))
        return applied[-1]

    monkeypatch.setattr(library, "apply_patches", noted)
    yield
    called = {name for one in applied for name in one.called}
    assert wanted <= called, f"the test does not call {wanted - called}"
