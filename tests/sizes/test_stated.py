"""Conditions on sizes in a file: written, read back, and refused where they are malformed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.base.typed_json import Misfit, built
from fx2onnx.sizes.assumptions import Assumed, Assumption, Condition, Guard, Specialization
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import SizeSet, where_true
from fx2onnx.sizes.stated import NEWEST, read, sizes_near, written

N, M = Dim.symbol("n"), Dim.symbol("m")
HERE = SourceLocation("model.py", 7, "forward")


def condition(relation: Relation) -> Condition:
    sizes = where_true(relation)
    assert sizes is not None
    return Condition("n", sizes, relation, HERE)


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_every_set_is_read_back(members: list[bool], data: st.DataObject) -> None:
    sizes = SizeSet(data.draw(st.integers(0, len(members) - 1)), bytes(members))
    (found,) = read(written([Condition("n", sizes, Relation("ge", (N, 0)), HERE)]) or "")
    assert (found.name, found.sizes, found.names) == ("n", sizes, {"n"})
    assert [found.holds({"n": size}) for size in range(40)] == [size in sizes for size in range(40)]
    assert str(HERE) == found.where


def test_only_what_has_to_hold_is_written() -> None:
    by_user, by_kernel = (Guard(Relation("gt", (M, N // 2)), HERE, by, "aten::add") for by in (True, False))
    others: list[Assumed] = [
        Guard(Relation("gt", (M, 1)), HERE, True),
        by_kernel,
        Assumption("a note"),
        Specialization(N, 4, HERE),
    ]
    assert written(others) is None
    even = condition(Relation("eq", (N % 2, 0)))
    one, two = read(written([by_user, *others, even]) or "")
    assert (one.text, one.names, two.text) == ("m > (n // 2)", {"m", "n"}, "n % 2 == 0")
    assert [one.holds({"m": 2, "n": size}) for size in (3, 4)] == [True, False]
    assert one.holds({"m": 2})
    assert two.holds({"m": 3})
    assert [found.where for found in read(written([even], with_lines=False) or "")] == [""]


GOOD: dict[str, Any] = {"condition": "n <= 2", "where": "", "name": "n", "runs": [0, 3, 1], "period": 1}


@pytest.mark.parametrize(
    "entry",
    [
        [],
        7,
        "n",
        {},
        GOOD | {"runs": []},
        GOOD | {"runs": [-1, 4]},
        GOOD | {"runs": [1.5]},
        GOOD | {"runs": [10**9]},
        GOOD | {"runs": [1 << 17, 1 << 17]},
        GOOD | {"runs": "123"},
        GOOD | {"period": 0},
        GOOD | {"period": 9},
        GOOD | {"period": None},
        {"condition": "n > m", "where": "", "op": "is", "left": "n", "right": "m"},
        {"condition": "n > m", "where": "", "op": "gt", "left": "__import__('os')", "right": "m"},
        {"condition": "n > m", "where": "", "op": "gt", "left": "n"},
    ],
    ids=str,
)
def test_what_is_malformed_is_refused(entry: Any) -> None:
    assert read(json.dumps([GOOD]))[0].holds({"n": 2})
    with pytest.raises(UserError, match=r"E303.*fx2onnx.conditions is malformed"):
        read(json.dumps([entry]))


@pytest.mark.parametrize("text", ["", "{", "3", "null", "[" * 100_000])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="E303"):
        read(text)


def related(op: str, left: Any, right: Any) -> Any:
    (found,) = read(written([Guard(Relation(op, (left, right)), HERE, True)]) or "")
    return found


@pytest.mark.parametrize(
    ("relations", "sizes", "expected"),
    [
        ([("eq", M, 2 * N)], {"n": 5, "m": 10}, {"n": 6, "m": 12}),
        ([("ge", M, N)], {"n": 5, "m": 5}, {"n": 6, "m": 6}),
        ([("gt", M, N + 3)], {"n": 5, "m": 9}, {"n": 6, "m": 10}),
        ([("eq", M * N, 36)], {"n": 6, "m": 6}, {"n": 9, "m": 4}),
        ([("eq", M, 2 * N), ("lt", N, 6)], {"n": 5, "m": 10}, {"n": 4, "m": 8}),
    ],
    ids=str,
)
def test_sizes_that_depend_on_each_other_change_together(relations: Any, sizes: Any, expected: Any) -> None:
    larger = {name: size + 1 for name, size in sizes.items()}
    found = sizes_near(larger, [related(*relation) for relation in relations], unlike=sizes)
    assert found is not None
    assert all(related(*relation).holds(found) for relation in relations)
    assert found != sizes
    assert found == expected or expected == {"n": 9, "m": 4}  # of two that are as near, either


def test_no_sizes_are_found_where_there_are_none() -> None:
    only = [related("eq", M, 2 * N), condition(Relation("eq", (N, 4)))]
    known = [only[0], *(read(written([only[1]]) or ""))]
    assert sizes_near({"n": 5, "m": 9}, known, unlike={"n": 4, "m": 8}) is None


@pytest.mark.parametrize("left", ["n - 8", "2*n - 16", "n - m"])
def test_what_is_less_than_nothing_is_compared_too(left: str) -> None:
    """``n - 8 >= 1`` is false at 2, where the left side is no size."""
    (found,) = read(json.dumps([{"condition": "c", "where": "", "op": "ge", "left": left, "right": "1"}]))
    assert not found.holds({"n": 2, "m": 5})
    assert found.holds({"n": 9, "m": 8})


@dataclass(frozen=True)
class ReadBeforeUnless:
    """What a version of fx2onnx knew that had no ``unless``."""

    condition: str
    where: str
    name: str = ""
    runs: tuple[int, ...] = ()
    period: int = 0
    op: str = ""
    left: str = ""
    right: str = ""


def test_conditions_of_a_newer_form_are_refused_by_who_does_not_know_it() -> None:
    plain = Relation("lt", (N, M))
    behind = Relation("or", (plain, Relation("eq", (M % 4, 0))))
    text = written([Guard(relation, None, by_user=True) for relation in (plain, behind)]) or ""
    first, second = json.loads(text)
    assert built(ReadBeforeUnless, first).op == "lt"
    assert [each.get("needs_newer_reader") for each in (first, second)] == [None, NEWEST]
    with pytest.raises(Misfit, match=r"^needs_newer_reader is not known"):
        built(ReadBeforeUnless, second)
    assert [each.holds({"n": 5, "m": 4}) for each in read(text)] == [False, True]
    newer = json.dumps([first, second | {"needs_newer_reader": NEWEST + 1, "since": []}])
    with pytest.raises(UserError, match=r"E303.*of form 3, which this version of fx2onnx does not know"):
        read(newer)
