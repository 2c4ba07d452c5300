"""Random numbers that forward draws, and clocks that it reads: those of Python and NumPy that are constants of the file, and all random
numbers, and seeds that it sets, beside other threads: apart from those of the process, which these draw.

What forward draws of torch is never drawn: it is a node of the graph. Python's and NumPy's numbers come from a generator of
its own, which begins where the process's is.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias

import torch

from fx2onnx.base.changes import Changes, before_change
from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import Captured, where_of
from fx2onnx.capture.python.outside import MET
from fx2onnx.capture.rare_roads import road
from fx2onnx.torchcompat.frames import is_user

Functions: TypeAlias = dict[str, Callable[..., Any]]


class _Thread(threading.local):
    own: dict[str, object] | None = None
    """The generators of this thread's capture, by module; None outside."""


_THREAD = _Thread()


def notes_on_numbers(captured: Captured, run_again: Callable[[], Captured]) -> list[str]:
    """A warning if the program holds numbers that forward drew: one of a few further runs, which draw others, gives another one."""
    return next((notes for _ in range(_RUNS) if (notes := _notes(_DRAWN, captured, run_again))), [])


def notes_on_clocks(captured: Captured, run_again: Callable[[], Captured]) -> list[str]:
    """A warning if the program holds what forward read of a clock or of the system's random bytes: a further run, in which the clocks
    of the user's code show another time, gives another one.
    """
    with clocks_shifted(MET.clocks or ()):
        return _notes(_READ, captured, run_again)


@contextlib.contextmanager
def clocks_shifted(clocks: Iterable[tuple[dict[str, object], str]]) -> Iterator[None]:
    """Inside, the clocks show another time to the user's code in this thread. ``clocks``: globals and their names that are clocks."""
    with Changes():
        put_name(MET, "is_later", True)
        for module, name in (
            *((vars(time), name) for name in vars(time)),
            *((vars(datetime), name) for name in _DATES),
        ):
            if name in _DATES or isinstance(module[name], BuiltinFunctionType):
                put_name(module, name, _shifted(module[name]))
        for space, name in clocks:
            if getattr(space.get(name), "__module__", None) in ("time", "datetime"):
                put_name(space, name, _shifted(space[name]))
        yield


def _notes(text: str, captured: Captured, run_again: Callable[[], Captured]) -> list[str]:
    try:
        where = _other_constant(captured, run_again())
    except Exception as error:  # forward is the user's code: other numbers may lead it to a mistake
        where = error.where if isinstance(error, UserError) else None
    if where is _SAME:
        return []
    return [f"{text} ({where})" if where else text]


@functools.cache
def _shifted(clock: type | BuiltinFunctionType) -> object:
    """A function of ``time`` or a class of ``datetime`` that gives another time where the user's code asks for it."""
    if isinstance(clock, type):
        readers = [name for name in ("now", "utcnow", "today") if hasattr(clock, name)]
        return type(clock.__name__, (clock,), {name: classmethod(_later(clock, name)) for name in readers})

    @functools.wraps(clock)
    def shifted(*args: object) -> object:
        found = clock(*args)
        if not MET.is_later or not is_user(sys._getframe(1).f_code) or args:
            return found
        if isinstance(found, int | float):
            return found + type(found)(_SHIFT_S * (10**9 if clock.__name__.endswith("_ns") else 1))
        return clock(time.time() + _SHIFT_S) if clock.__name__ in ("localtime", "gmtime", "ctime") else found

    return shifted


def _later(kind: type, name: str) -> Callable[..., object]:
    def read(_: type, *args: object, **kwargs: object) -> object:
        found: datetime.date = getattr(kind, name)(*args, **kwargs)
        is_asked = MET.is_later and is_user(sys._getframe(1).f_code)
        return found + datetime.timedelta(seconds=_SHIFT_S) if is_asked else found

    return read


