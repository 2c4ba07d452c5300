"""Exports and files in 16 bits: beside eager PyTorch, in onnxruntime and the runner, at other sizes; what stays and why."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.errors import UserError
from fx2onnx.steps import coarser
from fx2onnx.verify.interface import Interface
from fx2onnx.verify.rounded_weights import rounded_inputs
from tests.cli.support import invoke

HALF, FLOAT, BFLOAT = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16


class Block(torch.nn.Module):
    """A residual that leaves float16, a norm, scores with a mask of the lowest float32, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64), torch.nn.LayerNorm(64)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(x))) * 3e5
        z = self.norm(x * 2000 + y)
        scores = (z @ z.transpose(-1, -2)).masked_fill(mask, torch.finfo(torch.float32).min)
        return torch.softmax(scores, -1) @ z


def block() -> tuple[Block, tuple[torch.Tensor, torch.Tensor]]:
    module = Block().eval()
    torch.manual_seed(1)
    return module, (torch.randn(2, 8, 64), torch.rand(2, 8, 8) > 0.7)


SIZES = {"x": {0: "batch"}, "mask": {0: "batch"}}


def casts_of(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "Cast"]


def assert_no_needless_casts(graph: onnx.GraphProto) -> None:
    """One Cast of a value to a dtype, none of what a Cast made."""
    made = {node.output[0] for node in casts_of(graph)}
    asked = Counter((node.input[0], node.attribute[0].i) for node in casts_of(graph))
    assert max(asked.values(), default=1) == 1
    assert not [node for node in casts_of(graph) if node.input[0] in made]


@pytest.mark.long_cases("float16-None-types0")
@pytest.mark.parametrize(
    ("dtype", "io", "types"),
    [
        ("float16", None, (HALF, HALF)),
        ("float16", "float32", (FLOAT, FLOAT)),
        ("bfloat16", None, (BFLOAT, BFLOAT)),
        ("mixed", None, (FLOAT, FLOAT)),
    ],
)
def test_exports_are_right_beside_the_module(
    tmp_path: Path, dtype: str, io: str | None, types: tuple[int, int]
) -> None:
    module, args = block()
    path = tmp_path / "m.onnx"
    result = fx2onnx.export(module, args, path, dtype=dtype, io=io, dynamic_shapes=SIZES, verify=True)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert (model.graph.input[0].type.tensor_type.elem_type, model.graph.output[0].type.tensor_type.elem_type) == types
    large = [each for each in model.graph.initializer if np.prod(each.dims) > 1000]
    assert {each.data_type for each in large} == {BFLOAT if dtype == "bfloat16" else HALF}
    assert_no_needless_casts(model.graph)
    assert result.report.verdict["ok"]
    assert {tried["sizes"].get("batch") for tried in result.report.verdict["tried"]} >= {1, 3}
    assert not result.report.warnings


def test_what_leaves_the_range_stays_and_the_report_says_why(tmp_path: Path) -> None:
    module, args = block()
    report = fx2onnx.export(module, args, tmp_path / "m.onnx", dtype="float16").report
    kept = report.precision["kept"]
    assert Counter(each["op"] for each in kept.values()) == {"Mul": 2, "Add": 1, "LayerNormalization": 1}
    assert all(
        "float16 ends at 65504" in each["why"] and "test_precision.py" in each["source"] for each in kept.values()
    )
    assert report.precision["judge"] == "float64"
    assert 0 < report.precision["outputs"]["output"] < 2e-3
    assert report.precision["bytes"] < 0.52 * report.precision["bytes_before"]
    assert any("4 in float32" in note for note in report.notes)


