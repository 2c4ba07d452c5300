"""The fast forms of kernels at the edges of their shapes: the same numbers as onnxruntime, the same bits run after run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import fx2onnx.runner as ort
from fx2onnx.runner import fast
from fx2onnx.semantics.types import floats_of_halves, halves_of_floats

Array = np.ndarray[Any, Any]


def both(
    nodes: list[Any], feeds: dict[str, Array], constants: dict[str, Array], outputs: list[str], opset: int = 17
) -> tuple[list[Array], list[Array]]:
    """What the runner gives, three times with the same bits, and what onnxruntime gives. The plan is made with other values."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    made = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, made, weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    data = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    session = ort.InferenceSession(data)
    turned = {name: np.ascontiguousarray(np.flip(array)).reshape(array.shape) for name, array in feeds.items()}
    runs = [session.run(None, given) for given in (feeds, turned, feeds, feeds)]
    del runs[1]
    for later in runs[1:]:
        assert [one.tobytes() for one in later] == [one.tobytes() for one in runs[0]], "two runs differ"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return runs[0], theirs.run(None, feeds)


def agree(given: list[Array], wanted: list[Array], atol: float = 1e-5, rtol: float = 1e-4) -> None:
    for one, other in zip(given, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, atol=atol, rtol=rtol)


