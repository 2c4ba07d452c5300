"""The fast forms of kernels at the edges of their shapes: the same numbers as onnxruntime, the same bits run after run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import fx2onnx.runner as ort

Array = np.ndarray[Any, Any]


def both(
    nodes: list[Any], feeds: dict[str, Array], constants: dict[str, Array], outputs: list[str], opset: int = 17
) -> tuple[list[Array], list[Array]]:
    """What the runner gives, three times with the same bits, and what onnxruntime gives."""
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
    runs = [session.run(None, feeds) for _ in range(3)]
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
    "depthwise row, stride and dilation": (
        (1, 3, 301),
        (3, 1, 4),
        {"group": 3, "strides": [2], "dilations": [3], "pads": [5, 2]},
    ),
    "depthwise, large": ((1, 3, 50, 52), (3, 1, 3, 3), {"group": 3, "pads": [1, 0, 1, 2]}),
    "depthwise, small": ((1, 6, 8, 8), (6, 1, 3, 3), {"group": 6, "strides": [2, 2], "pads": [1] * 4}),
    "depthwise volume": ((1, 2, 9, 8, 7), (2, 1, 2, 1, 2), {"group": 2, "strides": [1, 2, 1]}),
    "volume": ((2, 2, 5, 6, 7), (3, 2, 3, 2, 1), {"pads": [1, 0, 0, 1, 1, 0]}),
    "same, odd": ((1, 2, 10, 11), (3, 2, 2, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    "no sample": ((0, 2, 8), (3, 2, 3), {}),
}


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