def test_a_small_error_that_becomes_large_is_found(tmp_path: Path) -> None:
    """cos of a large angle: the angle and what it is made of have to be exact; products are not."""

    class Rotary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = torch.nn.Linear(32, 32)
            self.register_buffer("frequencies", torch.rand(32) + 0.5)

        def forward(self, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
            return self.first(x) * torch.cos(angle[:, None] * self.frequencies)

    module = Rotary().eval()
    args = (torch.randn(50, 32), torch.arange(1000.0, 1050.0))
    report = fx2onnx.export(module, args, tmp_path / "m.onnx", dtype="float16", verify=True).report
    operators = Counter(each["op"] for each in report.precision["kept"].values())
    assert {"Cos", "Mul"} <= set(operators), operators
    assert any(each["why"].startswith("it makes an error of") for each in report.precision["kept"].values())
    assert report.precision["nodes"]["MatMul" if "MatMul" in report.precision["nodes"] else "Gemm"] == 1
    assert max(report.precision["outputs"].values()) < 2e-3


def test_constants_that_vanish_stay(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x.abs().sum(-1, keepdim=True) + 1e-12)

    x = torch.randn(3, 8)
    x[1] = 0
    result = fx2onnx.export(Scaled(), (x,), tmp_path / "m.onnx", dtype="float16", verify=True)
    assert any("is 0 in float16" in each["why"] for each in result.report.precision["kept"].values())
    half = ort.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x.numpy().astype(np.float16)})[0]
    assert np.isfinite(half).all()


def test_the_lowest_float32_of_a_mask_becomes_the_lowest_float16(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):
        def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.softmax(scores + (1 - mask) * torch.finfo(torch.float32).min, -1)

    mask = (torch.rand(4, 6) > 0.5).float()
    mask[:, 0] = 1
    mask[2] = 0  # nothing is left: the softmax is that of the scores
    args = (torch.randn(4, 6), mask)
    result = fx2onnx.export(Masked(), args, tmp_path / "m.onnx", dtype="float16")
    assert not result.report.precision["kept"]
    lowest = [onnx.numpy_helper.to_array(each) for each in onnx.load(tmp_path / "m.onnx").graph.initializer]
    assert any(array.dtype == np.float16 and array.min(initial=0) == -65504 for array in lowest)
    feeds = {"scores": args[0].numpy().astype(np.float16), "mask": mask.numpy().astype(np.float16)}
    got = ort.InferenceSession(tmp_path / "m.onnx").run(None, feeds)[0]
    assert np.allclose(got[mask.any(-1).numpy()], Masked()(*args)[mask.any(-1)].numpy(), atol=2e-3)
    assert np.isfinite(got).all()


def test_other_samples_are_measured_too(tmp_path: Path) -> None:
    class Squared(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * x).sqrt() + 1

    small, large = (torch.rand(4),), (torch.full((4,), 500.0),)
    alone = fx2onnx.export(Squared(), small, tmp_path / "a.onnx", dtype="float16").report
    asked = fx2onnx.Precision("float16", samples=[large])
    both = fx2onnx.export(Squared(), small, tmp_path / "b.onnx", dtype=asked).report
    assert not alone.precision["kept"]
    assert {each["op"] for each in both.precision["kept"].values()} >= {"Mul", "Sqrt"}


def test_the_user_keeps_nodes(tmp_path: Path) -> None:
    module, args = block()
    asked = fx2onnx.Precision("float16", keep="Softmax")
    report = fx2onnx.export(module, args, tmp_path / "m.onnx", dtype=asked).report
    assert "the user asked for it" in [
        each["why"] for each in report.precision["kept"].values() if each["op"] == "Softmax"
    ]


def test_weights_alone_are_in_bfloat16_where_the_target_has_no_kernels(tmp_path: Path) -> None:
    module, args = block()
    default = fx2onnx.export(module, args, tmp_path / "a.onnx", dtype="bfloat16").report
    whys = {each["why"] for each in default.precision["kept"].values() if each["op"] == "MatMul"}
    assert whys == {"onnxruntime has no bfloat16 kernel for it"}
    anywhere = fx2onnx.export(
        module, args, tmp_path / "b.onnx", dtype="bfloat16", target="onnx", opset_version=22
    ).report
    assert not any(each["op"] == "MatMul" for each in anywhere.precision["kept"].values())