def normal(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(dims).astype(np.float32)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one channel, many outputs": ((2, 1, 900), (33, 1, 64), {"strides": [13]}),
    "one channel, pads to one side": ((1, 1, 7), (5, 1, 3), {"pads": [2, 0]}),
    "one channel, long": ((1, 1, 40000), (4, 1, 32), {}),
    "one tap, a stride": ((2, 3, 9), (4, 3, 1), {"strides": [2]}),
    "one position": ((1, 4, 1), (6, 4, 3), {"pads": [1, 1]}),
    "dilated": ((1, 4, 30), (4, 4, 3), {"dilations": [4], "pads": [4, 4]}),
    "grey": ((2, 1, 11, 40), (6, 1, 3, 5), {"pads": [1, 2, 0, 1], "strides": [1, 2]}),
    "few channels, stride and dilation": ((1, 2, 20, 21), (6, 2, 3, 3), {"strides": [2, 3], "dilations": [2, 1]}),
    "multiplier": ((2, 3, 12, 13), (12, 1, 3, 3), {"group": 3, "pads": [1] * 4}),
    "multiplier, as many taps as positions": ((1, 3, 12), (6, 1, 12), {"group": 3}),
    "groups": ((2, 8, 9, 9), (12, 2, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1] * 4}),
    "groups, one tap": ((2, 8, 5, 5), (12, 2, 1, 1), {"group": 4}),
    "depthwise row": ((2, 5, 50), (5, 1, 7), {"group": 5, "pads": [3, 3]}),
    "depthwise row, stride beyond the kernel": ((1, 5, 300), (5, 1, 2), {"group": 5, "strides": [3]}),
    "depthwise row, stride and dilation": ((1, 3, 301), (3, 1, 4), {"group": 3, "strides": [2], "dilations": [3], "pads": [5, 2]}),
    "depthwise, large": ((1, 3, 50, 52), (3, 1, 3, 3), {"group": 3, "pads": [1, 0, 1, 2]}),
    "depthwise, small": ((1, 6, 8, 8), (6, 1, 3, 3), {"group": 6, "strides": [2, 2], "pads": [1] * 4}),
    "depthwise volume": ((1, 2, 9, 8, 7), (2, 1, 2, 1, 2), {"group": 2, "strides": [1, 2, 1]}),
    "volume": ((2, 2, 5, 6, 7), (3, 2, 3, 2, 1), {"pads": [1, 0, 0, 1, 1, 0]}),
    "same, odd": ((1, 2, 10, 11), (3, 2, 2, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "no sample": ((0, 2, 8), (3, 2, 3), {}),
}  # fmt: skip


@pytest.mark.parametrize("weights", ["constant", "computed"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, weights: str) -> None:
    x, k, attrs = CONVOLUTIONS[name]
    feeds, constants = {"x": normal(*x)}, {"w": normal(*k, seed=1), "b": normal(k[0], seed=2)}
    if weights == "computed":
        feeds, constants = {**feeds, **constants}, {}
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attrs)
    if name == "no sample":  # onnxruntime refuses it
        model = helper.make_graph([node], "g", [], [helper.make_value_info("y", onnx.TypeProto())])
        model.input.extend(helper.make_tensor_value_info(n, 1, a.shape) for n, a in feeds.items())
        model.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
        session = ort.InferenceSession(
            helper.make_model(model, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        )
        assert [session.run(None, feeds)[0].shape for _ in range(2)] == [(0, 3, 6)] * 2
        return
    given, wanted = both([node], feeds, constants, ["y"])
    agree(given, wanted)


@pytest.mark.parametrize("activation", ["Relu", "HardSwish", "Sigmoid", "Clip"])
@pytest.mark.parametrize("first", ["one channel, long", "grey", "multiplier", "groups", "depthwise, large", "volume"])
def test_a_convolution_with_what_follows(first: str, activation: str) -> None:
    """BatchNormalization and an activation are joined, in blocks of the output."""
    x, k, attrs = CONVOLUTIONS[first]
    norm = {
        "s": normal(k[0], seed=3),
        "t": normal(k[0], seed=4),
        "m": normal(k[0], seed=5),
        "v": abs(normal(k[0], seed=6)),
    }
    last = {"y": ["n", "low", "high"]} if activation == "Clip" else {"y": ["n"]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], **attrs),
        helper.make_node("BatchNormalization", ["c", *norm], ["n"]),
        helper.make_node(activation, last["y"], ["y"]),
    ]
    bounds = {"low": np.float32(-0.5), "high": np.float32(1.5)} if activation == "Clip" else {}
    constants = {"w": normal(*k, seed=1), **norm, **{name: np.asarray(one) for name, one in bounds.items()}}
    given, wanted = both(nodes, {"x": normal(*x)}, constants, ["y"])
    agree(given, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("middle", ["grey", "multiplier", "groups", "depthwise, large", "depthwise, small"])
def test_memory_layouts_meet(middle: str) -> None:
    """A form for [N, C, H, W] memory between convolutions that work channels-last, whose input is an output as well."""
    x, k, attrs = CONVOLUTIONS[middle]
    nodes = [
        helper.make_node("Conv", ["x", "before"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["c"], **attrs),
        helper.make_node("Add", ["c", "one"], ["d"]),
        helper.make_node("Conv", ["d", "after"], ["y"]),
    ]
    constants = {
        "before": normal(x[1], 3, 1, 1),
        "w": normal(*k, seed=1),
        "one": normal(k[0], 1, 1, seed=2),
        "after": normal(2, k[0], 1, 1, seed=3),
    }
    given, wanted = both(nodes, {"x": normal(x[0], 3, *x[2:])}, constants, ["y", "a", "c"])
    agree(given, wanted, atol=1e-4, rtol=1e-3)


def test_threads_give_the_same_bits() -> None:
    for name in ("one channel, long", "groups", "depthwise, large"):
        x, k, attrs = CONVOLUTIONS[name]
        graph = helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], ["y"], **attrs)],
            "g",
            [helper.make_tensor_value_info("x", 1, x)],
            [helper.make_value_info("y", onnx.TypeProto())],
            [numpy_helper.from_array(normal(*k, seed=1), "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        results = []
        for count in (1, 3):
            options = ort.SessionOptions()
            options.intra_op_num_threads = count
            session = ort.InferenceSession(model, options)
            results += [session.run(None, {"x": normal(*x)})[0].tobytes() for _ in range(2)]
        assert len(set(results)) == 1, name


def codes(dtype: str, *dims: int, seed: int = 0) -> Array:
    """Integers of 8 bits, the extremes among them."""
    info = np.iinfo(dtype)
    drawn = np.random.default_rng(seed).integers(info.min, info.max + 1, dims)
    extremes = np.random.default_rng(seed + 1).random(dims)
    return np.where(extremes < 0.4, info.max, np.where(extremes > 0.9, info.min, drawn)).astype(dtype)


INTEGER_PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, str, Any, Any]] = {
    "short": ((3, 5), (5, 4), "uint8", "int8", np.uint8(128), np.int8(0)),
    "one row, the longest exact sum": ((1, 258), (258, 3), "uint8", "uint8", np.uint8(0), np.uint8(0)),
    "slices": ((4, 1200), (1200, 7), "uint8", "uint8", np.uint8(255), np.uint8(0)),
    "all slices at their bound": ((2, 777), (777, 2), "uint8", "int8", np.uint8(0), np.int8(127)),
    "beyond 32 bits": ((1, 70000), (70000, 1), "uint8", "uint8", np.uint8(0), np.uint8(0)),
    "a zero point a column": ((2, 9), (9, 3), "uint8", "int8", np.uint8(3), np.array([1, -2, 0], np.int8)),
    "signed": ((2, 600), (600, 3), "int8", "int8", np.int8(-128), np.int8(5)),
    "batches": ((2, 3, 4, 5), (3, 5, 2), "uint8", "int8", np.uint8(7), np.int8(0)),
    "no sum": ((3, 0), (0, 2), "uint8", "int8", np.uint8(7), np.int8(0)),
    "no rows": ((0, 3), (3, 2), "uint8", "int8", np.uint8(7), np.int8(0)),
}


