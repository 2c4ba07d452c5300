"""Rounding to codes: what the numbers of the codes are, how far from the weight's, and the bytes that are written."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnxruntime.capi import onnxruntime_pybind11_state

from fx2onnx.base.errors import UserError
from fx2onnx.irx.data_file import pieces_of
from fx2onnx.quantize import weights
from fx2onnx.quantize.schemes import NF4, SCHEMES, unpacked
from fx2onnx.quantize.stored import rounded
from fx2onnx.quantize.weights import RowWeight

NUMBERS = st.floats(-1000, 1000, width=32)
STEPS = {"int8": 1 / 127, "int4": 1 / 8, "uint4": 1 / 15, "nf4": 0.305, "float8": 32 / 448}
"""Half of the widest gap between neighbouring numbers, doubled, of a block's largest number; of uint4, of its range."""


@settings(max_examples=40, deadline=None)
@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 70)), elements=NUMBERS),
    st.sampled_from(sorted(STEPS)),
    st.integers(1, 40),
)
@example(np.float32([[1, -1]]), "int4", 2)
def test_every_number_is_rounded_to_the_nearest(array: np.ndarray, kind: str, block: int) -> None:
    found = rounded(array, kind, 1, block)
    for start in range(0, array.shape[1], block):
        part, got = (each[:, start : start + block].astype(np.float64) for each in (array, found))
        size = np.abs(part).max(1, keepdims=True)
        if kind == "uint4":
            size = np.maximum(part.max(1, keepdims=True), 0) - np.minimum(part.min(1, keepdims=True), 0)
        # of uint4 the zero point is rounded, too
        allowed = size * STEPS[kind] * (1 if kind == "uint4" else 0.501) + 1e-30
        if kind == "int4":  # the largest is -8, so that what is as large on the other side becomes 7
            largest = np.where((part == -size).any(1, keepdims=True), -size, size)
            allowed = np.where((np.abs(part) > 7.4 / 8 * size) & (part * largest < 0), size / 8 * 1.002, allowed)
        assert np.all(np.abs(got - part) <= allowed)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float32, (6, 32), elements=NUMBERS | st.integers(-30, 30).map(lambda number: number / 2)),
    st.sampled_from(["int4", "uint4"]),
)
@example(np.arange(-8, 8, 0.5, np.float32)[None].repeat(6, 0), "int4")
@example(np.linspace(-2.5, 12.5, 32, dtype=np.float32)[None].repeat(6, 0), "uint4")
def test_codes_of_four_bits_are_those_of_onnxruntime(numbers: np.ndarray, kind: str) -> None:
    rows, block = numbers.shape
    codes, scales, zeros = (
        np.zeros((rows, 1, block // 2), np.uint8),
        np.zeros(rows, np.float32),
        np.zeros(rows, np.uint8),
    )
    columns = np.ascontiguousarray(numbers.T)
    onnxruntime_pybind11_state.quantize_matmul_4bits(codes, columns, scales, zeros, block, rows, block, kind == "int4")
    scheme = SCHEMES[kind]
    our_scales = scheme.scales(numbers, np.float32)
    our_zeros = scheme.zeros(numbers, our_scales)
    filled = numbers.any(1)  # the scale of an empty block means nothing
    np.testing.assert_array_equal(our_scales[filled], scales[filled])
    if our_zeros is not None:
        np.testing.assert_array_equal(our_zeros[filled], zeros[filled] & 15)  # two blocks a byte
    ours = scheme.codes(numbers, our_scales, our_zeros).astype(np.int16) + scheme.offset
    np.testing.assert_array_equal(ours[filled], unpacked(codes).reshape(numbers.shape)[filled])


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_numbers_near_nothing_are_rounded(kind: str) -> None:
    tiny = np.array([[-3e-39, 2.9e-39, 1e-39, 0]], np.float32)
    assert np.abs(rounded(tiny, kind, 1, 4) - tiny).max() < 5e-40


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_of_four_bits_is_the_least_code(sign: int) -> None:
    numbers = np.random.default_rng(0).standard_normal((2000, 32)).astype(np.float32)
    numbers *= sign * np.sign(numbers[np.arange(2000), np.abs(numbers).argmax(1)])[:, None]
    found, largest = rounded(numbers, "int4", 1, 32), np.abs(numbers).argmax(1)[:, None]
    wanted = np.take_along_axis(numbers, largest, 1)
    np.testing.assert_allclose(np.take_along_axis(found, largest, 1), wanted, rtol=1e-6)
    steps = np.abs(numbers).max(1, keepdims=True) / 7
    symmetric = np.rint(numbers / steps) * steps
    assert ((found - numbers) ** 2).mean() < 0.9 * ((symmetric - numbers) ** 2).mean()


def test_numbers_that_are_codes_stay() -> None:
    codes = np.arange(-8, 8, dtype=np.float32)
    np.testing.assert_array_equal(rounded(codes[None] * 0.5, "int4", 1, 16), codes[None] * 0.5)
    np.testing.assert_array_equal(rounded(NF4[None] * 3, "nf4", 1, 16), NF4[None] * 3)
    np.testing.assert_array_equal(rounded(np.zeros((2, 32), np.float32), "uint4", 1, 16), np.zeros((2, 32)))


@pytest.mark.parametrize(("kind", "rows", "columns", "block"), [("int4", 7, 77, 32), ("uint4", 9, 32, 16), ("int8", 5, 33, 33), ("nf4", 4, 64, 32)])  # fmt: skip
@pytest.mark.parametrize("is_turned", [False, True])
def test_bytes_are_made_some_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch, kind: str, rows: int, columns: int, block: int, is_turned: bool
) -> None:
    monkeypatch.setattr(weights, "WORKING_BYTES", 4 * columns * 3)
    array = np.random.default_rng(0).standard_normal((columns, rows) if is_turned else (rows, columns), np.float32)
    weight = RowWeight(ir.Tensor(array), (1, 0) if is_turned else None, (rows, columns), SCHEMES[kind], block)
    made = [
        weights.codes_tensor(weight, "codes", (rows, columns)),
        weights.scales_tensor(weight, "scales", (rows, weight.blocks)),
        weights.block_codes_tensor(weight, "blocks"),
        *([weights.zeros_tensor(weight, "zeros", (rows, weight.blocks))] if kind == "uint4" else []),
    ]
    for tensor in made:
        pieces = list(pieces_of(tensor, 1 << 20))
        assert sum(piece.length for piece in pieces) == tensor.nbytes
        assert tensor.tobytes() == ir.Tensor(tensor.numpy(), dtype=tensor.dtype).tobytes()
    assert len(list(pieces_of(made[0], 1 << 20))) > 1
    whole = RowWeight(ir.Tensor(array.T if is_turned else array), None, (rows, columns), SCHEMES[kind], block)
    np.testing.assert_array_equal(weight.values().T if is_turned else weight.values(), whole.values())


def test_numbers_that_are_not_finite_are_one_clear_error() -> None:
    array = np.ones((4, 64), np.float32)
    array[2, 3] = np.nan
    with pytest.raises(UserError, match="not finite") as caught:
        rounded(array, "int8", 1, 64)
    assert caught.value.code == "E203"
