"""Nodes that no backend case has, mostly of old opsets: operator, opset, inputs, attributes, and what NumPy says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Array = np.ndarray


@dataclass(frozen=True)
class NodeCase:
    """One node. ``wanted`` takes the inputs and gives the outputs; None where only the contract is tried."""

    op_type: str
    opset: int
    inputs: tuple[Array, ...]
    wanted: Callable[..., Any] | None
    attrs: dict[str, Any] = field(default_factory=dict)
    n_outputs: int = 1

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        feeds = {f"x{place}": value for place, value in enumerate(self.inputs)}
        outputs = [f"y{place}" for place in range(self.n_outputs)]
        node = helper.make_node(self.op_type, list(feeds), outputs, **self.attrs)
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        ]
        free = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph([node], "g", infos, free)
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def f32(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


BOOLS = np.array([[True, False, True], [False, True, True]])
OLD_BROADCAST = {"axis": 1, "broadcast": 1}


def along_axis_1(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Broadcasting of opsets 1 to 6: the second operand's axes begin at ``axis``."""
    return lambda a, b: function(a, b[:, None])


ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
COMPARISON = {"Less": np.less, "Greater": np.greater}
LOGIC = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}
REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "ReduceL1": lambda x: np.abs(x).sum(1, keepdims=True),
    "ReduceL2": lambda x: np.sqrt((x * x).sum(1, keepdims=True)),
    "ReduceLogSum": lambda x: np.log(x.sum(1, keepdims=True)),
    "ReduceLogSumExp": lambda x: np.log(np.exp(x).sum(1, keepdims=True)),
    "ReduceProd": lambda x: x.prod(1, keepdims=True),
    "ReduceSum": lambda x: x.sum(1, keepdims=True),
    "ReduceSumSquare": lambda x: (x * x).sum(1, keepdims=True),
}


def softmax_2d(x: Array) -> Array:
    """Softmax of opsets 1 to 12: over all axes from ``axis`` on, taken as one."""
    flat = np.exp(x.reshape(x.shape[0], -1))
    return (flat / flat.sum(1, keepdims=True)).reshape(x.shape)


def hardmax_2d(x: Array) -> Array:
    flat = x.reshape(x.shape[0], -1)
    return (np.arange(flat.shape[1]) == flat.argmax(1)[:, None]).astype(x.dtype).reshape(x.shape)