@pytest.mark.parametrize("weights", ["constant", "computed"])
@pytest.mark.parametrize("name", INTEGER_PRODUCTS)
def test_products_of_integers_are_exact(name: str, weights: str) -> None:
    a_dims, b_dims, a_dtype, b_dtype, a_zero, b_zero = INTEGER_PRODUCTS[name]
    a, b = codes(a_dtype, *a_dims), codes(b_dtype, *b_dims, seed=3)
    if name.startswith(("all slices", "beyond")):
        a[...], b[...] = np.iinfo(a_dtype).max, np.iinfo(b_dtype).min if b_dtype == "int8" else 255
    feeds, constants = {"a": a}, {"b": b, "za": np.asarray(a_zero), "zb": np.asarray(b_zero)}
    if weights == "computed":
        feeds, constants = {**feeds, **constants}, {}
    node = helper.make_node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])
    given, wanted = both([node], feeds, constants, ["y"])
    exact = (a.astype(np.int64) - np.int64(a_zero)) @ (b.astype(np.int64) - b_zero.astype(np.int64))
    assert given[0].dtype == np.int32
    np.testing.assert_array_equal(given[0], exact.astype(np.int32))
    if name != "no sum":  # onnxruntime leaves its output as it was
        np.testing.assert_array_equal(given[0], wanted[0])


@pytest.mark.parametrize("rows", ["one scale", "a scale a column"])
def test_quantized_products_round_as_onnxruntime(rows: str) -> None:
    """Equal bits, at the ends of the range too."""
    a, b = codes("uint8", 5, 800), codes("int8", 800, 6, seed=2)
    scale = (
        np.full(6, 0.003, np.float32) * np.arange(1, 7, dtype=np.float32) if rows != "one scale" else np.float32(0.01)
    )
    zero = np.zeros(6, np.int8) if rows != "one scale" else np.int8(0)
    b[:, ::2] = -1 - b[:, ::2]  # sums of both signs
    scales = {"sa": np.float32(0.02), "sb": scale, "sy": np.float32(0.7)}
    constants = {"za": np.uint8(100), "b": b, "zb": zero, "zy": np.uint8(90), **scales}
    constants = {name: np.asarray(value) for name, value in constants.items()}
    node = helper.make_node("QLinearMatMul", ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"], ["y"])
    given, wanted = both([node], {"a": a}, constants, ["y"])
    np.testing.assert_array_equal(given[0], wanted[0])
    assert {0, 255} <= set(given[0].ravel().tolist())


SCALED: dict[str, tuple[dict[str, Array], bool]] = {
    "one factor": ({"factor": np.array(0.02, np.float32)}, False),
    "a factor for each column, before the sums": ({"factor": np.linspace(0.01, 0.03, 6, dtype=np.float32)}, True),
    "a factor that adds an axis": ({"factor": np.full((2, 1, 1, 1), 0.5, np.float32)}, False),
    "a bias": ({"factor": np.array([0.02], np.float32), "bias": np.linspace(-1, 1, 6, dtype=np.float32)}, False),
    "an addend of rows": ({"factor": np.array(0.02, np.float32), "bias": np.ones((3, 1), np.float32)}, False),
}


@pytest.mark.parametrize("inner", [1, 40, 1200])
@pytest.mark.parametrize("weights", ["fed", "constant", "extreme"])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_products_of_integers(name: str, weights: str, inner: int) -> None:
    """The bits of MatMulInteger, Cast, Mul and Add one by one, which the graph has where the Cast is an output, too."""
    given_operands, is_turned = SCALED[name]
    operands = dict(given_operands)
    rng = np.random.default_rng(inner)
    fed: dict[str, Array] = {"x": rng.standard_normal((2, 3, inner)).astype(np.float32)}
    b = rng.integers(-128, 128, (inner, 6)).astype(np.int8)
    if weights == "extreme":
        b[:] = -128
    (fed if weights == "fed" else operands)["b"] = b
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["a", "b", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["scale", "factor"], ["both"]),
        helper.make_node("Mul", ["both", "wide"] if is_turned else ["wide", "both"], ["scaled"]),
    ]
    last = "scaled"
    if "bias" in operands:
        nodes.append(helper.make_node("Add", ["bias", "scaled"] if is_turned else ["scaled", "bias"], ["y"]))
        last = "y"
    given, wanted = both(nodes, fed, operands, [last])
    if name != "a factor that adds an axis":  # which onnxruntime loses where it joins the nodes
        agree(given, wanted)
    apart, _ = both(nodes, fed, operands, [last, "wide"])
    assert apart[0].tobytes() == given[0].tobytes()


INTEGER_CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 8, 9), (4, 3, 3, 3), {"pads": [1] * 4}),
    "slices of channels": ((1, 150, 5, 5), (3, 150, 3, 3), {"strides": [2, 2], "pads": [1] * 4}),
    "more taps than are exact": ((1, 1, 40, 30), (2, 1, 30, 29), {}),
    "groups beyond the exact sums": ((1, 600, 4), (4, 300, 3), {"group": 2}),
    "depthwise": ((2, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "pads": [1] * 4}),
    "multiplier": ((1, 2, 20), (6, 1, 3), {"group": 2, "dilations": [2]}),
    "one tap": ((1, 8, 4, 4), (5, 8, 1, 1), {}),
}


