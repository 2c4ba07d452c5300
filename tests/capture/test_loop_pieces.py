"""Loops over pieces of a dynamic size, of which the last may be shorter: ``for i in range(0, n, 4)``, ``x.split(4)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import check

Program = Callable[[torch.Tensor], Any]


def by_slices(x: torch.Tensor) -> Any:
    rows, sums = [], []
    for start in range(0, x.shape[0], 4):
        end = min(start + 4, x.shape[0])
        rows.append(x[start:end].cumsum(0))
        sums.append(x[start : start + 4].sum(0))
    return torch.cat(rows) + x, torch.stack(sums), len(rows)


def of_an_axis_behind(x: torch.Tensor) -> Any:
    keys = x[None]
    found = []
    for start in range(0, keys.shape[1], 4):
        found.append((keys[:, start : start + 4] @ keys.transpose(1, 2)).softmax(-1) @ keys)
    return torch.cat(found, dim=-2)


def with_a_state(x: torch.Tensor) -> Any:
    state, found = torch.zeros(3), []
    for piece in x.split(4):
        found.append((piece + state, piece.argmax(1)))
        state = state + piece[-1]
    return [torch.cat(parts) for parts in zip(*found, strict=True)], state


def within_each_other(x: torch.Tensor) -> Any:
    rows = []
    for one in torch.split(x, 4):
        rows.append(torch.hstack([one @ two.t() for two in x.split(3)]))
    return torch.vstack(rows)


PROGRAMS: dict[str, Program] = {
    "by slices": by_slices,
    "of an axis behind": of_an_axis_behind,
    "with a state": with_a_state,
    "within each other": within_each_other,
    "comprehension": lambda x: torch.cat([x[i : i + 4].softmax(0) for i in range(0, x.shape[0], 4)]),
    "enumerated": lambda x: torch.cat([part * place for place, part in enumerate(x.t().split(4, -1))], 1),
    "in pairs": lambda x: torch.cat([one * two.sum() for one, two in zip(x.split(4), x.flip(0).split(4), strict=True)]),
    "sum of a generator": lambda x: sum(part.amax(0) for part in x.split(4)),
    "columns": lambda x: torch.column_stack([row * 2 for row in x]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces_at_other_sizes(name: str) -> None:
    others = [(torch.randn(size, 3),) for size in (3, 13, 4)]
    result = check(PROGRAMS[name], (torch.randn(10, 3),), others=others, dynamic_shapes=({0: "n"},), atol=1e-5)
    assert not any("u" in str(size) for value in result.model.graph.outputs for size in value.shape)


def test_as_many_pieces_as_python_needs_are_a_condition() -> None:
    def two(x: torch.Tensor) -> torch.Tensor:
        one, other = x.split(4)
        return torch.cat([other, one])

    result = check(two, (torch.randn(8, 3),), others=[(torch.randn(6, 3),)], dynamic_shapes=({0: "n"},))
    assert "n >= 5 and n <= 8" in str(result.report)
