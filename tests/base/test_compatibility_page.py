"""The page of environments from rows, and rows from what pytest writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies.compatibility import page, read_results
from tests.conftest import CORE, WITHOUT_TORCH, is_core

RESULTS = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_one" />
<testcase classname="tests.test_a" name="test_two"><failure message="assert 1 == 2&#10;more">trace</failure></testcase>
<testcase classname="tests.test_a" name="test_three"><skipped message="no kernel">here</skipped></testcase>
<testcase classname="tests.test_a" name="test_four"><error message="no module">trace</error></testcase>
</testsuite></testsuites>"""


def test_rows_come_from_results(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(RESULTS, encoding="utf-8")
    assert read_results(path) == {
        "passed": 1,
        "failed": 2,
        "failures": [["tests.test_a::test_two", "assert 1 == 2"], ["tests.test_a::test_four", "no module"]],
        "left_out": {"no kernel": 1},
    }


def test_the_core_is_counted_among_all(tmp_path: Path) -> None:
    path, seen = tmp_path / "results.xml", []
    path.write_text(RESULTS.replace('"tests.test_a" name="test_four"', '"tests.b.test_c.TestD" name="test_e[f.g]"'))
    found = read_results(path, lambda node: seen.append(node) or node.endswith("two"))  # type: ignore[func-returns-value]
    assert seen == [
        *(f"tests/test_a.py::test_{n}" for n in ("one", "two", "three")),
        "tests/b/test_c.py::TestD::test_e[f.g]",
    ]
    assert (found["passed"], found["failed"], found["left_out"]) == (0, 1, {})


def test_the_page_says_what_fails_and_what_is_missing() -> None:
    versions = {"python": "3.11.7", "torch": "2.8.0", "numpy": "1.26.4"}
    row = {
        "passed": 7,
        "failed": 1,
        "failures": [["a::b", "no | bar"]],
        "left_out": {"no <kernel>": 2},
        "versions": versions,
    }
    missing = "this machine has no Python 3.14"
    text = page(
        [
            {"name": "torch-2.8", "wanted_python": "3.11", "date": "2026-11-26", "commit": "abc", **row},
            {"name": "python-3.14", "wanted_python": "3.14", "missing": missing},
        ]
    )
    assert "| torch-2.8 | 3.11.7 | 2.8.0 |" in text
    assert "| 7 | 1 | 2 | 2026-11-26 | abc |" in text
    assert "- `a::b`: no \\| bar" in text
    assert "- left out, 2 times: no &lt;kernel>" in text
    assert "- not to be had here: this machine has no Python 3.14" in text


@pytest.mark.parametrize("whole", [False, True])
def test_rows_that_were_not_made_here_stay(whole: bool) -> None:
    """With their notes; those of the core and those of the default suite apart."""

    def row(name: str, passed: int, whole: bool) -> dict[str, Any]:
        counts = {"passed": passed, "failed": 0, "left_out": {"root": passed}}
        return {"name": name, "wanted_python": "3.11", "whole": whole, **counts}

    names = ("torch-2.8", "torch-2.9", "no-torch")
    rows = {(name, of): row(name, 7 + of, of) for name in names for of in (False, True)}
    before = page(rows.values())
    assert before.count("\n| torch-2.8 |") == 2
    assert page([], before) == before
    rows["torch-2.9", whole] = row("torch-2.9", 9, whole)
    assert page([rows["torch-2.9", whole]], before) == page(rows.values())


def test_the_core_is_of_files_that_exist() -> None:
    root = Path(__file__).parents[2]
    assert all((root / name).is_file() for name in CORE)
    assert WITHOUT_TORCH <= CORE
    assert is_core("tests/test_zoo.py::test_dynamic[bert_tiny]")
    assert not is_core("tests/test_zoo.py::test_small_static[clip_tiny]")
    assert not is_core("tests/test_growth.py::test_any")