@pytest.mark.parametrize("weights", ["constant", "computed"])
@pytest.mark.parametrize("name", INTEGER_CONVOLUTIONS)
def test_convolutions_of_integers(name: str, weights: str) -> None:
    x_dims, k_dims, attrs = INTEGER_CONVOLUTIONS[name]
    x, k = codes("uint8", *x_dims), codes("int8", *k_dims, seed=2)
    zero = np.asarray(np.uint8(113))
    feeds, constants = {"x": x}, {"w": k, "zx": zero, "zw": np.asarray(np.int8(0))}
    scales = {"sx": 0.02, "sy": 4.0}
    constants |= {name: np.asarray(np.float32(value)) for name, value in scales.items()}
    constants |= {"sw": np.linspace(0.002, 0.02, k_dims[0], dtype=np.float32), "zws": np.zeros(k_dims[0], np.int8)}
    constants["b"] = np.arange(k_dims[0], dtype=np.int32) * 20_000_003 - 1000
    if weights == "computed":
        feeds["w"] = constants.pop("w")
    integer = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], **attrs)
    quantized = helper.make_node("QLinearConv", ["x", "sx", "zx", "w", "sw", "zws", "sy", "zx", "b"], ["q"], **attrs)
    outputs, nodes = (["y", "q"], [integer, quantized]) if weights == "constant" else (["y"], [integer])
    given, wanted = both(nodes, feeds, constants, outputs)
    for one, other in zip(given, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


RECURRENCES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "plain": (5, 1, 3, {}),
    "reverse, batch": (4, 3, 3, {"direction": "reverse"}),
    "bidirectional, narrow": (6, 2, 5, {"direction": "bidirectional"}),
    "bidirectional, wide": (3, 2, 70, {"direction": "bidirectional"}),
    "one step": (1, 1, 4, {"direction": "bidirectional"}),
    "clip": (4, 2, 3, {"clip": 0.3}),
    "a feed that other operators read where it lies": (1400, 1, 2, {"direction": "bidirectional"}),
    "rectified": (40, 2, 5, {"direction": "bidirectional", "activations": {"LSTM": ["Sigmoid", "Tanh", "Relu"], "GRU": ["Sigmoid", "Relu"], "RNN": ["Relu"]}}),
    "other activations": (4, 2, 3, {"activations": {"LSTM": ["Relu", "Tanh", "Sigmoid"], "GRU": ["Tanh", "Relu"], "RNN": ["Relu"]}}),
}  # fmt: skip


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "GRU after", "RNN"])
@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences(name: str, op: str, ragged: bool) -> None:
    steps, batch, hidden, attrs = RECURRENCES[name]
    attrs = {**attrs, "hidden_size": hidden}
    sides = 2 if attrs.get("direction") == "bidirectional" else 1
    if op == "GRU after":
        op, attrs = "GRU", {**attrs, "linear_before_reset": 1}
    if "activations" in attrs:
        attrs["activations"] = attrs["activations"][op] * sides
    rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * hidden
    feeds = {"x": normal(steps, batch, 6), "h": normal(sides, batch, hidden, seed=4)}
    constants = {
        "w": normal(sides, rows, 6, seed=1),
        "r": normal(sides, rows, hidden, seed=2) / np.float32(np.sqrt(hidden)),
        "b": normal(sides, 2 * rows, seed=3),
        "lengths": np.array([steps, 0, steps - 1][:batch], np.int32),
    }
    inputs = ["x", "w", "r", "b", "lengths" if ragged else "", "h"]
    if op == "LSTM":
        feeds["c"] = normal(sides, batch, hidden, seed=5)
        inputs.append("c")
    outputs = ["y", "yh", "yc"] if op == "LSTM" else ["y", "yh"]
    given, wanted = both([helper.make_node(op, inputs, outputs, **attrs)], feeds, constants, outputs)
    agree(given, wanted)
    if op == "LSTM":  # outputs that nobody reads, and no states at the start
        node = helper.make_node(op, inputs[:4], ["", "yh"], **attrs)
        given, wanted = both([node], {"x": feeds["x"]}, constants, ["yh"])
        agree(given, wanted)