def _other_constant(captured: Captured, other: Captured) -> object:
    """The line of the first constant with other numbers, or ``_SAME``. Raises UserError E102 where the calls differ."""
    road("symbolic trace").check_same_program(captured, other)
    constants = [
        [weight for weight in each.weights.values() if weight.kind == "constant"] for each in (captured, other)
    ]
    for one, two in zip(*constants, strict=True):
        if one.tensor is not two.tensor and not torch.equal(one.tensor, two.tensor):
            return where_of(one.node)
    return _SAME


_RUNS = 3
"""A branch with even chances is missed once in eight exports."""
_SAME = object()
_DATES = ("datetime", "date")
_SHIFT_S = 122_001_589.375
"""Years, of which no unit from a second to a year is left as it was."""
_READ = "forward reads a clock, or random bytes of the system; the file repeats the values of the export: pass them to forward as inputs"
_DRAWN = (
    "forward draws random numbers with Python's random or numpy.random; the file repeats those of the export: draw them "
    "with torch.rand or torch.randint, or pass them to forward"
)


def draw_apart() -> dict[str, object]:
    """Until ``Changes`` end, this thread draws numbers of its own. Returns the generators that it will have used."""
    own: dict[str, object] = {}
    put_name(_THREAD, "own", own)
    for code_patch in _of_torch():
        code_patch.put_in()
    for module in _GENERATORS:
        if module in sys.modules:
            functions, instead = _functions(module)
            space = vars(sys.modules[module])
            if not any(space.get(name) is function for name, function in instead.items()):
                before_change(functools.partial(_give_back, space, instead, functions))
                space.update(instead)
    return own


def _give_back(space: dict[str, object], instead: Functions, functions: Functions) -> None:
    space.update({name: functions[name] for name, function in instead.items() if space.get(name) is function})


@functools.cache
def _functions(module: str) -> tuple[Functions, Functions]:
    """The functions of a module that draw from its one generator, and what stands for them during captures."""
    space = vars(sys.modules[module])
    common = getattr(space["random"], "__self__", None)
    functions = {
        name: function
        for name, function in space.items()
        if getattr(function, "__self__", None) is common or (name == "seed" and callable(function))
    }
    return functions, {name: _for_thread(module, name, function) for name, function in functions.items()}


def _for_thread(module: str, name: str, function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def chosen(*args: object, **kwargs: object) -> object:
        own = _THREAD.own
        if own is None:
            return function(*args, **kwargs)
        if module not in own:
            own[module] = _generator(module)
        return getattr(own[module], name)(*args, **kwargs)

    return chosen


_GENERATORS = {"random": ("Random", "getstate", "setstate"), "numpy.random": ("RandomState", "get_state", "set_state")}
"""A module's class of generators, and the functions that give and set their state."""


def _generator(module: str) -> object:
    """One that begins where the process's is."""
    kind, get, put = _GENERATORS[module]
    made = getattr(sys.modules[module], kind)(0)
    getattr(made, put)(_functions(module)[0][get]())
    return made


@functools.cache
def _of_torch() -> tuple[CodePatch, ...]:
    """Seeds decide what a run draws; a graph draws anew."""
    of_cuda = torch.cuda.random
    setters = (torch.random.set_rng_state, of_cuda.set_rng_state, of_cuda.manual_seed, of_cuda.manual_seed_all)
    results: dict[Callable[..., object], Callable[[], object]] = {
        torch.random.manual_seed: lambda: torch.default_generator,
        torch.random.seed: torch.random.initial_seed,
        **dict.fromkeys((*setters, of_cuda.seed, of_cuda.seed_all), lambda: None),
    }
    return tuple(
        CodePatch(function, functools.partial(_ignored, result), _SHARED) for function, result in results.items()
    )


_SHARED = "other threads draw from the same generator"


def _ignored(result: Callable[[], object], original: FunctionType) -> Callable[..., object]:
    return lambda *_, **__: result()
