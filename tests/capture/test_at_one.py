"""What the user's Python decides by whether a size is 0 or 1 is right there: in the file are both programs, one, or a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.sizes.assumptions import Condition, Guard
from tests.support import check

ROWS = ({0: "n"},)
BOTH = ({0: "b", 1: "n"},)
Program = Callable[..., torch.Tensor]


def rows(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(size, 3),) for size in sizes]


def tables(*sizes: tuple[int, int]) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(*size),) for size in sizes]


def ifs(result: Any) -> int:
    return [node.op_type for node in result.model.graph].count("If")


class Weighted(torch.nn.Module):
    """Each branch has weights and constants of its own, and one buffer that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return self.other(x) + torch.tensor([1.0, 2, 3])
        return self.one(x) + torch.tensor([1.0, 2, 4])


def counted(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 1:
        return x + sum(range(x.shape[0] + 3))
    return x * x.shape[0]


def chosen_within_a_branch(x: torch.Tensor) -> torch.Tensor:
    """A size that data decides lies in a branch, in the program of size 1 as in that of the others."""
    y = x.cumsum(1) if x.shape[0] == 1 else x.cumsum(0)
    if y.sum() > 0:
        return y[y > 0].cumsum(0)[-1] + torch.arange(y[y > 0].shape[0]).sum()
    return y[y < 0].prod()


def chosen_by_data(x: torch.Tensor) -> torch.Tensor:
    y = x[x > 0]
    if x.shape[0] == 1:
        y = y[y < 1]
        y = y * torch.arange(y.shape[0])
    y = y[y < 1.5]
    return y - torch.arange(y.shape[0])


def by_two(x: torch.Tensor) -> torch.Tensor:
    b, n = x.shape
    if b == 1:
        x = x.exp()
    if n == 1:
        x = x.tanh()
    return x * 2


def by_two_together(x: torch.Tensor) -> torch.Tensor:
    is_row, is_column = bool(x.shape[0] == 1), bool(x.shape[1] == 1)
    if is_row and is_column:
        x = x.exp()
    return x * 2


DIFFERENT: dict[str, Program] = {
    "equal": lambda x: x.exp() if x.shape[0] == 1 else x * 2,
    "greater": lambda x: (x.exp() if x.shape[0] > 1 else x * 2) + 1,
    "among numbers": lambda x: x.exp() if x.shape[0] in (1, 3) else x * 2,
    "beside another number": lambda x: x.exp() if x.shape[0] > 4 else (x.tanh() if x.shape[0] == 1 else x),
    "of another rank on the way": lambda x: x.squeeze(0).exp() if x.shape[0] == 1 else x.sum(0),
    "only at 1 does it fit": lambda x: x.view(3).exp() if x.shape[0] == 1 else x.sum(0),
    "by its number": counted,
    "sizes by data": chosen_by_data,
    "sizes by data in a branch": chosen_within_a_branch,
    "weights": Weighted(),
}


@pytest.mark.parametrize("name", sorted(DIFFERENT))
@pytest.mark.parametrize("sample", [4, 1])
def test_branches_that_differ_are_both_in_the_file(name: str, sample: int) -> None:
    result = check(DIFFERENT[name], *rows(sample), others=rows(1, 2, 3, 5, 9), dynamic_shapes=ROWS)
    assert ifs(result)
    assert not [found for found in result.report.assumptions if isinstance(found, Condition | Guard)]


@pytest.mark.parametrize(
    "program",
    [by_two, by_two_together, lambda x: x.exp() if x.shape[0] * x.shape[1] == 1 else x * 2,
     lambda x: x.exp() if x.shape[0] == 1 and x.shape[1] == 1 else x * 2],
    ids=["each", "together", "product", "and"],
)  # fmt: skip
def test_two_sizes_that_are_one_alone_and_together(program: Program) -> None:
    others = tables((1, 1), (1, 3), (3, 1), (2, 2))
    check(program, *tables((4, 3)), others=others, dynamic_shapes=BOTH)


def test_a_size_that_is_broadcast_only_where_it_is_one() -> None:
    samples = [(torch.randn(n, 3), torch.randn(m, 3)) for n, m in ((4, 5), (1, 7), (2, 7), (1, 1))]
    result = check(
        lambda x, y: x + y if x.shape[0] == 1 else x[:1] * y,
        samples[0],
        others=samples[1:],
        dynamic_shapes=({0: "n"}, {0: "m"}),
    )
    assert ifs(result) == 1


class Attention(torch.nn.Module):
    """Causal for several queries, as libraries ask for it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, y, y, is_causal=x.shape[2] > 1)


SAME: dict[str, Program] = {
    "nothing but a copy": lambda x: x * 2 if x.shape[0] == 1 else 2 * x if x.shape[0] < 0 else x * 2,
    "padded by nothing": lambda x: F.pad(x, (0, 0, 0, x.shape[0] - 1)) if x.shape[0] > 1 else x,
    "sliced from end to end": lambda x: (x[:1] if x.shape[0] == 1 else x) + 1,
    "what nobody reads": lambda x: (x.exp(), x + 1)[1] if x.shape[0] == 1 else x + 1,
}


@pytest.mark.parametrize("name", sorted(SAME))
def test_branches_that_give_the_same_are_one_program(name: str) -> None:
    result = check(SAME[name], *rows(4), others=rows(1, 2, 7), dynamic_shapes=ROWS)
    assert not ifs(result)
    assert not [found for found in result.report.assumptions if isinstance(found, Condition | Guard)]


def test_a_single_query_with_a_single_key_needs_no_other_attention() -> None:
    def queries(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.randn(1, 2, size, 4),) * 2 for size in sizes]

    def shared(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=x.shape[2] > 1)

    result = check(shared, queries(5)[0][:1], others=[q[:1] for q in queries(1, 2, 9)], dynamic_shapes=({2: "n"},))
    assert not ifs(result)
    samples = [(torch.randn(1, 2, n, 4), torch.randn(1, 2, m, 4)) for n, m in ((5, 7), (1, 7), (3, 4), (1, 1))]
    result = check(Attention(), samples[0], others=samples[1:], dynamic_shapes=({2: "n"}, {2: "m"}))
    assert ifs(result) == 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.squeeze(0) if x.shape[0] == 1 else x,
        lambda x: x.view(3, 2) if x.shape[0] == 1 else x,
        lambda x: (x, x) if x.shape[0] == 1 else x,
    ],
    ids=["another rank", "it fails", "another structure"],
)
def test_a_branch_that_the_file_cannot_have_is_a_condition(program: Program) -> None:
    result = check(program, *rows(4), others=rows(2, 3, 9), dynamic_shapes=ROWS)
    (condition,) = [found for found in result.report.assumptions if isinstance(found, Condition)]
    assert condition.expression == "n != 1"
    assert condition.where is not None
    with pytest.raises(fx2onnx.UserError, match="n != 1"):
        fx2onnx.export(program, *rows(1), dynamic_shapes=ROWS, verify=True)


def test_a_size_keeps_its_name_where_one_branch_has_the_number() -> None:
    result = check(
        lambda x: x.view(1, 3).exp() if x.shape[0] == 1 else x * 2, *rows(4), others=rows(1, 2), dynamic_shapes=ROWS
    )
    assert ifs(result)
    assert str(result.model.graph.outputs[0].shape) == "[n,3]"


def test_a_declared_range_without_one_asks_for_nothing() -> None:
    dims = ({0: torch.export.Dim("n", min=2)},)
    result = check(DIFFERENT["equal"], *rows(4), others=rows(2, 9), dynamic_shapes=dims)
    assert not ifs(result)
    assert result.report.attempts == ["fake"]


def test_with_one_branch_asked_for_it_is_the_samples() -> None:
    result = fx2onnx.export(DIFFERENT["equal"], *rows(4), dynamic_shapes=ROWS, data_branches="error")
    assert result.report.attempts == ["fake"]
    assert [found.expression for found in result.report.assumptions] == ["n != 1"]


def test_random_numbers_stay_as_many_as_they_are() -> None:
    """Two draws are two, in either branch."""

    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            noise = torch.rand_like(x)
            return noise - noise
        return torch.rand_like(x) - torch.rand_like(x)

    result = fx2onnx.export(program, *rows(4), dynamic_shapes=ROWS)
    assert ifs(result) == 1


PAST = {"q": {1: "L"}, "past": {1: "p"}, "k": {1: "L"}}


def keys(*sizes: tuple[int, int]) -> list[tuple[torch.Tensor, ...]]:
    """Queries, keys of the past and new keys, by the numbers of new and of past ones."""
    return [(torch.randn(2, new, 3), torch.randn(2, old, 3), torch.randn(2, new, 3)) for new, old in sizes]


def by_all_keys(q: torch.Tensor, past: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    k = torch.cat([past, k], 1)
    n = q.shape[1]
    if n > 1 and k.shape[1] == n:
        return (q @ k.mT).exp()
    return q @ k.mT


def by_their_difference(q: torch.Tensor, past: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    k = torch.cat([past, k], 1)
    return (q @ k.mT).tril() if k.shape[1] - q.shape[1] <= 0 else q @ k.mT


def by_the_past(q: torch.Tensor, past: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    if past.shape[1] == 0:
        return (q @ k.mT).tril()
    return q @ torch.cat([past, k], 1).mT


def by_elements(q: torch.Tensor, past: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    if past.numel():
        return q @ torch.cat([past, k], 1).mT
    return (q @ k.mT).tril()


@pytest.mark.parametrize("program", [by_all_keys, by_their_difference, by_the_past, by_elements])
@pytest.mark.parametrize("sample", [(3, 4), (3, 0)])
def test_both_ways_of_none_are_in_the_file(program: Program, sample: tuple[int, int]) -> None:
    others = keys((5, 0), (1, 0), (1, 6), (5, 1))
    assert ifs(check(program, *keys(sample), others=others, dynamic_shapes=PAST))


def test_either_size_may_be_none() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0) + 1 if x.numel() == 0 else x.sum(0)

    result = check(program, *tables((3, 4)), others=tables((0, 4), (2, 0), (0, 0), (1, 1)), dynamic_shapes=BOTH)
    assert ifs(result)


def test_keys_without_a_past_are_one_program() -> None:
    def program(q: torch.Tensor, past: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = k if past.numel() == 0 else torch.cat([past, k], 1)
        return q @ k.mT

    result = check(program, *keys((3, 4)), others=keys((5, 0), (1, 2)), dynamic_shapes=PAST)
    assert not ifs(result)
    assert not result.report.assumptions


def test_a_branch_for_none_that_cannot_be_joined_is_a_condition() -> None:
    result = check(lambda x: x.sum() if x.shape[0] == 0 else x * 2, *rows(4), others=rows(1, 9), dynamic_shapes=ROWS)
    assert [found.expression for found in result.report.assumptions] == ["n >= 1"]
    with pytest.raises(fx2onnx.UserError, match="E105"):
        fx2onnx.export(lambda x: x.sum() if x.shape[0] == 0 else x * 2, *rows(0), dynamic_shapes=ROWS)


@pytest.mark.parametrize("least", [1, 3])
def test_a_declared_range_without_none_asks_for_nothing(least: int) -> None:
    dims = {"q": {1: "L"}, "past": {1: torch.export.Dim("p", min=least)}, "k": {1: "L"}}
    result = fx2onnx.export(by_the_past, *keys((3, 4)), dynamic_shapes=dims)
    assert result.report.attempts == ["fake"]


def test_what_ends_the_run_where_there_is_none_is_no_decision() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 0:
            raise ValueError("nothing is there")
        return x * 2

    assert fx2onnx.export(program, *rows(4), dynamic_shapes=ROWS).report.attempts == ["fake"]