@pytest.mark.parametrize("op_type", ["RNN", "Relu"])
def test_many_calls_are_bound_once(op_type: str) -> None:
    """A large feed is copied for a recurrence, which has hundreds of calls, and read where it lies by others."""
    x = normal(100, 1, 100)
    names, attrs = (["x", "w", "r"], {"hidden_size": 3}) if op_type == "RNN" else (["x"], {})
    weights = [numpy_helper.from_array(normal(1, 3, size), name) for size, name in ((100, "w"), (3, "r"))]
    infos = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape),
        helper.make_value_info("y", onnx.TypeProto()),
    ]
    graph = helper.make_graph([helper.make_node(op_type, names, ["y"], **attrs)], "g", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = ort.SessionOptions()
    options.add_session_config_entry(fast.ENTRY, "0")  # a compiled recurrence is one call
    session = ort.InferenceSession(model.SerializeToString(), options)
    for _ in range(2):
        session.run(None, {"x": x})
    (plan,) = session.executor.plans.values()
    assert len(plan.take_state().given) == (op_type != "RNN")


@pytest.mark.parametrize("shape", [(1, 32), (1, 1, 1), (3, 32), (2, 3, 5)])
@pytest.mark.parametrize("axis", [-1, 0])
def test_layer_normalization_in_place(shape: tuple[int, ...], axis: int) -> None:
    constants = {"w": normal(*shape[axis:], seed=1), "b": normal(*shape[axis:], seed=2)}
    nodes = [
        helper.make_node("Neg", ["x"], ["v"]),
        helper.make_node("LayerNormalization", ["v", "w", "b"], ["n"], axis=axis),
        helper.make_node("Sub", ["n", "x"], ["y"]),
    ]
    agree(*both(nodes, {"x": normal(*shape)}, constants, ["y"]))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("lengths", [[4, 4], [4, 2]])
def test_no_number_of_one_direction_reaches_the_other(op: str, lengths: list[int]) -> None:
    rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * 3
    constants = {
        "w": normal(2, rows, 2, seed=1),
        "r": normal(2, rows, 3, seed=2),
        "lengths": np.array(lengths, np.int32),
    }
    node = helper.make_node(op, ["x", "w", "r", "", "lengths"], ["y", "yh"], hidden_size=3, direction="bidirectional")
    sound = normal(4, 2, 2)
    spoilt = sound.copy()
    spoilt[3, 0] = np.nan  # the last step of the first sequence, with which its reverse direction starts
    (one, _), (other, last) = (both([node], {"x": x}, constants, ["y", "yh"])[0] for x in (sound, spoilt))
    assert np.isnan(other[:, 1, 0]).all()
    assert np.isnan(last[:, 0]).all()
    np.testing.assert_allclose(other[:3, 0], one[:3, 0], atol=1e-6)
    np.testing.assert_allclose(other[:, :, 1], one[:, :, 1], atol=1e-6)


def test_recurrences_of_no_step_and_of_extreme_gates() -> None:
    """No step gives the initial state; saturated gates are 0 or 1, and NaN stays NaN."""
    weights = {"w": normal(1, 12, 2, seed=1), "r": normal(1, 12, 3, seed=2)}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y", "yh", "yc"], hidden_size=3)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, ["t", "n", 2])],
        [helper.make_value_info(name, onnx.TypeProto()) for name in ("y", "yh", "yc")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    session = ort.InferenceSession(model)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(2):
        y, yh, yc = session.run(None, {"x": np.zeros((0, 1, 2), np.float32)})
        assert y.shape == (0, 1, 1, 3)
        assert not np.concatenate([yh, yc]).any()
        assert session.run(None, {"x": np.zeros((2, 0, 2), np.float32)})[0].shape == (2, 1, 0, 3)
        for value in (1e4, -1e4, np.inf):
            feed = {"x": np.full((3, 1, 2), value, np.float32)}
            for one, other in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
                assert (np.isfinite(one) == np.isfinite(other)).all() or value == np.inf
                np.testing.assert_allclose(one[np.isfinite(other)], other[np.isfinite(other)], atol=1e-6)
        assert np.isnan(session.run(None, {"x": np.full((1, 1, 2), np.nan, np.float32)})[0]).all()


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean", "Clip low", "Clip high"])
@pytest.mark.parametrize(
    "shapes", [((3, 4), (4,), (3, 1)), ((1, 5), (1,), (5,)), ((1, 1), (1, 1), ()), ((2, 3), (2, 3))]
)
def test_steps_of_few_numbers(op: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    feeds = {f"x{place}": normal(*shape, seed=place) for place, shape in enumerate(shapes)}
    feeds["x0"].flat[0] = np.nan
    name, _, side = op.partition(" ")
    inputs, constants = list(feeds), {"limit": np.float32(0.2)}
    if side:
        inputs, feeds = ["x0", "", "limit"] if side == "high" else ["x0", "limit"], {"x0": feeds["x0"]}
    nodes = [helper.make_node(name, inputs, ["a"]), helper.make_node("Transpose", ["a"], ["b"])]
    nodes.append(helper.make_node("LayerNormalization", ["b", "one"], ["y"]))
    columns = len(both(nodes[:2], feeds, constants, ["b"])[0][0][0])
    given, wanted = both(nodes, feeds, {**constants, "one": normal(columns, seed=9)}, ["a", "y"])
    agree(given, wanted)


def expected_top(x: Array, count: int, axis: int, largest: int) -> Array:
    """Indices by a stable sort: of equal values the lower index comes first."""
    lines = np.moveaxis(x, axis, -1).astype(np.float64)
    order = np.argsort(-lines if largest else lines, axis=-1, kind="stable")[..., :count]
    return np.moveaxis(order, -1, axis)


@pytest.mark.parametrize("largest", [1, 0])
@pytest.mark.parametrize(
    "kind", ["plain", "ties", "zeros", "infinite", "equal", "int32", "int64", "float64", "float16"]
)
def test_top_k(kind: str, largest: int) -> None:
    """Few of many, half, all; along each axis."""
    dtype = kind if kind[-1].isdigit() else "float32"
    for shape, axis, counts in (((3, 700), -1, (1, 5, 350, 700)), ((400, 2), 0, (3, 200)), ((1, 1), 1, (0, 1))):
        x = normal(*shape)
        if kind in ("ties", "int32", "int64"):
            x = (x * 3).round()
        elif kind == "zeros":
            x = np.where(x > 0, np.float32(0), np.float32(-0.0))
        elif kind == "infinite":
            x = np.where(abs(x) > 2, np.inf * np.sign(x), x)
        elif kind == "equal":
            x = np.ones_like(x)
        x = x.astype(dtype)
        for count in counts:
            node = helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=axis, largest=largest)
            graph = helper.make_graph(
                [node],
                "g",
                [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), shape)],
                [helper.make_value_info(name, onnx.TypeProto()) for name in "vi"],
                [numpy_helper.from_array(np.array([count]), "k")],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
            values, found = ort.InferenceSession(model).run(None, {"x": x})
            wanted = expected_top(x, count, axis, largest)
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis))


ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.3}, "LeakyRelu steep": {"alpha": 3.0}, "LeakyRelu flat": {"alpha": 0.0},
    "LeakyRelu falling": {"alpha": -2.0}, "Elu": {"alpha": 0.7}, "Selu": {}, "Softplus": {},
    "ThresholdedRelu": {"alpha": 0.4}, "HardSigmoid": {"alpha": 0.3}, "Erf": {}, "Mish": {},
}  # fmt: skip


