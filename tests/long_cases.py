"""Which cases take long: ``make test`` leaves them to ``make test-long``, and CI runs both.

``long_cases.txt`` names them, a node id of pytest a line. It is made from the times of a run; those that did not run stay:

    python -m pytest -n 2 -m 'not slow and not long' --junitxml out/times.xml; python -m tests.long_cases out/times.xml

The first case that uses what a module's cases share pays for it, so that the next run may find another that is long.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

LIST = Path(__file__).with_suffix(".txt")
LIMIT = 0.5
"""Seconds of a case that is not long, on a core of 2 GHz without AVX-512."""
ONE_OF_MANY = 2.0
"""So many seconds the quickest case of a test may take to stay, where all its cases are over ``LIMIT``."""

GONE = pytest.StashKey[list[str]]()
"""Names of the list that are none of the cases collected, in files of which all were."""


def names() -> list[str]:
    return LIST.read_text(encoding="utf-8").splitlines()


def times(results: Path) -> dict[str, float]:
    """Seconds of each case, by node id."""
    found = {}
    for case in ElementTree.parse(results).iter("testcase"):
        parts = case.get("classname", "").split(".")
        for count in range(len(parts), 0, -1):
            file = "/".join(parts[:count]) + ".py"
            if Path(file).is_file():
                found["::".join((file, *parts[count:], case.get("name", "")))] = float(case.get("time", 0))
                break
    return found


def long(seconds: dict[str, float]) -> set[str]:
    cases = defaultdict(list)
    for name, taken in seconds.items():
        cases[name.partition("[")[0]].append((taken, name))
    found = {name for name, taken in seconds.items() if taken > LIMIT}
    for of_test in cases.values():
        taken, quickest = min(of_test)
        if len(of_test) > 1 and taken < ONE_OF_MANY:
            found.discard(quickest)
    return found


def main() -> None:
    seconds = times(Path(sys.argv[1]))
    kept = {name for name in names() if name not in seconds}
    found = sorted(long(seconds) | kept)
    LIST.write_text("\n".join(found) + "\n", encoding="utf-8")
    total, left = sum(seconds.values()), sum(taken for name, taken in seconds.items() if name not in found)
    print(f"{len(found)} long cases of {len(seconds)}; the others take {left:.0f} of {total:.0f} s")


if __name__ == "__main__":
    main()
