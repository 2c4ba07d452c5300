"""Memory that tensors share at some sizes only, checked against eager PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import fx2onnx
from tests.support import check

Made = Callable[[torch.Tensor], torch.Tensor]
Kept = Callable[[torch.Tensor, torch.Tensor], object]

COPIES: dict[str, Made] = {
    "reshape": lambda y: y.transpose(0, 1).reshape(-1, 4),
    "contiguous": lambda y: y.transpose(0, 1).contiguous(),
    "flatten": lambda y: y.permute(1, 0, 2).flatten(),
    "a view of a copy": lambda y: y.transpose(0, 1).contiguous().view(-1),
    "column": lambda y: y[:, :1].reshape(-1),
}
SIZES = [(torch.randn(n, m, 4),) for n, m in ((3, 2), (1, 2), (3, 1), (1, 1))]


def _written(made: Made, then: Kept) -> Made:
    def forward(x: torch.Tensor) -> object:
        y = x * 2
        return then(y, made(y))

    return forward  # type: ignore[return-value]


def _said(forward: Made, example: torch.Tensor, *dims: str) -> tuple[fx2onnx.ExportResult, list[str]]:
    with warnings.catch_warnings(record=True, action="always") as caught:
        result = fx2onnx.export(forward, (example,), dynamic_shapes=(dict(enumerate(dims)),))
    return result, [str(each.message) for each in caught if each.category is fx2onnx.ExportWarning]


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("example", [(3, 2), (1, 2), (3, 1)])
def test_a_copy_that_is_a_view_where_a_size_is_one(copy: str, example: tuple[int, int]) -> None:
    after: list[Kept] = [
        lambda y, z: (z.add_(1), y),
        lambda y, z: (y[0].add_(1), z),
        lambda y, z: (z.mul_(3), y[:, 0] + 1),
    ]
    for then in after:
        forward = _written(COPIES[copy], then)
        check(forward, (torch.randn(*example, 4),), others=SIZES, dynamic_shapes=({0: "n", 1: "m"},))


@pytest.mark.parametrize("first", [lambda y: y.add_(1), lambda y: y.fill_(2), lambda y: y.copy_(y.exp())])
@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_of_what_was_written_before(copy: str, first: Made) -> None:
    def forward(x: torch.Tensor) -> object:
        y = x * 2
        first(y)
        z = COPIES[copy](y)
        z.mul_(3)
        y.fill_(4)
        return y, z

    check(forward, SIZES[0], others=SIZES, dynamic_shapes=({0: "n", 1: "m"},))


def _in_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if x.sum() > 0:
        z = y.transpose(0, 1).contiguous()
        z.add_(1)
    return y


def _written_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y.transpose(0, 1).reshape(-1, 4)
    if x.sum() > 0:
        z.add_(1)
    return y


def _in_turns(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for row in x:
        z = y.transpose(0, 1).reshape(-1, 4)
        z.add_(row.sum())
    return y


def _written_in_turns(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y.transpose(0, 1).reshape(-1, 4)
    for row in x:
        z.add_(row.sum())
    return y


@pytest.mark.parametrize("forward", [_in_a_branch, _written_in_a_branch, _in_turns, _written_in_turns])
def test_a_copy_in_a_branch_or_a_loop_that_is_a_view_where_a_size_is_one(forward: Made) -> None:
    others = [(sign * x.abs(),) for (x,) in SIZES for sign in (1, -1)]
    check(forward, (torch.randn(3, 2, 4),), others=others, dynamic_shapes=({0: "n", 1: "m"},))


@pytest.mark.parametrize("write", [lambda y, z: (z.add_(1), y), lambda y, z: (y.mul_(2), z)])
def test_a_copy_with_its_channels_last_that_is_a_view_where_there_is_one(write: Kept) -> None:
    def forward(x: torch.Tensor) -> object:
        y = x * 2
        return write(y, y.contiguous(memory_format=torch.channels_last))

    others = [(torch.randn(n, m, 4, 5),) for n, m in ((3, 1), (1, 1), (1, 3))]
    check(forward, (torch.randn(2, 3, 4, 5),), others=others, dynamic_shapes=({0: "n", 1: "m"},))  # type: ignore[arg-type]


@pytest.mark.parametrize("copy", COPIES)
def test_what_nobody_reads_later_decides_nothing(copy: str) -> None:
    after: list[Kept] = [lambda y, z: z.add_(1), lambda y, z: (y.sum(), z.relu_()), lambda y, z: z.add_(1) + z.mean()]
    for then in after:
        forward = _written(COPIES[copy], then)
        result = check(forward, SIZES[0], others=SIZES, dynamic_shapes=({0: "n", 1: "m"},))
        assert not result.report.assumptions
        assert all(node.op_type != "If" for node in result.model_proto.graph.node)


@pytest.mark.parametrize("made", [lambda y: y[:, :4].reshape(-1), lambda y: y[:, :4].contiguous()])
def test_a_copy_that_is_a_view_at_some_other_size(made: Made) -> None:
    forward = _written(made, lambda y, z: (z.add_(1), y))
    _, said = _said(forward, torch.randn(3, 6), "n", "m")
    assert any("a view in eager PyTorch where m is 2" in text for text in said)
    with pytest.raises(fx2onnx.UserError, match=r"E103[^\n]*a view at these sizes"):
        _said(forward, torch.randn(3, 4), "n", "m")
    assert not _said(_written(made, lambda y, z: z.add_(1)), torch.randn(3, 4), "n", "m")[1]


def _shifted(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 4:] = y[:, :-4]
    return y


def _added(x: torch.Tensor) -> torch.Tensor:
    return (x * 2)[:, :-4].add_(x[:, 4:])


def _added_own(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y[:, :-4].add_(y[:, 4:])


def _halves(x: torch.Tensor) -> torch.Tensor:
    y, half = x * 2, x.shape[1] // 2
    y[:, :half] += y[:, half : 2 * half]
    return y


@pytest.mark.parametrize(
    ("forward", "is_told"), [(_shifted, True), (_added_own, True), (_added, False), (_halves, False)]
)
def test_elements_that_are_read_and_written_at_other_sizes(forward: Made, is_told: bool) -> None:
    others = [(torch.randn(1, 7),), (torch.randn(2, 8),)]  # fewer than those of which some are read and written
    check(forward, (torch.randn(3, 6),), others=others, dynamic_shapes=({0: "n", 1: "m"},))
    _, said = _said(forward, torch.randn(3, 6), "n", "m")
    assert [text for text in said if "reads a part of the elements that it writes where m is" in text] == said
    assert bool(said) == is_told
