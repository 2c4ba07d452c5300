"""onnxruntime's operators on quantized tensors in the runner: the same codes as in onnxruntime, but for ties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from test_contrib import MICROSOFT, check, draw, model_of, results

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

Array = np.ndarray
I8, U8, F32 = np.int8, np.uint8, np.float32
BYTES = [I8, U8]


def codes(*shape: int, dtype: Any = U8, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def scale(value: float) -> Array:
    return np.array(value, F32)


def zero(value: int, dtype: Any) -> Array:
    return np.array(value if dtype == U8 else value - 128, dtype)


def check_codes(op_type: str, feeds: Mapping[str, Array | None], **attrs: Any) -> None:
    """The same codes, but for a few that lie one beside: onnxruntime's vector code rounds a tie otherwise."""
    for ours, theirs in zip(*results(op_type, feeds, **attrs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        apart = np.abs(ours.astype(int) - theirs.astype(int))
        assert apart.max(initial=0) <= 1
        assert np.count_nonzero(apart) <= max(1, apart.size // 25)


def operand(name: str, x: Array, step: float, point: int | None = 120) -> dict[str, Array | None]:
    return {name: x, f"{name}_scale": scale(step), f"{name}_zero": None if point is None else zero(point, x.dtype)}


def result(step: float, point: int | None, dtype: Any) -> dict[str, Array | None]:
    found: dict[str, Array | None] = {"y_scale": scale(step)}
    return found if point is None else {**found, "y_zero": zero(point, dtype)}


SHAPES = [((2, 3, 17), (2, 3, 17)), ((4, 1, 5), (3, 5)), ((), (7,)), ((0, 4), (1, 4))]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_sums_and_products(op_type: str, left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    a = operand("a", codes(*left, dtype=dtype), 0.031, 97)
    b = operand("b", codes(*right, dtype=dtype, seed=1), 0.017)
    check_codes(op_type, a | b | result(0.05, 97, dtype))


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearSigmoid", "QLinearLeakyRelu"])
def test_a_zero_point_that_is_left_out_is_0(op_type: str) -> None:
    """onnxruntime refuses such a sum, and ends the process at such a function."""
    found = []
    for point in (None, 0):
        feeds = operand("a", codes(3, 5), 0.04, point)
        feeds |= (operand("b", codes(3, 5, seed=1), 0.02) if op_type == "QLinearAdd" else {}) | result(0.05, point, U8)
        given = {name: value for name, value in feeds.items() if value is not None}
        found += ort.InferenceSession(model_of(op_type, feeds, "y", MICROSOFT, {})).run(None, given)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape", [(3, 11), (1,), (2, 0), (2, 3, 4, 9)])
def test_functions(shape: tuple[int, ...], dtype: Any) -> None:
    x = operand("x", codes(*shape, dtype=dtype), 0.04, 131)
    check_codes("QLinearSigmoid", x | result(1 / 256, 0, dtype))
    check_codes("QLinearLeakyRelu", x | result(0.03, 100, dtype), alpha=0.2)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_softmax(axis: int, opset: int, dtype: Any) -> None:
    for step, steps, point in ((0.05, 1 / 256, 0), (0.2, 0.00391, 0), (1.5, 0.0045, 20)):
        feeds = operand("x", codes(2, 3, 9, dtype=dtype), step) | result(steps, point, dtype)
        ours, theirs = results("QLinearSoftmax", feeds, axis=axis, opset=opset)
        np.testing.assert_array_equal(ours[0], theirs[0])


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("axis", [1, -2])
def test_concat(axis: int, dtype: Any) -> None:
    feeds = result(0.05, 128, dtype)
    for number, (size, step) in enumerate([(2, 0.05), (3, 0.021), (1, 0.1)]):
        feeds |= operand(f"x{number}", codes(2, size, 5, dtype=dtype, seed=number), step, 90 + number)
    check_codes("QLinearConcat", feeds, axis=axis)


@pytest.mark.parametrize("dtype", BYTES)
def test_where(dtype: Any) -> None:
    condition = {"c": codes(4, 1, 6) > 100}
    x, y = operand("x", codes(1, 5, 6, dtype=dtype), 0.03, 99), operand("z", codes(6, dtype=dtype, seed=2), 0.02)
    check_codes("QLinearWhere", condition | x | y | result(0.04, 120, dtype))


@pytest.mark.parametrize("dtype", [I8, U8, np.int16, np.uint16])
@pytest.mark.parametrize("axis", [None, 1, -1])
def test_linear(axis: int | None, dtype: Any) -> None:
    x = 3 * draw(2, 4, 4)
    if axis is None:
        steps: Array = scale(0.02)
        points = np.array(7, dtype)
    else:
        steps, points = np.linspace(0.01, 0.1, 4, dtype=F32), np.arange(4).astype(dtype)
    attrs = {} if axis is None else {"axis": axis}
    check_codes("QuantizeLinear", {"x": x, "scale": steps, "zero": points}, **attrs)
    feeds = {"x": codes(2, 4, 4, dtype=dtype), "scale": steps, "zero": points}
    check(results("DequantizeLinear", feeds, **attrs), 1e-6)


def test_numbers_that_are_none_are_the_least_code() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e38], F32)
    for domain in ("", MICROSOFT):
        for dtype in BYTES:
            for step in (0.5, np.inf):
                feeds = {"x": x, "scale": scale(step), "zero": np.array(5, dtype)}
                ours, theirs = results("QuantizeLinear", feeds, domain=domain)
                np.testing.assert_array_equal(ours[0], theirs[0])


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1, "count_include_pad": 1},
        {"kernel_shape": [3, 3], "strides": [2, 1], "auto_pad": "SAME_UPPER"},
    ],
)
def test_average_pool(attrs: dict[str, Any], channels_last: int, dtype: Any) -> None:
    x = codes(2, 8, 9, 3, dtype=dtype) if channels_last else codes(2, 3, 8, 9, dtype=dtype)
    check_codes(
        "QLinearAveragePool", operand("x", x, 0.05) | result(0.04, 110, dtype), channels_last=channels_last, **attrs
    )


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_global_average_pool(channels_last: int, dtype: Any) -> None:
    x = codes(2, 7, 9, 20, dtype=dtype)
    check_codes(
        "QLinearGlobalAveragePool", operand("x", x, 0.05) | result(0.02, 110, dtype), channels_last=channels_last
    )


