"""``calibration=``: codes of products that are fitted to inputs, by GPTQ and AWQ, for exports and for files of any origin."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from torch import nn

import fx2onnx
from fx2onnx import Quantize, verify
from fx2onnx.base.errors import UserError
from fx2onnx.exporting.sample import data_for
from fx2onnx.quantize import calibrated
from fx2onnx.quantize.gptq import gptq, squares
from fx2onnx.quantize.options import KINDS
from fx2onnx.quantize.schemes import SCHEMES, ranges
from tests.cli.support import invoke
from tests.decoding.test_fused_decoders import checkpoint
from tests.quantize.test_files import foreign

WIDTH = 64
NO_AWQ = ("float8", "ternary")
EVERY = [
    (kind, method, "auto") for kind in KINDS for method in ("gptq", "awq") if method != "awq" or kind not in NO_AWQ
]
EVERY += [
    ("int8", "gptq", "matmulnbits"),
    ("nf4", "awq", "matmulnbits"),
    ("uint4", "gptq", "qdq"),
    ("int4", "awq", "qdq"),
]


class Block(nn.Module):
    """Products behind a norm, of rows that are no whole blocks, one without a norm before it, a convolution, a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.norm.weight.data = torch.randn(WIDTH).exp() * 2
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.odd = nn.Linear(WIDTH, 72)
        self.down = nn.Linear(72, WIDTH)
        self.conv = nn.Conv1d(WIDTH, 16, 3)
        self.eval()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.norm(x)
        hidden = torch.tanh(self.odd(self.q(normed) * torch.sigmoid(self.k(normed))))
        found = self.down(hidden) + x
        return found, self.conv(found.transpose(1, 2))


def inputs(samples: int, seed: int) -> np.ndarray:
    """[samples, 2, 8, width] of correlated numbers, some columns far larger than others."""
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(7).standard_normal((12, WIDTH))
    found = rng.standard_normal((samples, 2, 8, 12)) @ base + 0.2 * rng.standard_normal((samples, 2, 8, WIDTH))
    return np.asarray(found * np.exp(np.random.default_rng(8).standard_normal(WIDTH)), np.float32)


SAMPLE = torch.from_numpy(inputs(1, 99)[0])
CALIBRATION = inputs(24, 0)


def exported(path: Path, quantize: Quantize, **more: Any) -> Any:
    return fx2onnx.export(
        Block(), (SAMPLE,), path, dynamic_shapes={"x": {0: "b", 1: "s"}}, verify=True, quantize=quantize, **more
    )


@pytest.mark.long_cases(
    "int2-gptq-auto",
    "int2-awq-auto",
    "int8-gptq-auto",
    "int8-awq-auto",
    "int4-awq-auto",
    "nf4-awq-auto",
    "uint4-gptq-qdq",
)
@pytest.mark.parametrize(("kind", "method", "form"), EVERY)
def test_products_are_nearer_than_with_the_nearest_codes(tmp_path: Path, kind: str, method: str, form: str) -> None:
    quantize = Quantize(kind, block=16, format=form, calibration={"x": CALIBRATION}, method=method)
    result = exported(tmp_path / "m.onnx", quantize)
    layers = result.report.quantized["layers"]
    assert "method" not in layers.pop("conv.weight")
    assert set(layers) == {"q.weight", "k.weight", "odd.weight", *(["down.weight"] if kind != "nf4" else [])}
    fitted = [layer for layer in layers.values() if layer["method"] == method]
    assert len(fitted) >= (len(layers) if kind != "int8" else 2)  # of 8 bits, ranges of 16 numbers are hardly improved
    for layer in fitted:
        for key in ("calibration", "held_out", "error"):  # "error": on the sample, which nothing was fitted to
            assert 0 < layer[key] < layer[f"{key}_nearest"] * (0.9 if method == "gptq" and kind != "ternary" else 1)
    assert f"layers by {method}" in " ".join(result.report.notes)


