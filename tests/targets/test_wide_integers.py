"""int64 beyond 32 bits: extremes and signs, which onnxruntime's own kernels get wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

import fx2onnx
from fx2onnx.targets.form import find
from fx2onnx.targets.lint import lint
from tests.support import check

HIGH = torch.randint(-2, 2, (66,), generator=torch.Generator().manual_seed(0)) * 2**32
LOW = torch.randint(0, 2**32, (2, 66), generator=torch.Generator().manual_seed(1))
WIDE = HIGH + LOW
FUNCTIONS = {
    "maximum": lambda x: torch.maximum(x[0], x[1]),
    "minimum": lambda x: torch.minimum(x[0], x[1]),
    "fmax": lambda x: torch.fmax(x[0], x[1]),
    "clamp": lambda x: (x.clamp(0, 100), x.clamp(-5, 2**32), x.clamp(min=2**31 + 5), x.clamp(max=0), x[0].clamp(x[1])),
    "relu": torch.relu,
    "sign": lambda x: (torch.sign(x), torch.sgn(x)),
    "amax": lambda x: (x.amax(), x.amax(1), x.amax((0, 1), True), x.max(1, True), x.max(1)[0], x.amax(0)),
    "of_floats": lambda x: x.double().long().clamp(0, 100),
    "of_places": lambda x: x.argmax(0).clamp(min=3_000_000_000),
    "amax_of_rows": lambda x: (x.amax(1), x.min(1)[0], x.clamp(min=7), torch.sign(x)),
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 1), True), x.nansum(0), x.trace(), (-x * 5).sum(-1)),
    "prod": lambda x: (x.prod(), x.prod(1), x.prod(0, True), x.int().prod(1), (x % 1000).prod(-1)),
    "einsum": lambda x: (
        torch.einsum("ij->j", x),
        torch.einsum("ij,k->ik", x, torch.arange(3) << 40),
        torch.einsum("ij,ij->i", x, x),
    ),
    "conv": lambda x: (
        F.conv1d(x[:, None], x[None, :1, :3], x[1, :1], padding=1),
        F.conv1d(x[None], torch.tensor([[[1, -2, 3]] * 2]), stride=2),
        F.conv1d(x.int()[:, None], x.int()[None, :1, :3]),
        F.conv1d(x.to(torch.uint8)[:, None], torch.full((1, 1, 3), 100, dtype=torch.uint8)),
        F.conv_transpose1d(x[:, None], x[None, :1, :2], stride=2),
    ),
    "arange": lambda x: (torch.arange(2**60, 2**60 + x.shape[1], 3),),
    "sum_of_counts": lambda x: ((x > 0).sum(1), x.int().sum(1)),
    "amin": lambda x: (x.amin(), x.amin(-1), x.min(1)[0], torch.aminmax(x, dim=1)),
}


class Function(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[name]

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("opset", [13, 20])
def test_extremes_of_int64(name: str, opset: int) -> None:
    check(Function(name), (WIDE,), opset_version=opset)


@pytest.mark.parametrize("name", ["clamp", "amax_of_rows", "sum", "prod", "einsum", "arange"])
def test_other_sizes_and_no_rows(name: str) -> None:
    function = Function(name)
    rows = {"x": {0: torch.export.Dim("rows", min=0), 1: torch.export.Dim("columns", min=1)}}
    result = fx2onnx.export(function.eval(), (WIDE,), dynamic_shapes=rows)
    session = onnxruntime.InferenceSession(result.model_proto.SerializeToString())
    for sample in (WIDE[:, :3], WIDE.repeat(2, 1), *([WIDE[:0]] if name != "clamp" else [])):
        for got, want in zip(session.run(None, {"x": sample.numpy()}), FUNCTIONS[name](sample), strict=True):
            np.testing.assert_array_equal(got, want.numpy())


def test_onnxruntime_still_compares_low_halves_as_signed() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in "abc"]
    graph = helper.make_graph([helper.make_node("Max", ["a", "b"], ["c"])], "max", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    feeds = {"a": np.full(8, 3_000_000_000), "b": np.zeros(8, np.int64)}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert not np.array_equal(session.run(None, feeds)[0], feeds["a"])
    assert any("low 32 bits" in str(finding) for finding in lint(model, find("onnxruntime")))


class Small(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = x.argmax(1)
        return places.clamp(min=1), x.to(torch.int32).long().clamp(0, 3), (x > 0).long().amax(1), places.max()


def test_numbers_within_32_bits_keep_their_operators() -> None:
    result = fx2onnx.export(Small().eval(), (torch.randn(3, 4),))
    kinds = [node.op_type for node in result.model_proto.graph.node]
    assert {"Max", "Clip", "ReduceMax"} <= set(kinds)
    assert "GatherElements" not in kinds


def test_numbers_within_32_bits_that_fill_a_tensor_of_dynamic_size_keep_their_operators() -> None:
    class Places(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            places = torch.arange(x.shape[0])
            found = places[None] - places[:, None]
            return torch.minimum(found, torch.zeros_like(found)), torch.maximum(found, torch.full_like(found, 2**31))

    result = fx2onnx.export(Places().eval(), (torch.randn(3),), dynamic_shapes={"x": {0: "n"}})
    kinds = [node.op_type for node in result.model_proto.graph.node]
    assert "Min" in kinds
    assert "Max" not in kinds
    (least, most) = onnxruntime.InferenceSession(result.model_proto.SerializeToString()).run(
        None, {"x": np.ones(5, "f")}
    )
    assert np.array_equal(least, np.minimum(np.arange(5)[None] - np.arange(5)[:, None], 0))
    assert (most == 2**31).all()


@pytest.mark.parametrize("limit", [1000, 2**31])
def test_large_constants_keep_their_operators_where_all_numbers_are_within_32_bits(limit: int) -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(limit - 999, limit + 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.minimum(self.table, x.long())

    module, x = Table().eval(), torch.tensor([7], dtype=torch.int32)
    result = fx2onnx.export(module, (x,))
    assert ("Min" in [node.op_type for node in result.model_proto.graph.node]) == (limit < 2**31)
    (found,) = onnxruntime.InferenceSession(result.model_proto.SerializeToString()).run(None, {"x": x.numpy()})
    assert np.array_equal(found, module(x).numpy())


class Bounded(torch.nn.Module):
    """Places that are bounded by numbers of a weight file."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.arange(5000) % 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(x.argmax(0), self.most)


def test_constants_in_a_weight_file_are_read_only_where_it_lies(tmp_path: Path) -> None:
    x = torch.rand(9, 5000, generator=torch.Generator().manual_seed(0))
    fx2onnx.export(Bounded(), (x,), tmp_path / "m.onnx", external_data=True, verify=True)
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert "Min" in [node.op_type for node in model.graph.node]
    assert not lint(model, find("onnxruntime"))
