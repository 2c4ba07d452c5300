"""The plan's buffers under random graphs: nothing is overwritten while it is still read, and outputs are the caller's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import hypothesis
import numpy as np
import onnx
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper
from overlaps import overlaps

from fx2onnx.runner import InferenceSession, arena
from fx2onnx.runner.arena import MAX_LOOKS, Buffer, assign_offsets

SHAPE = (4, 6)


@dataclass(frozen=True)
class Op:
    """An operator on one or two [4, 6] values that gives one of the same shape, and what it computes."""

    arity: int
    nodes: Callable[[list[str], str], list[onnx.NodeProto]]
    compute: Callable[..., np.ndarray]


def plain(op_type: str, arity: int, compute: Callable[..., np.ndarray]) -> Op:
    return Op(arity, lambda inputs, out: [helper.make_node(op_type, inputs, [out])], compute)


def chain(*steps: tuple[str, list[str], dict[str, object]]) -> Callable[[list[str], str], list[onnx.NodeProto]]:
    """Operators one after another; each takes the value and named constants."""

    def nodes(inputs: list[str], out: str) -> list[onnx.NodeProto]:
        value, made = inputs[0], []
        for number, (op_type, constants, attributes) in enumerate(steps):
            result = out if number == len(steps) - 1 else f"{out}_{number}"
            made.append(helper.make_node(op_type, [value, *constants], [result], **attributes))
            value = result
        return made

    return nodes


def add_reversed(inputs: list[str], out: str) -> list[onnx.NodeProto]:
    """x and a view of it meet in one operator: neither may be overwritten."""
    view = helper.make_node("Slice", [inputs[0], "minus", "low", "one", "minus"], [f"{out}_view"])
    return [view, helper.make_node("Add", [inputs[0], f"{out}_view"], [out])]


def chosen_nodes(inputs: list[str], out: str) -> list[onnx.NodeProto]:
    """One of two values by a third: Where may overwrite its last operand, and no other."""
    is_more = helper.make_node("Greater", inputs, [f"{out}_more"])
    return [is_more, helper.make_node("Where", [f"{out}_more", *inputs], [out])]


def layer_norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale


CONSTANTS = {"turned": [6, 4], "flat": [24], "back": [4, 6], "minus": [-1], "low": [-99], "one": [1]}
OPS = [
    plain("Relu", 1, lambda x: np.maximum(x, 0)),
    plain("Neg", 1, lambda x: -x),
    plain("Sigmoid", 1, lambda x: 1 / (1 + np.exp(-x))),
    plain("Identity", 1, lambda x: x),
    plain("Add", 2, lambda x, y: x + y),
    plain("Sub", 2, lambda x, y: x - y),
    plain("Mul", 2, lambda x, y: x * y),
    plain("Min", 2, np.minimum),
    Op(1, chain(("Reshape", ["flat"], {}), ("Reshape", ["back"], {})), lambda x: x),
    Op(1, chain(("Reshape", ["flat"], {}), ("Relu", [], {}), ("Reshape", ["back"], {})), lambda x: np.maximum(x, 0)),
    Op(1, chain(("Transpose", [], {}), ("Reshape", ["back"], {})), lambda x: x.T.reshape(SHAPE)),
    Op(1, chain(("Slice", ["minus", "low", "one", "minus"], {}), ("Neg", [], {})), lambda x: -x[:, ::-1]),
    Op(1, add_reversed, lambda x: x + x[:, ::-1]),
    Op(1, chain(("Softmax", [], {"axis": -1})), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    Op(2, chosen_nodes, np.maximum),
    Op(2, lambda inputs, out: [helper.make_node("LayerNormalization", inputs, [out], axis=0)], layer_norm),
]


def build(
    program: list[tuple[int, int, int]], wanted: set[int]
) -> tuple[onnx.ModelProto, Callable[..., list[np.ndarray]]]:
    """The model of a program (operator, first and second operand by age), and a function that computes it."""
    names, nodes = ["x", "y"], []
    for number, (op, *operands) in enumerate(program):
        chosen = [names[-1 - age % len(names)] for age in operands[: OPS[op].arity]]
        nodes += OPS[op].nodes(chosen, f"v{number}")
        names.append(f"v{number}")
    outputs = [name for place, name in enumerate(names) if place >= 2 and (place in wanted or place == len(names) - 1)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "y")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in outputs],
        [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in CONSTANTS.items()],
    )

    def compute(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        values = [x, y]
        for op, *operands in program:
            values.append(OPS[op].compute(*(values[-1 - age % len(values)] for age in operands[: OPS[op].arity])))
        return [values[names.index(name)] for name in outputs]

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), compute


def check(program: list[tuple[int, int, int]], wanted: set[int], runs: int = 3) -> None:
    model, compute = build(program, wanted)
    session = InferenceSession(model.SerializeToString())
    generator = np.random.default_rng(0)
    kept = []
    for _ in range(runs):
        x, y = (generator.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
        feeds = {"x": x.copy(), "y": y.copy()}
        kept.append((session.run(None, feeds), compute(x, y)))
        np.testing.assert_array_equal(feeds["x"], x)
        np.testing.assert_array_equal(feeds["y"], y)
    for outputs, expected in kept:  # after the last run: an earlier run's outputs are not overwritten either
        for output, value in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, value, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=14),
    st.sets(st.integers(2, 15), max_size=3),
)
def test_random_graphs(program: list[tuple[int, int, int]], wanted: set[int]) -> None:
    check(program, wanted)


NEG, RELU, ADD, ROUND_TRIP, ADD_REVERSED, CHOSEN, LAYER_NORM = 1, 0, 4, 8, 12, 14, 15
HAND_MADE = {
    "read again after an operator that could write in place": [(NEG, 0, 0), (RELU, 0, 0), (ADD, 0, 1)],
    "read through a view after its base was overwritten": [(NEG, 0, 0), (ROUND_TRIP, 0, 0), (RELU, 1, 0), (ADD, 0, 1)],
    "read together with a view of it": [(NEG, 0, 0), (ADD_REVERSED, 0, 0)],
    "the base read after its view was overwritten": [(NEG, 0, 0), (ROUND_TRIP, 0, 0), (RELU, 0, 0), (ADD, 0, 2)],
    "both operands that Where chooses from": [(NEG, 0, 0), (CHOSEN, 0, 0)],
    "normalized by itself": [(NEG, 0, 0), (LAYER_NORM, 0, 0)],
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_graphs(name: str) -> None:
    check(HAND_MADE[name], set())


@pytest.mark.long
def test_planning_takes_time_by_the_length_of_the_graph() -> None:
    """By its square, these 9 000 steps and as many buffers would take a minute: a stranger's model could hang the run."""
    names = ["x", *(f"a{number}" for number in range(9_000))]
    nodes = [helper.make_node("Neg", [source], [target]) for source, target in itertools.pairwise(names)]
    nodes.append(helper.make_node("Sum", names[1:], ["y"]))
    for outputs in ([names[-1]], ["y"]):  # one buffer for all, one buffer each
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ["x", *outputs]]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        session = InferenceSession(model.SerializeToString())
        for _ in range(3):
            (result,) = session.run(None, {"x": np.array([1, 2], np.float32)})
            assert result.tolist() == ([1, 2] if outputs != ["y"] else [0, 0])


@pytest.mark.long_cases("4000000")
@pytest.mark.parametrize("looks", [MAX_LOOKS, 0])
def test_many_buffers_do_not_overlap(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "MAX_LOOKS", looks)
    generator = np.random.default_rng(0)
    starts = np.sort(generator.integers(0, 3000, 8000))
    sizes, lengths = generator.integers(0, 5000, starts.size), generator.geometric(0.05, starts.size)
    rows = zip(sizes.tolist(), starts.tolist(), lengths.tolist(), strict=True)
    buffers = [Buffer(size, start, start + length) for size, start, length in rows]
    total = assign_offsets(buffers)
    assert overlaps(buffers) == []
    assert max(buffer.offset + buffer.size_bytes for buffer in buffers) <= total
    assert min(buffer.offset for buffer in buffers) == 0
    assert total < sizes.sum() / 10
