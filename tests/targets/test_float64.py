"""Float64 operators that onnxruntime has no kernel for: forms in float64, as exact as PyTorch's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fx2onnx
from fx2onnx import runner

pytestmark = pytest.mark.filterwarnings("error::fx2onnx.ExportWarning")

SIZES = np.concatenate(
    [10.0 ** np.linspace(-300, 300, 61), np.linspace(0, 12, 401), np.linspace(20, 700, 99), [0, np.inf]]
)
EDGES = 10.0 ** np.linspace(-15, -1, 29)
NUMBERS = torch.tensor(np.concatenate([SIZES, -SIZES, 1 - EDGES, EDGES - 1, 1 + EDGES, [np.nan, 1, -1]]))
FUNCTIONS = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "sinh", "tan")


class Call(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def results(path: Path, x: Tensor) -> list[np.ndarray[Any, Any]]:
    """The results of onnxruntime and of the runner."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    with np.errstate(all="ignore"):
        return [session.run(None, {name: x.numpy()})[0], runner.InferenceSession(path).run(None, {name: x.numpy()})[0]]


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_exact_everywhere(name: str, opset: int, tmp_path: Path) -> None:
    function = getattr(torch, name)
    path = tmp_path / "model.onnx"
    result = fx2onnx.export(Call(function), (NUMBERS,), path, opset_version=opset)
    assert not result.report.casts
    expected = function(NUMBERS).numpy()
    for found in results(path, NUMBERS):
        np.testing.assert_allclose(found, expected, rtol=1e-15, atol=0)
        signs = np.signbit(found) == np.signbit(expected)
        assert signs[~np.isnan(expected)].all()


@pytest.mark.long
def test_a_branch_has_the_form_inside(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda a: torch.erf(a), lambda a: torch.atan(a) * 2, (x,))

    path = tmp_path / "model.onnx"
    fx2onnx.export(Branch(), (torch.ones(3, dtype=torch.float64),), path)
    for x in (torch.linspace(0, 3, 3).double(), -torch.linspace(0, 3, 3).double()):
        for found in results(path, x):
            np.testing.assert_allclose(found, Branch()(x).numpy(), rtol=1e-15)


CONVOLUTIONS: dict[str, tuple[type[nn.Module], tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "plain": (nn.Conv2d, (4, 8, 3), {"padding": 1}, (2, 4, 9, 8)),
    "groups": (nn.Conv2d, (4, 8, (3, 1), (1, 2), (0, 2), (2, 1), 4), {}, (2, 4, 9, 8)),
    "dilated": (nn.Conv2d, (4, 6, 3, 2, 2, 2), {"groups": 2, "bias": False}, (1, 4, 9, 8)),
    "same": (nn.Conv2d, (4, 8, (3, 2)), {"padding": "same"}, (2, 4, 5, 6)),
    "one place": (nn.Conv2d, (4, 8, 1), {}, (2, 4, 5, 6)),
    "sound": (nn.Conv1d, (4, 8, 3, 2, 1), {}, (2, 4, 9)),
    "no batch": (nn.Conv1d, (4, 4, 3), {"groups": 4}, (4, 9)),
    "volume": (nn.Conv3d, (2, 3, 2), {}, (2, 2, 3, 4, 5)),
    "reflected": (nn.Conv2d, (2, 3, 3), {"padding": 1, "padding_mode": "reflect"}, (2, 2, 4, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind, args, kwargs, shape = CONVOLUTIONS[name]
    module, x = kind(*args, **kwargs).double().eval(), torch.randn(shape, dtype=torch.float64)
    path = tmp_path / "model.onnx"
    assert not fx2onnx.export(module, (x,), path).report.casts
    onnx.checker.check_model(onnx.load(path), full_check=True)
    for found in results(path, x):
        np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-13, atol=1e-14)


def test_a_convolution_at_other_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 2, 2, groups=2)).double().eval()
    path = tmp_path / "model.onnx"
    dims = tuple({0: "batch", 2: "height", 3: "width"} for _ in range(1))
    fx2onnx.export(module, (torch.randn(2, 4, 9, 8).double(),), path, dynamic_shapes=dims)
    for shape in ((3, 4, 12, 7), (1, 4, 5, 31), (2, 4, 3, 3), (0, 4, 9, 8)):
        x = torch.randn(shape).double()
        for found in results(path, x):
            assert found.shape == module(x).shape
            np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-13, atol=1e-14)


def test_large_numbers_do_not_overflow_early(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    x = torch.tensor([710.4, -710.4], dtype=torch.float64)
    fx2onnx.export(Call(torch.cosh), (x,), path)
    for found in results(path, x):
        np.testing.assert_allclose(found, [math.cosh(710.4)] * 2, rtol=1e-13)
