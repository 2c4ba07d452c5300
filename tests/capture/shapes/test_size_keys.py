"""Dynamic sizes as keys of dicts that keep what is computed, which are computed anew; and of tables, where they have to be numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import UserError
from tests.support import check

_PLACES: dict[Any, torch.Tensor] = {}


class Cached(nn.Module):
    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.program, self.places = program, dict[Any, torch.Tensor]()

    def forward(self, x: torch.Tensor) -> Any:
        return self.program(self, x)


def by_in(m: Any, x: torch.Tensor) -> Any:
    n = x.shape[0]
    if n not in m.places:
        m.places[n] = torch.arange(n) * 2.0
    return x * m.places[n][:, None] + x[: n // 2].sum()


def by_get(m: Any, x: torch.Tensor) -> Any:
    key = (x.shape[0], x.device)
    found = m.places.get(key)
    if found is None:
        found = m.places[key] = torch.arange(key[0]) * 2.0
    return x * found[:, None]


def by_setdefault(m: Any, x: torch.Tensor) -> Any:
    return x * _PLACES.setdefault(x.shape[0], torch.arange(x.shape[0]))[:, None]


def of_two_sizes(m: Any, x: torch.Tensor) -> Any:
    for part in (x, x[1:], x):
        if part.shape not in m.places:
            m.places[part.shape] = torch.arange(part.shape[0]) * 2.0
        x = x + m.places[part.shape].sum()
    return x


@pytest.mark.parametrize("is_warm", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize("program", [by_in, by_get, by_setdefault, of_two_sizes], ids=lambda program: program.__name__)
@pytest.mark.long_cases(but=["by_in-filled", "by_setdefault-empty"])
def test_caches_by_size(program: Callable[..., Any], is_warm: bool) -> None:
    module = Cached(program)
    _PLACES.clear()
    for rows in (2, 7) if is_warm else ():
        module(torch.ones(rows, 3))
    before = [dict(module.places), dict(_PLACES)]
    check(
        module, (torch.rand(5, 3),), others=[(torch.rand(9, 3),), (torch.rand(2, 3),)], dynamic_shapes={"x": {0: "n"}}
    )
    for table, was in zip((module.places, _PLACES), before, strict=True):
        assert not any(
            isinstance(part, torch.SymInt) for key in table for part in (key if isinstance(key, tuple) else (key,))
        )
        assert was.keys() <= table.keys()


def test_a_table_of_sizes_needs_a_number() -> None:
    table = {5: 1.0, 7: 2.0}
    with pytest.raises(UserError) as caught:
        fx2onnx.export(lambda x: x * table.get(x.shape[0], 3.0), (torch.ones(5),), dynamic_shapes=({0: "n"},))
    assert caught.value.code == "E105"


def rows_by_number(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    rows = {}
    for place, number in enumerate(numbers.tolist()):
        rows[number] = x[place]
    return torch.stack(list(rows.values()))


def first_by_number(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    seen: dict[Any, torch.Tensor] = {}
    for place in range(2):
        if numbers[place].item() not in seen:
            seen[numbers[place].item()] = x[place]
    return torch.stack(list(seen.values()))


def sums_by_number(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    sums: dict[Any, Any] = {}
    for place in range(2):
        key = (numbers[place].item(), "sum")
        sums[key] = sums.get(key, 0) + x[place]
    return torch.stack(list(sums.values()))


def beside_plain_numbers(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    table = {0: x[0], 1: x[1]}
    table[numbers[0].item()] = x[1]
    return table[0] + table[1]


@pytest.mark.parametrize("program", [rows_by_number, first_by_number, sums_by_number, beside_plain_numbers])
def test_numbers_of_data_are_no_keys(program: Callable[..., Any]) -> None:
    """Which of them are one key depends on data: with two different ones in the example, the file was wrong for two equal ones."""
    with pytest.raises(UserError, match="E104"):
        fx2onnx.export(program, (torch.randn(2, 3), torch.tensor([0, 1])))


def test_texts_of_numbers_of_data_are_keys_with_a_warning() -> None:
    def program(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        rows = {str(numbers[place].item()): x[place] for place in range(2)}
        return torch.stack(list(rows.values()))

    with pytest.warns(fx2onnx.ExportWarning, match="decides what forward computes"):
        fx2onnx.export(program, (torch.randn(2, 3), torch.tensor([0, 1])))


def stored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    sums = {}
    for part in (x, y):
        sums[part.shape[0]] = sums.get(part.shape[0], 0) + part.sum(0)
    return sums[x.shape[0]] * len(sums)


def displayed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    sums = {x.shape[0]: x.sum(0), y.shape[0]: y.sum(0)}
    return sums[x.shape[0]] * len(sums)


def by_shape(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    sums: dict[Any, Any] = {"parts": 2}
    sums[x.shape] = x.sum(0)
    sums[y.shape] = y.sum(0)
    return sums[x.shape] * len(sums)


@pytest.mark.parametrize("program", [stored, displayed, by_shape])
def test_two_sizes_are_one_key_of_a_dict_of_forward_where_they_are_equal(program: Callable[..., Any]) -> None:
    sample = torch.randn(4, 3), torch.randn(5, 3)
    others = [(torch.randn(rows, 3), torch.randn(lines, 3)) for rows, lines in ((6, 6), (2, 7))]
    check(program, sample, others=others, dynamic_shapes=({0: "n"}, {0: "m"}))
