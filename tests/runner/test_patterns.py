"""RegexFullMatch: RE2's language, in time by the length of the text."""

from __future__ import annotations

import random

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

ATOMS = (
    "a", "b", "é", "x", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\.", r"a\z", r"\Aa",
    "(a)", "(ab|b)", "(?:a|bc)", "(?P<n>a)", "(?i:A)", "(?i:[^A])", "(?s:.)",
)  # fmt: skip
PLACES = ("^", "$", r"\b", r"\B", "(?m:^)", "(?m:$)")
REPEATS = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "*?", "{0,2}", "{2,}")
TEXTS = (
    "", "a", "ab", "aab", "abc", "x", "A", "1", "É", "\u0663", "\n", "a\n", "a\nb", "aaaa", "_", "a.b", "bcbc",
    "\u00a0", "\u212a",
)  # fmt: skip

REFUSED_ONLY_HERE = ("nothing to repeat", "multiple repeat", "redefinition of group")


def model(pattern: str) -> bytes:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [info("x", TensorProto.STRING, [None])], [info("y", TensorProto.BOOL, [None])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def ours(pattern: str, texts: list[str]) -> list[bool]:
    (found,) = ort.InferenceSession(model(pattern)).run(None, {"x": np.array(texts, dtype=object)})
    return list(found)


def theirs(pattern: str, texts: list[str]) -> list[bool] | None:
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model(pattern), quiet, providers=["CPUExecutionProvider"])
        return list(session.run(None, {"x": np.array(texts, dtype=object)})[0])
    except onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException:
        return None


def any_pattern(chance: random.Random) -> str:
    parts = []
    for _ in range(chance.randrange(1, 5)):
        part = chance.choice(PLACES) if chance.random() < 0.2 else chance.choice(ATOMS) + chance.choice(REPEATS)
        if chance.random() < 0.2:
            part = f"({part}){chance.choice(REPEATS)}"
        parts.append(("|" if chance.random() < 0.15 else "") + part)
    return "".join(parts)


@pytest.mark.long_cases(but=["0"])
@pytest.mark.parametrize("seed", range(4))
def test_random_patterns_as_onnxruntime_has_them(seed: int) -> None:
    """onnxruntime uses RE2 itself."""
    chance = random.Random(seed)
    texts = [*TEXTS, *("".join(chance.choice("abcx1 \n.A") for _ in range(chance.randrange(8))) for _ in range(40))]
    compared = 0
    for _ in range(60):
        pattern = any_pattern(chance)
        expected = theirs(pattern, texts)
        if expected is None:
            continue
        try:
            found = ours(pattern, texts)
        except UserError as error:
            assert any(text in error.why for text in REFUSED_ONLY_HERE), pattern  # noqa: PT017
            continue
        assert found == expected, pattern
        compared += 1
    assert compared > 30


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", "(a*)*(a*)*b", "a?" * 25 + "a" * 25, "(.*)(.*)(.*)(.*)(.*)[^a]"]
)
def test_no_backtracking(pattern: str) -> None:
    """Python's ``re`` takes exponential time for some of these."""
    assert ours(pattern, ["a" * 24 + "!"]) == [pattern.endswith("[^a]")]


@pytest.mark.parametrize(
    "pattern", ["[[:alpha:]]", "a{,3}", "(?=a)", r"(a)\1", "(?P=n)", "a++", "(", "a{2000}", "[]a]"]
)
def test_what_is_read_otherwise_is_refused(pattern: str) -> None:
    with pytest.raises(UserError) as caught:
        ours(pattern, ["aa"])
    assert caught.value.code == "E403"


@pytest.mark.long
def test_a_large_pattern_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        ours("a{1,1000}" * 60, ["a"])
    assert caught.value.code == "E404"