@pytest.mark.parametrize("dtype", BYTES)
def test_nhwc_max_pool(dtype: Any) -> None:
    x = codes(2, 8, 9, 3, dtype=dtype)
    for attrs in ({}, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, {"dilations": [2, 1], "ceil_mode": 1}):
        check_codes("NhwcMaxPool", {"x": x}, kernel_shape=[3, 3], **attrs)
    for kernel, attrs in (
        ([9, 3], {}),
        ([9, 10], {"strides": [2, 3]}),
        ([11, 9], {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
    ):
        check_codes("NhwcMaxPool", {"x": x}, kernel_shape=kernel, **attrs)  # larger than the image


@pytest.mark.parametrize(("a", "b"), [(U8, U8), (U8, I8), (I8, I8)])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("by_channel", [False, True])
def test_convolution_with_channels_last(by_channel: bool, group: int, a: Any, b: Any) -> None:
    w = codes(6, 4 // group, 3, 3, dtype=b)
    steps = np.linspace(0.01, 0.02, 6, dtype=F32) if by_channel else scale(0.01)
    points = np.zeros(6, b) if by_channel else zero(128, b)
    feeds = operand("x", codes(2, 7, 8, 4, dtype=a), 0.02) | {"w": w, "w_scale": steps, "w_zero": points}
    bias = np.arange(6, dtype=np.int32) * 100
    check_codes(
        "QLinearConv", feeds | result(0.5, 120, a) | {"bias": bias}, channels_last=1, group=group, pads=[1, 0, 1, 2]
    )


PRODUCTS = [((3, 8), (8, 5)), ((2, 3, 8), (8, 5)), ((2, 3, 8), (2, 8, 5)), ((1, 8), (8, 1)), ((2, 0, 8), (8, 5))]


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
@pytest.mark.parametrize(("a", "b"), [(U8, U8), (U8, I8), (I8, I8)])
@pytest.mark.parametrize("by_column", [False, True])
def test_integer_product_to_float(left: Any, right: Any, by_column: bool, a: Any, b: Any) -> None:
    columns = right[-1]
    by_column = by_column and len(right) == 2
    feeds = {
        "a": codes(*left, dtype=a),
        "b": codes(*right, dtype=b),
        "a_scale": scale(0.02),
        "b_scale": np.linspace(0.01, 0.03, columns, dtype=F32) if by_column else scale(0.01),
        "a_zero": zero(120, a),
        "b_zero": (np.arange(columns) + 3).astype(b) if by_column else zero(125, b),
        "bias": draw(columns),
    }
    check(results("MatMulIntegerToFloat", feeds), 2e-6)
    check(results("MatMulIntegerToFloat", feeds | {"a_zero": None, "b_zero": None, "bias": None}), 2e-6)


@pytest.mark.parametrize(("left", "right"), PRODUCTS[:4])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("by_column", [False, True])
def test_dynamic_product(left: Any, right: Any, by_column: bool, dtype: Any) -> None:
    columns = right[-1]
    by_column = by_column and len(right) == 2
    feeds = {
        "a": 3 * draw(*left),
        "b": codes(*right, dtype=dtype),
        "b_scale": np.linspace(0.01, 0.03, columns, dtype=F32) if by_column else scale(0.01),
        "b_zero": (np.arange(columns) + 3).astype(dtype) if by_column else zero(125, dtype),
        "bias": draw(columns),
    }
    check(results("DynamicQuantizeMatMul", feeds), 2e-5)
    for x in (np.zeros_like(feeds["a"]), np.abs(feeds["a"]), -np.abs(feeds["a"])):
        check(results("DynamicQuantizeMatMul", feeds | {"a": x, "b_zero": None, "bias": None}), 2e-5)


@pytest.mark.parametrize(("a", "b"), [(U8, U8), (U8, I8), (I8, I8)])
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("by_column", [False, True])
def test_qgemm(by_column: bool, transposed: tuple[int, int], a: Any, b: Any) -> None:
    first, second = codes(4, 7, dtype=a), codes(7, 5, dtype=b)
    feeds = operand("a", first.T.copy() if transposed[0] else first, 0.02)
    feeds |= operand("b", second.T.copy() if transposed[1] else second, 0.01)
    if by_column:
        feeds |= {"b_scale": np.linspace(0.01, 0.03, 5, dtype=F32), "b_zero": np.arange(5).astype(b)}
    attrs = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.5}
    for c in (None, np.arange(5, dtype=np.int32), np.arange(20, dtype=np.int32).reshape(4, 5)):
        check(results("QGemm", feeds | {"c": c}, **attrs), 2e-6)
        check_codes("QGemm", feeds | {"c": c} | result(0.1, 120, a), **attrs)


@pytest.mark.parametrize("columns", [5, 7])
@pytest.mark.parametrize("by_column", [False, True])
def test_qgemm_of_constant_weights_whose_zero_point_is_fed(columns: int, by_column: bool) -> None:
    feeds = operand("a", codes(4, 7), 0.02) | operand("b", codes(columns, 7, dtype=I8), 0.01)
    if by_column:
        feeds |= {"b_scale": np.linspace(0.01, 0.03, columns, dtype=F32), "b_zero": np.arange(columns).astype(I8)}
    model = onnx.load_from_string(model_of("QGemm", feeds, "y", MICROSOFT, {"transB": 1}))
    weights = next(one for one in model.graph.input if one.name == "b")
    model.graph.input.remove(weights)
    model.graph.initializer.append(onnx.numpy_helper.from_array(feeds["b"], "b"))
    _, theirs = results("QGemm", feeds, transB=1)
    del feeds["b"]
    check((ort.InferenceSession(model.SerializeToString()).run(None, feeds), theirs), 2e-6)


def test_product_of_16_bits() -> None:
    a, b = codes(2, 3, 4, dtype=np.int16) // 64, codes(4, 5, dtype=np.int16) // 64
    ours, theirs = results("MatMulInteger16", {"a": a, "b": b})
    np.testing.assert_array_equal(ours[0], theirs[0])


WRONG: list[tuple[str, dict[str, Array | None], dict[str, Any], str]] = [
    ("QLinearAdd", {"a_scale": np.ones(2, F32)}, {}, "must be one number"),
    ("QLinearAdd", {"b": codes(2, 5)}, {}, "QLinearAdd"),
    ("QLinearAdd", {"b": codes(2, 4, dtype=I8)}, {}, "E303"),
    ("QLinearAdd", {}, {"axis": 1}, "no attribute 'axis'"),
    ("QLinearSoftmax", {}, {}, "needs the attribute 'opset'"),
]


@pytest.mark.parametrize(("op_type", "changed", "attrs", "message"), WRONG)
def test_what_is_wrong_is_an_error(op_type: str, changed: Any, attrs: Any, message: str) -> None:
    feeds = operand("a", codes(2, 4), 0.1)
    feeds |= (operand("b", codes(2, 4), 0.1) if op_type == "QLinearAdd" else {}) | result(0.1, 0, U8) | changed
    model = model_of(op_type, feeds, "y", MICROSOFT, attrs)
    with pytest.raises(UserError, match=message):
        ort.InferenceSession(model).run(None, {name: value for name, value in feeds.items() if value is not None})


def test_a_search_inside_of_a_node_is_refused_with_the_reason() -> None:
    decoder = onnx.helper.make_graph([], "decoder", [], [])
    attrs = {"decoder": decoder, "eos_token_id": 1, "pad_token_id": 0}
    model = model_of("BeamSearch", {name: np.ones(1, np.int32) for name in "abcde"}, "y", MICROSOFT, attrs)
    with pytest.raises(UserError, match="search with fx2onnx"):
        ort.InferenceSession(model)
    with pytest.raises(UserError, match="no CPU kernel for it either"):
        ort.InferenceSession(model_of("NhwcConv", {"x": draw(1, 2, 2, 1)}, "y", MICROSOFT, {}))