def normalized(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
    scale, bias, mean, var = (part[:, None, None] for part in (scale, bias, mean, var))
    return (x - mean) / np.sqrt(var + 1e-5) * scale + bias


def group_normalized(x: Array, scale: Array, bias: Array) -> Array:
    groups = x.reshape(x.shape[0], 2, -1)
    flat = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    grouped = flat.reshape(x.shape[0], 2, -1, x.shape[2])
    return (grouped * scale[:, None, None] + bias[:, None, None]).reshape(x.shape)


def doubled_width(x: Array, *_: Array) -> Array:
    """Linear, at the places 0.25, 0.75, ... between elements of the last axis; the other axes as they are."""
    places = np.clip((np.arange(2 * x.shape[-1]) + 0.5) / 2 - 0.5, 0, x.shape[-1] - 1)
    low = np.floor(places).astype(int)
    high = np.minimum(low + 1, x.shape[-1] - 1)
    return (x[..., low] * (1 - (places - low)) + x[..., high] * (places - low)).astype(x.dtype)


def doubled(x: Array, *_: Array) -> Array:
    return x.repeat(2, 2).repeat(2, 3)


SMALL = f32(2, 3)
IMAGE = f32(1, 2, 4, 4)
NORM = (f32(2, 3, 4, 4), f32(3), f32(3), f32(3), np.abs(f32(3)) + 1)


def line(*values: float) -> Array:
    """One sample of one channel."""
    return np.array([[values]], np.float32)


LINE, TAPS = line(1, 10, 100), line(1, 2, 3)


def layer_norm_of_doubles(x: Array, weight: Array) -> tuple[Array, ...]:
    """The statistics have the dtype of ``stash_type``, whatever x has."""
    mean, rstd = np.array([[0.5], [2.5]]), np.full((2, 1), 1 / np.sqrt(0.25 + 1e-5))
    return (x - mean) * rstd, mean.astype(np.float32), rstd.astype(np.float32)


LEAKY = {"hidden_size": 3, "activations": ["LeakyRelu"], "activation_alpha": [0.5]}


def leaky_step(x: Array, w: Array, _: Array) -> Array:
    """One time of an RNN from no state."""
    total = x @ w[0].T
    return np.where(total >= 0, total, 0.5 * total)[:, None]


CASES = [
    NodeCase("RNN", 14, (f32(1, 2, 4), f32(1, 3, 4), np.zeros((1, 3, 3), np.float32)), leaky_step, LEAKY),
    *(NodeCase(name, 1, (f32(2, 3, 4), f32(3)), along_axis_1(call), OLD_BROADCAST) for name, call in ARITHMETIC.items()),
    NodeCase("ReduceMax", 13, (f32(2, 3),), lambda x: x.max(axis=1), {"axes": [1], "keepdims": 2}),
    NodeCase("ArgMax", 13, (f32(2, 3),), lambda x: x.argmax(axis=1), {"axis": 1, "keepdims": -1}),
    NodeCase("LayerNormalization", 17, (np.arange(4.0).reshape(2, 2), np.ones(2)), layer_norm_of_doubles, n_outputs=3),
    NodeCase("RMSNormalization", 23, (np.ones((2, 4), np.float16), f32(4)), lambda x, weight: np.stack([weight, weight])),
    NodeCase("ConvTranspose", 11, (LINE, TAPS), lambda x, w: line(2, 13, 20, 130, 200, 300), {"strides": [2], "output_shape": [6]}),
    NodeCase("ConvTranspose", 11, (LINE, TAPS), lambda x, w: line(1, 2, 13, 20, 130, 200),
             {"strides": [2], "output_shape": [6], "auto_pad": "SAME_UPPER"}),
    NodeCase("ConvTranspose", 11, (LINE, TAPS), lambda x, w: line(1, 2, 13, 20, 130, 200, 300, 0), {"strides": [2], "output_shape": [8]}),
    NodeCase("ConvTranspose", 11, (LINE, TAPS), lambda x, w: line(1, 2, 3, 10, 20, 30, 100, 200, 300, 0, 0),
             {"strides": [3], "output_shape": [11], "auto_pad": "SAME_UPPER"}),
    NodeCase("ReduceMean", 18, (np.array([-1, -2, 2**31 - 1, 2**31 - 1], np.int32),), lambda x: np.array([1073741822], np.int32)),
    NodeCase("ReduceMean", 13, (np.array([-1, -3, -3, 0], np.int64),), lambda x: np.array([-1]), {"axes": [0]}),
    NodeCase("Pow", 1, (np.abs(f32(2, 3, 4)), f32(3)), along_axis_1(np.power), OLD_BROADCAST),
    *(NodeCase(name, 1, (f32(2, 3, 4), f32(3)), along_axis_1(call), OLD_BROADCAST) for name, call in COMPARISON.items()),
    NodeCase("Equal", 1, (i64(1, 2, 3, 4).reshape(2, 2), i64(1, 4)), along_axis_1(lambda a, b: a == b[:, 0][:, None]), OLD_BROADCAST),
    *(NodeCase(name, 1, (BOOLS, BOOLS[0]), call, {"axis": 1, "broadcast": 1}) for name, call in LOGIC.items()),
    *(NodeCase(name, 1, (np.abs(f32(2, 3, 4)),), call, {"axes": [1]}) for name, call in REDUCTIONS.items()),
    NodeCase("BatchNormalization", 1, NORM, normalized, {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}),
    NodeCase("BatchNormalization", 7, NORM, normalized),
    NodeCase("BatchNormalization", 9, NORM, normalized),
    NodeCase("Cast", 1, (SMALL,), lambda x: x.astype(np.int32), {"to": "INT32"}),
    NodeCase("Clip", 1, (SMALL,), lambda x: np.clip(x, -0.5, 0.5), {"min": -0.5, "max": 0.5}),
    NodeCase("Dropout", 1, (SMALL,), lambda x: x, {"is_test": 1}),
    NodeCase("Dropout", 6, (SMALL,), lambda x: x, {"is_test": 1}),
    NodeCase("Dropout", 7, (SMALL,), lambda x: x),
    NodeCase("GlobalLpPool", 2, (IMAGE,), lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True))),
    NodeCase("GroupNormalization", 18, (f32(2, 4, 5), f32(2), f32(2)), group_normalized, {"num_groups": 2}),
    NodeCase("Hardmax", 1, (f32(2, 3, 4),), hardmax_2d),
    NodeCase("Softmax", 1, (f32(2, 3, 4),), softmax_2d),
    NodeCase("LogSoftmax", 1, (f32(2, 3, 4),), lambda x: np.log(softmax_2d(x))),
    NodeCase("MaxRoiPool", 1, (f32(2, 3, 8, 8), np.array([[0, 0, 0, 3, 3], [1, 2, 4, 7, 7]], np.float32)), None, {"pooled_shape": [2, 2]}),
    NodeCase("Multinomial", 7, (f32(2, 3),), None, {"sample_size": 4}),
    NodeCase("PRelu", 1, (f32(2, 3, 4), f32(3)), lambda x, s: np.where(x < 0, x * s[:, None], x)),
    NodeCase("Pad", 1, (SMALL,), lambda x: np.pad(x, ((1, 0), (0, 2))), {"paddings": [1, 0, 0, 2]}),
    NodeCase("Pad", 2, (SMALL,), lambda x: np.pad(x, ((1, 0), (0, 2))), {"pads": [1, 0, 0, 2]}),
    NodeCase("RandomNormal", 1, (), None, {"shape": [3, 2]}),
    NodeCase("RandomNormalLike", 1, (SMALL,), None),
    NodeCase("RandomUniform", 1, (), None, {"shape": [3, 2]}),
    NodeCase("Reshape", 1, (SMALL,), lambda x: x.reshape(3, 2), {"shape": [3, -1]}),
    NodeCase("Resize", 10, (IMAGE, np.array([1, 1, 2, 2], np.float32)), doubled),
    NodeCase("Resize", 18, (IMAGE, np.zeros(0, np.float32), np.array([1, 1, 1.1, 1.2], np.float32)), lambda x, *_: x, {"mode": "linear"}),
    NodeCase("Resize", 18, (IMAGE, np.zeros(0, np.float32), np.array([1, 1, 1.1, 2], np.float32)), doubled_width, {"mode": "linear", "antialias": 1}),
    NodeCase("Upsample", 1, (IMAGE,), doubled, {"height_scale": 2.0, "width_scale": 2.0}),
    NodeCase("Upsample", 7, (IMAGE,), doubled, {"scales": [1.0, 1.0, 2.0, 2.0]}),
    NodeCase("Slice", 1, (SMALL,), lambda x: x[:, 1:], {"starts": [1], "ends": [9], "axes": [1]}),
    NodeCase("Split", 1, (f32(4, 3),), lambda x: (x[:1], x[1:]), {"split": [1, 3]}, 2),
    NodeCase("Split", 2, (f32(4, 3),), lambda x: (x[:2], x[2:]), {}, 2),
    NodeCase("Squeeze", 1, (f32(1, 3, 1),), lambda x: x[0], {"axes": [0]}),
    NodeCase("Unsqueeze", 1, (SMALL,), lambda x: x[None, :, None], {"axes": [0, 2]}),
    NodeCase("Tile", 1, (SMALL, np.array([3], np.float32), np.array([1], np.float32)), lambda x, n, axis: np.tile(x, (1, 3))),
    NodeCase("TopK", 1, (f32(3, 5),), lambda x: (-np.sort(-x, 1)[:, :2], np.argsort(-x, 1)[:, :2]), {"k": 2, "axis": 1}, 2),
]  # fmt: skip


