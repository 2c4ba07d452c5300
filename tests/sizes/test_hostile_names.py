"""Files whose sizes have names that are orders, riddles or no text at all, through everything that opens a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx import verify
from fx2onnx.optimize.pipelines import run_default
from tests.cli.support import invoke
from tests.sizes.test_text import HOSTILE

SECONDS = 5.0
"""A file takes some hundredths; what is evaluated as Python takes minutes, or for ever."""


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        twice = torch.cat([x, x]).reshape(-1)
        return x + 1, torch.cat([twice, twice])


def model(text: str) -> onnx.ModelProto:
    """``Net`` with ``text`` as the name of every size."""

    def value(name: str, *dims: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["x", "x"], ["joined"], axis=0),
            helper.make_node("Reshape", ["joined", "flat"], ["twice"]),
            helper.make_node("Concat", ["twice", "twice"], ["z"], axis=0),
            helper.make_node("Shape", ["x"], ["sizes"]),
            helper.make_node("Expand", ["one", "sizes"], ["ones"]),
            helper.make_node("Add", ["x", "ones"], ["y"]),
        ],
        "g",
        [value("x", text, text)],
        [value("y", text, text), value("z", text + text)],
        [
            helper.make_tensor("flat", TensorProto.INT64, [1], [-1]),
            helper.make_tensor("one", TensorProto.FLOAT, [1], [1]),
        ],
        value_info=[value("joined", text, f"2*{text}")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.long_cases(
    "n + 9**9**9", "((((((((((((((((((((0", "(a0 + b0)*(a1 + b1)*", "(n*n*n*n//2)*(n*n*n*", "n,", "n n", "\\u202en"
)
@pytest.mark.parametrize("text", HOSTILE, ids=[text[:20] for text in HOSTILE])
def test_a_name_of_a_size_is_a_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(text), path)
    start = time.perf_counter()
    y, z = ort.InferenceSession(path).run(None, {"x": np.ones((2, 2), np.float32)})
    assert y.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert z.shape == (16,)
    verdict = verify(str(path), Net(), (torch.ones(3, 3),))
    assert verdict.ok, verdict.describe()
    assert text == "" or any(row.inputs.startswith("sizes ") for row in verdict.rows)
    run_default(ir.from_proto(model(text)))
    done = invoke("run", str(path), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["outputs"][0]["shape"] == [1, 1]
    assert time.perf_counter() - start < SECONDS


def test_a_name_that_is_no_text_is_a_name_too(tmp_path: Path) -> None:
    """Protobuf hands out bytes where they are not UTF-8."""
    path = tmp_path / "m.onnx"
    path.write_bytes(model("QQQQ").SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfd\xfc"))
    assert verify(str(path), Net(), (torch.ones(3, 3),)).ok
    done = invoke("run", str(path), "--json", "--dump-graph")
    assert done.exit_code == 0, done.output