@pytest.mark.long
def test_a_verification_finds_a_wrong_weight(tmp_path: Path) -> None:
    module, args = block()
    path = tmp_path / "m.onnx"
    fx2onnx.export(module, args, path, dtype="float16")
    assert verify(str(path), module, args).ok
    model = onnx.load(path)
    weight = next(each for each in model.graph.initializer if list(each.dims) in ([64, 128], [128, 64]))
    array = onnx.numpy_helper.to_array(weight).copy()
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array[::-1]), weight.name))
    onnx.save(model, path)
    assert not verify(str(path), module, args).ok


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed"])
def test_files_are_right_beside_themselves_at_several_sizes(tmp_path: Path, dtype: str) -> None:
    module, args = block()
    fx2onnx.export(module, args, tmp_path / "a.onnx", dynamic_shapes=SIZES)
    before = (tmp_path / "a.onnx").read_bytes()
    command = [
        "optimize", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--dtype", dtype, "--io", "float32", "--json",
    ]  # fmt: skip
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["verified"]
    assert found["precision"]["asked"] == dtype
    assert len({tuple(each["sizes"].items()) for each in found["comparison"]["tried"]}) > 1
    model = onnx.load(tmp_path / "b.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert_no_needless_casts(model.graph)
    assert (tmp_path / "a.onnx").read_bytes() == before
    assert verify(str(tmp_path / "b.onnx"), module, args).ok


def _with_bodies() -> onnx.ModelProto:
    """A Loop around a product with a weight from outside, an If, a function, Resize with its scales and a Range."""
    text = """
    <ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[n, 32] x, bool flag) => (float[n, 32] y, float[n, 64] wide, float[k] steps)
       <float[4] scales4 = {1.0, 1.0, 1.0, 2.0}, int64[2] axes = {0, 1}, int64 turns = {3}, bool yes = {1},
        float start = {0.0}, float limit = {5.0}, float delta = {1.0}>
    {
      h = own.twice (x)
      y0 = Loop (turns, yes, h) <body = b (int64 i, bool c, float[n, 32] s) => (bool c2, float[n, 32] s2)
        { c2 = Identity (c)  p = MatMul (s, w)  s2 = Tanh (p) }>
      y = If (flag) <then_branch = t () => (float[n, 32] a) { a = Relu (y0) },
                     else_branch = e () => (float[n, 32] a2) { a2 = Neg (y0) }>
      four = Unsqueeze (y0, axes)
      big = Resize <mode = "linear"> (four, , scales4)
      wide = Squeeze (big, axes)
      steps = Range (start, limit, delta)
    }
    <domain: "own", opset_import: ["" : 18]> twice (v) => (r) { r = Add (v, v) }
    """
    model = onnx.parser.parse_model(text)
    numbers = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32) / 6
    model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, "w"))
    return model


@pytest.mark.parametrize("level", [0, 2])
def test_bodies_functions_and_operands_of_float32_alone(tmp_path: Path, level: int) -> None:
    model = _with_bodies()
    onnx.checker.check_model(model, full_check=True)
    result = fx2onnx.optimize_model(model, tmp_path / "m.onnx", level=level, dtype="float16", io="float32")
    assert result.verified
    assert result.precision is not None
    assert result.precision.nodes["MatMul"] == 1  # in the body of the loop
    assert {each["op"] for each in result.precision.kept.values()} >= {"Loop", "If"}
    session = ort.InferenceSession(tmp_path / "m.onnx")
    feeds: dict[str, Any] = {"x": np.random.default_rng(1).standard_normal((5, 32)).astype(np.float32)}
    for flag in (True, False):
        feeds["flag"] = np.asarray(flag)
        want = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
        for got, expected in zip(session.run(None, feeds), want, strict=True):
            assert np.allclose(got, expected, atol=1e-2)


def test_operands_of_float32_alone_keep_it_where_no_runtime_is_asked() -> None:
    result = fx2onnx.optimize_model(_with_bodies(), dtype="float16", target="onnx", verify=False)
    onnx.checker.check_model(onnx_ir.to_proto(result.model), full_check=True)
    assert result.precision is not None
    assert result.precision.nodes["Resize"] == 1
    assert {each["op"] for each in result.precision.kept.values()} >= {"Range"}


def test_both_get_numbers_that_the_file_can_have() -> None:
    result = fx2onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), dtype="float16")
    file = Interface.of(onnx_ir.to_proto(result.owned.model))
    given = torch.tensor([[1.0001, 70.03]])
    (rounded,) = rounded_inputs([given], ["input"], file)
    assert (rounded.dtype, torch.equal(rounded, given.half().float())) == (torch.float32, True)


def test_what_a_target_may_not_have_in_16_bits_stays_in_float32() -> None:
    """Asinh in float16, of which qnn's table says nothing."""
    result = fx2onnx.export(
        lambda x: torch.asinh(x @ x) @ x, (torch.randn(4, 4),), None, dtype="float16", target="qnn", verify=False
    )
    dtypes = {node.op_type: node.outputs[0].dtype.name for node in result.model.graph}
    assert dtypes["MatMul"] == "FLOAT16"
    assert dtypes["Asinh"] == "FLOAT"


