"""Operators over an axis of a size less one, which is empty where the size is 1: onnxruntime has rules of its own there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.runner import InferenceSession


class Rest(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x[:, 1:])


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all": lambda x: (x > 0).all(),
    "any": lambda x: (x > 0).any(),
    "all of rows": lambda x: (x > 0).all(1),
    "any of rows": lambda x: (x > 0).any(1, keepdim=True),
    "any of both": lambda x: (x > 0).any(dim=(0, 1)),
    "mean": lambda x: x.mean(1),
    "mean of all": lambda x: x.mean(),
    "var": lambda x: x.var(1),
    "mse": lambda x: nn.functional.mse_loss(x, x + 1),
    "product": lambda x: x @ x.T,
    "cumprod": lambda x: x.cumprod(1),
    "cumprod of columns": lambda x: x.T.cumprod(0),
    "cummax": lambda x: x.cummax(1)[0],
    "cummin": lambda x: x.cummin(1)[1],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_left_at_size_one(name: str, opset: int) -> None:
    module = Rest(FUNCTIONS[name])
    result = fx2onnx.export(module, (torch.randn(3, 5),), dynamic_shapes={"x": {1: "n"}}, opset_version=opset)
    data = result.model_proto.SerializeToString()
    for size in (1, 2, 5):
        x = torch.randn(3, size)
        for open_session in (InferenceSession, onnxruntime.InferenceSession):
            (given,) = open_session(data).run(None, {"x": x.numpy()})
            want = module(x).numpy()
            assert given.shape == want.shape
            np.testing.assert_allclose(given, want, rtol=1e-5, atol=1e-6)