@pytest.mark.parametrize(("kind", "method"), [("int4", "gptq"), ("uint4", "awq"), ("int8", "gptq")])
def test_a_foreign_file(tmp_path: Path, kind: str, method: str) -> None:
    foreign(tmp_path / "in.onnx")
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((40, 48), np.float32) * np.linspace(0.1, 3, 48, dtype=np.float32)}
    np.savez(tmp_path / "c.npz", image=np.zeros((1, 4, 6, 6), np.float32), **data)
    asked = ("--quantize", kind, "--method", method, "--calibration", tmp_path / "c.npz")
    done = invoke("optimize", tmp_path / "in.onnx", tmp_path / "out.onnx", *asked, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert said["verified"]
    layers = said["quantized"]["layers"]
    assert "method" not in layers.pop("k")
    assert len(layers) == 2
    for layer in layers.values():
        assert layer["method"] == method
        assert layer["held_out"] < layer["held_out_nearest"]


def problem(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 9)) @ rng.standard_normal((9, columns)) + rng.standard_normal((400, columns)) * 0.3
    return rng.standard_normal((rows, columns), np.float32), np.asarray(x.T @ x, np.float32)


def by_the_paper(rows: np.ndarray, gram: np.ndarray, kind: str, block: int, *, act_order: bool) -> np.ndarray:
    """The numbers of GPTQ by its formulas (2) and (3), a column at a time, the inverse made smaller by elimination."""
    scheme = SCHEMES[kind]
    left, columns = rows.astype(np.float64), rows.shape[1]
    damped = gram.astype(np.float64) + 0.01 * np.mean(np.diagonal(gram)) * np.eye(columns)
    inverse = np.linalg.inv(damped)
    order = np.argsort(-np.diagonal(gram), kind="stable") if act_order else np.arange(columns)
    found = np.zeros_like(left)
    grids: dict[int, tuple[Any, Any]] = {}
    for column in order:
        start = column // block * block
        if start not in grids:
            numbers = (rows if act_order else left)[:, None, start : start + block].astype(np.float32)
            scales, zeros, _ = ranges(numbers, scheme, np.dtype(np.float32), squares)
            grids[start] = scales[:, 0], zeros
        scales, zeros = grids[start]
        zeros = None if zeros is None else zeros[:, 0]
        codes = scheme.codes(left[:, column, None].astype(np.float32), scales, zeros)
        found[:, column] = scheme.values(codes, scales, zeros)[:, 0]
        error = (left[:, column] - found[:, column]) / inverse[column, column]
        left -= error[:, None] * inverse[column]
        inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse[column, column] = 1.0
    return found


@pytest.mark.parametrize(
    ("kind", "block", "act_order"),
    [("int4", 16, False), ("int4", 16, True), ("uint4", 150, False), ("nf4", 25, True), ("float8", 300, False), ("int8", 140, False)],
)  # fmt: skip
def test_gptq_is_what_the_paper_says(kind: str, block: int, act_order: bool) -> None:
    rows, gram = problem(12, 300)
    codes = gptq(rows, gram, SCHEMES[kind], block, np.dtype(np.float32), act_order=act_order)
    want = by_the_paper(rows, gram, kind, block, act_order=act_order)
    got = codes.values(300)
    assert np.mean(np.abs(got - want) > 1e-5) < 0.01  # numbers that stand between two codes


def test_columns_without_inputs_are_rounded_to_the_nearest() -> None:
    rows, gram = problem(10, 64)
    gram[:, 5] = gram[5] = 0
    scheme, dtype = SCHEMES["int4"], np.dtype(np.float32)
    found = gptq(rows, gram, scheme, 64, dtype)
    steps = np.clip(np.rint(rows[:, 5] / found.scales[:, 0]), -8, 7)
    np.testing.assert_allclose(found.values(64)[:, 5], steps * found.scales[:, 0], rtol=1e-6)
    assert np.isfinite(gptq(rows, gram * 0, scheme, 64, dtype).values(64)).all()


def test_what_is_divided_is_in_the_norm_or_before_the_product(tmp_path: Path) -> None:
    """AWQ's factors: of ``q`` and ``k`` in the norm that only they read, of ``odd`` in a Mul."""
    result = exported(tmp_path / "m.onnx", Quantize("int4", calibration={"x": CALIBRATION}, method="awq"))
    graph = onnx.load(tmp_path / "m.onnx").graph
    names = {init.name for init in graph.initializer}
    assert {"norm.weight.divided", "norm.bias.divided"} <= names
    assert not {"norm.weight", "norm.bias"} & names
    read = {node.op_type for node in graph.node if any(name.endswith(".channels") for name in node.input)}
    assert read == {"Mul"}
    assert len(result.report.quantized["layers"]) == 5


