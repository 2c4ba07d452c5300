"""Files that forward reads with ``torch.load``: what they hold is in the exported file, and a table keeps it with its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_patches.support import patched
from tests.support import check

TARGET = "torch.serialization:load"
TABLE: dict[str, Any] = {}


@pytest.mark.compares(TARGET)
def test_as_torch(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(3), "b": [torch.nn.Parameter(torch.ones(2)), "text"]}, tmp_path / "file.pt")
    with patched():
        found = torch.load(tmp_path / "file.pt", weights_only=True)
    torch.testing.assert_close(found["a"], torch.arange(3))
    assert [type(each) for each in found["b"]] == [torch.nn.Parameter, str]


@pytest.mark.parametrize("options", [{}, {"weights_only": True}, {"mmap": True}, {"map_location": "cpu"}])
@pytest.mark.parametrize("is_kept", [True, False])
def test_an_export(tmp_path: Path, options: dict[str, Any], is_kept: bool) -> None:
    """As packages do that ship tables beside their code, and read them in the first call."""
    torch.save({"basis": torch.randn(4)}, tmp_path / "file.pt")
    TABLE.clear()

    def forward(x: torch.Tensor) -> torch.Tensor:
        table = TABLE if is_kept else {}
        if "basis" not in table:
            table["basis"] = torch.load(tmp_path / "file.pt", **options)["basis"]
        return x * table["basis"] + table["basis"].sum()

    check(forward, (torch.randn(2, 4),), others=[(torch.randn(5, 4),)], dynamic_shapes=({0: "n"},))
    assert all(type(each) is torch.Tensor and each.isfinite().all() for each in TABLE.values())
