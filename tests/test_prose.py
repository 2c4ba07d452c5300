"""The words of pages, help and errors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fx2onnx.base.errors import CODES
from fx2onnx.verify.values import ENDS, KINDS
from tests.docs.blocks import ROOT
from tools import check_prose


@pytest.mark.long
def test_no_finding_beyond_those_that_are_known() -> None:
    found = check_prose.findings()
    counts = Counter(each.kind for each in found)
    more = [kind for kind, known in check_prose.KNOWN.items() if counts[kind] > known]
    assert not [each for each in found if each.kind in more]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Which rungs there are.", "rungs"),
        ("It is baked.", "baked"),
        ("Save for `rungs` and [this](rungs.md).", "Save for"),
        ("```text\nrungs\n```\nNothing.\n", ""),
    ],
)
def test_house_words_are_found_in_prose_alone(text: str, what: str) -> None:
    assert [found.split("'")[1] for _, found in check_prose._words(check_prose._prose(text))] == [what] * bool(what)


def test_a_long_sentence_and_a_long_bullet_are_found() -> None:
    sentence = " ".join(["word"] * 31) + "."
    assert [each.what[:24] for each in check_prose._texts("help", "x", sentence)] == ["a sentence of 31 words: "]
    assert [line for line, _ in check_prose._bullets("text\n- one\n  two\n\n- three\n")] == [2, 5]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("It takes 3 s.\n", [1]),
        ("Text.\n\n- a\n- it is 1.2 to 1.4 times as fast, 2026-11-29\n", [4]),
        ("| a | 4 ms |\n|---|---|\n\nSee `make bench`.\n", [1]),
        ("| a | 4 ms |\n|---|---|\n\nSee `make bench`, 2026-11-22.\n", []),
        ("It found 3 of 4 ([page](measured/sabotage.md), 2026-11-26).\n", []),
        ("It found 3 of 4 ([page](measured/sabotage.md), 2020-01-01).\n", [1]),
        ("Below 2 GB, at most 20 %, `--limit 3 s`.\n\n```text\n3 s\n```\n", []),
    ],
)
def test_a_measured_number_says_its_date_and_source(text: str, lines: list[int]) -> None:
    assert [line for line, _ in check_prose._numbers(text)] == lines


def test_each_code_has_a_heading_that_addresses_lead_to() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    assert all(f"\n## {code}\n" in text for code in CODES)


def test_the_page_on_verification_names_each_kind_of_values() -> None:
    text = (ROOT / "docs" / "verify.md").read_text()
    assert [kind for kind in (*KINDS, *ENDS) if f"`{kind}`" not in text] == []


@pytest.mark.parametrize(
    ("source", "first"),
    [
        ('"""Which parts there are."""', ["Which"]),
        ('class A:\n    n: int\n    """How many parts: the attribute\'s."""', ["How"]),
        ('def f():\n    """Likewise, for sizes."""\n    x = """What is no docstring."""', ["Likewise"]),
        ('"""The parts."""\nWhich = 1\n"""Others."""', []),
    ],
)
def test_a_docstring_that_points_at_a_neighbour_is_found(
    source: str, first: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fx2onnx").mkdir()
    (tmp_path / "fx2onnx" / "one.py").write_text(source)
    monkeypatch.setattr(check_prose, "ROOT", tmp_path)
    assert [each.what.split("'")[1] for each in check_prose._docstrings()] == first
