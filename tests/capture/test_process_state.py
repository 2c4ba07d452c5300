"""State of the process: a capture leaves its own settings as before, and what forward sets as eager PyTorch leaves it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.torchcompat.dispatch import TorchDispatchMode
from fx2onnx.torchcompat.thread_state import NOTES, PARTS, Part

X = torch.ones(2, 3)
BY_NAME = {part.name: part for part in (*PARTS, NOTES)}


class FunctionMode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class OperatorMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


ACTIONS: dict[str, Callable[[], object]] = {
    "gradients": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "__torch_function__": lambda: torch._C._set_torch_function_state(torch._C._TorchFunctionState.SUBCLASSES_DISABLED),
    "default device": lambda: torch.set_default_device("meta"),
    "functions' modes": lambda: FunctionMode().__enter__(),
    "operators' modes": lambda: OperatorMode().__enter__(),
    "dispatch keys, autocast": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "modes that are on": lambda: OperatorMode().__enter__(),
}
"""Actions by which forward changes what a capture changes, too. torch ends its transforms itself; only an interrupt
leaves one (``test_interrupts.py``).
"""


class Setting(nn.Module):
    def __init__(self, part: Part, fails: bool) -> None:
        super().__init__()
        self.part, self.fails = part, fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.part.get()
        ACTIONS[self.part.name]()
        CHANGED.append(self.part.get() != before)
        if self.fails:
            raise KeyboardInterrupt
        return x + 1


CHANGED: list[bool] = []


@pytest.fixture
def as_before() -> Iterator[None]:
    """A failing test must not spoil the others."""
    before = {name: part.get() for name, part in BY_NAME.items()}
    yield
    for name, value in before.items():
        if BY_NAME[name].get() != value:
            BY_NAME[name].put(value)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "interrupted"])
@pytest.mark.parametrize("name", ACTIONS)
def test_modes_are_as_before(name: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.active_count", lambda: 1)  # other tests may have left threads
    part = BY_NAME[name]
    before = part.get()
    CHANGED.clear()
    with contextlib.suppress(KeyboardInterrupt, fx2onnx.UserError):
        fx2onnx.export(Setting(part, fails), (X,), None, capture="fake")
    assert any(CHANGED), "forward did change it"
    assert part.get() == before


def _environment() -> None:
    os.environ["FX2ONNX_TEST"] = "1"


FLAGS: dict[str, tuple[Callable[[], object], Callable[[], object], Callable[[Any], object]]] = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype, torch.set_default_dtype),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "attention": (lambda: torch.backends.cuda.enable_math_sdp(False), torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "warnings": (
        lambda: warnings.simplefilter("ignore", UnicodeWarning),
        lambda: warnings.filters[0],
        lambda _: warnings.filters.pop(0),  # type: ignore[attr-defined]
    ),
    "environment": (_environment, lambda: os.environ.get("FX2ONNX_TEST"), lambda _: os.environ.pop("FX2ONNX_TEST", None)),
}  # fmt: skip
"""Flags of the process: how a model sets them, what they are, how they are put back."""


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a thread"])
@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_forward_sets_are_as_eager_leaves_them(name: str, beside: bool) -> None:
    change, value, put_back = FLAGS[name]

    def forward(x: torch.Tensor) -> torch.Tensor:
        change()
        return x + 1

    over = threading.Event()
    other = threading.Thread(target=lambda: over.wait(60))
    if beside:
        other.start()
    before = value()
    try:
        forward(X)
        of_eager = value()
        put_back(before)
        assert value() == before != of_eager
        fx2onnx.export(forward, (X,), None, capture="fake")
        assert value() == of_eager
    finally:
        put_back(before)
        over.set()
    if beside:
        other.join()


def test_the_collector_goes_on_after_an_error() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        assert not gc.isenabled()
        gc.enable()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fx2onnx.export(forward, (X,), None)
    assert gc.isenabled()


def test_a_tensor_is_no_sequence_for_python_afterwards() -> None:
    """A ``__getitem__`` put on ``torch.Tensor`` and taken away again would leave it one, and ``torch.tensor([t, t])`` fail."""
    is_sequence = ctypes.pythonapi.PySequence_Check
    tensor = torch.ones(2)
    before = is_sequence(ctypes.py_object(tensor))
    fx2onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    assert is_sequence(ctypes.py_object(tensor)) == before
    assert torch.tensor([torch.tensor(1), torch.tensor(2)]).tolist() == [1, 2]


@pytest.mark.parametrize("exported", [lambda module: module, lambda module: module.fc])
def test_an_export_that_fails_within_forward_ends_no_later_one(exported: Any) -> None:
    class Exports(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            with contextlib.suppress(Exception):
                fx2onnx.export(exported(self), (5,), None)
            return torch.tanh(y)

    for module in (Exports(), nn.Linear(3, 3)):
        assert fx2onnx.export(module, (X,), None, verify=True).report.nodes_onnx
