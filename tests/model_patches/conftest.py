"""A test marked ``compares("module:qualname", ...)`` compares those patches with what they replace, so it has to call them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec

import pytest

import fx2onnx.model_patches.kernels
import fx2onnx.model_patches.transformers  # noqa: F401
from fx2onnx.model_patches import library
from fx2onnx.model_patches.patching import PATCHES, Applied, Patch, apply_patches, is_meant


def skip_if_it_came_later(target: str) -> None:
    """Skip what is of a module that only a later version of its library has."""
    patch = PATCHES[target]
    if not is_meant(patch) and find_spec(patch.module.rpartition(".")[0]) is None:
        pytest.skip(f"{patch.module} came with version {patch.versions}")


@pytest.fixture(autouse=True)
def patches_are_called(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    targets = [target for mark in request.node.iter_markers("compares") for target in mark.args]
    for target in targets:
        skip_if_it_came_later(target)
    wanted = {PATCHES[target].name for target in targets}
    applied: list[Applied] = []

    def noted(patches: Iterable[Patch]) -> Applied:
        applied.append(apply_patches(patches))
        return applied[-1]

    monkeypatch.setattr(library, "apply_patches", noted)
    yield
    called = {name for one in applied for name in one.called}
    assert wanted <= called, f"the test does not call {wanted - called}"
