"""The list of cases that take long names cases."""

from __future__ import annotations

import pytest

from tests import long_cases


def test_every_name_is_a_case(pytestconfig: pytest.Config) -> None:
    assert not pytestconfig.stash[long_cases.GONE]


def test_the_quickest_case_of_a_test_stays() -> None:
    seconds = {
        "f.py::a[1]": 1.0,
        "f.py::a[2]": 1.5,
        "f.py::b[1]": 0.1,
        "f.py::b[2]": 1.0,
        "f.py::c": 0.9,
        "f.py::d[1]": 9.0,
    }
    assert long_cases.long(seconds) == {"f.py::a[2]", "f.py::b[2]", "f.py::c", "f.py::d[1]"}
