"""Sets of sizes against trying each size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.sizes.expr import Dim, Scalar, apply, evaluate
from fx2onnx.sizes.lines import reach_of
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.sizes.sets import EVERY, SizeSet, interval, where_true

N = Dim.symbol("n")
SIZES = range(300)


def truth(relation: Relation, size: int) -> bool:
    return relation.holds({"n": size})


def members(sizes: SizeSet) -> list[int]:
    return [size for size in SIZES if size in sizes]


NUMBERS = st.integers(1, 9)


def expressions() -> st.SearchStrategy[Any]:
    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.builds(lambda a, b: a + b, inner, inner),
            st.builds(lambda a, b: a - b, inner, inner),
            st.builds(lambda a, b: a * b, inner, NUMBERS),
            st.builds(lambda a, b: a + b, inner, NUMBERS),
            st.builds(lambda op, a, b: apply(op, a, b), st.sampled_from(["floordiv", "mod"]), inner, NUMBERS),
            st.builds(lambda op, a, b: apply(op, a, b), st.sampled_from(["min", "max"]), inner, NUMBERS),
        )

    return st.recursive(st.just(N), grown, max_leaves=5)


def comparisons() -> st.SearchStrategy[Relation]:
    return st.builds(
        lambda op, a, b: Relation(op, (a, b)),
        st.sampled_from(sorted(COMPARE)),
        expressions(),
        st.one_of(expressions(), NUMBERS),
    )


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(comparisons())
def test_where_a_comparison_holds(relation: Relation) -> None:
    found = where_true(relation)
    if found is None:
        assert relation.symbols() != {"n"}
    else:
        assert members(found) == [size for size in SIZES if truth(relation, size)]


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(comparisons())
def test_from_where_on_a_comparison_repeats(relation: Relation) -> None:
    reach = reach_of(relation)
    if reach is not None and sum(reach) < 20_000:
        start, period = reach
        for size in range(start, start + 40):
            assert truth(relation, size) == truth(relation, size + period) == truth(relation, size + 7 * period)


CEILING = -apply("floordiv", -N, 1024)


@pytest.mark.parametrize(
    ("relation", "ends"),
    [
        (Relation("le", (2 * N, 1024 * CEILING + 1536)), (0, 2304)),
        (Relation("ge", (apply("max", 2 * N, 1024 * CEILING + 1536), 3 * N)), (0, 1194)),
        (Relation("gt", (CEILING, 20)), (20481, None)),
        (Relation("or", (Relation("lt", (N, 9)), Relation("eq", (N // 3000, 7)))), (0, 23999)),
    ],
    ids=str,
)
def test_where_forms_change_soon_though_coefficients_are_large(
    relation: Relation, ends: tuple[int, int | None]
) -> None:
    found = where_true(relation)
    assert found is not None
    assert found.ends() == ends


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(comparisons(), comparisons())
def test_what_both_have(one: Relation, two: Relation) -> None:
    sets = where_true(one), where_true(two)
    if sets[0] is not None and sets[1] is not None:
        assert members(sets[0] & sets[1]) == [size for size in SIZES if truth(one, size) and truth(two, size)]
        either = where_true(Relation("or", (one, Relation("not", (two,)))))
        if either is not None:
            assert members(either) == [size for size in SIZES if truth(one, size) or not truth(two, size)]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(comparisons())
def test_a_progression_and_an_expression_hold_every_member(relation: Relation) -> None:
    found = where_true(relation)
    if found is None or not found.first(1):
        return
    first, step = found.progression()
    assert all(size == first or (step and (size - first) % step == 0) for size in members(found))
    general: Scalar = found.as_symbol("n")
    assert evaluate(general, {"n": 0}) == first
    assert found.last() is None or found.last() == max(size for size in range(5000) if size in found)


@pytest.mark.parametrize(
    ("relation", "text"),
    [
        (Relation("eq", (N % 8, 0)), "n % 8 == 0"),
        (Relation("eq", (2 * ((N - 1) // 2) + 2, N)), "n % 2 == 0"),  # type: ignore[operator]
        (Relation("eq", ((N + 1) // 2, (N + 1) // 4 * 2)), "n % 4 in (0, 3)"),
        (Relation("gt", (N, 5)), "n >= 6"),
        (Relation("le", (N, 512)), "n <= 512"),
        (Relation("eq", (N // 64, 1)), "n >= 64 and n <= 127"),
        (Relation("ne", (N, 7)), "n != 7"),
        (Relation("eq", (N, 7)), "n == 7"),
        (Relation("lt", (N, 0)), "no n"),
        (
            Relation("eq", (apply("floordiv", N - 1, N // 4), 4)),
            "n % 4 in (1, 2, 3) and n >= 5 and n != 6 and n != 7 and n != 11",
        ),
        (Relation("and", (Relation("eq", (N % 4, 0)), Relation("gt", (N, 9)))), "n % 4 == 0 and n >= 12"),
        (Relation("and", (Relation("eq", (N % 512, 0)), Relation("gt", (N, 600)))), "n % 512 == 0 and n >= 1024"),
    ],
    ids=str,
)
def test_what_is_said_of_it(relation: Relation, text: str) -> None:
    found = where_true(relation)
    assert found is not None
    assert found.described("n") == text


@pytest.mark.parametrize(
    ("relation", "sizes"),
    [
        (Relation("eq", (7 * apply("min", N, 2), N)), [0, 14]),
        (Relation("ge", (apply("floordiv", N, N // 4), 0)), list(range(4, 300))),
        (Relation("ne", (apply("mod", N, N - 6), 0)), [1, 2, 10, 11, *range(13, 300)]),
    ],
    ids=str,
)
def test_where_forms_change_late_or_are_not_defined(relation: Relation, sizes: list[int]) -> None:
    found = where_true(relation)
    assert found is not None
    assert members(found) == sizes


def test_bounds() -> None:
    assert members(interval(3, 9)) == list(range(3, 10))
    assert members(interval(290, None)) == list(range(290, 300))
    assert interval(0, None) == EVERY
    assert (-1 not in EVERY, interval(4, 4).is_single(), interval(4, 5).is_single()) == (True, True, False)


@pytest.mark.parametrize(
    "relation",
    [
        Relation("eq", (N * Dim.symbol("m"), 4)),
        Relation("eq", (apply("sqrt", N), 2)),
        Relation("eq", (N * 1.5, 2)),
        Relation("eq", (N % 1_000_003, 0)),
    ],
    ids=str,
)
def test_nothing_is_said_of_what_is_not_found_by_trying(relation: Relation) -> None:
    assert where_true(relation) is None


def test_what_is_said_of_real_numbers_is_not_said_of_equal_integers() -> None:
    real, whole = (Relation("ge", (N * factor, 8)) for factor in (2.0, 2))
    assert real == whole
    assert (real.has_reals(), whole.has_reals(), Relation("not", (real,)).has_reals()) == (True, False, True)
    before = where_true(real)
    assert where_true(whole) == interval(4, None)
    assert where_true(real) == before
