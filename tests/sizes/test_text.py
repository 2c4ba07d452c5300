"""Sizes read from texts: what ``str(Dim)`` writes comes back, and no text does harm."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.base.errors import UserError
from fx2onnx.sizes.expr import Dim, apply
from fx2onnx.sizes.text import named, parse_dim, size_of
from fx2onnx.sources.registry import parsed
from fx2onnx.verify.samples import _changed
from tests.sizes import test_expr

S, T = Dim.symbol("s"), Dim.symbol("past_length")
LEAVES = st.sampled_from([S, T, 1, 2, 3, 64])
BINARY: dict[str, Any] = test_expr.BINARY | {
    "/": lambda a, b: apply("truediv", a, b),
    "half": lambda a, b: apply("floor", apply("float", a) * 0.5) + b,
    "ceil": lambda a, b: apply("ceil", apply("float", a) * 0.25 + b),
    "root": lambda a, b: apply("trunc", apply("pow", apply("float", a), 0.5)) * b,
    "abs": lambda a, b: apply("abs", a - b),
}
TREES = st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from(sorted(BINARY)), inner, inner), max_leaves=7)


def build(tree: Any) -> Any:
    return BINARY[tree[0]](build(tree[1]), build(tree[2])) if isinstance(tree, tuple) else tree


@pytest.mark.long
@settings(max_examples=400, deadline=None, derandomize=True)
@given(tree=TREES)
def test_what_a_dim_writes_is_read_back(tree: Any) -> None:
    try:
        dim = build(tree)
    except (ArithmeticError, ValueError):
        return
    if isinstance(dim, Dim):
        assert parse_dim(str(dim)) == dim


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("n", 5),
        ("2*n+3", 13),
        ("n - 2 - 1", 2),
        ("n // 2 * 2", 4),
        ("-n + 6", 1),
        ("-n // 2 + 9", 6),
        ("n**2", 25),
        ("Max(1, n//2)", 2),
        ("FloorDiv(n, 2) + Mod(n, 3)", 4),
        ("n % 3", 2),
        ("17", 17),
        ("n/2", None),
        ("n // 0", None),
        ("3 - n", None),
        ("n / 5", 1),
        ("(0 - n) ** 0.5", None),
    ],
)
def test_expressions_mean_what_python_means(text: str, size: int | None) -> None:
    dim = parse_dim(text)
    assert dim is not None
    assert size_of(dim, {"n": 5}) == size


HOSTILE = [
    "n + 9**9**9",
    "n(1)",
    "__import__('os').system('true')",
    "n.__class__",
    "[n for n in range(9)]",
    "lambda: n",
    "n if n else 1",
    "n" + "*n" * 5000,
    "(" * 5000 + "n" + ")" * 5000,
    "(" * 400 + "n" + ")" * 400,
    "-" * 900 + "n",
    "(a + b + c + d)*" * 60 + "1",
    "*".join(f"(a{i} + b{i})" for i in range(60)),
    "n**9999999",
    "((((n ** 16) ** 16) ** 16) ** 16)",
    "(n*n*n*n//2)*(n*n*n*n//2)*(n*n*n*n//2)*(n*n*n*n//2)*n",
    "9" * 900 + "*n",
    "1e999*n",
    "max(n)",
    "max(" * 29,
    "n,",
    "n n",
    "",
    " ",
    "+",
    "\u202en",
    "n\0",
    "n²",
    "<img src=x onerror=1>",
]


@pytest.mark.parametrize("text", HOSTILE, ids=[text[:20] for text in HOSTILE])
def test_any_other_text_is_a_name_at_once(text: str) -> None:
    start = time.perf_counter()
    assert parse_dim(text) is None
    assert _changed(7, text, {"n": 7, "a": 1, "b": 1}, {"n": 8, "a": 2, "b": 2}) == 8
    assert time.perf_counter() - start < 0.2


@pytest.mark.parametrize(("text", "grown"), [("n*n", 81), ("n**9", 65), ("10*n", 65), ("n - 1", 65), ("n*n + m", 65)])
def test_a_size_grows_as_the_text_says_where_the_sample_bears_it_out(text: str, grown: int) -> None:
    """Too large, another size than the sample's, an unknown name: the size grows by one like a name of its own."""
    assert _changed(64, text, {"n": 8}, {"n": 9}) == grown


@pytest.mark.parametrize("value", ["-" * 5000 + "1", "-" * 200_000 + "1", "%2B".join("1" * 100_000)])
def test_a_source_option_without_an_end_is_one_error(value: str) -> None:
    with pytest.raises(UserError, match="value of 'depth'") as caught:
        parsed(f"zoo:net?depth={value}")
    assert caught.value.code == "E601"


def test_a_source_option_that_is_no_literal_is_a_text() -> None:
    assert parsed("zoo:net?a={[]: 1}&b=[1,2]&c=x")[2] == {"a": "{[]: 1}", "b": [1, 2], "c": "x"}


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("u0", Dim.unbacked(0)),
        ("u12", Dim.unbacked(12)),
        ("u01", Dim.symbol("u01")),
        ("u", Dim.symbol("u")),
        ("u0_", Dim.symbol("u0_")),
    ],
)
def test_numbers_of_data_have_a_form_of_their_own(text: str, dim: Dim) -> None:
    assert parse_dim(text) == named(text) == dim
    assert str(dim) == text
    assert parse_dim(f"2*{text} + 1") == 2 * dim + 1
