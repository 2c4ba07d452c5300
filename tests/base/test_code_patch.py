"""Patched functions: for whom, for how long, and what another thread sees."""

from __future__ import annotations

import threading
from types import FunctionType
from typing import Any

import torch

import fx2onnx
from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import CodePatch


def _made(factor: int) -> FunctionType:
    def scaled(x: int, *, more: int = 1) -> int:
        return x * factor + more

    return scaled  # type: ignore[return-value]


def _code_patch(function: FunctionType) -> CodePatch:
    return CodePatch(function, lambda original: lambda *args, **kwargs: -original(*args, **kwargs), "a test")


def test_a_function_with_cells_and_keywords_is_patched_and_given_back() -> None:
    function, other = _made(3), _made(5)
    code_patch = _code_patch(function)
    with Changes():
        assert code_patch.put_in()
        assert (function(2), function(2, more=4), other(2)) == (-7, -10, 11)
        with Changes():
            assert code_patch.put_in(), "it is so already"
        assert function(2) == -7
    assert (function(2), function(2, more=4)) == (7, 10)


def test_a_call_that_was_entered_before_the_end_finds_its_way() -> None:
    function = _made(3)
    code_patch = _code_patch(function)
    with Changes():
        code_patch.put_in()
        entered = FunctionType(function.__code__, function.__globals__, "entered", None, function.__closure__)
    assert entered(2, more=1) == 7


def test_modules_that_another_thread_runs_meanwhile_compute() -> None:
    inside, done = threading.Event(), threading.Event()
    seen: list[Any] = []

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            assert done.wait(20)
            return x + 1

    def run() -> None:
        assert inside.wait(20)
        seen.append(torch.nn.Linear(2, 2)(torch.zeros(1, 2)))
        done.set()

    code = torch.nn.Module.__call__.__code__  # type: ignore[attr-defined]
    thread = threading.Thread(target=run)
    thread.start()
    fx2onnx.export(Net(), (torch.zeros(2),), None, capture="fake")
    thread.join()
    assert type(seen[0]) is torch.Tensor
    assert torch.nn.Module.__call__.__code__ is code  # type: ignore[attr-defined]
