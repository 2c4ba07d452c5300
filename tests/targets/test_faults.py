"""Faults of onnxruntime: each is still there in the release that is installed, and what avoids it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

import fx2onnx
from fx2onnx.targets import faults
from fx2onnx.targets.find import find
from fx2onnx.verify import verify

RUN = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {each.name: numpy.ones([2, 3, 4], {"tensor(float)": "f", "tensor(double)": "d"}[each.type]) for each in session.get_inputs()})
"""


def ends_the_process(path: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", RUN, str(path)], capture_output=True, timeout=60)
    assert done.returncode <= 0, done.stderr
    return done.returncode < 0


def saved(path: Path, nodes: list[onnx.NodeProto], inputs: int, constants: dict[str, np.ndarray] | None = None) -> Path:
    x = [helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, [2, 3, 4])][:inputs]
    y = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["a", "b", "c"][: 3 if inputs else 2])]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "fault", x, y, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def transposed(path: Path) -> Path:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Cast", ["t"], ["c"], to=onnx.TensorProto.FLOAT),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    return saved(path, nodes, 1, {"w": np.ones([4, 5], np.float32)})


def spreadless(path: Path) -> Path:
    return saved(path, [helper.make_node("RandomNormal", [], ["y"], shape=[2, 3], scale=0.0)], 0)


CASES = {"transpose-cast-matmul": transposed, "random-without-spread": spreadless}


@pytest.mark.parametrize("name", CASES)
def test_it_is_still_there(name: str, tmp_path: Path) -> None:
    path = CASES[name](tmp_path / "fault.onnx")
    assert ends_the_process(path), f"onnxruntime {onnxruntime.__version__} does not have it any longer"
    found = [fault.name for fault, _ in faults.met(ir.load(path), find("onnxruntime"))]
    assert found == [name]


def test_a_transpose_and_a_cast_change_places(tmp_path: Path) -> None:
    path = transposed(tmp_path / "fault.onnx")
    model = ir.load(path)
    assert faults.avoid(model, find("onnxruntime")) == {"transpose-cast-matmul": 1}
    ir.save(model, tmp_path / "mended.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "mended.onnx"), full_check=True)
    assert [node.op_type for node in model.graph] == ["Cast", "Transpose", "MatMul"]
    assert not ends_the_process(tmp_path / "mended.onnx")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_an_export_avoids_it(dtype: torch.dtype, tmp_path: Path) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            late = x.transpose(0, 1).float()
            return late @ late.transpose(1, 2)

    path = tmp_path / "model.onnx"
    args = (torch.randn(2, 3, 4, dtype=dtype),)
    result = fx2onnx.export(Attention(), args, path)
    assert not list(faults.met(result.model, find("onnxruntime")))
    assert verify(path, Attention(), args, engines=["runner", "onnxruntime"]).ok


def test_older_releases_do_not_have_it() -> None:
    assert "transpose-cast-matmul" not in [fault.name for fault in faults.of(find("onnxruntime-1.18"))]
    assert "transpose-cast-matmul" in [fault.name for fault in faults.of(find("onnxruntime-1.19"))]
    assert faults.of(find("onnx")) == []


class Multiplies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(0, 1).float() @ self.weight


def test_a_verification_does_not_open_what_ends_the_process(tmp_path: Path) -> None:
    path = transposed(tmp_path / "fault.onnx")
    verdict = verify(path, Multiplies(), (torch.randn(2, 3, 4, dtype=torch.float64),))
    assert {row.engine for row in verdict.rows} == {"runner"}
    assert verdict.ok
    assert any("onnxruntime is left out" in note and "MatMul" in note for note in verdict.notes)
