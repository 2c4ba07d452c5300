"""Numbers that float16 does not have, beside its tensors: PyTorch computes with them in float32 and rounds once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import check

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
