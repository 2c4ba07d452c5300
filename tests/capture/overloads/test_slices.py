"""Slices and parts of symbolic sizes: right at other sizes than the sample's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.recorded import N, recorded, sizes_at
from tests.support import check

SIZES = (2, 3, 6, 7, 11, 40)
SLICES = [
    lambda x: x[2:], lambda x: x[:5], lambda x: x[-4:], lambda x: x[:-3], lambda x: x[1:-1], lambda x: x[-5:-2],
    lambda x: x[::3], lambda x: x[3:1], lambda x: x[1:9:2],
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(SLICES)))
def test_a_slice_has_the_size_that_eager_gives(index: int) -> None:
    tracer, result = recorded(SLICES[index], (N, 3), hints={"n": 6})
    for size in SIZES:
        assert sizes_at(result, n=size) == SLICES[index](torch.empty(size, 3)).shape
    assert not tracer.sizes.specializations


PARTS = {
    "tensor_split": (lambda x: x.tensor_split(3), SIZES),
    "split": (lambda x: x.split(x.shape[0]), SIZES),
    "split by half": (lambda x: torch.cat([x, x]).split(x.shape[0]), SIZES),
    "chunk": (lambda x: x.chunk(3), (7, 9, 40)),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_have_the_sizes_that_eager_gives(name: str) -> None:
    function, sizes = PARTS[name]
    tracer, results = recorded(function, (N, 3), hints={"n": 9})
    for size in sizes:
        expected = [part.shape for part in function(torch.empty(size, 3))]
        assert [sizes_at(part, n=size) for part in results] == expected
    assert not tracer.sizes.specializations


def test_a_write_through_a_slice_puts_back_the_clamped_part() -> None:
    def written(x: Any) -> Any:
        x = x + 0
        x[1:5].fill_(7)
        return x

    tracer, result = recorded(written, (N,), hints={"n": 9})
    node = tracer.values.node_of(result)
    assert node.target is torch.ops.aten.slice_scatter.default
    begin, end = node.args[3:5]
    for size in (1, 3, 5, 9):
        assert [getattr(bound, "evaluate", lambda _, bound=bound: bound)({"n": size}) for bound in (begin, end)] == [
            min(1, size),
            min(5, size),
        ]


def test_bounds_that_depend_on_data() -> None:
    _, result = recorded(lambda x, i: x[: i.item() - 12], (10,), ((), torch.int64))
    for bound in (0, 3, 11, 12, 16, 30):
        assert sizes_at(result, u0=bound) == torch.empty(10)[: bound - 12].shape


def _checked(x: torch.Tensor, y: torch.Tensor) -> int:
    n = y.shape[0]
    if n > x.shape[0]:
        raise ValueError("too few rows")
    return n


BEHIND_A_CHECK = {
    "up to the size": lambda x, y: x[: _checked(x, y)].view(y.shape[0], -1, 2),
    "from the size": lambda x, y: x[_checked(x, y) :].reshape(len(x) - len(y), 2, 6),
    "of a longer one": lambda x, y: torch.cat([y, x])[: _checked(x, y) + len(y)].reshape(2 * len(y), -1, 2),
    "last rows": lambda x, y: x[-_checked(x, y) :].reshape(y.shape[0], 2, -1) + y.reshape(y.shape[0], 2, -1),
}


@pytest.mark.parametrize("name", BEHIND_A_CHECK)
def test_a_check_that_raises_is_known_behind_it(name: str) -> None:
    """The length was min(a, b), and a reshape by b a condition of its own; with more sizes, quotients that are no numbers."""
    rows = [(torch.randn(a, 4, 3), torch.randn(b, 4, 3)) for a, b in ((7, 3), (5, 4), (9, 1), (6, 6))]
    result = check(BEHIND_A_CHECK[name], rows[0], others=rows[1:], dynamic_shapes=({0: "a"}, {0: "b"}))
    assert [each.expression for each in result.report.assumptions] == ["b <= a"]
