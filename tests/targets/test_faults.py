"""Faults of onnxruntime: each is still there in the release that is installed, and what avoids it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

import fx2onnx
from fx2onnx import verify
from fx2onnx.runner import InferenceSession
from fx2onnx.targets import faults
from fx2onnx.targets.form import find

RUN = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {each.name: numpy.ones([2, 3, 4], {"tensor(float)": "f", "tensor(double)": "d", "tensor(float16)": "e"}[each.type]) for each in session.get_inputs()})
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


def nameless_bias(path: Path) -> Path:
    cast = helper.make_node("Cast", ["x"], ["c"], to=onnx.TensorProto.FLOAT)
    norm = helper.make_node("LayerNormalization", ["c", "w", ""], ["y"])
    return saved(path, [cast, norm], 1, {"w": np.ones([4], np.float32)})


CASES = {
    "transpose-cast-matmul": transposed,
    "random-without-spread": spreadless,
    "layer-norm-named-nothing": nameless_bias,
}


def tiny(nodes: list[onnx.NodeProto], shapes: dict[str, list[int]], constants: dict[str, Any], outputs: int = 1) -> Any:
    """A model of floats at an opset that knows its operators."""
    opset = 23 if nodes[-1].op_type == "Attention" else 19
    graph = helper.make_graph(
        nodes,
        "fault",
        [
            helper.make_tensor_value_info(name, 7 if name == "places" else onnx.TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ["y", "scores"][:outputs]],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def pooled(op_type: str, zeros: list[int], value: float = 0.0, outputs: int = 1, **given: Any) -> Any:
    nodes = [
        helper.make_node("Pad", ["x", "pads", "value"], ["padded"]),
        helper.make_node(op_type, ["padded"], ["y", "places"][:outputs], kernel_shape=[3, 3], **given),
    ]
    pads = np.array([0, 0, *zeros[:2], 0, 0, *zeros[2:]])
    return tiny(nodes, {"x": [1, 1, 6, 6]}, {"pads": pads, "value": np.float32(value)})


def resized(size: int, scale: float, mode: str = "align_corners") -> Any:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear", coordinate_transformation_mode=mode)
    return tiny([node], {"x": [1, 1, size, 4]}, {"scales": np.array([1, 1, scale, 1], np.float32)})


def attention(causal: int, mode: int) -> Any:
    names = ["y", "", "", "scores"]
    node = helper.make_node("Attention", ["q", "k", "k"], names, is_causal=causal, qk_matmul_output_mode=mode)
    return tiny([node], {"q": [1, 2, 3, 4], "k": [1, 2, 3, 4]}, {}, 2)


def unpooled(*shape: int) -> Any:
    names = ["x", "places", "shape"] if shape else ["x", "places"]
    node = helper.make_node("MaxUnpool", names, ["y"], kernel_shape=[2, 2], strides=[2, 2])
    constants = {"shape": np.array([1, 1, *shape])} if shape else {}
    return tiny([node], {"x": [1, 1, 2, 2], "places": [1, 1, 2, 2]}, constants)


WRONG: dict[str, tuple[list[Any], list[Any]]] = {
    "pad-max-pool": (
        [pooled("MaxPool", [1, 0, 0, 2]), pooled("MaxPool", [0, 1, 0, 0], pads=[1, 1, 1, 1])],
        [pooled("MaxPool", [1, 0, 0, 2], -9.0), pooled("MaxPool", [1, 0, 0, 2], outputs=2), pooled("MaxPool", [0] * 4)],
    ),
    "pad-average-pool": (
        [
            pooled("AveragePool", [1, 1, 2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
            pooled("AveragePool", [3, 0, 0, 0], count_include_pad=1),
        ],
        [
            pooled("AveragePool", [1, 1, 1, 1], pads=[1, 1, 1, 1], count_include_pad=1),
            pooled("AveragePool", [1, 1, 2, 2], pads=[1, 1, 1, 1]),
        ],
    ),
    "resize-align-corners-scales": (
        [resized(9, 0.5), resized(4, 0.6), resized(9, 1.3)],
        [resized(8, 0.5), resized(9, 2.0), resized(9, 0.5, "half_pixel")],
    ),
    "attention-scores-causal": ([attention(1, 2)], [attention(0, 2), attention(1, 0), attention(1, 3)]),
    "max-unpool-output-shape": ([unpooled(5, 5)], [unpooled()]),
}
"""Files that meet each fault, and files like them that do not."""


def is_wrong(model: Any) -> bool:
    """Return whether onnxruntime gives something else than the runner and ``onnx.reference``, which agree, or does not
    open it."""
    numbers = np.random.default_rng(0)
    feeds = {}
    for given in model.graph.input:
        shape = [each.dim_value for each in given.type.tensor_type.shape.dim]
        feeds[given.name] = -1 - numbers.random(shape, np.float32)
    if "places" in feeds:
        feeds["places"] = np.array([[[[5, 7], [13, 15]]]])
    expected = InferenceSession(model.SerializeToString()).run(None, feeds)
    for got, want in zip(ReferenceEvaluator(model).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    try:
        found = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:  # RuntimeException before 1.24
        return True
    results = zip(found.run(None, feeds), expected, strict=True)
    return not all(got.shape == want.shape and np.allclose(got, want, 1e-4, 1e-5) for got, want in results)


@pytest.mark.parametrize("name", WRONG)
def test_results_are_still_wrong(name: str) -> None:
    """In the release that is installed, and said of no release without them."""
    met, others = WRONG[name]
    (fault,) = [each for each in faults.FAULTS if each.name == name]
    is_there = fault in faults.of(find(f"onnxruntime-{onnxruntime.__version__}"))
    for model in met:
        assert is_wrong(model) == is_there, f"onnxruntime {onnxruntime.__version__}"
        found = [each.name for each, _ in faults.met(ir.from_proto(model), find(f"onnxruntime-{fault.until}"))]
        assert found == [name]
    for model in others:
        assert not is_wrong(model)
        assert not list(faults.met(ir.from_proto(model), find(f"onnxruntime-{fault.until}")))


class PaddedPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(nn.functional.pad(x, (0, 2, 1, 0)), 3, 1)


def test_a_verification_names_a_known_fault(tmp_path: Path) -> None:
    """A file in the form that onnxruntime takes wrongly; an export has another."""
    args = (-1 - torch.rand(1, 1, 6, 6),)
    onnx.save(pooled("MaxPool", [1, 0, 0, 2]), tmp_path / "model.onnx")
    verdict = verify(tmp_path / "model.onnx", PaddedPool(), args)
    names = {fault.name for fault in faults.of(find(f"onnxruntime-{onnxruntime.__version__}"))}
    is_there = "pad-max-pool" in names
    assert {row.engine for row in verdict.rows if not row.ok} == ({"onnxruntime"} if is_there else set())
    is_named = any("a known fault of onnxruntime" in note and "never the largest" in note for note in verdict.notes)
    assert is_named == is_there
    assert verify(fx2onnx.export(PaddedPool(), args), PaddedPool(), args).ok


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


class Turned(nn.Module):
    """A product of what a transpose turned."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.left, self.right = (
            nn.Linear(4, 5),
            nn.Parameter(torch.randn(6, 2)),
            nn.Parameter(torch.randn(2, 3)),
        )
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "left":
            return self.left @ x.transpose(0, 1)
        return x.permute(1, 2, 0) @ self.right if self.form == "permuted" else self.layer(x.transpose(0, 1))


