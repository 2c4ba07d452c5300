"""onnxruntime's operators on arrays in general, and its gates: the same numbers as in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_contrib import F16, F32, F64, MICROSOFT, Array, check, draw, model_of, results

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.semantics.kernels import contrib
from fx2onnx.semantics.registry import find_kernel
from fx2onnx.semantics.schemas import is_of_other_processors, signature_of

I32, I64 = np.int32, np.int64


class Case(NamedTuple):
    """One node and its feeds."""

    op_type: str
    feeds: Mapping[str, Array | None]
    outputs: str = "y"
    attrs: Mapping[str, Any] = {}
    tolerance: float = 2e-5
    domain: str = MICROSOFT


def ids(*shape: int, most: int = 9, dtype: Any = I64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, most, shape).astype(dtype)


def number(value: float, dtype: Any = F32) -> Array:
    return np.array(value, dtype)


TEXT = np.array(["", "a", "abcd", "abcdefg", "größe"], object)
BOXES = np.array([[0, 0, 1, 1], [0.2, 0.3, 0.9, 0.6], [0.9, 0.1, 0.2, 1.3]], F32)
SQUARE = draw(2, 4, 4) + 4 * np.eye(4, dtype=F32)
PATH = np.abs(draw(5, 7))

CASES = [
    Case("Range", {"a": number(1), "b": number(6.5), "c": number(1.5)}),
    Case("Range", {"a": number(5, I64), "b": number(-4, I64), "c": number(-2, I64)}),
    Case("Range", {"a": number(0, I32), "b": number(4, I32), "c": None}),
    *[Case("ExpandDims", {"x": draw(2, 3), "axis": number(axis, I32)}) for axis in (0, 1, 2, -1)],
    Case("Pad", {"x": draw(2, 3), "pads": np.array([0, 2, 1, 0], I64), "v": number(0.5)}),
    Case("Pad", {"x": draw(3, 4), "pads": np.array([[1, 1, 1, 2]], I64)}, attrs={"mode": "reflect"}),
    Case("Pad", {"x": draw(3, 4), "pads": np.array([1, 0, 0, 2], I64)}, attrs={"mode": "edge"}),
    Case("GatherND", {"x": draw(3, 4, 5), "i": np.array([[[0, 1], [2, 3]]], I64)}),
    Case("GatherND", {"x": draw(3, 4, 5), "i": np.array([[2], [0]], I32)}),
    *[Case("Trilu", {"x": draw(2, 4, 5), "k": number(k, I64)}, attrs={"upper": k % 2}) for k in (-1, 0, 1, 2)],
    *[
        Case(
            "GridSample", {"x": draw(2, 3, 5, 6), "grid": 0.7 * draw(2, 4, 3, 2)}, attrs={"mode": m, "padding_mode": p}
        )
        for m, p in (("bilinear", "zeros"), ("nearest", "border"), ("bicubic", "reflection"))
    ],
    Case("Inverse", {"x": SQUARE}),
    Case("Inverse", {"x": SQUARE.astype(F64)}, tolerance=1e-9),
    Case("SampleOp", {"x": draw(2, 3)}),
    *[Case("CDist", {"a": draw(4, 3), "b": draw(5, 3, seed=2)}, attrs={"metric": m}) for m in ("sqeuclidean", "euclidean")],
    Case("UnfoldTensor", {"x": draw(2, 7, 3)}, attrs={"dim": 1, "size": 3, "step": 2}),
    Case("UnfoldTensor", {"x": ids(4, 5)}, attrs={"size": 2}),
    Case("Unique", {"x": np.array([2, 1, 1, 3, 4, 3], F32)}, "y i c"),
    *[Case("NGramRepeatBlock", {"i": ids(3, 12, most=3), "s": draw(3, 5)}, attrs={"ngram_size": n}) for n in (1, 2, 3)],
    Case("BifurcationDetector", {"s": np.array([1, 2, 3, 4, 5]), "c": np.array([9]), "p": number(0, I64), "q": np.array([1, 2, 3, 9, 9, 9])}, "t m"),
    Case("BifurcationDetector", {"s": np.array([1, 2, 3, 2, 3]), "c": np.array([1, 2, 3]), "p": number(0, I64)}, "t m"),
    Case("DynamicTimeWarping", {"x": PATH}),
    Case("DynamicTimeWarping", {"x": np.ones((1, 3, 3), F32)}),
    *[Case("DynamicTimeWarping", {"x": draw(rows, columns)}) for rows, columns in ((1, 7), (7, 1), (9, 20), (20, 9))],
    *[Case("DynamicTimeWarping", {"x": ids(11, 8, most=most).astype(F32)}) for most in (1, 2, 5)],
    *[
        Case("DynamicTimeWarping", {"x": np.where(ids(6, 9, most=5) == 0, F32(value), draw(6, 9))})
        for value in (np.nan, np.inf)
    ],
    *[
        Case(
            "CropAndResize",
            {"x": draw(2, 3, 6, 7), "r": BOXES, "b": np.array([0, 1, 1], I32), "s": np.array(size, I32)},
            attrs={"mode": mode, "extrapolation_value": -1.0},
        )
        for mode, size in (("bilinear", [4, 5]), ("nearest", [3, 3]), ("bilinear", [1, 2]))
    ],
    Case("MaxpoolWithMask", {"x": draw(1, 2, 6, 6), "m": ids(1, 1, 6, 6, most=2, dtype=I32)}, attrs={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case(
        "ConvTransposeWithDynamicPads",
        {"x": draw(1, 2, 4, 4), "w": draw(2, 3, 3, 3), "p": np.array([1, 0, 1, 1], I64), "b": draw(3)},
        attrs={"strides": [2, 2]},
    ),
    *[Case("MurmurHash3", {"x": x}, attrs={"positive": p, "seed": 7}) for x in (ids(3, 4), ids(5, dtype=I32)) for p in (0, 1)],
    Case("MurmurHash3", {"x": draw(3)}),
    Case("MurmurHash3", {"x": draw(3, dtype=F64)}),
    Case("MurmurHash3", {"x": TEXT}),
    Case("Affine", {"x": draw(2, 3)}, attrs={"alpha": 2.0, "beta": 0.5}, domain=""),
    Case("Scale", {"x": draw(2, 3)}, attrs={"scale": 3.0}, domain=""),
    Case("ScaledTanh", {"x": draw(2, 3)}, attrs={"alpha": 2.0, "beta": 0.5}, domain=""),
    Case("ParametricSoftplus", {"x": draw(2, 3)}, attrs={"alpha": 2.0, "beta": 0.5}, domain=""),
    Case("ImageScaler", {"x": draw(1, 2, 3, 3)}, attrs={"scale": 2.0, "bias": [0.5, 1.0]}, domain=""),
    Case("Crop", {"x": draw(1, 2, 6, 7)}, attrs={"border": [1, 2, 1, 0]}, domain=""),
    Case("Crop", {"x": draw(1, 2, 6, 7)}, attrs={"border": [1, 2, 0, 0], "scale": [3, 2]}, domain=""),
    Case("DynamicSlice", {"x": draw(4, 5), "s": np.array([1, 0]), "e": np.array([3, 4])}, domain=""),
    Case("DynamicSlice", {"x": draw(4, 5), "s": np.array([1]), "e": np.array([-1]), "a": np.array([1])}, domain=""),
]  # fmt: skip

GATES = [
    Case("BranchwiseRMSNorm", {"x": draw(2, 3, 8), "s": draw(8)}),
    Case("BranchwiseRMSNorm", {"x": draw(2, 24), "s": draw(24)}, attrs={"num_branches": 3}),
    Case("BranchwiseRMSNorm", {"x": draw(2, 3, 8, dtype=F16), "s": draw(3, 8)}, tolerance=4e-3),
    *[
        Case("GatedRMSNorm", {"x": draw(2, 3, 16), "s": draw(8), "g": draw(2, 3, 16, seed=1)}, attrs={"activation": a})
        for a in ("silu", "swish", "sigmoid")
    ],
    Case("GatedAdd", {"x": draw(2, 3, 8), "y": draw(2, 3, 8, seed=1), "g": draw(2, 3, 1)}, "z"),
    Case("GatedAdd", {"x": draw(3, 8, dtype=F16), "y": draw(3, 8, dtype=F16, seed=1), "g": draw(3, 1, dtype=F16)}, "z", tolerance=2e-3),
    Case("ScaledSiLU", {"x": draw(3, 5)}, attrs={"alpha": 0.7}),
    Case("ScaledSiLU", {"x": draw(3, 5), "s": number(1.3)}),
    *[Case("HyperConnectionPreMix", {"x": draw(2, 3, 8), "m": m}, attrs={"reduction_scale": 0.5}) for m in (draw(2, 3), draw(2, 3, 1), draw(2, 3, 8))],
    Case("HyperConnectionPreMix", {"x": draw(2, 24), "m": draw(2, 24)}, attrs={"num_branches": 3}),
    *[Case("HyperConnectionPostMix", {"x": draw(2, 3, 8), "b": draw(2, 8), "p": draw(2, 3), "m": m}) for m in (None, draw(2, 3, 3))],
    Case("LinearAttentionGate", {"a": draw(2, 3, 4), "d": draw(4), "s": -np.abs(draw(4)), "b": draw(2, 3, 4)}, "decay beta"),
    Case("LinearAttentionGate", {"a": draw(2, 3, 4), "d": draw(4), "s": draw(4)}, "decay"),
    Case(
        "EngramGate",
        {"k": draw(2, 3, 2, 8), "q": draw(2, 3, 2, 8, seed=1), "v": draw(2, 3, 8), "ks": draw(2, 8), "qs": draw(2, 8, seed=3), "cs": draw(2, 8)},
        "y normed",
    ),
]  # fmt: skip


def name_of(case: Case) -> str:
    return f"{case.op_type}-{'-'.join(str(value) for value in case.attrs.values())}"


@pytest.mark.parametrize("case", [*CASES, *GATES], ids=name_of)
def test_the_same_as_onnxruntime(case: Case) -> None:
    found = results(case.op_type, case.feeds, case.outputs, case.domain, **case.attrs)
    check(found, case.tolerance)


WRONG: list[tuple[Case, str]] = [
    (Case("Range", {"a": number(0), "b": number(1), "c": number(0)}), "delta is 0"),
    (Case("Inverse", {"x": draw(2, 3)}), "no square matrices"),
    (Case("CDist", {"a": draw(4, 3), "b": draw(5, 2)}), "do not fit"),
    (Case("UnfoldTensor", {"x": draw(2, 3)}, attrs={"size": 9}), "slices of 9"),
    (Case("NGramRepeatBlock", {"i": ids(1, 4, most=1) + 9, "s": draw(1, 5)}, attrs={"ngram_size": 1}), "out of range"),
    (Case("Crop", {"x": draw(1, 1, 2, 2)}, attrs={"border": [5, 5, 5, 5]}, domain=""), "do not fit"),
    (Case("GatedAdd", {"x": draw(2, 3), "y": draw(2, 3), "g": draw(2, 3)}, "z"), "do not fit"),
]


@pytest.mark.parametrize(("case", "message"), WRONG, ids=lambda each: each.op_type if isinstance(each, Case) else "")
def test_what_does_not_fit(case: Case, message: str) -> None:
    model = model_of(case.op_type, case.feeds, case.outputs, case.domain, dict(case.attrs))
    with pytest.raises(UserError, match=message):
        ort.InferenceSession(model).run(None, {name: x for name, x in case.feeds.items() if x is not None})


def test_every_operator_of_the_table_has_its_kernel() -> None:
    for (domain, file), op_types in contrib.FAMILIES.items():
        for op_type in op_types.split():
            found = find_kernel(domain, op_type, 1)
            assert found is not None, (file, op_type)
            assert signature_of(domain, op_type, 20) is not None, op_type


def test_every_operator_of_onnxruntimes_cpu_provider_runs_or_is_refused() -> None:
    from tools.onnxruntime_schemas import table

    for domain, operators in table()["operators"].items():
        for op_type in operators:
            assert find_kernel(domain, op_type, 1) is not None or (
                domain == MICROSOFT and op_type in contrib.REFUSED
            ), op_type
    for op_type in contrib.REFUSED:
        assert find_kernel(MICROSOFT, op_type, 1) is None
        assert not is_of_other_processors(MICROSOFT, op_type)
