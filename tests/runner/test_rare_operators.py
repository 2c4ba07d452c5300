"""Operators that few files have, with fast forms: the numbers of onnxruntime, with NumPy alone and with compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from test_compiled_forms import MICROSOFT, Array, Case, numbers, scalar

import fx2onnx.runner as ort
from fx2onnx.runner import fast


def gemms() -> list[Case]:
    made = []
    for rows, inner, columns, dtype in ((1, 40, 33, "int8"), (5, 700, 9, "uint8")):
        x, w, c = numbers("uint8", rows, inner), numbers(dtype, inner, columns), numbers("int32", columns)
        for turned in (0, 1):
            for scale, zero in ((scalar(0.01), scalar(3, dtype)), (np.linspace(0.01, 0.02, columns, dtype="float32"), np.full(columns, 3, dtype))):  # fmt: skip
                given = scalar(0.02), scalar(9, "uint8"), w.T.copy() if turned else w, scale, zero
                made.append(Case("QGemm", [x], *given, c, scalar(3.0), scalar(7, "uint8"), domain=MICROSOFT, transB=turned))  # fmt: skip
                made.append(Case("QGemm", [x], *given, c * 9999, domain=MICROSOFT, transB=turned, alpha=0.5))
                made.append(Case("QGemm", [x], *given, None, scalar(3.0), scalar(7, "uint8"), domain=MICROSOFT, transB=turned))  # fmt: skip
    return made


def cumulative() -> list[Case]:
    x = numbers("float32", 3, 5, 130)
    return [
        Case("CumSum", [x.astype(dtype)], np.array(axis), exclusive=exclusive, reverse=reverse)
        for dtype in ("float32", "int64")
        for axis in (0, 1, 2)
        for exclusive, reverse in ((0, 0), (1, 0), (1, 1))
    ]


def pools() -> list[Case]:
    made = []
    for dims, kernel, attrs in (
        ((2, 3, 9, 11), [3, 5], {"pads": [1, 2, 0, 1]}), ((1, 2, 12, 7), [5, 1], {"dilations": [2, 1]}),
        ((2, 3, 12, 10), [5, 4], {"pads": [2, 1, 2, 2], "strides": [1, 2]}), ((1, 2, 15, 16), [4, 5], {"dilations": [2, 3]}),
        ((1, 3, 8, 9), [2, 2], {"strides": [2, 2], "ceil_mode": 1}), ((2, 2, 6, 40), [1, 9], {"dilations": [1, 3]}),
        ((2, 3, 7, 5), [7, 5], {}), ((2, 3, 20), [20], {}), ((1, 2, 6, 9), [1, 4], {"auto_pad": "SAME_UPPER"}),
    ):  # fmt: skip
        x = numbers("float32", *dims)
        made += [Case(op, [x], kernel_shape=kernel, **attrs) for op in ("MaxPool", "AveragePool")]
        codes = np.moveaxis(numbers("uint8", *dims), 1, -1).copy()
        made.append(Case("NhwcMaxPool", [codes], kernel_shape=kernel, domain=MICROSOFT, **attrs))
    return made


def turns() -> list[Case]:
    cos, sin, places = numbers("float32", 9, 4), numbers("float32", 9, 4), np.array([[3, 0, 8], [1, 1, 7]])
    made = []
    for x in (numbers("float32", 2, 5, 3, 12), numbers("float32", 2, 3, 60)):
        heads = {"num_heads": 5} if x.ndim == 3 else {}
        for interleaved in (0, 1):
            made.append(Case("RotaryEmbedding", [x], cos, sin, places, opset=23, rotary_embedding_dim=8, interleaved=interleaved, **heads))  # fmt: skip
            made.append(Case("RotaryEmbedding", [x], places, cos, sin, domain=MICROSOFT, rotary_embedding_dim=8, num_heads=5, interleaved=interleaved))  # fmt: skip
    return made


def others() -> list[Case]:
    made = []
    for scales in ([1, 1, 2, 3], [1, 1, 1.5, 2], [1, 1, 9, 1]):
        factors = np.array(scales, np.float32)
        made.append(Case("Upsample", [numbers("float32", 2, 3, 6, 5)], factors, mode="nearest", opset=9))
        made.append(Case("Resize", [numbers("uint8", 2, 3, 6, 5)], None, factors, mode="nearest"))
    for dims in ((5, 7), (1, 9), (9, 1), (1, 6, 40)):
        made.append(Case("DynamicTimeWarping", [abs(numbers("float32", *dims)).round()], domain=MICROSOFT))
    ids = numbers("int64", 3, 20) % 3
    made += [
        Case("NGramRepeatBlock", [ids], numbers("float32", 3, 5), domain=MICROSOFT, ngram_size=n) for n in (1, 2, 4)
    ]
    boxes = np.array([[0, 0, 1, 1], [0.2, 0.9, 0.7, -0.4], [-0.5, 0.1, 1.5, 0.6], [0.3, 0.3, 0.3, 0.3]], np.float32)
    to_zero = np.array([[0.1, 0.1, 0, 0], [0.7, 0.1, 0, 0.3], [np.inf, 0.2, 0.9, np.nan], [0.2, -np.inf, 0.3, 1]], np.float32)  # fmt: skip
    for mode in ("bilinear", "nearest"):
        for size, ends in (([3, 4], boxes), ([1, 2], boxes), ([4, 4], to_zero)):
            given = ends, np.array([0, 1, 1, 0], np.int32), np.array(size, np.int32)
            made.append(Case("CropAndResize", [numbers("float32", 2, 3, 6, 1)], *given, domain=MICROSOFT, mode=mode))
            for dims in ((2, 3, 6, 7), (2, 3, 3, 3)):
                made.append(Case("CropAndResize", [numbers("float32", *dims)], *given, domain=MICROSOFT, mode=mode, extrapolation_value=-1.0))  # fmt: skip
    return made


def convolutions() -> list[Case]:
    """Images and lines of bytes, positions in several chunks, channels that fill no word."""
    made = []
    for x, w, attrs in (
        ((2, 5, 300), (7, 5, 3), {"pads": [2, 0], "strides": [2]}), ((1, 6, 40), (6, 1, 5), {"group": 6, "dilations": [2]}),
        ((1, 7, 40, 50), (70, 7, 1, 1), {}), ((1, 5, 70, 60), (600, 5, 1, 2), {"strides": [2, 1], "pads": [0, 1, 0, 0]}),
    ):  # fmt: skip
        for dtype, kind in (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")):
            codes, weights = numbers(dtype, *x), numbers(kind, *w)
            zero, zeros, scale = (
                scalar(9, dtype),
                np.full(w[0], 4, kind),
                np.linspace(0.01, 0.02, w[0], dtype="float32"),
            )
            given = scalar(0.02), zero, weights, scale, zeros, scalar(1.7), scalar(5, dtype), numbers("int32", w[0])
            made.append(Case("QLinearConv", [codes], *given, **attrs))
            made.append(Case("QLinearConv", [np.moveaxis(codes, 1, -1).copy()], *given, domain=MICROSOFT, channels_last=1, **attrs))  # fmt: skip
            if (dtype, kind) == ("uint8", "uint8"):
                made.append(Case("ConvInteger", [codes], weights, zero, scalar(4, kind), **attrs))
    return made


def tables() -> list[Case]:
    """Values that are looked up, triangles, integers that are multiplied, positions of images."""
    made = []
    words = np.array(["a", "b", "z", "", "a"], object)
    for keys, x in (({"keys_strings": ["a", "b", "c"]}, words), ({"keys_int64s": [3, 1]}, np.array([1, 2, 3])), ({"keys_floats": [1.5, 3.0]}, np.array([1.5, np.nan, 2], np.float32))):  # fmt: skip
        for values in ({"values_int64s": [7, 8, 9]}, {"values_floats": [0.5, 1.5, 2.5]}, {"values_strings": ["x", "y", "w"]}):  # fmt: skip
            count = len(next(iter(keys.values())))
            if (x.dtype == object) != ("values_strings" in values):
                made.append(Case("LabelEncoder", [x], domain="ai.onnx.ml", **keys, **{key: one[:count] for key, one in values.items()}))  # fmt: skip
    made += [Case("OneHotEncoder", [words.reshape(5, 1)], domain="ai.onnx.ml", cats_strings=["b", "a", "c"])]
    for dtype in ("float32", "float16", "int64", "bool", "float64"):
        x = numbers("float32", 2, 5, 7).astype(dtype)
        made += [Case("Trilu", [x], np.array(k), upper=upper) for k in (-2, 0, 3) for upper in (0, 1)]
    for dtype in ("int32", "int64", "uint32"):
        for scale in (1, 90000):
            a, b = (numbers("int32", *dims).astype(dtype) * np.asarray(scale, dtype) for dims in ((2, 9, 30), (30, 25)))
            made.append(Case("MatMul", [a, b]))
    made.append(Case("MatMulInteger16", [numbers("int16", 20, 30), numbers("int16", 30, 19)], domain=MICROSOFT))
    for size in ([2, 3, 5, 6], [2, 1, 3, 4, 5], [2, 3, 1, 1]):
        theta = numbers("float32", 2, len(size) - 2, len(size) - 1)
        made += [Case("AffineGrid", [theta], np.array(size), align_corners=align) for align in (0, 1)[: size[-1]]]
    made.append(Case("Gelu", [numbers("float32", 3, 50)], domain=MICROSOFT))
    for mode, scales in (
        ("linear", [1.3, 0.7]),
        ("cubic", [0.5, 0.5]),
        ("nearest", [1.7, 0.4]),
    ):  # sizes are rounded down
        image, by, roi = (
            numbers("float32", 1, 2, 3, 3),
            np.float32([1, 1, *scales]),
            np.float32([0, 0, 0.1, 0.2, 1, 1, 0.8, 1]),
        )
        for place in ("pytorch_half_pixel", "tf_crop_and_resize"):
            made.append(Case("Resize", [image], roi, by, mode=mode, coordinate_transformation_mode=place))
    made += [
        Case("DynamicQuantizeLinear", [x], outs=3) for x in (np.zeros(5, np.float32), np.zeros((0, 2), np.float32))
    ]
    for texts in (["éÀ", "the", "a the"], ["", ""], ["the"]):  # whole elements are stop words, and accents stay
        words = {"stopwords": ["the"], "is_case_sensitive": 1, "case_change_action": "NONE"}
        made.append(Case("StringNormalizer", [np.array(texts, object)], **words))
    values = np.array([78.2452392578125, 1e-5, 123456789, 1.5e10, 65504, 1 / 3, -0.0, 2, np.nan, np.inf, -np.inf])
    with np.errstate(over="ignore"):
        made += [Case("Cast", [values.astype(dtype)], to=8) for dtype in ("float16", "float32", "float64")]
    for scale in (0.3, 0.5, 0.7):  # to the next element above
        made.append(Case("Resize", [numbers("float32", 1, 1, 9, 10)], np.float32([1, 1, scale, 1.5]), opset=10))
    for dtype in ("uint8", "int8", "int32"):  # cut, not rounded
        made.append(Case("Resize", [numbers(dtype, 1, 2, 5, 4)], None, np.float32([1, 1, 2, 2]), mode="linear"))
    for mode in ("linear", "cubic"):  # rounded after each axis
        by = np.float32([1, 1, 0.5, 0.75])
        made.append(Case("Resize", [numbers("uint8", 1, 2, 8, 12)], None, by, mode=mode, antialias=1))
    line = numbers("float32", 3, 2)
    for low, high in ((2, -4), (-4, 2), (3, -5), (-3, 1), (2, -1)):  # a pad that cuts what the other one adds
        made.append(Case("Pad", [line], np.array([low, 0, high, 0])))
    for start, end, step in ((-9, -9, -1), (-4, -(2**31), -3), (-4, 9, -1), (9, -9, -2)):  # before the first element
        made.append(Case("Slice", [line], *(np.array([number]) for number in (start, end, 0, step))))
    for dims, factor, rule in (([5, 1], 2.3, "ceil"), ([7, 1], 1.3, "floor")):  # between two elements in float32
        by = np.float32([1, 1, factor, 1])
        attrs = {"mode": "nearest", "nearest_mode": rule, "coordinate_transformation_mode": "half_pixel_symmetric"}
        made.append(Case("Resize", [numbers("float32", 1, 2, *dims)], None, by, **attrs))
    return made


def blocks() -> list[Case]:
    made = []
    packed = numbers("uint8", 6, 32), np.array([[0, 5], [3, -1]]), abs(numbers("float32", 6, 4))
    for points in (None, numbers("uint8", 6, 2)):
        made.append(Case("GatherBlockQuantized", [*packed, *([] if points is None else [points])], domain=MICROSOFT, bits=4, block_size=16))  # fmt: skip
    for steps in (1, 7, 150):
        q, k, v = (numbers("float32", 2, steps, width, scale=0.3) for width in (24, 12, 6))
        for rule, rest in (("linear", []), ("gated_delta", [-abs(numbers("float32", 2, steps, 3)), abs(numbers("float32", 2, steps, 3))])):  # fmt: skip
            past = numbers("float32", 2, 3, 4, 2)
            made.append(Case("LinearAttention", [q, k, v, past, *rest], domain=MICROSOFT, outs=2, q_num_heads=6, kv_num_heads=3, update_rule=rule))  # fmt: skip
    x, w, bias, scales = (
        numbers("uint8", 2, 5, 16),
        numbers("int8", 16, 36),
        numbers("float32", 36),
        (scalar(0.01), scalar(0.02)),
    )
    for mask in (None, np.array([5, 3], np.int32)):
        for zeros in ((None, None), (scalar(120, "uint8"), scalar(3, "int8"))):
            made.append(Case("QAttention", [x], w, bias, *scales, mask, *zeros, domain=MICROSOFT, num_heads=3, unidirectional=1))  # fmt: skip
    for a, b in (((2, 3, 5, 20), (2, 3, 20, 9)), ((4, 20), (20, 9))):
        given = (
            numbers("uint8", *a),
            scalar(0.02),
            scalar(9, "uint8"),
            numbers("int8", *b),
            scalar(0.01),
            scalar(3, "int8"),
        )
        made.append(Case("QLinearMatMul", list(given), scalar(0.7), scalar(5, "uint8")))
        made.append(Case("MatMulInteger", [given[0], given[3], given[2], given[5]]))
    for group in (1, 2):
        taps = numbers("float32", 4, 4 // group, 3, 2, scale=0.3), numbers("float32", 1, 24, 6, 8)
        made.append(Case("DeformConv", [numbers("float32", 1, 4, 8, 9), *taps], opset=19, group=group, offset_group=2))
    return made


CASES = [*gemms(), *tables(), *blocks(), *convolutions(), *cumulative(), *pools(), *turns(), *others()]


def runs(model: bytes, is_fast: bool, feeds: dict[str, Array]) -> list[Array]:
    """The results of the third run, for which the plan was made with other values; the first one has the same bits."""
    options = ort.SessionOptions()
    options.add_session_config_entry(fast.ENTRY, str(int(is_fast)))
    session = ort.InferenceSession(model, options)
    turned = {name: np.ascontiguousarray(np.flip(one)).reshape(one.shape) for name, one in feeds.items()}
    first, _, third = (session.run(None, given) for given in (feeds, turned, feeds))
    assert [one.tolist() for one in first] == [one.tolist() for one in third]
    return third


@pytest.mark.parametrize("is_fast", [False, True] if fast.is_installed() else [False])
@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_numbers_of_onnxruntime(case: Case, is_fast: bool) -> None:
    model: Any = case.model()
    feeds = {f"x{place}": one for place, one in enumerate(case.feeds)}
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    for one, other in zip(runs(model, is_fast, feeds), theirs, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=case.atol)
        else:
            np.testing.assert_array_equal(one, other)