def activated(op: str, x: Array, alpha: float) -> Array:
    """The activation in float64."""
    functions: dict[str, Any] = {
        "Relu": lambda: np.maximum(x, 0),
        "LeakyRelu": lambda: np.where(x >= 0, x, alpha * x),
        "Elu": lambda: np.where(x > 0, x, alpha * np.expm1(x)),
        "Selu": lambda: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
        "Softplus": lambda: np.logaddexp(0, x),
        "ThresholdedRelu": lambda: np.where(x > alpha, x, 0),
        "HardSigmoid": lambda: np.clip(alpha * x + 0.5, 0, 1),
        "Erf": lambda: np.asarray([math.erf(one) for one in x.ravel()]).reshape(x.shape),
        "Mish": lambda: x * np.tanh(np.logaddexp(0, x)),
    }
    return np.asarray(functions[op]())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_at_the_ends(name: str, dtype: str) -> None:
    """NaN, infinities, zeros of both signs and tiny numbers, few and many, also in turned memory."""
    ends = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, -1e-7, 20.5, -20.5, 80.0, -80.0, 0.4]
    op = name.split()[0]
    for count in (1, 70000):
        x = np.concatenate([np.asarray(ends), normal(2 * count).astype(np.float64)])[None].astype(dtype)
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
            helper.make_node(op, ["x"], ["y"], **ACTIVATIONS[name]),
            helper.make_node(op, ["t"], ["z"], **ACTIVATIONS[name]),
        ]
        inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
        outputs = [helper.make_value_info(one, onnx.TypeProto()) for one in "yz"]
        graph = helper.make_graph(nodes, "g", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        session = ort.InferenceSession(model)
        runs = [session.run(None, {"x": x}) for _ in range(2)]
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            wanted = activated(op, wide, float(np.float32(ACTIVATIONS[name].get("alpha", 0))))
        rtol = {"float32": 2e-6, "float64": 1e-7, "float16": 2e-3}[dtype]
        atol = 1e-6 if dtype == "float16" or op == "Erf" else 1e-9
        if op == "HardSigmoid":  # computed in the dtype itself
            atol = 1e-3 if dtype == "float16" else 1e-7
        for y, z in runs:
            assert y.dtype == np.dtype(dtype)
            np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=rtol, atol=atol)
            np.testing.assert_array_equal(z, y.T)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", "float64"])
