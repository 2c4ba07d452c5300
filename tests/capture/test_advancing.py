"""Iterators, generators of random numbers, files and queues that forward goes on with: where they were after an export."""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import functools
import io
import itertools
import logging
import os
import queue
import random
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime as Datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.errors import VerificationError
from fx2onnx.capture.python.advancing import _KINDS, copied
from fx2onnx.capture.python.held import ADVANCING_TYPES
from tests.capture.test_state import X


class Holds(torch.nn.Module):
    """Multiplies by what comes next of ``thing``."""

    def __init__(self, thing: Any, take: Callable[[Any], Any]) -> None:
        super().__init__()
        self.thing, self.take = thing, take

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.take(self.thing)


def numbers() -> Iterator[float]:
    number = 1.0
    while True:
        yield number
        number += 1


def tensors() -> Iterator[torch.Tensor]:
    number = torch.ones(1)
    while True:
        yield number
        number = number + 1


def filled(kind: type) -> Any:
    found = kind()
    for number in range(1, 40):
        found.put(float(number))
    return found


LINES = "".join(f"{number}\n" for number in range(1, 40))
FLOATS = [float(number) for number in range(1, 40)]


def line(file: Any) -> float:
    return float(file.readline())


def counted(found: Any) -> float:
    found[0] += 1
    return float(found[0])


HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "count": (lambda: itertools.count(1.0), next),
    "list": (lambda: iter(FLOATS), next),
    "tuple": (lambda: iter((*FLOATS,)), next),
    "range": (lambda: iter(range(1, 40)), next),
    "dict": (lambda: iter(dict.fromkeys(FLOATS)), next),
    "deque": (lambda: iter(collections.deque(FLOATS)), next),
    "reversed": (lambda: reversed(FLOATS), next),
    "cycle": (lambda: itertools.cycle([1.0, 2.0, 3.0]), next),
    "map": (lambda: map(float, iter(FLOATS)), next),
    "zip": (lambda: zip(FLOATS, strict=True), lambda it: next(it)[0]),
    "enumerate": (lambda: enumerate(FLOATS, 1), lambda it: next(it)[0]),
    "chain": (lambda: itertools.chain([1.0], iter(FLOATS)), next),
    "islice": (lambda: itertools.islice(FLOATS, 1, 30, 2), next),
    "tee": (lambda: itertools.tee(numbers())[0], next),
    "random": (lambda: random.Random(3), lambda found: found.random()),
    "numpy": (lambda: np.random.default_rng(3), lambda found: float(found.random())),
    "old numpy": (lambda: np.random.RandomState(3), lambda found: float(found.rand())),
    "method": (lambda: random.Random(3).random, lambda found: found()),
    "method of numpy": (lambda: np.random.default_rng(3).random, lambda found: float(found())),
    "queue": (lambda: filled(queue.Queue), lambda found: found.get()),
    "stack": (lambda: filled(queue.LifoQueue), lambda found: found.get()),
    "heap": (lambda: filled(queue.PriorityQueue), lambda found: found.get()),
    "text": (lambda: io.StringIO(LINES), line),
    "bytes": (lambda: io.BytesIO(LINES.encode()), line),
    "bytearray": (lambda: bytearray(range(1, 40)), lambda found: float(found.pop())),
    "array": (lambda: array.array("d", [0.0]), counted),
}


@pytest.mark.parametrize("name", HELD)
def test_it_is_where_it_was_and_the_warning_says_that_the_file_does_not_go_on(name: str) -> None:
    make, take = HELD[name]
    before, thing = make(), make()
    take(before), take(thing)  # on its way
    module = Holds(thing, take)
    with pytest.warns(
        fx2onnx.ExportWarning, match=r"forward changes the attribute thing(\.0|\.__self__)?; the file does not"
    ):
        result = fx2onnx.export(module, (X,))
    assert verify(result, module, (X,), seeds=()).ok
    assert module.thing is thing
    assert [take(thing) for _ in range(3)] == [take(before) for _ in range(3)]


