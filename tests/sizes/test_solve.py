"""Relations that have to hold, solved for single sizes."""

from __future__ import annotations

from typing import Any

import pytest

from fx2onnx.sizes.expr import Dim, evaluate
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, SizeSet, where_true
from fx2onnx.sizes.solve import declared, simplified, sizes_where, solved

B, H, W = map(Dim.symbol, ("b", "h", "w"))


def described(relation: Relation, hints: dict[str, int]) -> dict[str, str] | None:
    found = solved(relation, hints)
    return None if found is None else {name: sizes.described(name) for name, (_, sizes) in found.items()}


def equal(one: Any, other: Any) -> Relation:
    return Relation("eq", (one, other))


@pytest.mark.parametrize(
    ("relation", "hints", "needs"),
    [
        (equal(B * H, 4 * B * (H // 4)), {"b": 2, "h": 8}, {"h": "h % 4 == 0"}),
        (equal(B * H, 4 * B * (H // 4) + 3 * B), {"b": 2, "h": 7}, {"h": "h % 4 == 3"}),
        (equal(H * W, 8 * (H // 4) * (W // 2)), {"h": 8, "w": 6}, {"h": "h % 4 == 0", "w": "w % 2 == 0"}),
        (equal(B * H, 4 * ((B * H) // 4)), {"b": 2, "h": 8}, {"h": "h % 4 == 0"}),
        (equal(B * H, 4 * ((B * H) // 4)), {"b": 4, "h": 7}, {"b": "b % 4 == 0"}),
        (equal(B * H, 4 * ((B * H) // 4)), {"b": 2, "h": 6}, {"b": "b % 2 == 0", "h": "h % 2 == 0"}),
        (equal(H, 5), {"h": 5}, None),
        (equal(B, H), {"b": 3, "h": 3}, None),
        (Relation("lt", (B, H)), {"b": 2, "h": 3}, None),
        (equal(H, 2 * Dim.unbacked(0)), {"h": 4}, None),
    ],
    ids=str,
)
def test_what_a_relation_needs(relation: Relation, hints: dict[str, int], needs: dict[str, str] | None) -> None:
    assert described(relation, hints) == needs
    for name, (true, sizes) in (solved(relation, hints) or {}).items():
        assert [true.holds(hints | {name: size}) for size in range(40)] == [size in sizes for size in range(40)]


def multiple(modulus: int, rest: int) -> SizeSet:
    found = where_true(equal(H % modulus, rest))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (2 * (H // 2), "h"),
        ((H - 1) // 2 + 1, "(h // 2)"),
        (H // 16, "(h // 16)"),
        (H // (H // 4), "4"),
        (B * (H // 8) * 8, "b*h"),
        (4 * (W // 4), "w - 3"),
        ((W + 1) // 4, "((w + 1) // 4)"),
    ],
    ids=str,
)
def test_a_size_is_written_as_what_it_is_a_part_of(dim: Any, text: str) -> None:
    found = simplified(dim, {"h": multiple(8, 0), "w": multiple(4, 3)})
    assert str(found) == text
    for height, width in ((8, 3), (24, 7), (40, 11)):
        sizes = {"b": 2, "h": height, "w": width}
        assert evaluate(found, sizes) == evaluate(dim, sizes)


def test_sizes_where_a_relation_holds() -> None:
    sets = {"h": multiple(4, 0)}
    assert sizes_where(Relation("gt", (H, 9)), sets, {"h": 8}) == {"h": 12}
    assert sizes_where(Relation("lt", (H, 0)), sets, {"h": 8}) == {}
    found = sizes_where(Relation("gt", (B, H)), {"b": EVERY, **sets}, {"b": 3, "h": 8})
    assert found["b"] > found["h"] >= 2
    assert Relation("not", (Relation("and", (Relation("lt", (B, 3)), True)),)).holds({"b": 4})


def test_how_a_range_is_declared() -> None:
    bounds = [where_true(Relation(op, (H, 6))) for op in ("gt", "lt", "ne")]
    assert [declared("h", sizes) for sizes in bounds if sizes] == ['Dim("h", min=7)', 'Dim("h", max=5)', 'Dim("h")']
    above = where_true(Relation("gt", (H, 6)))
    assert above is not None
    steps = [multiple(4, 0), multiple(4, 3), multiple(4, 0) & above]
    by_four = '4 * Dim("h_over_4"'
    assert [declared("h", sizes) for sizes in steps] == [f"{by_four})", f"{by_four}) + 3", f"{by_four}, min=2)"]


def test_all_remainders_that_do_are_found() -> None:
    height, width = Dim.symbol("H"), Dim.symbol("W")
    relation = Relation("eq", (7 * (height // 28) * width, (height // 4) * width))
    found = solved(relation, {"H": 57, "W": 5})
    assert found is not None
    assert set(found) == {"H"}
    true, sizes = found["H"]
    for size in range(100):
        assert (size in sizes) == (size % 28 < 4) == true.holds({"H": size})


def test_sizes_that_leave_few_remainders_are_written_by_their_quotient() -> None:
    width = Dim.symbol("W")
    sizes = where_true(Relation("eq", (8 * ((width + 3) // 32), (width + 3) // 4)))
    assert sizes is not None
    written = simplified((width + 3) // 4 * 5, {"W": sizes})
    assert written == 40 * ((width + 3) // 32)
    for size in sizes.first(20):
        assert isinstance(written, Dim)
        assert written.evaluate({"W": size}) == (size + 3) // 4 * 5