@pytest.mark.parametrize(
    "shapes", [((4, 1), (1, 3), (4, 3)), ((), (2, 2), ()), ((3,), (), (3,)), ((0,), (0,), (1,)), ((3,), (1,), (3,))]
)
def test_where_takes_every_bit(shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    """Also where an operand is overwritten, and of NaN and of both zeros."""
    condition = np.asarray(normal(*shapes[0]) > 0)
    x = np.asarray(normal(*shapes[1], seed=1) * 3).astype(dtype)
    y = np.asarray(
        np.where(normal(*shapes[2], seed=2) > 0, np.nan, -0.0) if "float" in dtype else normal(*shapes[2]) > 0
    )
    y = y.astype(dtype)
    nodes = [
        helper.make_node("Concat", ["y"], ["copy"], axis=0) if y.ndim else helper.make_node("Identity", ["y"], ["copy"])
    ]
    nodes.append(helper.make_node("Where", ["c", "x", "copy"], ["w"]))
    nodes.append(
        helper.make_node("Concat", ["w", "w"], ["z"], axis=0) if y.ndim else helper.make_node("Identity", ["w"], ["z"])
    )
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for name, one in (("c", condition), ("x", x), ("y", y))
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_value_info("z", onnx.TypeProto())])
    session = ort.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    for _ in range(3):
        (z,) = session.run(None, {"c": condition, "x": x, "y": y})
        assert z.tobytes() == np.where(condition, x, y).astype(dtype).tobytes() * (2 if y.ndim else 1)


def test_clip_with_bounds_in_the_wrong_order_gives_the_upper_one() -> None:
    x = np.concatenate([normal(5000), [np.nan, np.inf, -np.inf, -0.0]]).astype(np.float32)
    constants = {"low": np.float32(1), "high": np.float32(-1)}
    node = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    given, wanted = both([node], {"x": x}, {name: np.asarray(one) for name, one in constants.items()}, ["y"])
    np.testing.assert_array_equal(given[0], wanted[0])


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "spectrum to sound": ((1, 9, 12), (9, 1, 16), {"strides": [4]}),
    "a kernel that no stride divides": ((2, 4, 7), (4, 2, 7), {"strides": [3], "pads": [2, 1], "output_padding": [1]}),
    "a stride beyond the kernel": ((1, 2, 5), (2, 3, 2), {"strides": [5], "output_padding": [2]}),
    "groups": ((1, 4, 6), (4, 1, 5), {"strides": [2], "group": 2, "pads": [1, 1]}),
    "one position": ((1, 3, 1), (3, 2, 4), {"strides": [2], "pads": [1, 0]}),
    "dilated": ((1, 3, 6), (3, 2, 3), {"strides": [2], "dilations": [2]}),
    "a wanted shape": ((1, 2, 5), (2, 2, 3), {"strides": [3], "output_shape": [16]}),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_of_rows(name: str) -> None:
    x, k, attrs = TRANSPOSED[name]
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attrs)
    bias = normal(k[1] * attrs.get("group", 1), seed=2)
    given, wanted = both([node], {"x": normal(*x)}, {"w": normal(*k, seed=1), "b": bias}, ["y"])
    agree(given, wanted)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["plain", "zero points", "a part of a block", "infinite"])