@pytest.mark.long_cases(but=["text"])
@pytest.mark.parametrize("name", ["count", "random", "queue", "text"])
def test_a_sound_file_is_right_on_all_inputs_and_a_wrong_one_is_found(name: str) -> None:
    make, take = HELD[name]
    module = Holds(make(), take)
    with pytest.warns(fx2onnx.ExportWarning):
        result = fx2onnx.export(module, (X,))
    assert verify(result, module, (X,)).ok
    assert not verify(result, Holds(make(), lambda found: 1.01 * take(found)), (X,)).ok


@pytest.mark.parametrize("hold", [lambda it: [it], lambda it: (0, it), lambda it: {"it": it}])
def test_iterators_in_containers_are_where_they_were(hold: Callable[[Any], Any]) -> None:
    it = itertools.count(5)

    def last(held: Any) -> int:
        return next(held["it"] if isinstance(held, dict) else held[-1])

    module = Holds(hold(it), last)
    with pytest.warns(fx2onnx.ExportWarning):
        fx2onnx.export(module, (X,), verify=True)
    assert last(module.thing) == 5
    assert next(it) == 6


def test_a_file_that_is_read_is_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text(LINES)
    with path.open() as file:
        line(file)
        module = Holds(file, line)
        with pytest.warns(fx2onnx.ExportWarning):
            fx2onnx.export(module, (X,), verify=True)
        assert file.readline() == "2\n"


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        (numbers, "generator"),
        (tensors, "generator"),
        (lambda: itertools.islice(numbers(), 99), "islice"),
        (lambda: filled(queue.SimpleQueue), "SimpleQueue"),
    ],
)
def test_what_cannot_be_put_back_is_named_in_the_place_of_a_verdict(thing: Callable[[], Any], kind: str) -> None:
    module = Holds(thing(), next if kind != "SimpleQueue" else lambda found: found.get())
    with pytest.warns(fx2onnx.ExportWarning, match="attribute thing"), pytest.raises(VerificationError) as caught:
        fx2onnx.export(module, (X,), verify=True)
    assert caught.value.code == "E502"
    assert f"cannot be put back: thing ({kind})" in str(caught.value)
    assert type(module(X)) is torch.Tensor


def test_a_generator_holds_no_tensors_of_the_export() -> None:
    generator = tensors()
    module = Holds(generator, next)
    with pytest.warns(fx2onnx.ExportWarning):
        fx2onnx.export(module, (X,))
    assert module.thing is generator
    assert all(type(value) is torch.Tensor for value in generator.gi_frame.f_locals.values())
    assert torch.equal(next(generator), torch.tensor([2.0]))


CALLS = ctypes.c_long()
"""Outside of what Python's objects hold."""


def one_more(_: object) -> float:
    CALLS.value += 1
    return float(CALLS.value)


def test_a_module_that_depends_on_something_else_has_no_verdict() -> None:
    module = Holds(None, one_more)
    verdict = verify(fx2onnx.export(module, (X,)), module, (X,))
    assert not verdict.ok
    assert "a global variable" in verdict.unverified
    assert not verdict.rows


