"""Bounds of values and rounding over ranges of inputs: they hold, and what inputs can cause is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.proof.spans import RULES
from tests.cli.support import invoke
from tests.proof.test_certify import MODELS
from tests.proof.test_equations import graph_of, node


class Faulty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.table(i), torch.log(x - 0.5), 1 / (x - 2), torch.exp(x * 100)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("ranges") / "faulty.onnx"
    fx2onnx.export(Faulty(), (torch.tensor([1, 2]), torch.rand(3)), path)
    return path


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{Path(__file__).name}:{next(place for place, line in enumerate(lines, 1) if text in line)}"


def test_what_inputs_can_cause_is_found_with_its_line(faulty: Path) -> None:
    found = fx2onnx.value_ranges(faulty, {"i": (0, 10), "x": (0, 3)})
    assert {each.kind for each in found.findings} == {"index", "nan", "division", "overflow"}
    shown = {each.kind: each.is_shown for each in found.findings}
    assert shown == {"index": True, "nan": True, "division": False, "overflow": True}
    assert all(each.where.endswith(line_of("return self.table(i)")) for each in found.findings)
    assert {each.op_type for each in found.float16} == {"Log", "Reciprocal", "Exp"}


@pytest.mark.parametrize(("number", "is_found"), [(100, False), (1e5, True), (1e30, True)])
@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16"])
def test_a_number_too_large_for_what_it_is_cast_to_is_found(number: float, is_found: bool, dtype: str) -> None:
    kinds = onnx.TensorProto
    nodes = [
        node("Mul", "x", "c", "m"),
        node("Cast", "m", "h", to=getattr(kinds, dtype)),
        node("Cast", "h", "y", to=kinds.FLOAT),
    ]
    found = fx2onnx.value_ranges(graph_of(nodes, [2], c=np.float32(number)), {"x": (0, 1)})
    given = [("overflow", "Cast", True)] if is_found and dtype == "FLOAT16" else []
    assert [(each.kind, each.op_type, each.is_shown) for each in found.findings] == given


@pytest.mark.parametrize("ends", [(1e39, 1e40), (-1e300, 0)])
def test_ranges_beyond_their_type_are_refused(faulty: Path, ends: tuple[float, float]) -> None:
    for name in ("x", "i"):
        with pytest.raises(UserError, match="is not within") as raised:
            fx2onnx.value_ranges(faulty, {name: ends})
        assert raised.value.code == "E001"


def test_inputs_that_cause_nothing(faulty: Path) -> None:
    found = fx2onnx.value_ranges(faulty, {"i": (-10, 9), "x": (0.6, 0.8)})
    assert found.findings == []
    assert {each.op_type for each in found.float16} == {"Exp"}  # exp(60) is above 65504 and below the largest float32
    assert found.unknown == {}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_bounds_hold_for_random_inputs(tmp_path: Path, name: str, seed: int) -> None:
    """In the runner and in eager float64, numbers and rounding are inside."""
    torch.manual_seed(seed)
    make, shape = MODELS[name]
    module, sample = make().eval(), torch.randn(shape)
    fx2onnx.export(module, (sample,), tmp_path / "m.onnx", optimize=bool(seed % 2))
    (feed,) = [value.name for value in onnx.load(tmp_path / "m.onnx").graph.input]
    found = fx2onnx.value_ranges(tmp_path / "m.onnx", {feed: (-1, 1)})
    (bound,) = found.outputs.values()
    assert found.unknown == {}
    assert bound.measured <= bound.rounding
    session = fx2onnx.runner.InferenceSession(tmp_path / "m.onnx")
    for draw in range(8):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(draw)) * 2 - 1
        got = session.run(None, {feed: x.numpy()})[0].astype(np.float64)
        with torch.no_grad():
            want = module.double()(x.double()).numpy()
        module.float()
        assert np.abs(got - want).max() <= bound.rounding
        assert bound.low <= want.min() <= want.max() <= bound.high


@pytest.mark.parametrize("places", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(("width", "scale"), [(50, 1.7), (7, 3.0), (90, 0.6)])
def test_bounds_of_places_between_numbers_hold_in_both_engines(width: int, scale: float, places: str) -> None:
    made = node("Resize", "x", "", "scales", "y", mode="linear", coordinate_transformation_mode=places)
    model = graph_of([made], [1, 1, width], scales=np.array([1, 1, scale], np.float32))
    (bound,) = fx2onnx.value_ranges(model, {"x": (-1, 1)}).outputs.values()
    x = np.where(np.arange(width) % 2, 1, -1).astype(np.float32).reshape(1, 1, width)
    exact, size = np.arange(int(width * np.float64(np.float32(scale)))), np.float64(np.float32(scale))
    place = {"half_pixel": (exact + 0.5) / size - 0.5, "asymmetric": exact / size}.get(
        places, exact * (width - 1) / (len(exact) - 1)
    )
    want = np.interp(place, np.arange(width), x[0, 0].astype(np.float64))
    for run in (fx2onnx.runner.InferenceSession, onnxruntime.InferenceSession):
        got = run(model.SerializeToString()).run(None, {"x": x})[0][0, 0]
        assert np.abs(got - want).max() <= bound.rounding < 1e-3


_TABLE = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "c": np.float32(0.3),
    "k": np.array([2], np.int64),
}
ONE: list[tuple[str, onnx.NodeProto]] = [
    *((op, node(op, "x", "y")) for op in ("Relu", "Tanh", "Sigmoid", "Erf", "Exp", "Sin", "Cos", "Abs", "Neg", "Softmax", "LogSoftmax",
                                          "Gelu", "HardSwish", "Softplus", "Mish", "ReduceSum", "ReduceMean", "ReduceL2", "ReduceMax",
                                          "ReduceMin", "ReduceSumSquare", "Sign", "Floor", "Round", "LeakyRelu", "HardSigmoid", "Elu")),
    *((op, node(op, "x", "c", "y")) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    ("square", node("Mul", "x", "x", "y")), ("Pow", node("Pow", "x", "two", "y")), ("MatMul", node("MatMul", "x", "w", "y")),
    ("Gemm", node("Gemm", "x", "w", "y", alpha=-0.5)), ("Concat", node("Concat", "x", "x", "y", axis=1)),
    ("Transpose", node("Transpose", "x", "y")), ("Clip", node("Clip", "x", "c", "y")), ("Einsum", node("Einsum", "x", "w", "y", equation="ij,jk->ki")),
    ("LayerNormalization", node("LayerNormalization", "x", "s", "y")), ("CumSum", node("CumSum", "x", "one", "y")),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("made", [each[1] for each in ONE], ids=[each[0] for each in ONE])
def test_each_rule_bounds_its_operator(tmp_path: Path, made: onnx.NodeProto, dtype: Any) -> None:
    """Against float64 and against float16 or float32 in the runner, on inputs of the range."""
    assert made.op_type in RULES
    constants: dict[str, Any] = {name: array.astype(dtype) for name, array in _TABLE.items() if array.dtype != np.int64}
    constants |= {"s": np.full(3, 1.5, dtype), "two": np.array(2, dtype), "one": np.array(1, np.int64)}
    model = graph_of([made], [2, 3], **{name: array for name, array in constants.items() if name in made.input})
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = kind
    onnx.save(model, tmp_path / "m.onnx")
    found = fx2onnx.value_ranges(tmp_path / "m.onnx", {"x": (-1.5, 2)})
    assert found.unknown == {}
    assert found.findings == []
    bound = found.outputs["y"]
    assert bound.measured <= bound.rounding
    assert bound.rounding < (0.002 if dtype == np.float32 else 8)
    assert bound.high - bound.low < 60
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype.kind == "f":
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float64), tensor.name))
    narrow, wide = (fx2onnx.runner.InferenceSession(each) for each in (tmp_path / "m.onnx", model.SerializeToString()))
    generator = np.random.default_rng(1)
    for _ in range(20):
        x = generator.uniform(-1.5, 2, (2, 3)).astype(dtype)
        got, want = narrow.run(None, {"x": x})[0], wide.run(None, {"x": x.astype(np.float64)})[0]
        assert np.abs(got - want).max() <= bound.rounding
        assert bound.low <= want.min() <= want.max() <= bound.high


def test_a_mask_of_minus_infinity_is_exact(tmp_path: Path) -> None:
    made = graph_of([node("Add", "x", "m", "a"), node("Softmax", "a", "y")], [2, 3], m=np.float32([0, -np.inf, 0]))
    onnx.save(made, tmp_path / "m.onnx")
    (bound,) = fx2onnx.value_ranges(tmp_path / "m.onnx", {"x": (-1, 1)}).outputs.values()
    assert bound.measured <= bound.rounding < 1e-5
    assert 0 <= bound.low <= bound.high < 0.9


@pytest.mark.parametrize(
    ("nodes", "low", "high", "kinds"),
    [
        ([node("Sqrt", "x", "y")], -1, 1, {"nan"}),
        ([node("Mul", "x", "x", "s"), node("Sqrt", "s", "y")], -1, 1, set()),
        ([node("Mul", "x", "x", "s"), node("Add", "s", "c", "p"), node("Div", "x", "p", "y")], -1, 1, set()),
        ([node("Div", "x", "x", "y")], -1, 1, {"division"}),
        ([node("Log", "x", "y")], 0, 1, {"division"}),
        ([node("Exp", "x", "e"), node("Add", "e", "c", "p"), node("Log", "p", "y")], 0, 60, set()),
        ([node("Exp", "x", "e"), node("Add", "e", "c", "p"), node("Div", "x", "p", "y")], 0, 60, set()),
        ([node("Exp", "x", "e"), node("Sub", "e", "c", "p"), node("Log", "p", "y")], 1, 60, {"nan"}),
        ([node("Mul", "x", "x", "y")], 0, 1e30, {"overflow"}),
        ([node("Softmax", "x", "y")], -1e30, 1e30, set()),
        ([node("Acos", "x", "y")], -1, 2, {"nan"}),
        ([node("Acos", "x", "y")], -1, 1, set()),
        ([node("Atanh", "x", "y")], 0, 1, {"division"}),
        ([node("Pow", "x", "c", "y")], -1, 1, {"nan"}),
        ([node("Pow", "c", "x", "y")], -1, 1, set()),
        ([node("Neg", "x", "n"), node("Pow", "x", "n", "y")], 0, 1, {"division"}),
        ([node("Mod", "c", "x", "y", fmod=1)], 0, 1, {"division"}),
        ([node("Tan", "x", "t"), node("Sub", "t", "t", "y")], 0, 1, set()),
        ([node("Cosh", "x", "y")], 0, 200, {"overflow"}),
        (
            [node("Cast", "x", "i", to=7), node("ReduceMax", "i", "m", keepdims=0), node("Gather", "column", "m", "y")],
            -3,
            3,
            {"index"},
        ),
        (
            [node("Cosh", "x", "h"), node("Sub", "h", "h", "s"), node("Where", "b", "s", "x", "y")],
            0,
            200,
            {"overflow", "nan"},
        ),
        *(
            ([node("Cast", "x", "i", to=onnx.TensorProto.INT64), *last], -3, high, kinds)
            for high, kinds in ((2, set()), (3, {"index"}))
            for last in (
                [node("Gather", "row", "i", "y", axis=1)],
                [node("GatherElements", "row", "i", "y", axis=-1)],
                [node("Reshape", "i", "tall", "j"), node("GatherND", "column", "j", "y")],
                [node("ScatterElements", "row", "i", "x", "y", axis=1)],
                [node("Reshape", "i", "tall", "j"), node("ScatterND", "column", "j", "flat", "y")],
            )
        ),
    ],
)
def test_findings_of_small_graphs(tmp_path: Path, nodes: Any, low: float, high: float, kinds: set[str]) -> None:
    column = np.arange(3, dtype=np.float32)
    constants = {
        "row": column[None],
        "column": column,
        "tall": np.array([3, 1], np.int64),
        "flat": column,
        "b": np.array(True),
    }
    onnx.save(graph_of(nodes, ["batch", 3], c=np.float32(0.1), **constants), tmp_path / "m.onnx")
    found = fx2onnx.value_ranges(tmp_path / "m.onnx", {"x": (low, high)}, sizes={"batch": 1})
    assert {each.kind for each in found.findings} == kinds


@pytest.mark.parametrize(
    ("nodes", "shown"),
    [
        ([node("ReduceSum", "hidden", "y")], set()),
        ([node("Abs", "x", "a"), node("Div", "hidden", "a", "y")], set()),
        ([node("ReduceSum", "x", "a"), node("Div", "hidden", "a", "y")], {("Div", False)}),
        ([node("Softmax", "hidden", "s"), node("Abs", "x", "a"), node("Div", "s", "a", "y")], {("Softmax", True)}),
        ([node("Greater", "c", "x", "g"), node("Where", "g", "c", "x", "p"), node("Div", "c", "p", "y")], set()),
        ([node("Less", "x", "c", "g"), node("Where", "g", "c", "x", "p"), node("Div", "c", "p", "y")], set()),
        (
            [node("Less", "x", "c", "g"), node("Where", "g", "x", "c", "p"), node("Div", "c", "p", "y")],
            {("Div", False)},
        ),
        ([node("Sub", "x", "x", "z"), node("Div", "hidden", "z", "y")], {("Div", True)}),
        (
            [node("Greater", "c", "x", "g"), node("Where", "g", "hidden", "x", "m"), node("Softmax", "m", "y")],
            {("Softmax", True)},
        ),
    ],
)
def test_a_fault_is_shown_where_it_begins(tmp_path: Path, nodes: Any, shown: set[tuple[str, bool]]) -> None:
    """Infinities of a mask are nobody's fault, and a division behind them causes nothing."""
    masked = np.full((1, 3), -np.inf, np.float32)
    onnx.save(graph_of(nodes, ["batch", 3], c=np.float32(0.1), hidden=masked), tmp_path / "m.onnx")
    low = 0.5 if any(each.op_type == "Abs" for each in nodes) else -1.0
    found = fx2onnx.value_ranges(tmp_path / "m.onnx", {"x": (low, 2)}, sizes={"batch": 1})
    assert {(each.op_type, each.is_shown) for each in found.findings} == shown


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_outputs_have_bounds(tmp_path: Path, op: str, gates: int) -> None:
    """What stands behind them has bounds, too, which hold on random inputs."""
    draw = np.random.default_rng(0)
    wide = {"w": draw.standard_normal((1, 5 * gates, 4)), "r": draw.standard_normal((1, 5 * gates, 5))}
    nodes = [node(op, "x", "w", "r", "h", hidden_size=5), node("Exp", "h", "y")]
    model = graph_of(nodes, [2, 3, 4], **{name: array.astype(np.float32) for name, array in wide.items()})
    onnx.save(model, tmp_path / "recurrent.onnx")
    found = fx2onnx.value_ranges(tmp_path / "recurrent.onnx", {"x": (-9, 9)})
    assert found.unknown == {}
    (bound,) = found.outputs.values()
    x = draw.uniform(-9, 9, (2, 3, 4)).astype(np.float32)
    (y,) = fx2onnx.runner.InferenceSession(tmp_path / "recurrent.onnx").run(None, {"x": x})
    assert bound.low - 1e-6 <= y.min() <= y.max() <= bound.high + 1e-6 < 3


