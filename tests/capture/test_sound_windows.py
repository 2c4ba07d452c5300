"""Windows of sound begin where transformers lets them begin, for samples of any number of frames."""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import Any

import pytest
import torch

from fx2onnx.model_patches.transformers.sound_windows import STAND_INS
from fx2onnx.sources.torchvision_compat import prepare

prepare()
pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("stand_in", STAND_INS, ids=lambda found: found.module.rpartition(".")[2])
@pytest.mark.parametrize("frames", [[8], [200, 801, 37], [100, 1600]])
@pytest.mark.parametrize("windows", [(800, 50), (40, 10)])
def test_windows_begin_where_they_do_in_eager(stand_in: Any, frames: list[int], windows: tuple[int, int]) -> None:
    original: FunctionType = getattr(importlib.import_module(stand_in.module), stand_in.function)
    chunk = 2 * windows[1]
    pieces = [part for count in frames for part in [chunk] * (count // chunk) + [count % chunk] * bool(count % chunk)]
    given = torch.tensor(pieces), torch.tensor(frames), *windows
    expected, found = original(*given), stand_in.compute(original, *given)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    told = torch.tensor([0, 3], dtype=torch.int32)
    assert torch.equal(stand_in.compute(original, *given, {"cu_seqlens": told}), told)