class UndefinedElsewhere(torch.nn.Module):
    """Gives what nobody wrote, as some kernels do, for all but the example inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (0.0 if torch.compiler.is_compiling() or torch.equal(x, X) else one_more(None))


def test_other_inputs_on_which_nothing_is_defined_are_left_out() -> None:
    module = UndefinedElsewhere()
    result = fx2onnx.export(Holds(0.0, lambda number: 1.0 + number), (X,))
    verdict = verify(result, module, (X,))
    assert verdict.ok, verdict.describe()
    assert any("eager PyTorch gives something else each time for output" in text for text in verdict.left_out)


def test_numbers_of_the_process_are_the_same_in_each_run() -> None:
    module = Holds(None, lambda _: random.random() + float(np.random.rand()))
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    with pytest.warns(fx2onnx.ExportWarning, match="draws random numbers"):
        result = fx2onnx.export(module, (X,))
    verdict = verify(result, module, (X,))
    assert verdict.ok, verdict.describe()
    assert {row.by for row in verdict.rows} <= {"difference"}
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


def unused(_: object) -> float:
    random.random()
    np.random.rand()
    return 2.0


def seeded(_: object) -> float:
    random.seed(3)
    np.random.seed(3)
    return random.random() + float(np.random.rand())


DRAWS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "random": (lambda _: random.random(), True),
    "numpy": (lambda _: float(np.random.rand()), True),
    "constant": (lambda _: torch.from_numpy(np.random.rand(3)), True),
    "unused": (unused, False),
    "seeded": (seeded, False),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_of_python_and_numpy_in_the_file_are_named(name: str) -> None:
    take, is_kept = DRAWS[name]
    module, x = Holds(None, take), torch.arange(1.0, 4.0)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fx2onnx.ExportWarning)
        result = fx2onnx.export(module, (x,))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    assert any("random numbers" in text for text in result.report.warnings) == is_kept
    assert verify(result, module, (x,)).ok
    random.random(), np.random.rand()
    verdict = verify(result, module, (x,))
    assert verdict.ok != is_kept
    assert ("random numbers of Python or NumPy" in verdict.unverified) == is_kept


def imported(_: object) -> float:
    import time as clock

    return clock.monotonic()


def logged(_: object) -> float:
    started = time.time()
    logging.getLogger("fx2onnx_tests").debug("took %s", time.perf_counter() - started)
    return 2.0


def unpacked(found: Any) -> float:
    """Calls a clock, which a container may hold."""
    return unpacked(next(iter(found))) if isinstance(found, list | set) else float(found())


def in_closure() -> Callable[[Any], float]:
    now = time.perf_counter
    return lambda _: now()


CLOCKS = {
    "held": time.time,
    "held in a list": [[time.time]],
    "held as a part": functools.partial(time.monotonic),
    "held as a method": lambda: Datetime.now().microsecond,
    "held bytes": lambda: int.from_bytes(os.urandom(4), "big"),
    "held generator": random.SystemRandom().random,
}
READ: dict[str, tuple[Callable[[Any], Any], bool]] = {
    **dict.fromkeys(CLOCKS, (unpacked, True)),
    "seconds of a clock that is held": (lambda now: int(now()), True),
    "in a closure": (in_closure(), True),
    "a default": (lambda _, now=time.time: now(), True),
    "unseeded": (lambda _: np.random.default_rng().random(), True),
    "unseeded too": (lambda _: random.Random().random(), True),
    "seeded": (lambda _: random.Random(3).random() + np.random.default_rng(3).random(), False),
    "held but unused": (lambda now: now() and 2.0, False),
    "seconds": (lambda _: time.time(), True),
    "another name": (lambda _: perf_counter(), True),
    "imported in a function": (imported, True),
    "tensor": (lambda _: torch.tensor(time.time_ns() % 1000), True),
    "month": (lambda _: time.localtime().tm_mon, True),
    "year": (lambda _: Datetime.now().year, True),
    "day": (lambda _: datetime.date.today().day, True),
    "identifier": (lambda _: uuid.uuid4().int % 100_000, True),
    "bytes": (lambda _: int.from_bytes(os.urandom(3), "big"), True),
    "logged": (logged, False),
    "a fixed date": (lambda _: Datetime(2020, 2, 3).day, False),
}


@pytest.mark.parametrize("name", READ)
def test_what_a_clock_shows_in_the_file_is_named(name: str) -> None:
    take, is_kept = READ[name]
    before = time.time, datetime.datetime, datetime.date
    module = Holds(CLOCKS.get(name, time.time), take)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fx2onnx.ExportWarning)
        result = fx2onnx.export(module, (X,))
    assert module.thing is CLOCKS.get(name, time.time)
    assert any("reads a clock" in text for text in result.report.warnings) == is_kept
    assert before == (time.time, datetime.datetime, datetime.date)
    if name in ("tensor", "logged"):
        verdict = verify(result, module, (X,))
        assert verdict.ok != is_kept
        assert bool(verdict.unverified) == is_kept, verdict.describe()


def test_a_copy_goes_on_by_itself() -> None:
    it = itertools.cycle(iter([1, 2, 3]))
    next(it)
    copy = copied(it)
    assert [next(copy) for _ in range(8)] == [2, 3, 1, 2, 3, 1, 2, 3]
    assert [next(it) for _ in range(8)] == [2, 3, 1, 2, 3, 1, 2, 3]
    assert copied(numbers()) is None
    assert copied(map(float, numbers())) is None


def test_each_class_that_goes_on_has_a_state() -> None:
    assert tuple(_KINDS) == ADVANCING_TYPES
