"""Programs that use numbers from data as sizes and indices: both engines give what eager PyTorch gives, wherever it runs."""

from __future__ import annotations

import pytest

from studies.data_size_programs import examine
from tests.capture.data_size_programs import PROGRAMS

EVERY = 131
"""The number of programs of which one is tried: they differ in their uses first, then in their ways and axes."""
NAMES = list(PROGRAMS)
MOST_REFUSED = 0.03
"""The share of programs that may be refused: those whose number of parts data tells."""


@pytest.mark.parametrize("name", NAMES[::EVERY])
def test_a_sample_of_the_programs(name: str) -> None:
    row = examine(PROGRAMS[name])
    assert row["outcome"] == "right", row


@pytest.mark.slow
@pytest.mark.parametrize("group", range(8))
def test_no_program_is_wrong(group: int) -> None:
    rows = [examine(PROGRAMS[name]) for name in NAMES[group::8]]
    assert not [row for row in rows if row["outcome"] not in ("right", "refused")]
    refused = [row for row in rows if row["outcome"] == "refused"]
    assert {row["code"] for row in refused} <= {"E104"}
    assert len(refused) <= MOST_REFUSED * len(rows)
