"""A graph is checked against itself: operands that do not fit are an error where the node is emitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.base.errors import UserError
from fx2onnx.irx.builder import Builder
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.table import Contradiction, differ
from fx2onnx.irx.values import dims_of, new_value
from fx2onnx.sizes.expr import Dim, DimLike

N, M = Dim.symbol("n"), Dim.symbol("m")
SIZES = st.lists(st.sampled_from([1, 2, 3]), min_size=0, max_size=4).map(tuple)


def emitter(**sizes: int) -> Emit:
    builder = Builder(20)
    builder.sizes = sizes
    return Emit(builder)


def value(*dims: DimLike) -> ir.Value:
    return new_value("x", ir.DataType.FLOAT, dims)


def _fits(emit: Callable[[], ir.Value], wanted: Callable[[], Any]) -> None:
    """NumPy and the rule agree on whether the operands fit, and on the shape."""
    try:
        shape = wanted().shape
    except ValueError:
        with pytest.raises(Contradiction):
            emit()
    else:
        assert dims_of(emit()) == shape


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(SIZES, SIZES)
def test_broadcasting_is_numpys(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    _fits(lambda: emitter().Add(value(*one), value(*other)), lambda: np.zeros(one) + np.zeros(other))


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(SIZES.filter(len), SIZES.filter(len))
def test_matrix_products_are_numpys(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    _fits(lambda: emitter().MatMul(value(*one), value(*other)), lambda: np.zeros(one) @ np.zeros(other))


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.lists(SIZES.filter(lambda dims: len(dims) == 3), min_size=1, max_size=3), st.integers(0, 2))
def test_concat_is_numpys(shapes: list[tuple[int, ...]], axis: int) -> None:
    _fits(
        lambda: emitter().Concat(*(value(*dims) for dims in shapes), axis=axis),
        lambda: np.concatenate([np.zeros(dims) for dims in shapes], axis),
    )


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(SIZES, st.lists(st.sampled_from([1, 2, 3, 4, 6, -1]), max_size=3).filter(lambda dims: dims.count(-1) < 2))
def test_reshape_is_numpys(dims: tuple[int, ...], target: list[int]) -> None:
    _fits(lambda: emitter().Reshape(value(*dims), target), lambda: np.zeros(dims).reshape(target))


@pytest.mark.parametrize(
    "emit",
    [
        lambda op: op.Gemm(value(2, 3), value(2, 3), transA=0, transB=0),
        lambda op: op.Gemm(value(2, 3), value(3, 4), value(3)),
        lambda op: op.Conv(value(1, 4, 5, 5), value(6, 3, 3, 3)),
        lambda op: op.Conv(value(1, 4, 5, 5), value(6, 4, 3, 3), group=2),
        lambda op: op.Where(new_value("c", ir.DataType.BOOL, (2,)), value(3), value(1)),
        lambda op: op.Less(value(2, 3), value(2, 4)),
        lambda op: op.Expand(value(2, 3), [2, 4]),
        lambda op: op.LayerNormalization(value(2, 3), value(4)),
        lambda op: op.BatchNormalization(value(2, 3), *(value(4) for _ in range(4))),
        lambda op: op.Split(value(5), [2, 2], outputs=2),
    ],
)
def test_operands_that_do_not_fit(emit: Callable[[Emit], object]) -> None:
    with pytest.raises(Contradiction) as caught:
        emit(emitter())
    assert caught.value.code == "E900"
    assert "operands that do not fit: float[" in str(caught.value) or "bool[2]" in str(caught.value)


def test_symbolic_sizes_contradict_each_other_at_the_samples() -> None:
    with pytest.raises(Contradiction):
        emitter().MatMul(value(2, N), value(N + 1, 3))
    with pytest.raises(Contradiction):
        emitter(n=4, m=5).MatMul(value(2, 2 * N), value(M + 4, 3))
    emitter(n=4, m=4).MatMul(value(2, 2 * N), value(M + 4, 3))
    emitter().MatMul(value(2, 2 * N), value(M + 4, 3))  # nothing is known of sizes that the data gives


def test_a_size_of_one_broadcasts_at_the_samples() -> None:
    emitter(n=1).Add(value(N), value(4))
    with pytest.raises(Contradiction):
        emitter(n=3).Add(value(N), value(4))


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(*(st.integers(-3, 3) for _ in range(4)), st.integers(1, 9), st.integers(1, 9))
def test_differ_is_what_numbers_say(a: int, b: int, c: int, d: int, n: int, m: int) -> None:
    one, other = a * N + b * M + 1, c * N + d * M
    assert differ(one, other, {"n": n, "m": m}) == (a * n + b * m + 1 != c * n + d * m)


def _of(dtype: ir.DataType, *dims: DimLike) -> ir.Value:
    return new_value("y", dtype, dims)


@pytest.mark.parametrize(
    "emit",
    [
        lambda op: op.Gemm(value(2, 3), _of(ir.DataType.FLOAT16, 3, 4)),
        lambda op: op.Add(value(2), _of(ir.DataType.INT64, 2)),
        lambda op: op.Where(_of(ir.DataType.BOOL, 2), value(2), _of(ir.DataType.DOUBLE, 2)),
        lambda op: op.Concat(value(2), value(2), _of(ir.DataType.DOUBLE, 2), axis=0),
        lambda op: op.LayerNormalization(value(2, 3), _of(ir.DataType.DOUBLE, 3), axis=-1),
    ],
)
def test_operands_have_the_dtype_that_the_schema_ties_them_to(emit: Callable[[Emit], ir.Value]) -> None:
    with pytest.raises(Contradiction, match="operands that do not fit"):
        emit(emitter())


@pytest.mark.parametrize(
    ("emit", "says"),
    [
        (lambda op: op.And(value(2), value(2)), "And takes no float32 in opset 20"),
        (lambda op: op.Softmax(_of(ir.DataType.INT64, 2)), "Softmax takes no int64 in opset 20"),
        (lambda op: op.Gather(value(2), value(2)), "Gather takes no float32 in opset 20"),
    ],
)
def test_a_dtype_that_the_schema_does_not_have_is_refused(emit: Callable[[Emit], ir.Value], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        emit(emitter())
    assert caught.value.code == "E203"


def test_operands_of_types_of_their_own_need_not_be_alike() -> None:
    op = emitter()
    assert dims_of(op.Gather(value(2, 3), _of(ir.DataType.INT32, 4))) == (4, 3)
    assert dims_of(op.Pow(value(2), _of(ir.DataType.INT64, 2))) == (2,)
    assert dims_of(op.Concat(value(2), value(3), axis=0)) == (5,)
