"""Every module of PyTorch, with the arguments of its own tests: exported, and refused in no sound form.

Most of their inputs are a handful of numbers, beside which rounding is large.
"""

from __future__ import annotations

import copy
import zlib
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx import verify
from tests.support import of_torchs_tests
from tests.verify.given import Given

MOST = 3
"""Samples of each module."""
PARTS = 24


def samples_of(info: Any) -> list[tuple[torch.nn.Module, tuple[object, ...], dict[str, object]]]:
    """Those that run in eager PyTorch, evenly spread over all."""
    every = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
    found = []
    for sample in every[:: max(1, len(every) // MOST)]:
        made, given = sample.constructor_input, sample.forward_input
        if given is None:
            continue
        module = info.module_cls(*made.args, **made.kwargs).eval()
        try:
            with torch.no_grad():
                module(*copy.deepcopy(given.args), **copy.deepcopy(given.kwargs))
        except Exception:  # a sample of an error
            continue
        found.append((module, given.args, given.kwargs))
    return found[:MOST]


@pytest.mark.long_cases(but=["2"])
@pytest.mark.parametrize("part", range(PARTS))
def test_modules_of_torch(part: int) -> None:
    for info in of_torchs_tests("common_modules").module_db[part::PARTS]:
        torch.manual_seed(zlib.crc32(info.module_cls.__name__.encode()) % 1000)
        for module, args, kwargs in samples_of(info):
            result = fx2onnx.export(module, args, kwargs=kwargs)
            verdict = verify(result, module, args, kwargs)
            assert verdict.ok, f"{module} {kwargs}: {verdict.describe()}"


X = torch.tensor([-0.3, 2.4, -1.7, 0.6])
NEARLY_NOTHING = {
    "gelu": (torch.nn.GELU(), X - 5),
    "silu": (torch.nn.SiLU(), X - 16),
    "hardswish": (torch.nn.Hardswish(), X / 100 - 2.98),
    "glu": (torch.nn.GLU(), torch.tensor([0.5, -1.0, -15.0, -17.0])),
    "celu": (torch.nn.CELU(2.0), -(X.abs()) / 1e4),
    "selu": (torch.nn.SELU(), -(X.abs()) / 1e4),
    "sigmoid": (torch.nn.Sigmoid(), X - 16),
    "erfc": (Given(torch.erfc), X + 4),
    "tanh of a recurrent layer": (torch.nn.RNN(4, 2, bias=False), X.reshape(1, 4) / 1e3),
    "mean": (Given(lambda x: x.mean(-1)), torch.linspace(-1, 1, 41)),
    "sum": (Given(lambda x: (x + torch.linspace(-1, 1, 41)).sum()), torch.zeros(1)),
    "gates": (torch.nn.LSTM(4, 2), X.reshape(1, 4) - 8),
}


@pytest.mark.long_cases(but=["hardswish"])
@pytest.mark.parametrize("what", NEARLY_NOTHING)
def test_numbers_that_are_nearly_nothing(what: str) -> None:
    """They are differences of larger ones, whose rounding they have."""
    module, x = NEARLY_NOTHING[what]
    torch.manual_seed(3)
    result = fx2onnx.export(module.eval(), (x,))
    verdict = verify(result, module, (x,), seeds=(1, 2, 3, 4))
    assert verdict.ok, verdict.describe()
    module_off = copy.deepcopy(module)
    wrong = fx2onnx.export(Given(lambda x: torch.utils._pytree.tree_map(lambda y: y * 1.01, module_off(x))), (x,))
    assert not verify(wrong, module, (x,)).ok


def test_classes_that_pytorch_does_not_look_at() -> None:
    """A target of ctc_loss beyond the classes is read from beyond the tensor: it says nothing of the file."""
    scores, targets = torch.randn(9, 2, 5).log_softmax(-1), torch.tensor([[1, 2, 2, -1], [4, 3, 1, 2]])
    module = Given(lambda scores, targets: torch.nn.functional.ctc_loss(scores, targets, (9, 8), (3, 4)))
    verdict = verify(fx2onnx.export(module, (scores, targets)), module, (scores, targets))
    assert verdict.ok, verdict.describe()


def _halves(root: Any, x: torch.Tensor) -> torch.Tensor:
    root.weight.data = root.weight.data * 0.5
    return root(x)


def _normalizes(root: Any, x: torch.Tensor) -> torch.Tensor:
    root.bias.data = root.bias / root.bias.norm() + x.mean()
    return root(x)


def _on_the_way(root: Any, x: torch.Tensor) -> torch.Tensor:
    y, z = x * 2, torch.zeros(2, 3)
    y.data, z.data = x.sin(), root.weight[:2] * 1
    return root(y + z)


@pytest.mark.parametrize("program", [_halves, _normalizes, _on_the_way])
def test_data_of_tensors_is_assigned(program: Any) -> None:
    """In float64, too, where a tensor of the module has no place for a wide one, and torch reads memory that is none."""

    class Assigns(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return program(self.layer, x)

    root = Assigns()
    before = {name: value.clone() for name, value in root.state_dict().items()}
    fx2onnx.export(root, (torch.rand(2, 3, generator=torch.Generator().manual_seed(5)),), verify=True)
    after = root.state_dict()
    assert all(type(after[name]) is torch.Tensor and torch.equal(after[name], before[name]) for name in before)
