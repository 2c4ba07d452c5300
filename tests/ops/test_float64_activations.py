"""Activations in float64 are computed in float64, where onnxruntime has their operators in float32 alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.support import check

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