def test_an_operator_without_a_rule_is_named(tmp_path: Path) -> None:
    nodes = [node("Det", "x", "d"), node("Add", "d", "c", "y")]
    onnx.save(graph_of(nodes, [2, 2], c=np.float32(0.1)), tmp_path / "m.onnx")
    found = fx2onnx.value_ranges(tmp_path / "m.onnx", {"x": (0, 1)})
    assert (list(found.unknown.values()), found.outputs["y"].high) == (["Det"], np.inf)


def test_the_command_shows_bounds_and_findings(faulty: Path) -> None:
    run: Callable[..., Any] = lambda *args: invoke("lint", str(faulty), *args)  # noqa: E731
    done = run("--ranges", "i=0:10,x=0:3")
    assert done.exit_code == 1
    for text in ("index", "an input in the ranges does it", "not ruled out", "rounding at most", "float16"):
        assert text in done.output
    done = run("--ranges", "i=0:9", "--ranges", "x=0.6:0.8", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["ranges"]["findings"] == []
    assert (
        "inf"
        in json.loads(run("--ranges", "x=-1:0.8", "--json").stdout, parse_constant=pytest.fail)["ranges"]["outputs"][
            "output_1"
        ].values()
    )


@pytest.mark.parametrize("ranges", ["z=0:1", "x=1:0", "x=0", "x", "x=a:b", "x=-inf:inf", "x=nan:1", "x=0:1,x=2:3"])
def test_ranges_that_are_none(faulty: Path, ranges: str) -> None:
    done = invoke("lint", str(faulty), "--ranges", ranges)
    assert done.exit_code == 2
    assert done.output.count("E001") == 1
    with pytest.raises(UserError, match="has no input 'z'"):
        fx2onnx.value_ranges(faulty, {"z": (0, 1)})


@pytest.mark.parametrize("ends", ["01", (1,), 5, (True, "a"), (1, 0), (float("nan"), 1), (0.3, 0.7)])
def test_ends_that_are_none(faulty: Path, ends: Any) -> None:
    with pytest.raises(UserError, match=r"i=.* (is no range|has no number of int64)") as raised:
        fx2onnx.value_ranges(faulty, {"i": ends})
    assert raised.value.code == "E001"


@pytest.mark.parametrize(("low", "kinds"), [(1002, []), (995, ["division"])])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_a_file_that_runs_on_numbers_of_the_ranges_alone(op: str, low: int, kinds: list[str]) -> None:
    """Random integers of verify are below 1,000, and give a divisor of 0."""
    text = '<ir_version: 10, opset_import: ["" : 20]> g (int64[3] i, int64[3] j) => (int64[3] y) <int64 many = {1000}, int64 zero = {0}> '
    text += f"{{ k = Sub(j, many) l = Max(k, zero) y = {op}(i, l) }}"
    found = fx2onnx.value_ranges(onnx.parser.parse_model(text), {"i": (-5, 5), "j": (low, 1009)})
    assert [each.kind for each in found.findings] == kinds
    assert found.outputs["y"].low <= 0 <= found.outputs["y"].high
