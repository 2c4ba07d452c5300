"""Ctrl-C between any two lines of capture: the module and the process are as before, and the next export works."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.base import changes, code_patch, events
from fx2onnx.capture import driver
from fx2onnx.capture.python import random_draws
from fx2onnx.torchcompat import thread_state

ROOT = os.path.dirname(fx2onnx.__file__) + os.sep
WATCHED = (ROOT + "capture" + os.sep, ROOT + "base" + os.sep)
CHANGING = tuple(
    ROOT + os.path.join(*path.split("/"))
    for path in (
        "base/changes.py", "base/code_patch.py", "base/memoized.py", "base/events.py", "capture/python/module_state.py", "capture/python/held.py",
        "torchcompat/thread_state.py", "capture/python/random_draws.py", "capture/driver.py",
        "capture/python/lengths.py", "torchcompat/tensor_questions.py", "torchcompat/tracing.py", "capture/python/module_calls.py", "capture/shapes/python_sizes.py",
        "model_patches/patching.py", "torchcompat/capture_modes.py", "torchcompat/fake_tensors.py", "torchcompat/modules.py", "capture/run.py",
    )
)  # fmt: skip
"""Files that change something, and put it back."""

Place = tuple[CodeType, int]


class Struck(BaseException):
    """What a signal handler may raise."""


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(1))
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.inner = nn.Linear(4, 4), nn.BatchNorm1d(4), Inner()
        self.inner.scale.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.relu(self.norm(self.fc(x))))


class Writing(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.kept.append(x)
        self.extra = x
        self.fc.weight.requires_grad_(False)
        torch.manual_seed(3)
        return super().forward(x) + self.inner.seen.add_(1)


X = torch.ones(3, 4)


def module_state(module: nn.Module) -> dict[str, Any]:
    return {
        "dicts": [[(name, id(value)) for name, value in vars(part).items()] for part in module.modules()],
        "training": [part.training for part in module.modules()],
        "containers": [
            [(name, list(value.items()) if isinstance(value, dict) else list(value)) for name, value in vars(part).items()
             if isinstance(value, dict | list) and not isinstance(value, torch.Tensor) and not _has_tensors(value)]
            for part in module.modules()
        ],
        "parameters": [(name, id(p), p.requires_grad, p.tolist()) for name, p in module.named_parameters()],
        "buffers": [(name, id(b), b.tolist()) for name, b in module.named_buffers()],
        "hooks": [len(part._forward_hooks) for part in module.modules()],
    }  # fmt: skip


def _has_tensors(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, torch.Tensor | nn.Module) for item in items)


def process() -> dict[str, Any]:
    return {
        "modes": {part.name: part.get() for part in (*thread_state.PARTS, thread_state.NOTES)},
        "flags": (
            torch.get_default_dtype(),
            list(warnings.filters),
            sys.getrecursionlimit(),
            list(sys.path),
            dict(os.environ),
        ),
        "random": torch.get_rng_state().tolist(),
        "codes": [one.function.__code__ is one.code for one in _CODE_PATCHES],
        "names": (
            min,
            max,
            torch.tensor,
            torch.linspace,
            "data" in vars(torch.Tensor),
            "type" in globals(),
            "len" in globals(),
        ),
        "journal": len(changes._JOURNAL.steps),
        "lock": driver._LOCK._is_owned(),
        "recording": events.active(),
        "captures": code_patch.THREAD.captures,
        "handlers": signal.getsignal(signal.SIGINT),
    }


_CODE_PATCHES: list[code_patch.CodePatch] = []
"""All that were ever made."""


def places(run: Callable[[], object], files: tuple[str, ...]) -> dict[Place, int]:
    """The number of times that ``run`` comes to each line of ``files``."""
    found: dict[Place, int] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found[frame.f_code, frame.f_lineno] = found.get((frame.f_code, frame.f_lineno), 0) + 1
        return local

    def begin(frame: FrameType, event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(files) else None

    _traced(begin, run)
    return found


def strike(
    run: Callable[[], object], place: Place, time: int = 1, only: Callable[[FrameType], bool] = lambda frame: True
) -> Struck | None:
    """Raise where ``run`` comes to ``place`` for the n-th time. Returns what was raised, if it came there."""
    code, line = place
    left = time

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line" and frame.f_lineno == line:
            left -= 1
            if left == 0:
                raise Struck
        return local

    def begin(frame: FrameType, event: str, _: Any) -> Any:
        return local if frame.f_code is code and left > 0 and only(frame) else None

    try:
        _traced(begin, run)
    except Struck as error:
        return error
    return None


def _traced(begin: Any, run: Callable[[], object]) -> None:
    before = sys.gettrace()
    sys.settrace(begin)
    try:
        run()
    finally:
        sys.settrace(before)


def check(
    kind: type[Net], strategy: str, strikes: Callable[[dict[Place, int]], list[tuple[Place, int]]], files: Any
) -> None:
    """Strike an export of a module at the places that ``strikes`` chooses of all, one after the other."""
    module = kind().train()
    module.norm.eval()

    def run() -> None:
        fx2onnx.export(module, (X,), None, capture=strategy)

    run()
    _CODE_PATCHES[:] = [thing for thing in gc.get_objects() if type(thing) is code_patch.CodePatch]
    wanted_module, wanted_process = module_state(module), process()
    chosen = strikes(places(run, files))
    assert len(chosen) > 20
    missed = 0
    for place, time in chosen:
        error = strike(run, place, time)  # kept: its traceback holds the frames that it left
        missed += error is None
        where = f"{os.path.basename(place[0].co_filename)}:{place[1]} in {place[0].co_name}, time {time}"
        assert module_state(module) == wanted_module, where
        now = process()
        assert now == wanted_process, (where, [key for key in now if now[key] != wanted_process[key]])
    assert missed < 3
    assert fx2onnx.export(module, (X,), None, capture=strategy).report.nodes_onnx >= 2


def each_once(found: dict[Place, int]) -> list[tuple[Place, int]]:
    """And the last time, too, in the file that puts back: then it is the outermost that does so."""
    last = [(place, count) for place, count in found.items() if place[0].co_filename == changes.__file__ and count > 1]
    return [(place, 1) for place in found] + last


def first_and_last(found: dict[Place, int]) -> list[tuple[Place, int]]:
    return [(place, time) for place, count in found.items() for time in sorted({1, count})]


def every_time(found: dict[Place, int]) -> list[tuple[Place, int]]:
    return [(place, time) for place, count in found.items() for time in range(1, count + 1)]


@pytest.fixture
def defaults() -> Any:
    """A failing test must not spoil the others."""
    yield
    torch.set_default_dtype(torch.float32)
    sys.settrace(None)
    del changes._JOURNAL.steps[:]
    driver._let_go()


pytestmark = pytest.mark.usefixtures("defaults")


@pytest.mark.long_cases("Writing-fake")
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [(Writing, "fake"), pytest.param(Net, "symbolic", marks=pytest.mark.slow)],  # 12 s
)
def test_struck_at_every_line_that_changes_something(kind: type[Net], strategy: str) -> None:
    check(kind, strategy, each_once, CHANGING)


def test_struck_where_seeds_are_set_beside_another_thread() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        check(Writing, "fake", each_once, (thread_state.__file__, random_draws.__file__))
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "strategy"), [(Writing, "fake"), (Net, "symbolic"), (Net, "export")])
def test_struck_at_every_line(kind: type[Net], strategy: str) -> None:
    check(kind, strategy, first_and_last, WATCHED)


@pytest.mark.slow
def test_struck_where_with_blocks_begin_and_end() -> None:
    check(Writing, "fake", every_time, contextlib.__file__)


def test_struck_on_the_way_out_of_a_block_that_a_generator_keeps() -> None:
    module, managers = Net(), list[Any]()

    def of_the_modes(frame: FrameType) -> bool:
        managers.append(frame.f_locals["self"])
        return managers[-1].gen.__name__ == "capture_modes"

    code = contextlib._GeneratorContextManager.__exit__.__code__
    place = (code, code.co_firstlineno + 1)
    error = strike(lambda: fx2onnx.export(module, (X,), None), place, only=of_the_modes)
    assert error is not None
    assert managers[-1].gen.gi_frame is None, "it must not end when the exception is forgotten"
    assert torch.is_grad_enabled()


def test_struck_while_another_thread_waits_to_capture() -> None:
    module, results = Net(), list[Any]()

    class Slow(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread.start()
            raise Struck

    thread = threading.Thread(target=lambda: results.append(fx2onnx.export(module, (X,), None)))
    with pytest.raises(Struck):
        fx2onnx.export(Slow(), (X,), None)
    thread.join(20)
    assert results[0].report.nodes_onnx >= 2


SIGNALLED = """
import ctypes, gc, random, signal, sys, threading
import fx2onnx
from tests.capture.test_interrupts import Writing, X, module_state, process
module = Writing().train()
for _ in range(2):
    fx2onnx.export(module, (X,), None)

def state():
    return module_state(module) | process() | {"collects": gc.isenabled()}

def interrupt(*_):
    raise KeyboardInterrupt

def leave(*_):
    raise SystemExit(3)

def strike_later(*_):
    thread = ctypes.c_ulong(threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))

draws = random.Random(0)
for handler in (interrupt, leave, strike_later):
    signal.signal(signal.SIGALRM, handler)
    wanted, struck = state(), 0
    for _ in range(40):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, draws.uniform(0.0002, 0.006))
                fx2onnx.export(module, (X,), None)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, SystemExit):
            struck += 1
        now = state()
        assert now == wanted, [key for key in now if now[key] != wanted[key]]
    assert struck > 5, struck
print("ok", fx2onnx.export(module, (X,), None).report.nodes_onnx)
"""


@pytest.mark.long
def test_signals_and_asynchronous_exceptions() -> None:
    command = [sys.executable, "-c", SIGNALLED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("ok")
