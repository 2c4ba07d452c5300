"""Numbers of each float type: steps apart, those that float16 does not have, activations in float64, and promotion among dtypes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx import verify
from fx2onnx.runner import InferenceSession
from tests.support import check
from tests.verify.given import Given


@pytest.mark.parametrize(("start", "step"), [(0, 1.3), (0, 0.1), (0, 0.7), (0.1, 1.1), (0.5, 2.0), (1, 0.25)])
def test_numbers_a_step_apart(start: float, step: float) -> None:
    module = Given(lambda x: torch.arange(start, x.shape[0], step))
    result = fx2onnx.export(module, (torch.zeros(41),), dynamic_shapes=({0: "n"},))
    assert verify(result, module, (torch.zeros(41),), seeds=()).ok
    model = result.model_proto.SerializeToString()
    sessions = [InferenceSession(model), onnxruntime.InferenceSession(model)]
    for size in (20, 41, 161, 1000):
        want = torch.arange(start, size, step).numpy()
        for session in sessions:
            (got,) = session.run(None, {session.get_inputs()[0].name: np.zeros(size, np.float32)})
            assert got.shape == want.shape
            assert np.array_equal(np.floor(got), np.floor(want))
            np.testing.assert_allclose(got, want, rtol=3e-7)


X = torch.tensor([60000.0, 300.0, -3.0, 1e-4, 0.0], dtype=torch.float16)
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a large divisor": lambda x: x / 1e5,
    "a small divisor": lambda x: x / 1e-8,
    "a large factor": lambda x: (x * 0.5) * 1e5,
    "a small factor": lambda x: x * 1e-8 * 1e5,
    "a large dividend": lambda x: 1e5 / x,
    "in place": lambda x: x.clone().div_(1e6).mul_(1e6),
    "a tensor of one number": lambda x: x / torch.tensor(1e5),
    "a sum of it": lambda x: x * torch.full((4, 4), 1e5).sum(),
    "rounded": lambda x: torch.div(x, 1e-5, rounding_mode="trunc"),
    "a scaled product": lambda x: torch.addcmul(x, x, x, value=1e-3),
    "a scaled quotient": lambda x: torch.addcdiv(x, x, x + 1, value=1e5),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_beyond_half_precision(name: str) -> None:
    check(PROGRAMS[name], (X,), rtol=2e-3, atol=2e-6)


def test_other_numbers_need_no_cast() -> None:
    result = check(lambda x: (x * 0.125 + 1e-7) / 3 * 2.5, (X,), rtol=2e-3)
    assert "Cast" not in [node.op_type for node in result.model.graph]


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu with tanh": partial(F.gelu, approximate="tanh"),
    "softplus": F.softplus,
    "softplus with beta": partial(F.softplus, beta=3),
    "log_sigmoid": F.logsigmoid,
    "mish": F.mish,
    "elu": partial(F.elu, alpha=0.7),
    "celu": partial(F.celu, alpha=1.3),
    "selu": F.selu,
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("opset", [13, 20])
def test_float64_activations(name: str, opset: int) -> None:
    x = torch.cat(
        [torch.linspace(-40, 40, 401, dtype=torch.float64), torch.tensor([-1e-9, 1e-9, 700.0, -700.0]).double()]
    )
    result = check(
        FUNCTIONS[name], (x,), rtol=1e-11, atol=1e-14 if name != "gelu with tanh" else 1e-13, opset_version=opset
    )
    assert not result.report.casts


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64]
PAIRS = list(itertools.product(DTYPES, DTYPES))


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Numbers that tell dtypes apart: fractions, more than 8 bits, more than float16's and float32's digits."""
    values = [0.0, 1.0, 2.0, 2.5, 44.0, 100.0, 2049.0, 16777217.0]
    if dtype == torch.bool:
        return torch.tensor(values) > 1
    limit = 100 if dtype in (torch.uint8, torch.int8) else 60000 if dtype == torch.float16 else 1e9
    return torch.tensor([value for value in values if value <= limit], dtype=torch.float64).to(dtype)


def comparisons(x: torch.Tensor, y: Any) -> list[torch.Tensor]:
    return [x == y, x != y, x < y, x >= y]


def arithmetic(x: torch.Tensor, y: Any) -> list[torch.Tensor]:
    return [x + y, x * y, torch.maximum(x, y), torch.where(x > 1, x, y)]


@pytest.mark.long
def test_promotion_of_two_tensors() -> None:
    """All pairs in one model: every operand is an input."""
    operands = [(numbers(lhs)[:, None], numbers(rhs)) for lhs, rhs in PAIRS]
    check(
        lambda *flat: [comparisons(x, y) + arithmetic(x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)],
        tuple(itertools.chain(*operands)),
    )


@pytest.mark.long
@pytest.mark.parametrize("value", [2.0, 44.0, 100.0])
def test_promotion_with_a_zero_dimensional_tensor(value: float) -> None:
    """A 0-d tensor changes the category of the result, never the width within it."""
    operands = [(numbers(lhs), torch.tensor(value).to(rhs)) for lhs, rhs in PAIRS]
    check(
        lambda *flat: [comparisons(x, y) + arithmetic(x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)],
        tuple(itertools.chain(*operands)),
    )


def test_a_wide_zero_dimensional_tensor_wraps_as_in_pytorch() -> None:
    """int8 [44] against int64 300 is compared in int8, where 300 is 44."""
    x = torch.tensor([44, 43], dtype=torch.int8)
    check(lambda x, y: [*comparisons(x, y), x + y], (x, torch.tensor(300)))


@pytest.mark.parametrize("number", [True, 2, 2.5, 100])
def test_promotion_with_a_number(number: Any) -> None:
    """A Python number changes the category, and then to the default dtype."""
    operands = [numbers(dtype) for dtype in DTYPES]
    check(lambda *xs: [[*comparisons(x, number), x + number, x * number] for x in xs], tuple(operands))