@pytest.mark.long_cases(but=["left-optimised", "permuted-optimised"])
@pytest.mark.parametrize("made", ["cast", "exported", "optimised"])
@pytest.mark.parametrize("form", ["layer", "left", "permuted"])
def test_products_of_turned_float16_do_not_end_the_process(form: str, made: str, tmp_path: Path) -> None:
    """They do where the runtime itself puts casts there: in a process of its own."""
    path, module, args = tmp_path / "model.onnx", Turned(form).eval(), (torch.randn(2, 3, 4),)
    shapes = {"x": {1: "n"}}
    if made == "optimised":
        fx2onnx.export(module, args, tmp_path / "wide.onnx", dynamic_shapes=shapes)
        fx2onnx.optimize_model(tmp_path / "wide.onnx", path, dtype="float16")
    elif made == "exported":
        fx2onnx.export(module, args, path, dynamic_shapes=shapes, dtype="float16")
    else:
        module, args = module.half(), (args[0].half(),)
        fx2onnx.export(module, args, path, dynamic_shapes=shapes)
    assert not list(faults.met(ir.load(path), find("onnxruntime")))
    assert not ends_the_process(path)
    if made != "optimised":
        verdict = verify(path, module, args, engines=["runner", "onnxruntime"])
        assert verdict.ok, verdict.describe()


def test_a_file_with_products_of_turned_float16_is_known(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    model = tiny(nodes, {"x": [2, 3, 4]}, {"w": np.ones((4, 5), np.float16)})
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, tmp_path / "model.onnx")
    (found,) = {fault.name for fault, _ in faults.met(ir.from_proto(model), find("onnxruntime"))}
    assert found == "transpose-matmul-float16"

    class Product(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.transpose(0, 1) @ torch.ones(4, 5, dtype=torch.float16)

    verdict = verify(tmp_path / "model.onnx", Product(), (torch.randn(2, 3, 4).half(),))
    assert {row.engine for row in verdict.rows} == {"runner"}
    nodes[0].attribute[0].ints[:] = [0, 2, 1]
    assert not list(
        faults.met(
            ir.from_proto(tiny(nodes, {"x": [2, 4, 3]}, {"w": np.ones((4, 5), np.float16)})), find("onnxruntime")
        )
    )


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


FACTORS: dict[str, Any] = {
    "before": lambda a, b: (a * 0.3) @ b,
    "turned": lambda a, b: (a * 0.3).transpose(-1, -2) @ b,
    "divided": lambda a, b: (a @ b) / 3,
    "both": lambda a, b: 0.7 * (a @ (b * 0.3)),
    "shared": lambda a, b: (a * 0.3 + 1) @ (a * 0.3) @ b,
    "attention": lambda a, b: nn.functional.scaled_dot_product_attention(a, b, b, scale=0.3),
    "branch": lambda a, b: torch.cond(a.sum() > 0, lambda a, b: (a * 0.3) @ b, lambda a, b: a @ b / 3, (a, b)),
}


@pytest.mark.long_cases("branch")
@pytest.mark.parametrize("name", FACTORS)
def test_factors_of_float64_products_keep_their_digits(name: str, tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return FACTORS[name](a, b)

    torch.manual_seed(0)
    args, path = (torch.randn(2, 4, 4).double(), torch.randn(2, 4, 4).double()), tmp_path / "model.onnx"
    dims = {each: {0: "batch"} for each in ("a", "b")}
    errors = {}
    for target in ("onnx", "onnxruntime"):
        fx2onnx.export(Scaled(), args, path, target=target, dynamic_shapes=dims)
        feeds = {"a": args[0].numpy(), "b": args[1].numpy()}
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        expected = Scaled()(*args).numpy()
        errors[target] = np.abs(session.run(None, feeds)[0] - expected).max()
        assert np.abs(InferenceSession(path).run(None, feeds)[0] - expected).max() < 1e-14
    assert errors["onnxruntime"] < 1e-14
    assert errors["onnx"] > 1e-10, "onnxruntime does not have it any longer"
