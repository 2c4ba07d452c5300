"""Functions of constants in a file: eager PyTorch's bits, so that a rounding behind them falls the same way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.exporting.steps import EAGER_FUNCTIONS
from fx2onnx.runner import InferenceSession
from fx2onnx.semantics.folding import LAST_BIT

FUNCTIONS = {
    "cos": torch.cos,
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda x: 10000.0 ** (x / 500),
    "sin": torch.sin,
}


class OfPositions(torch.nn.Module):
    def __init__(self, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.name, self.dtype = name, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + FUNCTIONS[self.name](torch.arange(1, x.shape[0] + 1, dtype=self.dtype) / 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_constant_has_the_bits_of_eager_pytorch(name: str, dtype: torch.dtype) -> None:
    module, x = OfPositions(name, dtype), torch.zeros(4000 if dtype == torch.float32 else 40, dtype=dtype)
    result = fx2onnx.export(module, (x,))
    assert [node.op_type for node in result.model.graph] == ["Add"]
    (got,) = InferenceSession(result.model_proto.SerializeToString()).run(None, {"x": x.numpy()})
    np.testing.assert_array_equal(got, module(x).numpy())


def test_every_function_that_libraries_round_is_there() -> None:
    assert EAGER_FUNCTIONS.keys() == LAST_BIT.keys()


class Buckets(torch.nn.Module):
    """T5's: ``log(d / 8) / log(16) * 8`` is a whole number where the distance is 8 times a power of two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        distance = torch.arange(8, 8 + x.shape[0]).float()
        bucket = torch.log(distance / 8) / torch.log(torch.tensor(16.0)) * 8
        return x + bucket.to(torch.int64)


def test_buckets_by_a_logarithm() -> None:
    module, x = Buckets(), torch.zeros(2000)
    result = fx2onnx.export(module, (x,))
    (got,) = InferenceSession(result.model_proto.SerializeToString()).run(None, {"x": x.numpy()})
    np.testing.assert_array_equal(got, module(x).numpy())
