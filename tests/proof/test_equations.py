"""Equations of certificates: each holds in static and dynamic graphs, and what is nearly one of them is refuted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import fx2onnx
from fx2onnx.proof.numbers import Number, roundings_apart
from fx2onnx.proof.terms import Terms


def graph_of(nodes: list[onnx.NodeProto], shape: list[Any], **constants: Any) -> onnx.ModelProto:
    """A model of nodes from x to y."""
    value = onnx.helper.make_tensor_value_info
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    x, y = value("x", onnx.TensorProto.FLOAT, shape), onnx.ValueInfoProto(name="y")
    y.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


def node(op: str, *names: str, **attributes: Any) -> onnx.NodeProto:
    return onnx.helper.make_node(op, list(names[:-1]), [names[-1]], **attributes)


FILES = {
    "padded": ([node("Pad", "x", "pads", "p"), node("Conv", "p", "w", "y")], [node("Conv", "x", "w", "y", pads=[1, 2])]),
    "padded window": (
        [node("Relu", "x", "r"), node("Pad", "r", "pads", "least", "p"), node("MaxPool", "p", "y", kernel_shape=[3])],
        [node("MaxPool", "x", "m", kernel_shape=[3], pads=[1, 2]), node("Relu", "m", "y")],
    ),
    "padded twice": ([node("Pad", "x", "pads", "p"), node("Conv", "p", "w", "y", pads=[1, 0])], [node("Conv", "x", "w", "y", pads=[2, 2])]),
    "computed target": (
        [node("Shape", "x", "s"), node("Gather", "s", "first", "n"), node("Concat", "n", "rest", "t", axis=0), node("Reshape", "x", "t", "y")],
        [node("Reshape", "x", "fixed", "y")],
    ),
    "two views": (
        [node("Reshape", "x", "fixed", "f"), node("Reshape", "f", "back", "b"), node("Relu", "b", "y")],
        [node("Reshape", "x", "back", "b"), node("Relu", "b", "y")],
    ),
    "cast like": ([node("CastLike", "w", "x", "v"), node("Conv", "x", "v", "y")], [node("Conv", "x", "w", "y")]),
    "state of zeros": (
        [node("Shape", "lengths", "s"), node("Concat", "one", "s", "one", "d", axis=0), node("Expand", "zero", "d", "h"),
         node("LSTM", "x", "wi", "wr", "", "", "h", "h", "y", hidden_size=1)],
        [node("LSTM", "x", "wi", "wr", "y", hidden_size=1)],
    ),
    "picked constants": ([node("GatherElements", "row", "picks", "g", axis=1), node("Add", "x", "g", "y")], [node("Add", "x", "picked", "y")]),
}  # fmt: skip
WRONG = {
    "padded window": [node("Relu", "x", "r"), node("Pad", "r", "pads", "p"), node("MaxPool", "p", "m", kernel_shape=[3]), node("Neg", "m", "y")],
    "padded": [node("Conv", "x", "w", "y", pads=[2, 1])],
    "picked constants": [node("Sub", "x", "picked", "y")],
    "computed target": [node("Reshape", "x", "back", "t"), node("Transpose", "t", "u", perm=[0, 2, 1]), node("Reshape", "u", "fixed", "y")],
    "two views": [node("Reshape", "x", "fixed", "f"), node("Reshape", "f", "back", "b"), node("Neg", "b", "y")],
}  # fmt: skip
CONSTANTS = {
    "pads": np.array([0, 0, 1, 0, 0, 2], np.int64), "w": np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2),
    "least": np.array(-np.inf, np.float32), "first": np.array([0], np.int64), "rest": np.array([12], np.int64), "fixed": np.array([0, 12], np.int64),
    "back": np.array([0, 4, 3], np.int64), "one": np.array([1], np.int64), "zero": np.zeros((), np.float32),
    "row": np.array([[1, 2, 3, 4, 5, 6]], np.float32), "picks": np.array([[1, -1, 0, 3]], np.int64), "picked": np.array([[2, 6, 1, 4]], np.float32),
    "lengths": np.ones(3, np.int32), "wi": np.ones((1, 4, 4), np.float32), "wr": np.ones((1, 4, 1), np.float32),
}  # fmt: skip


@pytest.mark.parametrize("size", ["batch", 2])
@pytest.mark.parametrize("name", FILES)
def test_forms_of_other_tools(tmp_path: Path, name: str, size: Any) -> None:
    """What ``optimize`` makes of them is proved or bounded, and what it must not make of them is neither."""
    for place, nodes in zip(("before", "after", "wrong"), (*FILES[name], WRONG.get(name)), strict=True):
        if nodes is not None:
            names = {each for made in nodes for each in made.input}
            shape = [size, 3, 4]
            used = {key: array for key, array in CONSTANTS.items() if key in names}
            onnx.save(graph_of(nodes, shape, **used), tmp_path / f"{place}.onnx")
    found = fx2onnx.certify(tmp_path / "before.onnx", tmp_path / "after.onnx")
    assert set(found.outputs.values()) <= {"proved", "bounded"}
    if name in WRONG:
        assert fx2onnx.certify(tmp_path / "before.onnx", tmp_path / "wrong.onnx").outputs == {"y": "refuted"}


WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)
PLACES = {name: np.array([number], np.int64) for number, name in enumerate(("zero", "one", "two"))}
TURNS = {"turns": np.array(3, np.int64), "go": np.array(True)}


def split(*names: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Split", names[:1], names[1:], axis=1, num_outputs=2)


def loop(*nodes: onnx.NodeProto) -> onnx.NodeProto:
    """A loop over h, which is x at first; its nodes make n."""
    value, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    inputs = [value("i_", kinds.INT64, []), value("b_", kinds.BOOL, []), value("h", kinds.FLOAT, None)]
    outputs = [value("b_", kinds.BOOL, []), value("n", kinds.FLOAT, None)]
    body = onnx.helper.make_graph(list(nodes), "body", inputs, outputs)
    return onnx.helper.make_node("Loop", ["turns", "go", "x"], ["y"], body=body)


def branch(is_negative: bool) -> onnx.NodeProto:
    """x or its negative, by the condition c."""
    graphs = []
    for op in ("Neg", "Identity") if is_negative else ("Identity", "Neg"):
        out = onnx.helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, None)
        graphs.append(onnx.helper.make_graph([node(op, "x", "o")], op, [], [out]))
    return onnx.helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1])


INTS = {"a": np.array([1], np.int64), "b": np.array([2], np.int64), "both": np.array([1, 3], np.int64)}
NEXT = {"a": np.array(3, np.float32), "b": np.nextafter(np.array(3, np.float32), np.float32(0))}
ZEROS = {"a": np.array(0, np.float32), "b": np.array(-0.0, np.float32)}
TWOS = {f"twos{rank}": np.full((1,) * rank, 2, np.float32) for rank in range(4)}
EQUAL: list[tuple[str, list[onnx.NodeProto], list[onnx.NodeProto], dict[str, Any], str]] = [
    ("unsqueezes", [node("Unsqueeze", "x", "a", "u"), node("Unsqueeze", "u", "b", "y")],
     [node("Unsqueeze", "x", "one", "y")], {**INTS, "one": np.array([1, 2], np.int64)}, "proved"),
    ("transpositions", [node("Transpose", "x", "t", perm=[1, 0]), node("Relu", "t", "y")],
     [node("Relu", "x", "t"), node("Transpose", "t", "y", perm=[1, 0])], {}, "proved"),
    ("commuted", [node("Relu", "x", "t"), node("Add", "x", "t", "y")],
     [node("Relu", "x", "t"), node("Add", "t", "x", "y")], {}, "proved"),
    ("order of sums", [node("Relu", "x", "r"), node("Exp", "x", "e"), node("Add", "x", "r", "s"), node("Add", "s", "e", "y")],
     [node("Relu", "x", "r"), node("Exp", "x", "e"), node("Add", "r", "e", "s"), node("Add", "x", "s", "y")], {}, "bounded"),
    ("scale into weights", [node("MatMul", "x", "w", "m"), node("Mul", "m", "c", "y")], [node("MatMul", "x", "v", "y")],
     {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "c": np.float32(3), "v": 3 * np.arange(6, dtype=np.float32).reshape(3, 2)}, "bounded"),
    ("gemm", [node("MatMul", "x", "w", "m"), node("Add", "m", "c", "y")], [node("Gemm", "x", "w", "c", "y")],
     {"w": WEIGHT, "c": np.ones(2, np.float32)}, "proved"),
    ("views", [node("Reshape", "x", "long", "r"), node("Transpose", "r", "t", perm=[2, 1, 0]), node("Transpose", "t", "u", perm=[2, 0, 1]),
               node("Reshape", "u", "flat", "y")], [node("Identity", "x", "y")],
     {"long": np.array([-1, 3, 1], np.int64), "flat": np.array([0, 3], np.int64)}, "proved"),
    ("slices", [node("Slice", "x", "zero", "two", "one", "s"), node("Slice", "s", "zero", "end", "zero", "y")],
     [node("Slice", "x", "zero", "two", "one", "y")], {**PLACES, "end": np.array([2**40], np.int64)}, "proved"),
    ("swapped", [node("Greater", "x", "c", "g"), node("Not", "g", "n"), node("Where", "n", "x", "c", "y")],
     [node("Greater", "x", "c", "g"), node("Where", "g", "c", "x", "y")], {"c": np.ones(3, np.float32)}, "proved"),
    ("expanded", [node("Shape", "x", "s"), node("Expand", "c", "s", "e"), node("Neg", "e", "n"), node("Sub", "x", "n", "y")],
     [node("Neg", "c", "n"), node("Sub", "x", "n", "y")], {"c": np.ones(3, np.float32)}, "proved"),
    ("parts", [node("MatMul", "x", "w", "m"), node("MatMul", "x", "v", "o"), node("Add", "m", "o", "y")],
     [node("Concat", "w", "v", "b", axis=1), node("MatMul", "x", "b", "p"), split("p", "m", "o"), node("Add", "o", "m", "y")],
     {"w": WEIGHT[:, :1], "v": WEIGHT[:, 1:]}, "proved"),
    ("body", [loop(node("Identity", "h", "i"), node("Relu", "i", "r"), node("Mul", "r", "k", "n"))],
     [loop(node("Relu", "h", "r"), node("Mul", "k", "r", "n"))], {"k": np.full(1, 2, np.float32), **TURNS}, "proved"),
    ("branch", [branch(True)], [node("Neg", "x", "y")], {"c": np.array(True)}, "proved"),
    ("a difference with zeros", [node("Sub", "x", "c", "y")], [node("Identity", "x", "y")], {"c": np.zeros(3, np.float32)}, "proved"),
    ("a sum with zeros, of another sign", [node("Add", "x", "c", "y")], [node("Identity", "x", "y")], {"c": np.zeros(3, np.float32)}, "bounded"),
    ("the next float", [node("Mul", "x", "a", "y")], [node("Mul", "x", "b", "y")], NEXT, "bounded"),
    ("the next float in a body", [loop(node("Mul", "h", "a", "n"))], [loop(node("Mul", "h", "b", "n"))], {**NEXT, **TURNS}, "bounded"),
    ("the next float of a limit", [node("Less", "x", "a", "l"), node("Where", "l", "a", "x", "y")],
     [node("Less", "x", "b", "l"), node("Where", "l", "b", "x", "y")], NEXT, "sampled"),
    ("zeros of two signs around", [node("Pad", "x", "pads", "a", "y")], [node("Pad", "x", "pads", "b", "y")],
     {"pads": np.ones(4, np.int64), **ZEROS}, "sampled"),
    ("integers beyond floats", *([node("Cast", "x", "i", to=7), node("Pad", "i", "pads", each, "p"), node("Cast", "p", "y", to=1)]
                                 for each in "ab"), {"pads": np.ones(4, np.int64), "a": np.int64(2**53), "b": np.int64(2**53 + 1)}, "sampled"),
    ("attributes of two signs", [node("Elu", "x", "y", alpha=0.0)], [node("Elu", "x", "y", alpha=-0.0)], {}, "sampled"),
]  # fmt: skip
BIG = {"big": np.float32(1e9)}
WRONGLY: list[tuple[str, list[onnx.NodeProto], list[onnx.NodeProto], dict[str, Any]]] = [
    ("views", [node("Reshape", "x", "wide", "r"), node("Transpose", "r", "t", perm=[1, 0]), node("Reshape", "t", "flat", "y")],
     [node("Identity", "x", "y")], {"wide": np.array([3, -1], np.int64), "flat": np.array([-1, 3], np.int64)}),
    ("slices", [node("Slice", "x", "zero", "two", "one", "y")], [node("Slice", "x", "one", "three", "one", "y")],
     {**PLACES, "three": np.array([3], np.int64)}),
    ("swapped", [node("Greater", "x", "c", "g"), node("Where", "g", "c", "x", "y")],
     [node("Greater", "x", "c", "g"), node("Where", "g", "x", "c", "y")], {"c": np.ones(3, np.float32)}),
    ("parts", [node("MatMul", "x", "w", "p"), split("p", "m", "o"), node("Sub", "m", "o", "y")],
     [node("MatMul", "x", "w", "p"), split("p", "m", "o"), node("Sub", "o", "m", "y")], {**PLACES, "w": WEIGHT}),
    ("body", [loop(node("Relu", "h", "r"), node("Mul", "k", "r", "n"))], [loop(node("Relu", "h", "r"), node("Add", "k", "r", "n"))],
     {"k": np.full(1, 2, np.float32), **TURNS}),
    ("order in a body", [loop(node("Sub", "h", "k", "n"))], [loop(node("Sub", "k", "h", "n"))], {"k": np.full(1, 2, np.float32), **TURNS}),
    ("branch", [branch(True)], [branch(False)], {"c": np.array(True)}),
    *((f"{op} by more axes", [node(op, "x", "twos3", "y")], [node(op, "x", "twos0", "y")], TWOS) for op in ("Add", "Sub", "Mul", "Div", "Pow")),
    ("Mul by more rows", [node("Mul", "x", "c", "y")], [node("Mul", "x", "twos0", "y")], {**TWOS, "c": np.full((4, 2, 3), 2, np.float32)}),
    ("Max by more axes", [node("Max", "x", "c", "y")], [node("Relu", "x", "y")], {"c": np.zeros((1, 1, 1), np.float32)}),
    ("a size of the next float", *([node("Cast", each, "i", to=7), node("Expand", "x", "i", "y")] for each in "ab"),
     {name: np.stack([array, np.float32(1), np.float32(1)]) for name, array in NEXT.items()}),
    ("a step of the next float", *([node("Floor", each, "i"), node("Mul", "x", "i", "y")] for each in "ab"), NEXT),
    ("a choice of the next float", *([node("Less", each, "three", "l"), node("Where", "l", "x", "three", "y")] for each in "ab"),
     {**NEXT, "three": np.float32(3)}),
    ("a length of the next float", *([node("Range", "none", each, "one", "r"), node("ReduceSum", "r", "s"), node("Add", "x", "s", "y")] for each in "ab"),
     {"a": np.float32(3), "b": np.nextafter(np.float32(3), np.float32(9)), "none": np.float32(0), "one": np.float32(1)}),
    ("constants that cancel", [node("Add", "x", "big", "s"), node("Sub", "s", "big", "y")], [node("Identity", "x", "y")], BIG),
    ("shifts that cancel", [node("Add", "x", "big", "s"), node("Add", "x", "x", "n"), node("Sub", "n", "big", "t"), node("Add", "s", "t", "y")],
     [node("Add", "x", "x", "n"), node("Add", "n", "x", "y")], BIG),
    ("a divisor of another sign", [node("Div", "x", "a", "y")], [node("Div", "x", "b", "y")], ZEROS),
]  # fmt: skip


@pytest.mark.parametrize("shape", [[2, 3], ["batch", 3]], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("before", "after", "constants", "kind"), [each[1:] for each in EQUAL], ids=[each[0] for each in EQUAL]
)
def test_equations_of_the_table(
    tmp_path: Path, before: Any, after: Any, constants: dict[str, Any], kind: str, shape: list[Any]
) -> None:
    for name, nodes in (("before", before), ("after", after)):
        onnx.save(graph_of(nodes, shape, **constants), tmp_path / f"{name}.onnx")
    assert fx2onnx.certify(tmp_path / "before.onnx", tmp_path / "after.onnx").outputs == {"y": kind}


@pytest.mark.parametrize("shape", [[2, 3], ["batch", 3]], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("before", "after", "constants"), [each[1:] for each in WRONGLY], ids=[each[0] for each in WRONGLY]
)
def test_no_equation_has_what_is_wrong(
    tmp_path: Path, before: Any, after: Any, constants: dict[str, Any], shape: list[Any]
) -> None:
    for name, nodes in (("before", before), ("after", after)):
        onnx.save(graph_of(nodes, shape, **constants), tmp_path / f"{name}.onnx")
    assert fx2onnx.certify(tmp_path / "before.onnx", tmp_path / "after.onnx").outputs == {"y": "refuted"}


@pytest.mark.parametrize("sizes", [[2, 4], [5], [3, 2, 2]])
def test_a_view_of_other_elements_is_unknown(sizes: list[int]) -> None:
    nodes = [node("Einsum", "x", "w", "m", equation="ij,jk->ik"), node("Reshape", "m", "s", "y")]
    files = [graph_of(nodes, [2, 3], w=np.eye(3, dtype=np.float32), s=np.array(each)) for each in ([3, 2], sizes)]
    assert fx2onnx.certify(*files).outputs == {"y": "unknown"}


def test_integers_are_no_real_numbers(tmp_path: Path) -> None:
    """``x / 2 * 2`` is ``x`` for real numbers alone."""
    cast = node("Cast", "x", "i", to=onnx.TensorProto.INT64), node("Cast", "o", "y", to=onnx.TensorProto.FLOAT)
    halves = [cast[0], node("Div", "i", "two", "h"), node("Mul", "h", "two", "o"), cast[1]]
    same = [cast[0], node("Identity", "i", "o"), cast[1]]
    for name, nodes in (("before", halves), ("after", same)):
        onnx.save(graph_of(nodes, [2, 3], two=np.int64(2)), tmp_path / f"{name}.onnx")
    found = fx2onnx.certify(tmp_path / "before.onnx", tmp_path / "after.onnx")
    assert set(found.outputs.values()) <= {"sampled", "refuted"}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.0000005], True),
        ([1.0, 2.0], [1.0, 2.001], False),
        ([0.0, 2.0], [1e-9, 2.0], False),
        ([np.nan, 2.0], [1.0, 2.0], False),
        ([np.inf, 2.0], [np.inf, 2.0], True),
    ],
)
def test_constants_count_as_equal_within_roundings(one: Any, other: Any, is_same: bool) -> None:
    terms = Terms(is_real=True)
    first, second = (terms.near(("x",), [Number(np.array(each, np.float32), 2.0**-24)]) for each in (one, other))
    assert (first == second) == is_same


def test_constants_between_which_another_lies_are_apart_by_all_roundings() -> None:
    terms, ones = Terms(is_real=True), np.ones(3, np.float32)
    places = [ones, ones + 20 * 2.0**-23, ones - 20 * 2.0**-24, ones + 20 * 2.0**-23]
    found = {terms.near(("x",), [Number(each, 2.0**-24)]) for each in places[:1]}
    for each in places[1:]:
        found.add(terms.near(("x",), [Number(np.float32(1) * each, 2.0**-23)]))
    assert len(found) == 1
    assert terms.worst[found.pop()] == pytest.approx(30, rel=1e-3)


@pytest.mark.parametrize("by", [0.5, -3.7, 0.0, 1e-9])
@pytest.mark.parametrize("size", [None, 2.5])
def test_scaled_weights_are_one_array(by: float, size: float | None) -> None:
    weights = np.random.default_rng(0).standard_normal((16, 9)).astype(np.float32)
    plain = Number(weights.T, 2.0**-24, None if size is None else np.abs(weights.T).astype(np.float64) * size)
    made = Number(np.asarray(by), 2.0**-24).times(plain)
    copy = Number(weights.T.astype(np.float64) * by, 2.0**-24, plain.magnitude * abs(by))
    assert made.held is plain.held
    np.testing.assert_array_equal(made.value, copy.value)
    np.testing.assert_array_equal(made.part(lambda array: array[2:]).magnitude, copy.magnitude[2:])
    assert made.largest == copy.largest == copy.value.reshape(-1)[np.abs(copy.value).argmax()]
    assert roundings_apart(made, copy) == 0
    other = plain.times(Number(np.asarray(by * (1 + 2.0**-21)), 2.0**-24))
    assert roundings_apart(made, other) == pytest.approx(8 if by else 0, rel=1e-3)
    assert roundings_apart(copy, other) <= roundings_apart(made, other) * (1 + 1e-6)
