"""Sizes, from data or from axes, where torch's schemas have plain numbers: windows, diagonals, indices, blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fx2onnx
from tests.support import check


def tokens(rows: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, rows, 4, generator=torch.Generator().manual_seed(rows))


def _tripled(x: Tensor, n: Any) -> Tensor:
    y = x.clone()
    y.unfold(1, n, n).mul_(3)
    return y


def _diagonal_written(x: Tensor, n: Any) -> Tensor:
    y = x.clone()
    y.diagonal(n, 1, 2).fill_(0)
    return y


def _counted(x: Tensor, n: Any) -> Tensor:
    y = torch.zeros(x.shape[1])
    y[n] += 1
    y[n - 1] += 2
    return y * x[0, :, 0]


def _in_two(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
    first, second = x[:, :n].chunk(2, 1)
    return first * 2, second


def _split_in_two(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
    first, second = x[:, 1:].split((x.shape[1] + n % 3) // 2, dim=1)
    return second, first * 2


PROGRAMS: dict[str, Callable[[Tensor, Any], Any]] = {
    "unfold": lambda x, n: x.unfold(1, n, n - 1),
    "unfold by name": lambda x, n: x.unfold(dimension=-2, size=2, step=n).sum(-1),
    "unfold of another axis": lambda x, n: x.transpose(0, 1).unfold(0, n, 1),
    "diagonal": lambda x, n: x.diagonal(n - 3, 1, 2),
    "torch.diagonal": lambda x, n: torch.diagonal(x, offset=-n, dim1=1, dim2=2),
    "adaptive_max_pool1d": lambda x, n: F.adaptive_max_pool1d(x.mT, n),
    "adaptive_max_pool2d": lambda x, n: F.adaptive_max_pool2d(x, (n, None)),
    "adaptive_max_pool2d with indices": lambda x, n: F.adaptive_max_pool2d(x, (n, 3), return_indices=True),
    "narrow": lambda x, n: x.narrow(1, 1, n - 1).mean(1),
    "narrow from the end": lambda x, n: x.narrow(1, -n, n).sum(1),
    "counted": _counted,
    "list": lambda x, n: x[:, [n - 1, 0, n - 2]],
    "copied view": lambda x, n: x[:, :n].contiguous().view(x.shape[0] * n, 2, 2),
    "product over the slice": lambda x, n: x[:, 2:n].mT @ x[:, 2:n],
    "fold": lambda x, n: F.fold(F.unfold(x[:, None, :n], 2), (n, 4), 2),
    "repeated rows": lambda x, n: x.repeat_interleave(n, 1),
    "a row taken from all": lambda x, n: x - x[:, n : n + 1],
    "a row from the front": lambda x, n: torch.where(x > 0, x[:, n - 2 : n - 1], x).sum(1),
    "a row without its axis": lambda x, n: x[:, n : n + 1, None].squeeze(1).squeeze(1),
    "a row expanded": lambda x, n: x[:, n : n + 1].expand(-1, x.shape[1], -1) * x,
    "as many of a row": lambda x, n: x[:, n : n + 1].expand_as(x[:, 1:]),
    "chunks": lambda x, n: x[:, :n].chunk(2, 1)[-1] * 2,
    "chunks in two": _in_two,
    "chunks of chosen rows": lambda x, n: torch.cat([part.sum(1) for part in x[:, x[0, :, 0] > -9][:, :n].chunk(2, 1)]),
    "split in two": _split_in_two,
    "tensor of both": lambda x, n: torch.tensor([[torch.arange(12)[n], n], [3, n]]) + x.shape[1],
    "logsumexp": lambda x, n: x[:, : n // 2].logsumexp((1, 2)),
    "all repeated": lambda x, n: x.repeat_interleave(n),
}


@pytest.mark.parametrize("axes", [{}, {0: "batch", 1: "rows"}], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_from_data(name: str, axes: dict[int, str]) -> None:
    program = PROGRAMS[name]
    others = [(tokens(8), torch.tensor(n)) for n in (2, 3, 7)]
    others += [(tokens(5, 1), torch.tensor(3)), (tokens(11, 3), torch.tensor(10))] if axes else []
    shapes = {"x": axes, "n": None} if axes else None
    check(lambda x, n: program(x, n.item()), (tokens(8), torch.tensor(4)), others=others, dynamic_shapes=shapes)


SIZED: dict[str, Callable[[Tensor], Any]] = {
    "quarters": lambda x: x.unfold(1, x.shape[1] // 4, x.shape[1] // 4),
    "half a window apart": lambda x: x.unfold(1, 2, x.shape[1] // 2),
    "diagonal": lambda x: x.mT.diagonal(x.shape[1] - 3, 1, 2),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x.mT, x.shape[1] // 2),
}


EMPTY: dict[str, Callable[[Tensor, Any], Any]] = {
    "mean": lambda x, n: x[:, :n].mean(1),
    "mean of all": lambda x, n: x[:, :n].mean(),
    "any": lambda x, n: (x[:, :n] > 0).any(1),
    "all": lambda x, n: (x[:, :n] < 3).all(1),
    "product": lambda x, n: x[:, :n].mT @ x[:, :n],
    "adaptive_max_pool1d": lambda x, n: F.adaptive_max_pool1d(x.mT, n),
    "adaptive_avg_pool1d": lambda x, n: F.adaptive_avg_pool1d(x.mT, n),
}


@pytest.mark.parametrize("name", EMPTY)
def test_the_number_0(name: str) -> None:
    program = EMPTY[name]
    check(lambda x, n: program(x, n.item()), (tokens(8), torch.tensor(4)), others=[(tokens(8), torch.tensor(0))])


@pytest.mark.parametrize("name", SIZED)
def test_sizes_of_axes(name: str) -> None:
    others = [(tokens(rows),) for rows in (4, 5, 9, 12, 23, 40)]
    result = check(SIZED[name], (tokens(8),), others=others, dynamic_shapes=({1: "rows"},))
    assert not [each for each in result.report.assumptions if each.kind in ("guard", "specialization")]


@pytest.mark.parametrize("program", [_tripled, _diagonal_written])
def test_writes_through_such_views_are_refused(program: Callable[[Tensor, Any], Tensor]) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(lambda x, n: program(x, n.item()), (tokens(8), torch.tensor(2)))
    assert caught.value.code in ("E103", "E203")
    assert caught.value.where is not None


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x.chunk(n, 1)[0],
        lambda x, n: torch.chunk(x, chunks=n, dim=1),
        lambda x, n: x.split(n, 1)[-1],
        lambda x, n: [part.sum() for part in x[:, :n].split(2, 1)],
        lambda x, n: torch.tensor_split(x, n, 1)[0],
    ],
)
def test_a_number_of_parts_that_data_tells_is_an_error_that_says_so(program: Callable[[Tensor, Any], Any]) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(lambda x, n: program(x, n.item()), (tokens(8), torch.tensor(4)))
    assert caught.value.code == "E104"
    assert "how many parts" in caught.value.what
    assert caught.value.where is not None


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("options", [{"batch_chunk_size": 2}, {"chunking_method": "auto"}, {}])
def test_code_of_torchs_modules_takes_a_size_for_an_int(options: dict[str, Any], reduction: str) -> None:
    made = getattr(torch.nn, "LinearCrossEntropyLoss", None)
    if made is None:
        pytest.skip("this release of torch has no module that asks whether a size is an int")
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

    loss = made(5, 4, reduction=reduction, options=LinearCrossEntropyOptions(**options))
    sample, *others = [(torch.randn(n, 5), torch.arange(n) % 4) for n in (8, 3, 17, 1)]
    check(loss, sample, others=others, dynamic_shapes=({0: "n"}, {0: "n"}))
