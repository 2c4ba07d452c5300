"""Symbolic sizes: arithmetic agrees with numbers, whatever the sizes."""

from __future__ import annotations

import math
import pickle
from typing import Any

import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.irx.builder import Builder
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import new_value
from fx2onnx.sizes.expr import Dim, apply, evaluate, product

S, T = Dim.symbol("s"), Dim.symbol("t")
SIZES = st.fixed_dictionaries({"s": st.integers(1, 50), "t": st.integers(1, 50)})
LEAVES = st.sampled_from([S, T, 1, 2, 3, 5, 8])
BINARY: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "//": lambda a, b: apply("floordiv", a, b), "%": lambda a, b: apply("mod", a, b),
    "max": lambda a, b: apply("max", a, b), "min": lambda a, b: apply("min", a, b),
}  # fmt: skip
TREES = st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from(sorted(BINARY)), inner, inner), max_leaves=6)


def build(tree: Any, leaf: Any) -> Any:
    """The tree with every symbol replaced by ``leaf(symbol)``."""
    if isinstance(tree, tuple):
        return BINARY[tree[0]](build(tree[1], leaf), build(tree[2], leaf))
    return leaf(tree) if isinstance(tree, Dim) else tree


@pytest.mark.long
@settings(max_examples=300, deadline=None, derandomize=True)
@given(tree=TREES, sizes=SIZES)
def test_expressions_evaluate_as_numbers_do(tree: Any, sizes: dict[str, int]) -> None:
    try:
        want = build(tree, lambda dim: sizes[dim.as_symbol()])
        symbolic = build(tree, lambda dim: dim)
    except ZeroDivisionError:
        return
    assert evaluate(symbolic, sizes) == want


