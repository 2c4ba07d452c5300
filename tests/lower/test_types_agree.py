"""What an entry emits has PyTorch's shapes and fits together: else E900 with the user's line and the entry's place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch

import fx2onnx
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.exp())


def _transposed(op: Emit, self: ir.Value) -> ir.Value:
    return op.Transpose(self, perm=[1, 0])


def _misfit(op: Emit, self: ir.Value) -> ir.Value:
    return op.MatMul(self, op.Abs(self))


@pytest.mark.parametrize("entry", [_transposed, _misfit])
@pytest.mark.parametrize("dynamic", [None, ({0: "n", 1: "m"},)])
def test_a_contradiction_is_an_error_before_anything_is_written(
    entry: Callable[..., ir.Value], dynamic: Any, tmp_path: Path
) -> None:
    target = tmp_path / "model.onnx"
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(
            Doubled(),
            (torch.ones(3, 4),),
            target,
            custom_translations={aten.relu.default: entry},
            dynamic_shapes=dynamic,
        )
    error = caught.value
    assert error.code == "E001"
    assert error.where is not None
    assert error.where.function == "forward"
    assert "test_types_agree.py" in str(error.why)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("entry", [_transposed, _misfit])
def test_of_our_own_entries_it_is_a_fault_of_ours(entry: Callable[..., ir.Value], monkeypatch: Any) -> None:
    monkeypatch.setattr("fx2onnx.lower.preflight._PACKAGE", str(Path(__file__).parent))
    with pytest.raises(fx2onnx.Fx2OnnxError) as caught:
        fx2onnx.export(Doubled(), (torch.ones(3, 4),), custom_translations={aten.relu.default: entry})
    assert caught.value.code == "E900"
    assert caught.value.where is not None
    assert "test_types_agree.py" in str(caught.value.why)
