"""Programs that use numbers from data as sizes and indices: both engines give what eager PyTorch gives, wherever it runs."""

from __future__ import annotations

import pytest

from benchmarks.data_size_programs import examine
from tests.capture.data_size_programs import PROGRAMS

EVERY = 131
"""Of the programs, which differ in their uses first, then in their ways and axes."""
NAMES = list(PROGRAMS)
REFUSED: dict[str, str] = {}
"""Uses that are not exported, and the code of their error."""


@pytest.mark.parametrize("name", NAMES[::EVERY])
def test_a_sample_of_the_programs(name: str) -> None:
    row = examine(PROGRAMS[name])
    wanted = REFUSED.get(PROGRAMS[name].use)
    assert row["outcome"] == ("refused" if wanted else "right"), row
    assert row.get("code") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("group", range(8))
def test_no_program_is_wrong(group: int) -> None:
    outcomes = {name: examine(PROGRAMS[name]) for name in NAMES[group::8]}
    assert not [row for row in outcomes.values() if row["outcome"] in ("wrong", "crash")]
    refused = [row for row in outcomes.values() if row["outcome"] == "refused"]
    assert len(refused) <= 0.03 * len(outcomes), refused
