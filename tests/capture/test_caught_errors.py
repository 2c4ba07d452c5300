"""An ``except`` of forward's: what eager PyTorch raises at other sizes is a condition, and what only a capture raises is an error."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.runner import InferenceSession
from tests.support import check

X = torch.tensor([1.0, 2, -3, 4, 5, 6, -7, 8, 9])
TABLE = torch.arange(8.0)


def _caught(operator: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        try:
            y = operator(x)
        except Exception:  # as modules do that are to run anywhere
            return x * 2
        return y + 3

    return forward


def _suppressed(operator: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError, IndexError):
            return operator(x) + 3
        return x * 2

    return forward


OPERATORS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int, int]] = {
    "view": (lambda x: x.view(-1, 4).sum(0), 9, 8),
    "a table": (lambda x: x + TABLE, 7, 8),
    "windows": (lambda x: x.unfold(0, 4, 1).sum(1), 3, 8),
    "an index": (lambda x: x[5], 4, 8),
    "narrow": (lambda x: x.narrow(0, 0, 6), 4, 8),
    "split": (lambda x: x.split([2, x.shape[0] - 5, 3])[1], 4, 8),
    "pooling": (lambda x: torch.nn.functional.max_pool1d(x[None, None], 5)[0, 0], 4, 8),
}
"""Operators, a size at which they raise, and one at which they do not."""


@pytest.mark.parametrize("way", [_caught, _suppressed])
@pytest.mark.parametrize("name", OPERATORS)
def test_what_other_sizes_do_not_raise_is_a_condition(name: str, way: Callable[[Any], Any]) -> None:
    operator, raises_at, other = OPERATORS[name]
    forward = way(operator)
    result = check(forward, (torch.randn(raises_at),), dynamic_shapes=({0: "n"},))
    assert any("forward catches an error" in line for line in result.report.warnings)
    session = InferenceSession(result.model_proto.SerializeToString())
    with pytest.raises(fx2onnx.UserError, match="E401"):
        session.run(None, {"x": np.zeros(other, np.float32)})
    assert verify(result, forward, (torch.randn(raises_at),)).ok


def test_an_error_at_every_size_is_no_condition() -> None:
    result = check(_caught(lambda x: x.half() @ x), (X,), others=[(X[:4],)], dynamic_shapes=({0: "n"},))
    assert not result.report.assumptions
    assert not result.report.warnings


def _decides(x: torch.Tensor) -> torch.Tensor:
    return x * 5 if x.sum() > 0 else x


def test_a_decision_by_data_is_in_the_file_although_forward_catches_every_error() -> None:
    check(_caught(_decides), (X,), others=[(-X,)])
    check(_caught(lambda x: x * float(x.sum())), (X,), others=[(-X,)])


NUMBERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda x: x.numpy(),
    "an array": lambda x: np.asarray(x),
    "of NumPy": lambda x: np.sin(x),
    "memory": lambda x: x.untyped_storage()[0],
    "printed": lambda x: f"{x[0]:.2f}",
    "pickled": lambda x: pickle.dumps(x),
    "saved": lambda x: torch.save(x, io.BytesIO()),
    "an index": lambda x: [1, 2, 3][x[0].long() % 3],
    "sorted": lambda x: sorted(x),
    "a range": lambda x: range(x[0].long()),
    "complex": lambda x: complex(x[0]),
    "sparse": lambda x: x.to_sparse(),
    "apply": lambda x: x.clone().apply_(lambda number: number + 1),
    "map": lambda x: x.clone().map_(x, lambda one, other: one + other),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_only_a_capture_raises_is_an_error(name: str) -> None:
    def operator(x: torch.Tensor) -> torch.Tensor:
        NUMBERS[name](x)
        return x

    _caught(operator)(X)
    with pytest.raises(fx2onnx.UserError, match=r"E10[14]"):
        fx2onnx.export(_caught(operator), (X,))


@pytest.mark.parametrize("size", [0, 9])
def test_only_a_tensor_of_one_element_is_true_or_false(size: int) -> None:
    with pytest.raises(fx2onnx.UserError, match=r"E101(?s:.*)Boolean value of Tensor with"):
        fx2onnx.export(lambda x: x if x > 0 else -x, (X[:size],))
    check(_caught(lambda x: x if x > 0 else -x), (X[:size],))
