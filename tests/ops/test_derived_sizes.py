"""Sizes that inputs have only a multiple of, or plus a number: solved from those where a node needs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.runner import InferenceSession
from fx2onnx.sizes.expr import Dim


class Stretches(torch.nn.Module):
    def __init__(self, beside: int) -> None:
        super().__init__()
        self.beside = beside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, self.beside :].reshape(x.shape[0], -1, 8)
        return rows.sum(-1) * torch.arange(rows.shape[1])


@pytest.mark.parametrize("beside", [0, 3])
def test_a_size_is_solved_from_its_multiple(beside: int, tmp_path: Path) -> None:
    shapes = {"x": {1: 8 * Dim.symbol("n") + beside}}
    module, x = Stretches(beside), torch.randn(2, 56 + beside)
    result = fx2onnx.export(module, (x,), dynamic_shapes=shapes)
    verdict = verify(result, module, (x,), {})
    verdict.raise_if_failed()
    assert any(row.inputs.startswith("sizes ") for row in verdict.rows)  # at a length that the module takes
    result.save(tmp_path / "m.onnx")
    session = InferenceSession(str(tmp_path / "m.onnx"))
    for count in (1, 11):
        other = torch.randn(2, 8 * count + beside)
        found = torch.from_numpy(session.run(None, {"x": other.numpy()})[0])
        torch.testing.assert_close(found, module(other))
