"""The compiled forms of kernels, where numba is installed: the numbers of NumPy's kernels and of onnxruntime, the same bits run after run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import fx2onnx.runner as ort
from fx2onnx.runner import fast
from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.registry import find_kernel

Array = np.ndarray[Any, Any]
needs_numba = pytest.mark.skipif(not fast.is_installed(), reason="numba, of the extra fx2onnx[fast], is not installed")


def numbers(dtype: str, *dims: int, scale: float = 3.0) -> Array:
    rng = np.random.default_rng(sum(dims))
    if np.dtype(dtype).kind == "f":
        return (rng.standard_normal(dims) * scale).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(max(info.min, -9000), min(info.max, 9000), dims, endpoint=True).astype(dtype)


class Case:
    """One node. ``feeds`` come first, constants after them; "" is an input that is left out."""

    def __init__(self, op: str, feeds: list[Array], *constants: Array | None, outs: int = 1, atol: float = 2e-5, special: bool = False, domain: str = "", opset: int = 21, **attrs: Any) -> None:  # fmt: skip
        self.op, self.feeds, self.outs, self.atol, self.special = op, feeds, outs, atol, special
        self.constants, self.attrs, self.domain, self.opset = constants, attrs, domain, opset
        self.label = f"{op} {' '.join('x'.join(map(str, one.shape)) for one in feeds)} {attrs or ''}"

    def model(self) -> bytes:
        values = [*self.feeds, *self.constants]
        names = ["" if one is None else f"x{place}" for place, one in enumerate(values)]
        outputs = [f"y{place}" for place in range(self.outs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attrs)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
            for name, one in zip(names, self.feeds, strict=False)
        ]
        weights = [
            numpy_helper.from_array(one, name)
            for name, one in zip(names[len(self.feeds) :], self.constants, strict=True)
            if one is not None
        ]
        made = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
        graph = helper.make_graph([node], "g", inputs, made, weights)
        imports = [helper.make_opsetid(*one) for one in (("", self.opset), (MICROSOFT, 1), ("ai.onnx.ml", 3))]
        return bytes(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())


def scalar(value: float, dtype: str = "float32") -> Array:
    return np.asarray(value, dtype)


def lines() -> list[Case]:
    x = numbers("float32", 3, 7, 11)
    plain = ("Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Selu", "Sigmoid", "Softplus")
    made = [Case(op, [x], special=True) for op in (*plain, "Gelu", "ThresholdedRelu")]
    made += [Case("Gelu", [x], approximate="tanh", special=True), Case("Elu", [x], alpha=-0.7), Case("Exp", [x * 30])]
    made += [Case("LeakyRelu", [x], alpha=-2.0), Case("HardSigmoid", [x], alpha=-0.4, beta=0.1)]
    for dtype in ("uint8", "int8"):
        made.append(Case("QuantizeLinear", [x], scalar(0.02), scalar(3, dtype), special=True))
    for number in (1, 2, 3, 5, 6, 10):  # float, uint8, int8, int16, int32, float16
        made.append(Case("Cast", [numbers("float32", 3, 37, scale=30).clip(0, 99)], to=number))
    made += [Case("Cast", [numbers("float32", 3, 37, scale=3e9)], to=number) for number in (2, 3, 4, 5, 6, 12)]
    made += [Case("Cast", [x], to=10, special=True), Case("Cast", [x.astype("float16")], to=1, special=True)]
    made += [
        Case("DequantizeLinear", [numbers(kind, 3, 7)], scalar(0.02), scalar(9, kind)) for kind in ("uint8", "int8")
    ]
    made += [Case("QuantizeLinear", [x], scalar(0.02)), Case("DynamicQuantizeLinear", [x], outs=3)]
    return made


def rows() -> list[Case]:
    x = numbers("float32", 2, 5, 37)
    made = [Case(op, [x], special=True, axis=axis) for op in ("Softmax", "LogSoftmax") for axis in (-1, 1)]
    made += [Case("Softmax", [numbers("float32", 3, 40, n)], special=True) for n in (1, 3, 16, 17)]  # short rows
    made.append(Case("LayerNormalization", [x, numbers("float32", 37)], numbers("float32", 37), special=True))
    made.append(Case("LayerNormalization", [x], numbers("float32", 5, 37), axis=1))
    made.append(Case("RMSNormalization", [x], numbers("float32", 37), special=True, opset=23))
    five = [numbers("float32", 5)] * 3
    made.append(Case("InstanceNormalization", [x], *five[:2]))
    made.append(Case("BatchNormalization", [x], *five, abs(five[0]) + 1, special=True))
    image, by = numbers("float16", 2, 6, 37, 41), [numbers("float16", 6)] * 3
    for op, *given, attrs in (
        ("Softmax", {}), ("LogSoftmax", {"axis": 1}), ("LayerNormalization", *[numbers("float16", 41)] * 2, {}),
        ("BatchNormalization", *by, abs(by[0]), {}), ("GroupNormalization", *by[:2], {"num_groups": 3}),
        ("InstanceNormalization", *by[:2], {}), ("ReduceMax", np.array([-1]), {}), ("ReduceMean", np.array([2, 3]), {}),
        ("RMSNormalization", numbers("float16", 41), {"opset": 23}), ("MaxPool", {"kernel_shape": [3, 3]}),
    ):  # fmt: skip
        made.append(Case(op, [image], *given, atol=0.01, **attrs))
    return made


def halves() -> list[Case]:
    """Few rows of float16: of weights as they are and turned, with a bias, and of a width that is no multiple of the lanes."""
    made = []
    for rows, inner, columns in ((1, 48, 64), (3, 64, 32), (4, 33, 16), (2, 16, 21), (5, 32, 32)):
        x, w, bias = (numbers("float16", *dims, scale=0.5) for dims in ((rows, inner), (inner, columns), (columns,)))
        made += [Case("Gemm", [x], w, atol=0.02), Case("MatMul", [x[None]], w, atol=0.02)]
        made += [Case("Gemm", [x], w, bias, atol=0.02), Case("Gemm", [x], w.T.copy(), bias[None], transB=1, atol=0.02)]
    return made


def integers() -> list[Case]:
    made = []
    for rows, inner, columns in ((1, 9, 5), (13, 64, 70), (7, 30, 130)):
        for left, right in (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")):
            zero = (np.arange(columns) % 7).astype(right)
            given = [numbers(left, rows, inner), scalar(5, left)]
            made.append(Case("MatMulInteger", [given[0]], numbers(right, inner, columns), given[1], zero))
            both = [numbers(left, 3, rows, inner), numbers(right, 3, inner, columns)]
            made.append(Case("MatMulInteger", both, given[1], zero[3:4].reshape(())))
            made.append(Case("MatMulInteger", [one[0] for one in both]))
            scale = np.linspace(0.001, 0.01, columns).astype("float32")
            by = scalar(0.02), given[1], numbers(right, inner, columns), scale, zero, scalar(0.7), scalar(9, left)
            made.append(Case("QLinearMatMul", [given[0]], *by))
    for inner, columns, zero, bias in ((64, 70, 3, True), (30, 7, None, False), (9, 130, 4, True)):
        weights, by = numbers("int8", inner, columns), np.linspace(0.001, 0.01, columns).astype("float32")
        last = None if zero is None else np.full(columns, zero, "int8"), numbers("float32", columns) if bias else None
        made.append(
            Case(
                "DynamicQuantizeMatMul",
                [numbers("float32", 2, 5, inner)],
                weights,
                by,
                *last,
                domain=MICROSOFT,
                atol=0.02,
            )
        )
        given = numbers("uint8", 6, inner), weights, scalar(0.02), by, scalar(7, "uint8"), *last
        made.append(Case("MatMulIntegerToFloat", [given[0]], *given[1:], domain=MICROSOFT))
    for x, w, attrs in (
        ((2, 3, 9, 11), (6, 3, 3, 3), {"pads": [1, 0, 2, 1]}),
        ((1, 8, 10, 10), (5, 8, 3, 2), {"strides": [2, 3], "dilations": [2, 1]}),
        ((1, 4, 9, 9), (70, 4, 1, 1), {}),
        ((2, 20, 9, 13), (20, 1, 3, 3), {"pads": [1] * 4, "group": 20}),
        ((1, 6, 9, 13), (6, 1, 5, 3), {"pads": [2, 1, 1, 0], "group": 6, "strides": [2, 2]}),
    ):
        for dtype in ("int8", "uint8"):
            given = numbers("uint8", *x), scalar(130, "uint8"), numbers(dtype, *w), scalar(3, dtype)
            scales = scalar(0.02), np.linspace(0.001, 0.01, w[0]).astype("float32"), scalar(0.9)
            bias = numbers("int32", w[0])
            zeros = np.full(w[0], 3, dtype)
            by = scales[0], given[1], given[2], scales[1], zeros, scales[2], scalar(7, "uint8"), bias
            made.append(Case("QLinearConv", [given[0]], *by, **attrs))
            if dtype == "int8":
                made.append(Case("ConvInteger", [given[0]], given[2], given[1], given[3], **attrs))
    return made


def codes() -> list[Case]:
    made = []
    for dtype in ("uint8", "int8"):
        x, zero, y = numbers(dtype, 2, 5, 6, 7), scalar(9, dtype), (scalar(1.5), scalar(30, dtype))
        for other in ((2, 5, 6, 7), (5, 1, 1), (6, 7), (), (1, 5, 1, 7), (3, 2, 5, 6, 7)):
            for op in ("QLinearAdd", "QLinearMul"):
                given = scalar(0.5), zero, numbers(dtype, *other), scalar(0.7), scalar(5, dtype), *y
                made.append(Case(op, [x], *given, domain=MICROSOFT))
        made.append(Case("QLinearGlobalAveragePool", [x], scalar(0.2), zero, scalar(0.3), y[1], domain=MICROSOFT))
        made.append(Case("QLinearSigmoid", [x], scalar(0.02), zero, scalar(0.004), scalar(0, dtype), domain=MICROSOFT))
        made.append(Case("QLinearLeakyRelu", [x], scalar(0.2), zero, *y, domain=MICROSOFT, alpha=0.3))
        for attrs in ({"strides": [2, 1], "pads": [1, 0, 1, 1]}, {"dilations": [1, 2], "pads": [0, 1, 0, 1]}):
            made.append(Case("NhwcMaxPool", [x], domain=MICROSOFT, kernel_shape=[3, 2], **attrs))
        made.append(Case("DequantizeLinear", [x], numbers("float32", 5), np.arange(5).astype(dtype), axis=-3))
    return made


def scattered() -> list[Case]:
    made = []
    for dtype in ("float32", "int64"):
        x, places = numbers(dtype, 5, 4, 17), np.array([[1, -1], [4, 3], [1, 3], [1, 3], [-5, 0]])
        for reduction in ("add", "mul", "max", "min"):
            for depth in (1, 2):
                given = places[:, :depth], numbers(dtype, 5, *x.shape[depth:])
                made.append(Case("ScatterND", [x], *given, reduction=reduction, special=dtype == "float32"))
    return made


def products() -> list[Case]:
    """Rows and columns of whole tiles and of parts, one row less than a tile, weights as they are and turned."""
    made = []
    for dims, columns in (((2, 40), 600), ((3, 11, 37), 70), ((250, 64), 33), ((1, 23, 96), 32), ((5, 300), 129)):
        x, w, bias = numbers("float32", *dims), numbers("float32", dims[-1], columns), numbers("float32", columns)
        made.append(Case("MatMul", [x], w, special=True, atol=1e-3))
        if len(dims) == 2:
            turned = np.ascontiguousarray(w.T)
            made += [Case("Gemm", [x], w, bias, atol=1e-3), Case("Gemm", [x], turned, bias[None], transB=1, atol=1e-3)]
    return [*made, Case("Gemm", [x], w, bias, alpha=0.5, beta=2.0, atol=1e-3)]


def choices() -> list[Case]:
    x, ties = numbers("float32", 3, 5, 40), numbers("float32", 4, 30).round()
    ties[:, ::3] *= np.float32(-0.0)
    made = [
        Case("TopK", [one], np.array([k]), outs=2, largest=largest)
        for one, k, largest in ((x, 7, 1), (x, 40, 0), (ties, 9, 1), (ties, 9, 0), (ties, 1, 1))
    ]
    corners = np.sort(numbers("float32", 2, 60, 2, 2), axis=2).reshape(2, 60, 4)
    for overlap in (0.0, 0.4):
        limits = np.array(9), scalar(overlap), scalar(0.1)
        made.append(Case("NonMaxSuppression", [corners, numbers("float32", 2, 3, 60)], *limits))
        made.append(
            Case("NonMaxSuppression", [abs(corners), numbers("float32", 2, 3, 60)], *limits, center_point_box=1)
        )
    corners = np.sort(numbers("float32", 6, 2, 2, scale=7), axis=1).reshape(6, 4)
    corners[0, 2], corners[1] = corners[0, 0], corners[1, [2, 3, 0, 1]]  # regions of no width, and of less than none
    places, image = np.array([0, 1, 1, 0, 1, 0]), numbers("float32", 2, 3, 9, 12)
    regions = np.concatenate([places[:, None], corners], 1).astype("float32")
    for attrs in (
        {},
        {"sampling_ratio": 2},
        {"coordinate_transformation_mode": "output_half_pixel", "spatial_scale": 0.7},
    ):
        sizes = {"output_height": 3, "output_width": 4, **attrs}
        made.append(Case("RoiAlign", [image], corners, places, special=True, **sizes))
        made.append(Case("RoiAlign", [image], corners, places, mode="max", **sizes))
        made.append(
            Case("MaxRoiPool", [image], regions, pooled_shape=[4, 3], spatial_scale=attrs.get("spatial_scale", 1.0))
        )
    for align in (0, 1):
        grid = numbers("float32", 2, 7, 6, 2, scale=0.8)
        made.append(Case("GridSample", [numbers("float32", 2, 3, 5, 8), grid], align_corners=align))
    for dims, attrs in (
        ((2, 3, 9, 13), {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "strides": [2, 2]}),
        ((1, 4, 7, 20), {"kernel_shape": [2, 3], "ceil_mode": 1, "strides": [2, 3]}),
        ((2, 4, 30), {"kernel_shape": [4], "dilations": [2], "pads": [1, 2]}),
    ):
        made.append(Case("MaxPool", [numbers("float32", *dims)], special=True, **attrs))
        for counts in (0, 1):
            made.append(Case("AveragePool", [numbers("float32", *dims)], count_include_pad=counts, **attrs))
    return made


def others() -> list[Case]:
    made = []
    for x, k, attrs in (
        ((2, 5, 9, 13), (3, 3), {"pads": [1] * 4}),
        ((1, 3, 40, 20), (5, 2), {"pads": [2, 0, 1, 1], "strides": [2, 2], "dilations": [1, 3]}),
        ((1, 4, 8, 9), (1, 3), {"strides": [1, 3]}),
        ((2, 6, 50), (7,), {"pads": [3, 3]}),
        ((1, 6, 50), (4,), {"strides": [2], "dilations": [2], "pads": [5, 0]}),
        ((2, 37, 7, 7), (5, 5), {"pads": [2] * 4}),
        ((1, 16, 13, 9), (3, 2), {"pads": [2, 1, 0, 1], "strides": [2, 1], "dilations": [2, 3]}),
        ((2, 20, 15), (3,), {"strides": [2]}),
    ):
        channels = x[1]
        weights = numbers("float32", channels, 1, *k), numbers("float32", channels)
        made.append(Case("Conv", [numbers("float32", *x)], *weights, group=channels, **attrs))
    for x, k, attrs in (
        ((2, 5, 9, 13), (3, 3), {"pads": [1] * 4}),
        ((1, 6, 7, 8), (4, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 2]}),
        ((1, 4, 30), (5,), {"strides": [2], "dilations": [2], "pads": [3, 1]}),
        ((1, 4, 9, 8), (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ):
        weights = numbers("float32", x[1], 1, *k), numbers("float32", x[1])
        made.append(Case("ConvTranspose", [numbers("float32", *x)], *weights, atol=1e-4, group=x[1], **attrs))
    for outs, ins, tall, wide, attrs in (
        (31, 1, 3, 3, {"pads": [1] * 4}),
        (17, 3, 3, 2, {"pads": [2, 0, 1, 1], "strides": [2, 2]}),
        (5, 2, 1, 4, {"strides": [1, 3], "dilations": [1, 2], "pads": [0, 5, 0, 7]}),
    ):
        weights = numbers("float32", outs, ins, tall, wide), numbers("float32", outs)
        made.append(Case("Conv", [numbers("float32", 2, ins, 30, 75)], *weights, atol=1e-4, **attrs))
        line = numbers("float32", outs, ins, wide)
        made.append(
            Case("Conv", [numbers("float32", 2, ins, 1000)], line, strides=attrs.get("strides", [1])[-1:], atol=1e-4)
        )
    for outs, side, attrs in ((16, 5, {"pads": [1] * 4}), (37, 14, {"pads": [2, 0, 1, 1], "strides": [2, 1]})):
        weights = numbers("float32", outs, 10, 3, 3), numbers("float32", outs)
        made.append(Case("Conv", [numbers("float32", 16, 10, side, side + 1)], *weights, atol=1e-4, **attrs))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    for op, steps, batch, hidden, direction in (
        ("LSTM", 5, 1, 9, "forward"), ("LSTM", 3, 2, 6, "bidirectional"), ("GRU", 4, 2, 7, "reverse"),
        ("GRU", 6, 1, 5, "bidirectional"), ("RNN", 4, 3, 6, "bidirectional"),
    ):  # fmt: skip
        count, width = 1 + (direction == "bidirectional"), gates[op] * hidden
        weights = (
            numbers("float32", count, width, 4),
            numbers("float32", count, width, hidden),
            numbers("float32", count, 2 * width),
        )
        starts = [numbers("float32", count, batch, hidden)] * (1 + (op == "LSTM"))
        for reset in (0, 1) if op == "GRU" else (0,):
            attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
            attrs |= {"linear_before_reset": reset} if op == "GRU" else {}
            made.append(
                Case(
                    op, [numbers("float32", steps, batch, 4)], *weights, None, *starts, outs=2 + (op == "LSTM"), **attrs
                )
            )
    for count in (1, 3):
        packed = numbers("uint8", 10, 3, 8), numbers("float32", 30)
        by_name: dict[str, Any] = {"K": 48, "N": 10, "bits": 4, "block_size": 16}
        given, bias = [numbers("float32", 2, count, 48)], numbers("float32", 10)
        made.append(Case("MatMulNBits", given, *packed, None, None, bias, domain=MICROSOFT, atol=1e-3, **by_name))
    return made


CASES = [*lines(), *rows(), *halves(), *integers(), *codes(), *scattered(), *products(), *choices(), *others()]


def image_model(activation: str, size: int) -> tuple[bytes, dict[str, Array]]:
    """Convolutions next to one another, with one depthwise, each followed by the activation."""
    shapes = ((20, 3, 3, 3), (20, 1, 3, 3), (34, 20, 1, 1), (18, 34, 3, 2), (4, 18, 2, 2))
    nodes, values, name = [], {}, "x0"
    for place, shape in enumerate(shapes):
        values |= {f"w{place}": numbers("float32", *shape, scale=0.3), f"b{place}": numbers("float32", shape[0])}
        attrs = {"group": 20 if shape[1] == 1 else 1, "pads": [1] * 4, "strides": [1 + place % 2] * 2}
        attrs["dilations"] = [1, 1 + place // 3]
        nodes.append(helper.make_node("Conv", [name, f"w{place}", f"b{place}"], [f"c{place}"], **attrs))
        bounds = ["low", "high"] if activation == "Clip" else []
        name = f"y{place}"
        nodes.append(helper.make_node(activation, [f"c{place}", *bounds], [name]))
    values |= {"low": scalar(-0.5), "high": scalar(2.0)}
    weights = [numpy_helper.from_array(value, key) for key, value in values.items()]
    given = helper.make_tensor_value_info("x0", 1, [1, 3, size, size])
    graph = helper.make_graph(nodes, "g", [given], [helper.make_value_info(name, onnx.TypeProto())], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString(), {"x0": numbers("float32", 1, 3, size, size)}


def run(model: bytes, is_fast: bool, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.add_session_config_entry(fast.ENTRY, str(int(is_fast)))
    session = ort.InferenceSession(model, options)
    found = [find_kernel(one.kernel.domain, one.kernel.op_type, one.version) for one in session.program.steps]
    assert is_fast is any(step.kernel is not kernel for step, kernel in zip(session.program.steps, found, strict=True))
    turned = {name: np.ascontiguousarray(np.flip(one)).reshape(one.shape) for name, one in feeds.items()}
    first, _, again, last = (session.run(None, given) for given in (feeds, turned, feeds, feeds))
    assert [one.tobytes() for one in first] == [one.tobytes() for one in again] == [one.tobytes() for one in last]
    return again


@needs_numba
@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_compiled_form_has_the_numbers_of_numpy_and_onnxruntime(case: Case) -> None:
    model = case.model()
    feeds = {f"x{place}": one for place, one in enumerate(case.feeds)}
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for is_special in (False, True) if case.special else (False,):
        if is_special:
            feeds["x0"] = feeds["x0"].copy()
            feeds["x0"].flat[[3, 40, 50]] = np.nan, np.inf, -np.inf
        given, numpy_alone = run(model, True, feeds), run(model, False, feeds)
        for one, other in zip(given, numpy_alone, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=case.atol)
        if not is_special:
            for one, other in zip(given, theirs.run(None, feeds), strict=True):
                np.testing.assert_allclose(
                    one, other, rtol=1e-4, atol=max(case.atol, 1 if one.dtype.kind in "iu" else 0)
                )


PATTERNS = (
    r"[a-z ]+",
    r"(a|ab)(c|bcd)(d*)",
    r"a{2,5}b?",
    r"[^a]*x?",
    r"(?i)AbC.*",
    "",
    r"(a*)*b",
    r"\d+\.\d*|\w+",
    r"\bab\b.*",
    "a{900}",
)


@needs_numba
@pytest.mark.long
def test_regular_expressions_match_the_same_strings_in_tables_of_states() -> None:
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list("abcdxA1. "), size)) for size in rng.integers(0, 7, 200)]
    for given in (texts, ["é", *texts[1:]], ["a" * size for size in range(800, 1000)]):
        x = np.array(given, object).reshape(20, 10)
        for pattern in PATTERNS:
            case = Case("RegexFullMatch", [x], pattern=pattern)
            wanted = onnxruntime.InferenceSession(case.model(), providers=["CPUExecutionProvider"]).run(None, {"x0": x})
            assert (run(case.model(), True, {"x0": x})[0] == wanted[0]).all(), pattern


@needs_numba
@pytest.mark.long
@pytest.mark.parametrize("activation", ["Relu", "Clip", "HardSwish", "Sigmoid"])
def test_image_models_have_the_numbers_of_onnxruntime(activation: str) -> None:
    for size in (9, 24):
        model, feeds = image_model(activation, size)
        wanted = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
        for is_fast in (True, False):
            np.testing.assert_allclose(run(model, is_fast, feeds)[0], wanted[0], rtol=1e-4, atol=1e-4)


@needs_numba
@pytest.mark.long
@pytest.mark.parametrize("dims", [(600, 256, 1024), (4096, 512, 96)])
def test_products_have_the_same_bits_at_any_number_of_threads(dims: tuple[int, int, int]) -> None:
    rows, inner, columns = dims
    x, given = numbers("float32", rows, inner), []
    model = Case("MatMul", [x], numbers("float32", inner, columns)).model()
    for count in (1, 3):
        options = ort.SessionOptions()
        options.intra_op_num_threads = count
        session = ort.InferenceSession(model, options)
        given += [session.run(None, {"x0": x})[0].tobytes() for _ in range(3)]
    assert len(set(given)) == 1


def test_numpy_computes_alone_where_numba_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError("Numba needs NumPy 2.2 or less")

    monkeypatch.setattr(fast, "is_installed", lambda: True)
    monkeypatch.setattr(fast.importlib, "import_module", refuse)
    monkeypatch.setattr(fast, "_module", fast._module.__wrapped__)
    case = Case("Softmax", [numbers("float32", 3, 5)])
    with pytest.warns(UserWarning, match="NumPy computes alone: Numba needs"):
        given = ort.InferenceSession(case.model()).run(None, {"x0": case.feeds[0]})
    np.testing.assert_allclose(given[0].sum(-1), 1, rtol=1e-6)
