"""16 bits beside other options: weights in few bits, functions, bodies of scans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

import fx2onnx
from fx2onnx import verify
from fx2onnx.judge.engines import ENGINES
from fx2onnx.runner import InferenceSession
from tests.cli.support import invoke

HALF, FLOAT, BFLOAT = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16
KINDS = ("int8", "int4", "uint4", "nf4", "float8")


def network() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.LayerNorm(96), torch.nn.Linear(96, 64))
    return torch.nn.Sequential(*layers).eval(), (torch.randn(3, 64),)


def scales_of(path: Path) -> set[int]:
    return {each.data_type for each in onnx.load(path).graph.initializer if each.name.endswith(".scale")}


@pytest.mark.long_cases("float8-mixed")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_few_bits_of_an_export(tmp_path: Path, kind: str, dtype: str) -> None:
    module, args = network()
    out = tmp_path / "m.onnx"
    result = fx2onnx.export(module, args, out, quantize=fx2onnx.Quantize(kind), dtype=dtype, io="float32", verify=True)
    assert {"runner", "onnxruntime"} <= set(result.report.verdict["versions"])
    assert len(result.report.quantized["layers"]) == 2
    assert scales_of(out) == {FLOAT if dtype == "bfloat16" else HALF}  # onnxruntime has no product in bfloat16
    assert verify(str(out), module, (torch.randn(3, 64),)).ok


@pytest.mark.long_cases("int8-float16")
@pytest.mark.parametrize(
    ("kind", "dtype"), [("int8", "float16"), ("nf4", "mixed"), ("int4", "bfloat16"), ("int4", "float16")]
)
def test_weights_in_few_bits_of_a_file(tmp_path: Path, kind: str, dtype: str) -> None:
    module, args = network()
    fx2onnx.export(module, args, tmp_path / "in.onnx", dynamic_shapes={"input": {0: "n"}})
    out = tmp_path / "out.onnx"
    result = fx2onnx.optimize_model(tmp_path / "in.onnx", out, quantize=fx2onnx.Quantize(kind), dtype=dtype)
    assert result.quantized is not None
    assert result.precision is not None
    assert result.comparison is not None
    assert {row.engine for row in result.comparison.rows} == {"runner", "onnxruntime"}
    assert scales_of(out) == {FLOAT if dtype == "bfloat16" else HALF}


@pytest.mark.long
def test_a_file_on_the_command_line(tmp_path: Path) -> None:
    module, args = network()
    fx2onnx.export(module, args, tmp_path / "in.onnx")
    options = ["--quantize", "int8", "--dtype", "float16", "--io", "float32"]
    done = invoke("optimize", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), *options)
    assert done.exit_code == 0, done.output
    assert scales_of(tmp_path / "out.onnx") == {HALF}


def test_functions_have_what_they_hold_in_16_bits(tmp_path: Path) -> None:
    module, args = network()
    asked: dict[str, Any] = {"quantize": fx2onnx.Quantize("int8"), "functions": [torch.nn.Linear]}
    result = fx2onnx.export(module, args, tmp_path / "m.onnx", dtype="float16", verify=True, **asked)
    assert sum(result.report.functions.values()) == 2
    assert scales_of(tmp_path / "m.onnx") == {HALF}


class Running(torch.nn.Module):
    """A recurrence of a state-space model, whose products are in the body of a Scan where the length is dynamic."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = torch.nn.Parameter(-torch.rand(16, 4))
        self.read, self.write = torch.nn.Linear(16, 4), torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from transformers.models.mamba.modeling_mamba import mamba_selective_scan

        u = x.transpose(1, 2)
        found: torch.Tensor = mamba_selective_scan(u, u.abs(), self.decay, self.write(x).mT, self.read(x).mT)
        return found


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed"])
def test_bodies_of_loops(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    module, args = Running().eval(), (torch.randn(2, 40, 16),)
    out, sizes = tmp_path / "m.onnx", {"x": {1: "length"}}
    result = fx2onnx.export(module, args, out, dynamic_shapes=sizes, dtype=dtype, io="float32", verify=True)
    kept = {each["op"]: each["why"] for each in result.report.precision["kept"].values()}
    assert kept["Loop"] == "it holds graphs"
    assert bool(sum(result.report.precision["nodes"].values())) == (dtype != "bfloat16")
    assert verify(str(out), module, (torch.randn(2, 70, 16),)).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_texts_stay_and_are_compared_in_both_engines(tmp_path: Path, dtype: str) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>
    g (string[n, 4] words) => (float[n, 16] y, string[n, 4] same) {
      ids = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2], default_int64 = 0> (words)
      rows = Gather (table, ids)
      axis = Constant <value_ints = [1]> ()
      mean = ReduceMean <keepdims = 0> (rows, axis)
      y = MatMul (mean, w)
      same = Identity (words)
    }"""
    model = onnx.parser.parse_model(text)
    for name, sizes in {"table": (8, 64), "w": (64, 16)}.items():
        array = torch.randn(sizes, generator=torch.Generator().manual_seed(0)).numpy()
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    result = fx2onnx.optimize_model(model, tmp_path / "out.onnx", dtype=dtype)
    assert result.comparison is not None
    assert {(row.engine, row.output) for row in result.comparison.rows} == {
        (engine, output) for engine in ("runner", "onnxruntime") for output in ("y", "same")
    }
    numbers = {value.name: value.type.tensor_type.elem_type for value in onnx.load(tmp_path / "out.onnx").graph.output}
    assert numbers == {"y": BFLOAT if dtype == "bfloat16" else HALF, "same": TensorProto.STRING}
    words = np.array([["a", "b", "é", ""], ["b", "b", "a", "c"]], dtype=object)
    want = InferenceSession(model).run(None, {"words": words})
    y, same = ENGINES["onnxruntime"](str(tmp_path / "out.onnx"))({"words": words})
    np.testing.assert_allclose(y.astype(np.float32), want[0], rtol=0.05, atol=0.1)
    assert same.tolist() == words.tolist()
