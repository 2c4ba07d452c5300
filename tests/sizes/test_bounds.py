"""What is certain of comparisons is true at all sizes, with and without ranges."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.sizes.bounds import certain, known_sign
from fx2onnx.sizes.expr import Dim, apply, evaluate
from fx2onnx.sizes.relation import COMPARE

N, M = Dim.symbol("n"), Dim.symbol("m")
NUMBERS = st.integers(-6, 6)


def expressions() -> st.SearchStrategy[Any]:
    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.builds(lambda a, b: a + b, inner, st.one_of(inner, NUMBERS)),
            st.builds(lambda a, b: a * b, inner, st.one_of(inner, NUMBERS)),
            st.builds(
                lambda op, a, b: apply(op, a, b),
                st.sampled_from(["floordiv", "mod", "truediv"]),
                inner,
                st.integers(1, 9),
            ),
            st.builds(lambda op, a, b: apply(op, a, b), st.sampled_from(["min", "max"]), inner, inner),
            st.builds(lambda op, a: apply(op, a), st.sampled_from(["float", "floor", "ceil", "trunc"]), inner),
        )

    return st.recursive(st.sampled_from([N, M]), grown, max_leaves=5)


RANGES = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 5)))


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(COMPARE)), expressions(), RANGES, RANGES)
def test_what_is_certain_is_true_at_every_size(op: str, gap: Any, n: Any, m: Any) -> None:
    ranges = {name: (low, None if more is None else low + more) for name, (low, more) in (("n", n), ("m", m))}
    known = known_sign(op, gap, ranges)
    if known is not None:
        sizes = [range(low, (low + 12 if high is None else high) + 1) for low, high in ranges.values()]
        for one, two in itertools.product(*sizes):
            assert COMPARE[op](evaluate(gap, {"n": one, "m": two}), 0) == known
    known = certain(op, gap, 0)
    if known is not None:
        for one, two in itertools.product(range(12), repeat=2):
            assert COMPARE[op](evaluate(gap, {"n": one, "m": two}), 0) == known


@pytest.mark.parametrize(
    ("op", "gap", "known"),
    [
        ("le", N * M - 60, True),
        ("lt", N * M - 60, None),
        ("gt", apply("truediv", N * M * 7, 4) - 2, True),  # type: ignore[operator]
        ("le", apply("trunc", apply("truediv", N * M, 61)), True),
        ("ge", N - M - 4, None),
        ("ge", N - M + 4, True),
        ("lt", apply("min", N, M) - 7, True),
        ("gt", apply("max", N, M) - 4, None),
        ("gt", apply("max", N + 4, M) - 5, True),  # type: ignore[operator]
    ],
    ids=str,
)
def test_ranges_of_several_sizes_decide(op: str, gap: Any, known: bool | None) -> None:
    assert known_sign(op, gap, {"n": (2, 10), "m": (1, 6)}) is known
    assert certain("ge", N * M, 0) is True


@pytest.mark.parametrize(
    ("op", "lhs", "rhs", "known"),
    [
        ("le", apply("min", 1, N - 1), 1, True),
        ("gt", apply("max", apply("min", 1, N - 1), 0), 1, False),
        ("le", apply("max", N - 1, 0), 1, None),
        ("ge", apply("max", 3, N - M), 3, True),
        ("ge", apply("min", 3, N - M), -5, None),
        ("le", -2 * apply("max", 3, N - M), -6, True),
        ("le", N * apply("min", 1, N - 1), N, None),
        ("ge", -4 * (-N // 4), N, True),
        ("gt", -4 * (-N // 4), N, None),
        ("lt", -4 * (-N // 4), N + 4, True),
        ("lt", 6 * (N // 3), 2 * N - 4, False),
        ("le", 5 * (N // 3), 2 * N, None),
        ("ge", 4 * (N // 4), N, None),
        ("ge", 4 * (N // 4), N - 3, True),
        ("le", -4 * (N // 4), -N, None),
        ("le", -4 * (N // 4), 3 - N, True),
    ],
    ids=str,
)
def test_minima_and_quotients_have_bounds(op: str, lhs: Any, rhs: Any, known: bool | None) -> None:
    assert certain(op, lhs, rhs) is known


def test_a_difference_that_is_nothing_is_known() -> None:
    gap = apply("min", 3, N + 4) - 3
    assert {op: known_sign(op, gap) for op in COMPARE} == {op: op in ("eq", "le", "ge") for op in COMPARE}