@pytest.mark.parametrize(
    ("keywords", "code", "text"),
    [
        ({"dtype": "float17"}, "E001", "float17"),
        ({"dtype": "float16", "io": "float64"}, "E001", "io"),
        ({"io": "float32"}, "E001", "io= is for dtype="),
        ({"dtype": "float16", "target": "wonnx", "opset_version": 13}, "E204", "wonnx does not compute in float16"),
        ({"dtype": "bfloat16", "opset_version": 12}, "E202", "opset 12 has no bfloat16"),
        ({"dtype": "float16", "export_params": False}, "E001", "keeps the weights"),
        ({"dtype": "float16", "training": True}, "E001", "keeps the weights"),
    ],
)
def test_bad_input_is_one_error_and_writes_nothing(
    tmp_path: Path, keywords: dict[str, Any], code: str, text: str
) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(torch.nn.Linear(4, 4), (torch.randn(2, 4),), tmp_path / "m.onnx", **keywords)
    assert caught.value.code == code
    assert text in caught.value.render()
    assert not list(tmp_path.iterdir())


def test_an_input_beyond_the_range_is_an_error_that_names_it(tmp_path: Path) -> None:
    args = (torch.full((2, 4), 1e6),)
    with pytest.raises(UserError, match="the input input has 1e") as caught:
        fx2onnx.export(torch.nn.Linear(4, 4), args, tmp_path / "m.onnx", dtype="float16")
    assert "--io float32" in caught.value.render()
    assert not list(tmp_path.iterdir())
    fx2onnx.export(torch.nn.Linear(4, 4), args, tmp_path / "m.onnx", dtype="float16", io="float32", verify=True)


def test_without_numbers_nothing_is_measured_and_it_says_so(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Softmax(-1))
    report = fx2onnx.export(module, (torch.randn(2, 64),), dtype="float16").report
    assert {each["op"] for each in report.precision["kept"].values()} == {"Softmax"}
    assert any("nothing was measured" in note for note in report.notes)


@pytest.mark.long
def test_folders_say_what_stays_and_generate_the_same(tmp_path: Path) -> None:
    source = (
        "hf:llama?num_hidden_layers=1&hidden_size=32&intermediate_size=64&vocab_size=50&num_attention_heads=4"
        "&num_key_value_heads=2"
    )
    plain = fx2onnx.export_folder(source, tmp_path / "plain")
    half = fx2onnx.export_folder(source, tmp_path / "half", dtype="bfloat16", io="float32", verify=True)
    assert all(verdict.ok for verdict in half.verdicts.values())
    manifest = json.loads((tmp_path / "half" / "fx2onnx.json").read_text())["precision"]["model.onnx"]
    assert manifest["dtype"] == "bfloat16"
    assert "MatMul: onnxruntime has no bfloat16 kernel for it" in manifest["kept"].values()
    prompt = np.array([[1, 2, 3, 4]])
    found = [np.asarray(fx2onnx.load(each.path).generate(prompt, max_new_tokens=3)) for each in (plain, half)]
    assert np.array_equal(*found)


def test_a_file_that_is_off_by_more_than_rounding_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, args = block()
    fx2onnx.export(module, args, tmp_path / "a.onnx")
    monkeypatch.setattr(coarser, "difference", lambda *_: 0.5)
    with pytest.raises(fx2onnx.VerificationError, match="by more than rounding explains"):
        fx2onnx.optimize_model(tmp_path / "a.onnx", tmp_path / "b.onnx", dtype="float16")
    assert [each.name for each in tmp_path.iterdir()] == ["a.onnx"]


@pytest.mark.parametrize("dtype", ["float16", "mixed", "bfloat16"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, weight: x * weight.squeeze(),
        lambda x, weight: x * weight.reshape(()),
        lambda x, weight: x + torch.stack([weight[0] * 2, weight[0], abs(weight[0])]),
    ],
)
def test_a_weight_that_becomes_a_scalar(call: Any, dtype: str, tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([0.5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return call(x, self.weight)

    fx2onnx.export(Scaled(), (torch.randn(2, 3),), tmp_path / "m.onnx", dtype=dtype, verify=True)
