"""Equalities of sizes that data decides, as replacements."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.solve import Equalities

A, B, C, D = map(Dim.unbacked, range(4))
S = Dim.symbol("s")
UNBACKED = frozenset(("u0", "u1", "u2", "u3"))
CASES: dict[str, tuple[list[tuple[Any, Any]], tuple[Any, Any], bool]] = {
    "symbols": ([(D, A)], (D * 2 + B, A * 2 + B), True),
    "others": ([(D, A)], (D, B), False),
    "a chain": ([(A, B), (B, C), (D, C)], (A, D), True),
    "inside an operation": ([(D, A)], ((D + 1) // 2, (A + 1) // 2), True),
    "a product": ([(A * B * C, 24)], (2 * A * B * C, 48), True),
    "part of a product": ([(A * B, 24)], (A * B * C, 24 * C), True),
    "a size of an input": ([(A * B, S)], (S * C, A * B * C), True),
    "a sum": ([(A + B, S), (C + D, S)], (A + B, C + D), True),
    "multiples": ([(2 * A, 3 * B)], (2 * A, 3 * B), True),
    "multiples the other way round": ([(2 * A, 3 * B)], (3 * B, 2 * A), True),
    "halves": ([(A * B, 4 * (A // 2) * (B // 2))], (C * A * B, 4 * C * (A // 2) * (B // 2)), True),
    "in circles": ([(A, B * C), (B * C, A)], (A, D), False),
    "what includes itself": ([(A, A // 2 + B)], (A, B), False),
}


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "backwards"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_reduced(name: str, order: int) -> None:
    given, (one, other), are_equal = CASES[name]
    known = Equalities()
    for pair in given[::order]:
        known = known.adding(*pair, UNBACKED)
    assert (known.reduced(one - other) == 0) == are_equal


def test_only_what_follows_is_equal() -> None:
    """At all small sizes at which the equalities hold, what is found to be equal is."""
    given = [(A * B, C + D), (C, 2 * D)]
    known = Equalities()
    for pair in given:
        known = known.adding(*pair, UNBACKED)
    values = [A, B, C, D, A * B, A + B, C * D, 3 * D, 2 * A + 2, A * C]
    seen = 0
    for sizes in itertools.product(range(7), repeat=4):
        at = dict(zip(("u0", "u1", "u2", "u3"), sizes, strict=True))
        if not all((one - other).evaluate(at) == 0 for one, other in given):
            continue
        seen += 1
        for one, other in itertools.combinations(values, 2):
            if known.reduced(one - other) == 0:
                assert one.evaluate(at) == other.evaluate(at)
    assert seen > 1