@pytest.mark.parametrize(
    ("dim", "is_real"),
    [
        (apply("pow", apply("float", S), -0.5), True),
        (apply("pow", S, 2), False),
        (apply("max", apply("truediv", S, 3), 1), True),
        (apply("min", S, T), False),
        (apply("abs", apply("float", S) - 1.5), True),
        (apply("floor", apply("pow", apply("float", S), 0.5)), False),
    ],
)
def test_an_operation_of_real_numbers_is_one(dim: Dim, is_real: bool) -> None:
    assert dim.is_real == is_real


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((S + 1) * 2, 2 * S + 2),
        (S * T, T * S),
        (4 * S * T // (2 * S), 2 * T),
        ((2 * S * S + 4 * S + 2) // (2 * S + 2), S + 1),
        ((S * T + S + 3 * T + 3) // (T + 1), S + 3),
        (S - S, 0),
        (apply("mod", 0, S + 1), 0),
        ((6 * S + 3) // 3, 2 * S + 1),
        ((2 * S + 1) // 2, S),
        ((4 * S + T - 3) // 4, S + (T + 1) // 4 - 1),
        ((4 * S + T - 3) % 4, (T + 1) % 4),
        ((4 * S) % 2, 0),
        (apply("max", S + 1, S), S + 1),
        (apply("ceil", apply("truediv", S, 2)), -((-S) // 2)),
        (apply("floor", apply("truediv", S, 2)), S // 2),
        (apply("ceil", apply("truediv", S, 2) + apply("truediv", S - 1, 2)), S),
        (apply("floor", 3 * apply("truediv", S, 4) + apply("truediv", S * T, 2)), (3 * S + 2 * S * T) // 4),
        (product([S, 2, T]), 2 * S * T),
    ],
)
def test_equal_expressions_are_equal(left: Any, right: Any) -> None:
    assert left == right
    assert hash(left) == hash(right)


U = Dim.unbacked(0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (apply("floordiv", S * T, 4 * S), apply("floordiv", T, 4)),
        (apply("mod", S * T, 4 * S), S * apply("mod", T, 4)),
        (apply("floordiv", S * S * T + S * T, 3 * S * T), apply("floordiv", S + 1, 3)),
        (apply("floordiv", S * T + S, 4 * S), apply("floordiv", T + 1, 4)),
        (apply("floor", apply("float", S) * 0.5), apply("floordiv", S, 2)),
        (apply("trunc", apply("float", S) * 0.75), apply("floordiv", 3 * S, 4)),
        (apply("floor", apply("float", U) * 0.5), apply("floordiv", U, 2)),
    ],
)
def test_quotients_without_what_both_sides_have(found: Any, expected: Any) -> None:
    assert found == expected


@pytest.mark.parametrize("dim", [apply("float", S) * 0.1, apply("float", S) * 0.5 + 0.3, apply("float", S - 4) * 0.5])
def test_what_may_round_or_be_less_than_zero_is_kept(dim: Dim) -> None:
    """A product by 0.1 is rounded; ``trunc`` of less than zero is no quotient that is rounded down."""
    for size in range(60):
        assert evaluate(apply("trunc", dim), {"s": size}) == math.trunc(dim.evaluate({"s": size}))
    of_data = apply("trunc", apply("float", U) * 0.5)
    assert evaluate(of_data, {"u0": -3}) == -1


@pytest.mark.long
@settings(max_examples=200, deadline=None, derandomize=True)
@given(tree=TREES, factor=st.sampled_from([0.5, 0.25, 0.75, 1.5, 2.5, 0.1, 1 / 3, 0.7]), sizes=SIZES)
def test_shares_of_sizes_are_rounded_as_numbers_are(tree: Any, factor: float, sizes: dict[str, int]) -> None:
    try:
        size, want = build(tree, lambda dim: dim), build(tree, lambda dim: sizes[dim.as_symbol()])
    except ZeroDivisionError:
        return
    for op, function in (("floor", math.floor), ("trunc", math.trunc), ("ceil", math.ceil)):
        symbolic = apply(op, apply("float", size) * factor)
        assert evaluate(symbolic, sizes) == function(want * factor), (op, symbolic)


def test_text() -> None:
    assert str(2 * S + 1) == "2*s + 1"
    assert str((S + 1) // 2) == "((s + 1) // 2)"
    assert str(-S) == "-s"


@pytest.mark.long
@settings(max_examples=60, deadline=None, derandomize=True)
@given(tree=TREES, sizes=SIZES)
def test_emitted_arithmetic_gives_the_same_numbers(tree: Any, sizes: dict[str, int]) -> None:
    try:
        symbolic = build(tree, lambda dim: dim)
        want = evaluate(symbolic, sizes)
    except ZeroDivisionError:
        return
    builder = Builder(18)
    op = Emit(builder)
    x = new_value("x", ir.DataType.FLOAT, (S, T))
    builder.symbols.update({"s": (x, 0), "t": (x, 1)})
    result = op.Identity(op.size(symbolic))
    graph = ir.Graph(
        [x],
        [result],
        nodes=builder.nodes,
        initializers=list(builder.initializers.values()),
        opset_imports={"": 18},
        name="g",
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=8))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    import numpy as np

    (got,) = session.run(None, {"x": np.zeros((sizes["s"], sizes["t"]), np.float32)})
    assert int(got) == int(want)
    assert not math.isnan(float(got))


@pytest.mark.parametrize("op", ["floordiv", "mod"])
@pytest.mark.parametrize(("factor", "constant", "divisor"), [(2, 0, 16), (-2, 5, 8), (6, -7, 9), (4, 3, 2), (-4, 1, 6)])
def test_a_common_number_is_taken_out(op: str, factor: int, constant: int, divisor: int) -> None:
    inner = apply("mod", Dim.symbol("n"), 7)
    value = apply(op, inner * factor + constant, divisor)
    for n in range(30):
        expected = factor * (n % 7) + constant
        found = value.evaluate({"n": n}) if isinstance(value, Dim) else value
        assert found == (expected // divisor if op == "floordiv" else expected % divisor)
    assert apply("floordiv", inner * 2, 16) == apply("floordiv", inner, 8)


def test_a_number_of_data_is_told_by_its_kind() -> None:
    """A size whose name looks like such a number is a size: not below 0, and another one."""
    size, number = Dim.symbol("u0"), Dim.unbacked(0)
    assert str(size) == str(number)
    assert size != number
    assert (size.unbacked_symbols(), number.unbacked_symbols()) == (frozenset(), {"u0"})
    rounded, kept = (apply("trunc", apply("truediv", value, 4)) for value in (size, number))
    assert rounded == size // 4
    assert str(kept) == "trunc((u0 / 4))"
    assert (2 * size // 4).leaf("u0") == size  # type: ignore[union-attr]
    assert (2 * number // 4).leaf("u0") == number  # type: ignore[union-attr]
    assert (apply("max", size, 0), apply("min", -size, 0)) == (size, -size)
    assert [evaluate(apply(op, number, 0), {"u0": -3}) for op in ("max", "min")] == [0, -3]
    assert pickle.loads(pickle.dumps(number)) == number


def test_a_sum_that_is_rounded_is_rounded_once() -> None:
    """``0.29 * 100`` is less than 29, and with 1000 more it is 1029."""
    floor = apply("floor", 0.29 * S + T)
    assert evaluate(floor, {"s": 100, "t": 1000}) == math.floor(0.29 * 100 + 1000) == 1029