class Shared(nn.Module):
    """A norm whose output others read, too, and a weight that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.RMSNorm(WIDTH)
        self.norm.weight.data = torch.randn(WIDTH).exp()
        self.once, self.twice = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        return self.twice(torch.relu(self.twice(self.once(normed)))) + normed


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("opset", [21, 23])
def test_a_norm_that_others_read_and_a_weight_read_twice(tmp_path: Path, method: str, opset: int) -> None:
    quantize = Quantize("int4", calibration={"x": CALIBRATION}, method=method)
    module = Shared().eval()
    result = fx2onnx.export(module, (SAMPLE,), tmp_path / "m.onnx", verify=True, quantize=quantize, opset_version=opset)
    layers = result.report.quantized["layers"]
    assert set(layers) == {"once.weight", "twice.weight"}
    for layer in layers.values():
        assert layer["method"] == method
        assert layer["held_out"] < layer["held_out_nearest"]


@pytest.mark.long
def test_sums_that_take_too_much_are_made_in_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize = Quantize("int4", calibration=[{"x": each} for each in CALIBRATION])
    exported(tmp_path / "one.onnx", quantize)
    asked: list[int] = []
    real = calibrated.Collector.moments
    monkeypatch.setattr(
        calibrated.Collector, "moments", lambda self, wanted: asked.append(len(wanted)) or real(self, wanted)
    )  # type: ignore[func-returns-value]
    monkeypatch.setattr(calibrated, "LEAST_BYTES", 2 * 8 * WIDTH**2)
    monkeypatch.setattr(calibrated, "SHARE", 0.0)
    exported(tmp_path / "some.onnx", quantize)
    assert asked == [2, 1]  # q and k read the same
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "some.onnx").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "form"), [("int4", "qdq"), ("uint4", "matmulnbits"), ("nf4", "matmulnbits"), ("int8", "qdq")])  # fmt: skip
def test_other_codes_than_were_fitted_are_found(tmp_path: Path, kind: str, form: str) -> None:
    quantize = Quantize(kind, block=16, format=form, calibration={"x": CALIBRATION})
    exported(tmp_path / "m.onnx", quantize)
    assert verify(tmp_path / "m.onnx", Block(), (SAMPLE,)).ok
    model = onnx.load(tmp_path / "m.onnx")
    codes = next(init for init in model.graph.initializer if init.name == "q.weight.codes")
    content = np.frombuffer(codes.raw_data, np.uint8).copy()
    content[11] ^= 1
    codes.raw_data = content.tobytes()
    onnx.save(model, tmp_path / "other.onnx")
    verdict = verify(tmp_path / "other.onnx", Block(), (SAMPLE,))
    assert not verdict.ok
    assert any("not those that the calibration chose" in row.problem for row in verdict.rows)


OPTIONS = [
    ({"method": "gptq"}, "gptq needs inputs"),
    ({"method": "best", "calibration": {}}, "best"),
    ({"method": "nearest", "calibration": {}}, "no calibration data"),
    ({"act_order": True}, "act_order"),
    ({"act_order": True, "method": "awq", "calibration": {}}, "act_order"),
    ({"kind": "float8", "method": "awq", "calibration": {}}, "nothing for float8"),
]


@pytest.mark.parametrize(("options", "text"), OPTIONS)
def test_options_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text) as caught:
        Quantize(**{"kind": "int4"} | options)
    assert caught.value.code == "E001"


X = CALIBRATION
BAD = [
    ({"y": X}, "E401", "no input 'y'"),
    ({}, "E401", "no sample"),
    ({"x": X, "z": X}, "E401", "no input 'z'"),
    ({"x": X.astype(np.float64)}, "E401", "double"),
    ({"x": X.astype(np.int64)}, "E401", "int64"),
    ({"x": X[..., :-1]}, "E401", "63"),
    ({"x": X[None]}, "E401", "x"),
    ({"x": X[:0]}, "E401", "no sample"),
    ({"x": np.where(X > 5, np.nan, X)}, "E401", "x has NaN"),
    ({"x": np.full_like(X, 1e38)}, "E401", "infinite"),
    ({"x": np.array([object()])}, "E401", "no array of numbers"),
    ([{"x": X[0]}, {"x": X[1, 0]}], "E401", "x"),
    ([], "E001", "list"),
    (3, "E001", "int"),
    ("missing.npz", "E302", "missing.npz"),
    ("text.npz", "E302", "text.npz"),
    ("one.npy", "E302", "without a name"),
    ("objects.npz", "E302", "objects.npz"),
]


@pytest.mark.parametrize(("data", "code", "text"), BAD, ids=range(len(BAD)))
def test_data_that_does_not_fit_is_one_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Any, code: str, text: str
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    Path("text.npz").write_text("no archive")
    np.save("one.npy", X)
    np.savez("objects.npz", x=np.array([{1: 2}]))
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=text) as caught:
        exported(tmp_path / "out" / "m.onnx", Quantize("int4", calibration=data))
    assert caught.value.code == code
    assert not os.listdir(tmp_path / "out")


def test_different_numbers_of_samples_and_a_fixed_batch(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((48, 64), np.float32)
    nodes = [helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, [4, 48]), info("z", 1, [1, 48])], [info("y", 1, [4, 64])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    rng = np.random.default_rng(1)
    x, z = rng.standard_normal((40, 48), np.float32), rng.standard_normal((3, 1, 48), np.float32)
    with pytest.raises(UserError, match="different numbers of samples") as caught:
        fx2onnx.optimize_model(model, quantize=Quantize("int4", calibration={"x": x, "z": z}))
    assert caught.value.code == "E401"
    assert "x 10, z 3" in str(caught.value)
    result = fx2onnx.optimize_model(model, quantize=Quantize("int4", calibration={"x": x, "z": z[0]}))
    assert result.verified
    assert result.quantized is not None
    (layer,) = result.quantized.layers.values()
    assert layer["method"] == "gptq"


def test_a_model_without_products_is_one_error(tmp_path: Path) -> None:
    module, data = nn.Conv2d(16, 16, 3).eval(), np.zeros((1, 16, 8, 8), np.float32)
    with pytest.raises(UserError, match="no weight that gptq could fit") as caught:
        fx2onnx.export(
            module,
            torch.zeros(1, 16, 8, 8),
            tmp_path / "m.onnx",
            quantize=Quantize("int4", calibration={"input": data}),
        )
    assert caught.value.code == "E001"
    assert not os.listdir(tmp_path)


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("c.npz", x=np.random.default_rng(0).standard_normal((8, 1, 28 * 28), np.float32))
    for arguments in (("--calibration", "c.npz"), ("--method", "gptq"), ("--act-order",)):
        done = invoke("export", "zoo:mnist_cnn", "-o", "m.onnx", *arguments)
        assert done.exit_code == 2
        assert "[E001]" in done.output
    assert not Path("m.onnx").exists()


@pytest.mark.long_cases("fused gptq")
@pytest.mark.parametrize(
    "more", [("--fused",), pytest.param(("--method", "awq"), marks=pytest.mark.slow)], ids=["fused gptq", "awq"]
)
def test_a_folder_takes_prompts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint("llama", tmp_path / "in")
    np.savez("c.npz", input_ids=np.random.default_rng(0).integers(0, 99, (6, 20)))
    task = ("--task", "text-generation-with-past", "--quantize", "int4", "--calibration", "c.npz", "--report", "r.json")
    done = invoke("export", f"hf:{tmp_path / 'in'}", "-o", "out", *task, *more)
    assert done.exit_code == 0, done.output
    report = json.loads(Path("r.json").read_text())
    assert report["ok"]
    layers = report["reports"]["model.onnx"]["quantized"]["layers"].values()
    assert sum(layer["method"] in ("gptq", "awq") for layer in layers) > len(layers) * 0.8
    runs = data_for("c.npz", ir.load("out/model.onnx")).runs
    assert [len(feeds["input_ids"]) for feeds in runs] == [1] * 6
    assert all(0 in array.shape for name, array in runs[0].items() if name.startswith("past"))
    np.savez("c.npz", tokens=np.zeros((6, 20), np.int64))
    done = invoke("export", f"hf:{tmp_path / 'in'}", "-o", "other", *task)
    assert done.exit_code == 2
    assert "no input 'tokens'" in done.output
    assert not Path("other").exists()
