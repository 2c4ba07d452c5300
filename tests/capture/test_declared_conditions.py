"""Conditions on sizes that are declared, which the file checks by nodes or the runner by metadata: with real numbers, of two inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fx2onnx
from fx2onnx.runner import InferenceSession


def by_assertion(n: int, m: int) -> None:
    assert math.sqrt(n + 1) < m + 1


def by_check(n: int, m: int) -> None:
    torch._check(int(n * 0.3) <= m)


def by_error(n: int, m: int) -> None:
    if m != n // 2:
        raise ValueError("half as many")


def by_value_check(n: int, m: int) -> None:
    torch._check_value(round(n / 3) < m + 2)


def by_many(n: int, m: int) -> None:
    assert n % 3 == 2 or math.log2(m) < 3


CONDITIONS = (by_assertion, by_check, by_error, by_value_check, by_many)
SIZES = ((8, 4), (20, 10), (40, 2), (4, 20), (100, 3), (11, 64), (5, 2))


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda each: each.__name__)
def test_the_runner_refuses_sizes_that_eager_pytorch_refuses(condition: Callable[[int, int], None]) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        condition(x.shape[0], y.shape[0])
        return x.sum() + y.sum()

    args = torch.randn(8, 3), torch.randn(4, 3)
    result = fx2onnx.export(program, args, None, dynamic_shapes=({0: "n"}, {0: "m"}))
    session = InferenceSession(result.model_proto.SerializeToString())
    names = [value.name for value in session.get_inputs()]
    outcomes = set()
    for n, m in SIZES:
        x, y = torch.randn(n, 3), torch.randn(m, 3)
        try:
            expected = program(x, y)
        except (AssertionError, RuntimeError, ValueError):
            expected = None
        try:
            (given,) = session.run(None, dict(zip(names, (x.numpy(), y.numpy()), strict=True)))
        except fx2onnx.UserError:
            given = None
        assert (given is None) == (expected is None), (n, m)
        assert given is None or expected is None or torch.allclose(torch.from_numpy(given), expected, atol=1e-5)
        outcomes.add(given is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize(("shape", "names"), [((4, 3), "n"), ((4, 3, 2), "nt"), ((2, 3, 4, 5), "nhw")])
def test_a_norm_in_training_takes_more_than_one_value_of_a_channel(shape: tuple[int, ...], names: str) -> None:
    axes = dict(zip((0, *range(2, len(shape))), names, strict=True))
    result = fx2onnx.export(
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        (torch.randn(shape),),
        dynamic_shapes=(axes,),
    )
    session = InferenceSession(result.model_proto.SerializeToString())
    (name,) = [value.name for value in session.get_inputs()]
    one = [1 if axis in axes else size for axis, size in enumerate(shape)]
    session.run(None, {name: torch.randn(2, *one[1:]).numpy()})
    with pytest.raises(fx2onnx.UserError, match="!= 1"):
        session.run(None, {name: torch.randn(one).numpy()})
