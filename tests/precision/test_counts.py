"""What a sample does not show of 16 bits: positions beyond 2,048, rows of zeros, numbers beyond the range or next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fx2onnx
from fx2onnx import verify
from fx2onnx.runner import InferenceSession


class Calls(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Tensor) -> Tensor:
        return self.call(*args)


def angles(positions: Tensor) -> Tensor:
    frequencies = 1 / 10000 ** (torch.arange(0, 8, 2) / 8)
    return torch.cat([(frequencies[:, None] @ positions[None].float()).mT] * 2, -1)


def turned(x: Tensor, positions: Tensor) -> Tensor:
    halves = torch.cat([-x[:, 4:], x[:, :4]], -1)
    return x * angles(positions).cos() + halves * angles(positions).sin()


class Timed(nn.Module):
    """A step's sines on their way into a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 256)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x[:, :1] * self.layer(angles(positions).sin())


COUNTING: dict[str, tuple[nn.Module, bool]] = {
    "given positions": (Calls(turned), True),
    "positions of the input": (Calls(lambda x: turned(x, torch.arange(x.shape[0]))), False),
    "a window": (Calls(lambda x: torch.hann_window(x.shape[0])[:, None] * x), False),
    "distances": (Calls(lambda x: (x @ x.mT - 0.5 * torch.arange(x.shape[0]).float()).softmax(-1) @ x), False),
    "a part of the length": (Calls(lambda x: x * (torch.arange(x.shape[0]).double() / x.shape[0]).float()[:, None]), False),
    "steps into a layer": (Timed(), True),
}  # fmt: skip


@pytest.mark.long_cases("distances-float16", "distances-mixed", "distances-bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "mixed", "bfloat16"])
@pytest.mark.parametrize("name", COUNTING)
def test_positions_behind_the_sample_are_exact(name: str, dtype: str, tmp_path: Path) -> None:
    module, takes_positions = COUNTING[name]
    torch.manual_seed(0)
    args = (torch.randn(16, 8), torch.arange(16))[: 2 if takes_positions else 1]
    shapes = tuple({0: "n"} for _ in args)
    io = None if dtype == "mixed" else "float32"
    report = fx2onnx.export(module, args, tmp_path / "m.onnx", dynamic_shapes=shapes, dtype=dtype, io=io).report
    if name == "steps into a layer":
        nodes = report.precision["nodes"]  # the layer itself is no matter of positions
        assert dtype == "bfloat16" or nodes.get("MatMul", 0) + nodes.get("Gemm", 0) == 1, nodes
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    for size in (16, 300, 3001):
        feeds = (torch.randn(size, 8), torch.arange(size))[: len(args)]
        with torch.no_grad():
            wanted = module(*feeds).numpy()
        (got,) = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, feeds, strict=True)})
        unit = 2.0**-6 if dtype == "bfloat16" else 2.0**-9
        assert np.abs(got - wanted).max() < 8 * unit * max(np.abs(wanted).max(), 1.0), size


def test_masks_do_not_count(tmp_path: Path) -> None:
    def masked(x: Tensor, mask: Tensor) -> Tensor:
        return (x + (1 - mask.float()) * torch.finfo(torch.float32).min).softmax(-1)

    args = (torch.randn(2, 6), torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6]))
    report = fx2onnx.export(Calls(masked), args, tmp_path / "m.onnx", dtype="float16", verify=True).report
    assert not report.precision["kept"]


DIVISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "normalize": functional.normalize,
    "sum": lambda x: x / (x.abs().sum(-1, keepdim=True) + 1e-12),
    "rsqrt": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8),
    "sqrt": lambda x: x / torch.sqrt(x.var(-1, keepdim=True) + 1e-10),
    "reciprocal": lambda x: x * x.norm(dim=-1, keepdim=True).clamp(min=1e-10).reciprocal(),
    "pow": lambda x: x * (x.pow(2).sum(-1, keepdim=True) + 1e-12).pow(-0.5),
    "log": lambda x: torch.log(x.relu() + 1e-9),
    "cosine_similarity": lambda x: functional.cosine_similarity(x, x.flip(0)),
}


@pytest.mark.parametrize("dtype", ["float16", "mixed", "bfloat16"])
@pytest.mark.parametrize("name", DIVISIONS)
def test_zeros_are_divided_as_in_float32(name: str, dtype: str, tmp_path: Path) -> None:
    """The sample has no zeros."""
    torch.manual_seed(0)
    module, x = Calls(DIVISIONS[name]), torch.randn(6, 8)
    fx2onnx.export(module, (x,), tmp_path / "m.onnx", dtype=dtype, verify=True)
    session = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    zeros = torch.zeros(6, 8)
    wanted = module(zeros).numpy()
    given = zeros.half() if "float16" in session.get_inputs()[0].type else zeros
    if "bfloat16" not in session.get_inputs()[0].type:
        (got,) = session.run(None, {"args_0": given.numpy()})
        assert np.allclose(got.astype(np.float32), wanted, rtol=1e-2)


