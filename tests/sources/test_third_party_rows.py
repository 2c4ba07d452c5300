"""The rows of other packages' models are well formed, without any of the packages."""

from __future__ import annotations

import pytest
import torch

from studies.third_party.spec import Row, apply, at, tensors
from studies.third_party.sweep import EVERY, PACKAGES, ROWS, measure


def test_each_row_has_a_name_of_its_own_and_inputs_at_both_sizes() -> None:
    assert len({row.name for row in EVERY}) == len(EVERY) > len(ROWS) > 400
    assert len({row.package for row in ROWS}) > 45
    for row in EVERY:
        assert len(row.axes) == len(row.inputs) > 0, row.name
    pins = PACKAGES.read_text(encoding="utf-8").splitlines()
    assert all(line.count("==") == 1 for line in pins)


def test_inputs_are_what_the_row_says() -> None:
    row = Row("torch", "Embedding", lambda: torch.nn.Embedding(20, 4), ("int20 batch 3 length", "unit batch", "rows 2"))
    first, second, third = row.make({"batch": 5, "length": 7, "rows": 1}, seed=0)
    assert first.shape == (5, 3, 7)
    assert first.dtype == torch.int64
    assert int(first.max()) < 20
    assert second.shape == (5,)
    assert 0 <= float(second.min()) <= float(second.max()) <= 1
    assert third.shape == (1, 2)
    assert row.axes == ({0: "batch", 2: "length"}, {0: "batch"}, {0: "rows"})
    assert row.sizes() == ["batch", "length", "rows"]


@pytest.mark.long
def test_a_row_is_right_refused_or_not_there() -> None:
    assert measure(Row("torch", "relu", apply("torch.relu"), ("batch 3",)))["right"]
    refused = Row("torch", "list", lambda: at("torch.nn.Module")(), ("batch 3",))
    assert "unbuilt" in measure(refused)
    assert [value.shape for value in tensors({"a": torch.ones(2), "b": (torch.ones(1, dtype=torch.complex64),)})] == [
        (2,),
        (1, 2),
    ]
