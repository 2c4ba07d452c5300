"""Every patch fits the installed library, and a test compares it with what it replaces."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import tests.model_patches
from fx2onnx.model_patches import library, patching, stand_ins
from fx2onnx.model_patches.patching import PATCHES
from tests.model_patches.conftest import skip_if_it_came_later

pytest.importorskip("torchvision", reason="torchvision is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

assert library.PATCHES is PATCHES


@pytest.mark.parametrize("target", PATCHES)
def test_the_library_has_it_with_the_parameters_that_the_patch_knows(target: str) -> None:
    patch = PATCHES[target]
    skip_if_it_came_later(target)
    if not patch.stands_in:
        pytest.importorskip(patch.library, reason=f"{patch.library} is not installed")
    with stand_ins() if patch.stands_in else contextlib.nullcontext():
        function = patching.target_of(importlib.import_module(patch.module), patch.qualname)
    assert patching.is_meant(patch)
    patch.fit(function)  # which raises where it does not


def _compared(function: Any) -> Iterator[str]:
    """The targets that the marks of a test name, also those of its parameters."""
    marks = list(getattr(function, "pytestmark", ()))
    for mark in marks:
        if mark.name == "parametrize":
            for given in mark.args[1]:
                marks += getattr(given, "marks", ())
        elif mark.name == "compares":
            yield from mark.args


def test_a_test_compares_each() -> None:
    modules = [
        importlib.import_module(f"{tests.model_patches.__name__}.{module.name}")
        for module in pkgutil.iter_modules(tests.model_patches.__path__)
    ]
    compared = {
        target
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("test_")
        for target in _compared(function)
    }
    assert compared == set(PATCHES)