def test_a_product_with_what_divides(tmp_path: Path) -> None:
    """A file as others write it: the reciprocal by itself, and a quotient of two that may be next to nothing."""
    opset = [onnx.helper.make_opsetid("", 18)]
    float32 = onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("Abs", ["x"], ["size"]),
        onnx.helper.make_node("Add", ["size", "least"], ["above"]),
        onnx.helper.make_node("Reciprocal", ["above"], ["share"]),
        onnx.helper.make_node("Mul", ["x", "share"], ["signs"]),
        onnx.helper.make_node("Div", ["above", "above"], ["ones"]),
    ]
    x = onnx.helper.make_tensor_value_info("x", float32, [2, 3])
    outputs = [onnx.helper.make_tensor_value_info(name, float32, [2, 3]) for name in ("signs", "ones")]
    least = onnx.numpy_helper.from_array(np.float32(1e-12), "least")
    graph = onnx.helper.make_graph(nodes, "g", [x], outputs, [least])
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "in.onnx")
    fx2onnx.optimize_model(tmp_path / "in.onnx", tmp_path / "out.onnx", level=0, dtype="float16")
    session = InferenceSession(tmp_path / "out.onnx")  # which rounds between nodes
    signs, ones = session.run(None, {"x": np.array([[0, 1, -2], [0, 0, 4]], np.float16)})
    assert signs.tolist() == [[0, 1, -1], [0, 0, 1]]
    assert (ones == 1).all()


def sum_into(x: Tensor, rows: Tensor, reduce: str) -> Tensor:
    start = torch.ones(4, x.shape[1], dtype=x.dtype)
    if reduce == "sum" and x.shape[1] == 5:
        return start.index_add(0, rows, x)
    return start.scatter_reduce(0, rows[:, None].expand_as(x), x, reduce)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("reduce", "width"), [("sum", 5), ("sum", 3), ("prod", 3), ("amax", 3), ("amin", 3), ("mean", 3)]
)
def test_sums_by_index_run(reduce: str, width: int, dtype: str, tmp_path: Path) -> None:
    """onnxruntime's scatters take 16 bits, but not where they add."""
    torch.manual_seed(0)
    module = Calls(lambda x, rows: sum_into(x, rows, reduce))
    args = (torch.randn(6, width), torch.tensor([0, 2, 2, 1, 0, 3]))
    result = fx2onnx.export(module, args, tmp_path / "m.onnx", dtype=dtype)
    verdict = verify(result, module, args)
    assert verdict.ok, verdict.describe()
    assert "onnxruntime" in {row.engine for row in verdict.rows}


@pytest.mark.long
def test_a_file_in_float16_is_judged_by_what_float16_holds(tmp_path: Path) -> None:
    """Products beyond 65504 are infinite, those of small numbers have fewer digits."""
    torch.manual_seed(0)
    module, args = Calls(lambda x: x @ x.mT @ x @ x.mT), (torch.randn(8, 8) * 3,)
    result = fx2onnx.export(module, args, tmp_path / "m.onnx", dtype="float16")
    verdict = verify(result, module, args)
    assert verdict.ok, verdict.describe()
    assert {"large", "small"} <= {each.values for each in verdict.tried}

    wrong = Calls(lambda x: x @ x.mT @ x @ x.mT * 1.05)
    assert not verify(result, wrong, args).ok


def test_what_a_module_compares_with_is_tried_where_float16_has_room(tmp_path: Path) -> None:
    """1e-12, which ``normalize`` compares with, is zero in the product before it."""
    torch.manual_seed(0)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 32, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return functional.normalize(self.layer(x), dim=-1)

    for dtype in ("float16", "mixed"):
        fx2onnx.export(Pair(), (torch.randn(4, 64),), tmp_path / "m.onnx", dtype=dtype, verify=True)


@pytest.mark.parametrize(
    "steps",
    [
        "i = Cast <to = 7> (p)",
        "f = Floor (p) a = Abs (f) u = Unsqueeze (a, z) s = Squeeze (u, z) i = Cast <to = 6> (s)",
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed"])
def test_places_in_a_float_input_are_exact(steps: str, dtype: str, tmp_path: Path) -> None:
    body = f"g (float[n, 8] x, float[n] p) => (float[n, 8] y) {{ {steps} e = Gather (t, i) h = MatMul (x, w) y = Add (h, e) }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {body}')
    rng = np.random.default_rng(0)
    table, weight = rng.standard_normal((5000, 8), np.float32), rng.standard_normal((8, 8), np.float32)
    for name, array in (("t", table), ("w", weight), ("z", np.array([0]))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    result = fx2onnx.optimize_model(proto, tmp_path / "m.onnx", dtype=dtype)
    assert result.verified
    session = InferenceSession(tmp_path / "m.onnx")
    x, places = rng.standard_normal((3, 8), np.float32), np.array([2049, 4097, 4999], np.float32)
    kinds = {value.name: value.type for value in session.get_inputs()}
    assert kinds["p"] == "tensor(float)"
    feeds = {"x": x.astype(np.float16) if "16" in kinds["x"] and dtype == "float16" else x, "p": places}
    if dtype != "bfloat16":
        (got,) = session.run(None, feeds)
        assert np.abs(got - (x @ weight + table[places.astype(int)])).max() < 0.05
