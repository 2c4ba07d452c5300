"""The first wrong node of files in 16 bits, whose values are PyTorch's rounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

import fx2onnx
from fx2onnx import locate
from fx2onnx.verify.rounded_weights import narrowed


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.norm(self.up(x)))
        return self.down(y).softmax(-1) * x.abs().sum(-1, keepdim=True)


def exported(folder: Path, dtype: str, **more: Any) -> tuple[Any, Head, tuple[torch.Tensor]]:
    module, args = Head().eval(), (torch.randn(4, 16, generator=torch.Generator().manual_seed(0)),)
    return fx2onnx.export(module, args, folder / "m.onnx", dtype=dtype, **more), module, args


def _axis(node: onnx.NodeProto) -> None:
    next(each for each in node.attribute if each.name == "axis").i = 0


def _epsilon(node: onnx.NodeProto) -> None:
    next(each for each in node.attribute if each.name == "epsilon").f = 20.0


def _relu(node: onnx.NodeProto) -> None:
    node.op_type = "Relu"


@pytest.mark.parametrize("dtype", ["float16", "mixed", "bfloat16"])
def test_a_right_file_has_no_wrong_node(dtype: str, tmp_path: Path) -> None:
    _, module, args = exported(tmp_path, dtype)
    assert locate(tmp_path / "m.onnx", module, args) is None


@pytest.mark.parametrize("dtype", ["float16", "mixed", "bfloat16"])
@pytest.mark.parametrize(("op_type", "edit"), [("Softmax", _axis), ("LayerNormalization", _epsilon), ("Abs", _relu)])
def test_an_edited_node_is_named(
    op_type: str, edit: Callable[[onnx.NodeProto], None], dtype: str, tmp_path: Path
) -> None:
    _, module, args = exported(tmp_path, dtype)
    proto = onnx.load(tmp_path / "m.onnx")
    (node,) = (node for node in proto.graph.node if node.op_type == op_type)
    edit(node)
    onnx.save(proto, tmp_path / "edited.onnx")
    found = locate(tmp_path / "edited.onnx", module, args)
    assert found is not None
    assert (found.nodes[0], found.stage) == (node.name, "file")


def test_a_wrong_translation_is_named(tmp_path: Path) -> None:
    def tanh(op: Any, self: Any, approximate: str = "none") -> Any:
        return op.Tanh(self)

    result, module, args = exported(tmp_path, "float16", custom_translations={torch.ops.aten.gelu.default: tanh})
    found = locate(result, module, args)
    assert found is not None
    assert (found.stage, found.op_types) == ("translation", ("Tanh",))
    assert "rewrite" in found.why


def test_what_masks_add_becomes_the_lowest_number_and_infinity_stays() -> None:
    fill = np.array([-3.4e38, -np.inf, 1e33, 2.0], np.float32)
    assert narrowed(fill[[0, 3]], np.float16).tolist() == [-65504, 2]
    assert narrowed(fill[[0, 1]], np.float16).tolist() == [-65504, -np.inf]
    assert narrowed(np.float32([7e4]), np.float16).dtype == np.float32
    rounded = narrowed(fill, ml_dtypes.bfloat16).astype(np.float32)
    assert np.allclose(rounded, fill, rtol=2.0**-8)


class Lengths(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * x).sum(-1, keepdim=True) / x.shape[-1]).sqrt() * x


def test_what_float16_has_no_room_for_is_named_and_can_be_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 64)
    fx2onnx.export(Lengths(), (x,), tmp_path / "m.onnx", dtype="float16")
    found = locate(tmp_path / "m.onnx", Lengths(), (60 * x,))
    assert found is not None
    assert (found.stage, found.op_types) == ("precision", ("ReduceSum",))
    assert found.nodes[0] in found.describe().splitlines()[-1]
    precision = fx2onnx.Precision("float16", keep=found.nodes)
    fx2onnx.export(Lengths(), (x,), tmp_path / "kept.onnx", dtype=precision)
    again = locate(tmp_path / "kept.onnx", Lengths(), (60 * x,))
    assert again is None or again.nodes != found.nodes