def sequences() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Construct, At, Erase, ConcatFromSequence, Optional: in one model, as a graph has them."""
    make = helper.make_node
    nodes = [
        make("SequenceConstruct", ["a", "b", "c"], ["s"]),
        make("SequenceAt", ["s", "one"], ["at"]),
        make("SequenceErase", ["s", "one"], ["e"]),
        make("ConcatFromSequence", ["e"], ["y"], axis=0),
        make("Optional", ["at"], ["o"]),
        make("OptionalGetElement", ["o"], ["z"]),
    ]
    feeds = {name: f32(2, 3) + place for place, name in enumerate("abc")}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "abc"]
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info(name) for name in "yz"], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10), feeds


def gradient() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """d sum(x @ w + b) by x, w, b and by z, which it does not depend on: the private operators of ``Gradient``."""
    shapes = {"x": [2, 3], "w": [3, 4], "b": [4], "z": [5]}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
        helper.make_node("Identity", ["z"], ["unused"]),
        helper.make_node(
            "Gradient", list(shapes), ["gx", "gw", "gb", "gz"], domain="ai.onnx.preview.training",
            xs=list(shapes), y="y",
        ),
    ]  # fmt: skip
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items()]
    free = [helper.make_empty_tensor_value_info(name) for name in ("gx", "gw", "gb", "gz")]
    graph = helper.make_graph(nodes, "g", infos, free)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, {name: f32(*dims) for name, dims in shapes.items()}


def scaled_product() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Quantized codes by constant ones, scaled, plus a row: one step of the runner's own."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMulInteger", ["a", "b", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["wide", "factor"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    given = [helper.make_tensor_value_info("a", TensorProto.UINT8, [2, 3, 8])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 5])]
    constants = {
        "b": rng.integers(-128, 128, (8, 5), np.int8),
        "zero": np.asarray(100, np.uint8),
        "factor": np.asarray(0.02, np.float32),
        "bias": rng.random(5, np.float32),
    }
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"a": rng.integers(0, 256, (2, 3, 8), np.uint8)}


def fused_convolution() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Conv and Relu, which the session joins."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    constants = [onnx.numpy_helper.from_array(f32(4, 2, 3, 3), "w"), onnx.numpy_helper.from_array(f32(4), "b")]
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_empty_tensor_value_info("y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), {"x": IMAGE}
