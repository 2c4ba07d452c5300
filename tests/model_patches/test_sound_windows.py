"""Windows of sound begin where transformers lets them begin, for samples of any number of frames."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from tests.model_patches.support import patched

pytest.importorskip("transformers", reason="transformers is not installed")


MODULES = [f"transformers.models.{kind}.modeling_{kind}" for kind in ("qwen3_asr", "qwen3_omni_moe")]


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=pytest.mark.compares(f"{name}:get_audio_cu_seqlens")) for name in MODULES]
)
@pytest.mark.parametrize("frames", [[8], [200, 801, 37], [100, 1600]])
@pytest.mark.parametrize("windows", [(800, 50), (40, 10)])
def test_windows_begin_where_they_do_in_eager(module: str, frames: list[int], windows: tuple[int, int]) -> None:
    seqlens: Any = importlib.import_module(module).get_audio_cu_seqlens
    chunk = 2 * windows[1]
    pieces = [part for count in frames for part in [chunk] * (count // chunk) + [count % chunk] * bool(count % chunk)]
    given = torch.tensor(pieces), torch.tensor(frames), *windows
    expected = seqlens(*given)
    with patched():
        found = seqlens(*given)
        own = torch.tensor([0, 3], dtype=torch.int32)
        assert torch.equal(seqlens(*given, {"cu_seqlens": own}), own)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
