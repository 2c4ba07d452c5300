"""Random numbers that forward draws: those of Python and NumPy that are constants of the file, and all, and seeds that it sets, beside
other threads: apart from those of the process, which these draw.

What forward draws of torch is never drawn: it is a node of the graph. Python's and NumPy's numbers come from a generator of
its own, which begins where the process's is.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import Captured, where_of
from fx2onnx.capture.rare_roads import road

Functions: TypeAlias = dict[str, Callable[..., Any]]


class _Thread(threading.local):
    own: dict[str, object] | None = None
    """The generators of this thread's capture, by module; None outside."""


_THREAD = _Thread()


def notes_on_numbers(captured: Captured, run_again: Callable[[], Captured]) -> list[str]:
    """A warning if the program holds numbers that forward drew: one of a few further runs, which draw others, gives another one."""
    for _ in range(_RUNS):
        try:
            where = _other_constant(captured, run_again())
        except Exception as error:  # forward is the user's code: other numbers may lead it to a mistake
            where = error.where if isinstance(error, UserError) else None
        if where is not _SAME:
            return [f"{_REPEATED} ({where})" if where else _REPEATED]
    return []


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
_REPEATED = (
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


_GENERATORS = {
    "random": ("Random", "getstate", "setstate"),
    "numpy.random": ("RandomState", "get_state", "set_state"),
}
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
