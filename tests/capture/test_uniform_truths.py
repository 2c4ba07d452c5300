"""Decisions by tensors of one number, such as a mask of zeros for each of a batch: the file has the one branch that there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support import check


def not_all_of_a_mask(x: torch.Tensor) -> torch.Tensor:
    focus = torch.zeros((x.shape[0],), dtype=torch.bool)
    return x.relu() if not (~focus).all() else x * 2


def any_of_a_view(x: torch.Tensor) -> torch.Tensor:
    dropped = (torch.zeros_like(x)[:, None].expand(-1, 3, -1) > 0.5).reshape(-1)
    return x.relu() if dropped.any() else x * 2


def all_of_equal_numbers(x: torch.Tensor) -> torch.Tensor:
    keep = torch.full((x.shape[0], 1), 0.5).to(torch.float64) * 2 == 1
    return x * 2 if keep.all() else x.relu()


def filled_by_a_constant(x: torch.Tensor) -> torch.Tensor:
    mask = torch.tensor([True]).repeat(x.shape[0])
    return x * 2 if torch.logical_or(mask, mask).all() else x.relu()


PROGRAMS = [not_all_of_a_mask, any_of_a_view, all_of_equal_numbers, filled_by_a_constant]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_branch(program: Callable[..., torch.Tensor]) -> None:
    result = check(
        program, (torch.randn(3, 4),), others=[(torch.randn(n, 4),) for n in (1, 2, 5)], dynamic_shapes=({0: "batch"},)
    )
    assert [node.op_type for node in result.model.graph] == ["Mul"]


def where_elements_decide(x: torch.Tensor) -> torch.Tensor:
    return x.relu() if torch.zeros(x.shape[0], dtype=torch.bool).all() else x.sum(0, keepdim=True) + 1


def other_bits(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if (torch.ones_like(x).view(torch.int32) == 1).any() else x * 3


def written_later(x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(x.shape[0], dtype=torch.bool)
    mask[x[:, 0] > 0] = True
    return x * 2 if mask.any() else x.exp()


def all_but_a_row(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.zeros(x.shape[0] - 1).all() else x * 3


def a_size_as_a_tensor(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.tensor(x.shape[0]) == 1 else x * 3


def asked_by_a_kernel_before(x: torch.Tensor) -> torch.Tensor:
    rest = torch.zeros(x.shape[0] - 1).all()
    return (x * 2 if x.shape[0] - 1 == 0 else x * 3) + rest


def rows_that_data_chooses(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.ones_like(x[x[:, 0] > 0]).any() else x * 3


def rows_of_which_the_example_has_none(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if (torch.zeros(x[x > 50].shape) == 1).all() else x * 3


@pytest.mark.parametrize(
    "program",
    [
        where_elements_decide,
        other_bits,
        written_later,
        all_but_a_row,
        a_size_as_a_tensor,
        asked_by_a_kernel_before,
        rows_that_data_chooses,
        rows_of_which_the_example_has_none,
    ],
)
def test_as_eager_decides(program: Callable[..., torch.Tensor]) -> None:
    others = [(torch.randn(n, 4),) for n in (1, 2, 5)] + [(-torch.rand(3, 4),)]
    check(program, (torch.randn(3, 4),), others=others, dynamic_shapes=({0: "batch"},))
