"""The sabotages of ``make mutants`` go with the code."""

from __future__ import annotations

from tests.mutants import MUTANTS, ROOT


def test_each_text_stands_once_in_its_file() -> None:
    gone = [m for m in MUTANTS if (ROOT / "fx2onnx" / m.file).read_text().count(m.before) != 1]
    assert not gone


def test_the_tests_of_each_are_there() -> None:
    named = {(m.file, path.partition("::")[0]) for m in MUTANTS for path in m.tests.split()}
    assert not [(file, path) for file, path in named if not (ROOT / path).exists()]
