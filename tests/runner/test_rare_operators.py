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


CASES = [*gemms(), *cumulative()]


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