def test_products_with_weights_of_4_bits(kind: str, rows: int) -> None:
    columns, outputs = (50 if kind == "a part of a block" else 64), 9
    x = normal(rows, columns)
    if kind == "infinite":
        x[0, 5] = np.inf
    constants = {
        "w": codes("uint8", outputs, -(-columns // 16), 8),
        "s": abs(normal(outputs * -(-columns // 16), seed=2)),
    }
    inputs = ["x", "w", "s"]
    if kind == "zero points":
        constants["z"] = codes("uint8", outputs * -(-columns // 32), seed=5)
        inputs.append("z")
    attrs = {"K": columns, "N": outputs, "bits": 4, "block_size": 16}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **attrs)
    given, wanted = both([node], {"x": x}, constants, ["y"])
    agree(given, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 0, 2], [3, 4, 3, 4], [0, -1, 0, 2], [-1, 1, 2, -2]])
def test_pads_at_each_end(pads: list[int], mode: str) -> None:
    x = normal(4, 5)
    node = helper.make_node("Pad", ["x", "p"], ["y"], mode=mode)
    given, _ = both([node], {"x": x}, {"p": np.array(pads)}, ["y"], opset=19)
    cut = x[max(-pads[0], 0) : 4 - max(-pads[2], 0), max(-pads[1], 0) : 5 - max(-pads[3], 0)]
    wanted = np.pad(cut, [(max(pads[0], 0), max(pads[2], 0)), (max(pads[1], 0), max(pads[3], 0))], mode=mode)
    np.testing.assert_array_equal(given[0], wanted)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (4, 4), (4, 2)])
def test_a_convolution_of_no_samples(kind: str, channels: int, groups: int) -> None:
    weights = (4, channels // groups, 3, 3) if kind == "Conv" else (channels, 4 // groups, 3, 3)
    node = onnx.helper.make_node(kind, ["x", "w"], ["y"], group=groups, kernel_shape=[3, 3], strides=[2, 2])
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", channels, 7, 8])
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    constant = onnx.numpy_helper.from_array(np.ones(weights, np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", [given], [made], [constant])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (found,) = ort.InferenceSession(model.SerializeToString()).run(
        None, {"x": np.ones((0, channels, 7, 8), np.float32)}
    )
    assert found.shape == ((0, 4, 3, 3) if kind == "Conv" else (0, 4, 15, 17))


@pytest.mark.parametrize("shape", [(512, 300), (2, 256, 260), (260, 256)])
def test_transposed_outputs(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    given, _ = both([helper.make_node("Transpose", ["x"], ["y"], perm=order)], {"x": x}, {}, ["y"])
    np.testing.assert_array_equal(given[0], x.transpose(order))
    assert given[0].flags.c_contiguous


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
def test_elements_at_indices(axis: int, reduction: str) -> None:
    x, rng = normal(4, 5, 3), np.random.default_rng(0)
    places = rng.integers(-x.shape[axis], x.shape[axis], (3, 4, 2))
    rows = rng.integers(-4, 4, (9, 1)) if reduction != "none" else np.array([[-1], [0]])
    if reduction == "none":  # which of two writes to one place is the last, ONNX does not say
        places = np.argsort(rng.random((3, 4, 2)), axis)
    feeds = {"x": x, "p": places, "u": normal(3, 4, 2, seed=1), "r": rows, "v": normal(len(rows), 5, 3, seed=2)}
    nodes = [
        helper.make_node("GatherElements", ["x", "p"], ["g"], axis=axis),
        helper.make_node("ScatterElements", ["x", "p", "u"], ["e"], axis=axis, reduction=reduction),
        helper.make_node("ScatterND", ["x", "r", "v"], ["n"], reduction=reduction),
    ]
    agree(*both(nodes, feeds, {}, ["g", "e", "n"], opset=18))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_of_flattened_axes(axis: int) -> None:
    nodes = [helper.make_node(op, ["x"], [op], axis=axis) for op in ("Softmax", "LogSoftmax")]
    agree(*both(nodes, {"x": normal(3, 4, 70)}, {}, ["Softmax", "LogSoftmax"], opset=11))


HALVES = {
    "Add": 2, "Sub": 2, "Mul": 2, "Div": 2, "Max": 2, "Less": 2, "Equal": 2, "Relu": 1, "Exp": 1, "Sqrt": 1, "Floor": 1,
    "Sigmoid": 1, "HardSwish": 1, "LeakyRelu": 1, "Gelu": 1,
}  # fmt: skip


@pytest.mark.parametrize("op_type", HALVES)
def test_many_numbers_of_float16(op_type: str) -> None:
    """Infinite ones, those that are no numbers and the smallest among them; results are float32's, rounded once."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 1 << 16, dims, np.uint16).view(np.float16) for dims in ((3, 64, 70), (64, 1)))
    feeds = {"x": x, "y": y} if HALVES[op_type] == 2 else {"x": x}
    with np.errstate(all="ignore"):
        given, _ = both_of_floats(op_type, feeds)
        wanted, _ = both_of_floats(op_type, {name: array.astype(np.float32) for name, array in feeds.items()})
        loose = 1e-3 if op_type in ("Exp", "Sigmoid", "Gelu") else 0  # compiled functions of float32 round otherwise
        np.testing.assert_allclose(given.astype(np.float32), wanted.astype(given.dtype), rtol=loose, atol=loose / 1000)


def both_of_floats(op_type: str, feeds: dict[str, Array]) -> tuple[Array, Array]:
    """The runner's result in the first run and by plan, where the bits are the same."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    graph = helper.make_graph([helper.make_node(op_type, [*feeds], ["z"])], "g", infos, [helper.make_value_info("z", onnx.TypeProto())])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString())
    first, _, planned = (session.run(None, feeds)[0] for _ in range(3))
    assert first.tobytes() == planned.tobytes()
    return first, planned


@pytest.mark.parametrize("low", [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF])
def test_every_float16_is_rounded_and_read_as_by_numpy(low: int) -> None:
    bits = (np.arange(1 << 19, dtype=np.uint32) << 13) + np.uint32(low)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    out, back = np.empty(x.shape, np.float16), np.empty(x.shape, np.float32)
    with np.errstate(all="ignore"):
        halves_of_floats(x, out)
        np.testing.assert_array_equal(out.view(np.uint16), x.astype(np.float16).view(np.uint16))
        floats_of_halves(out, back)
        np.testing.assert_array_equal(back, out.astype(np.float32))
