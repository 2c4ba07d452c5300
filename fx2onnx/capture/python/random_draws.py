"""Random numbers that forward draws, and seeds that it sets, beside other threads: apart from those of the process, which these draw.

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

Functions: TypeAlias = dict[str, Callable[..., Any]]


class _Thread(threading.local):
    own: dict[str, object] | None = None
    """The generators of this thread's capture, by module; None outside."""


_THREAD = _Thread()


def draw_apart() -> None:
    """Until ``Changes`` end, this thread draws numbers of its own."""
    put_name(_THREAD, "own", {})
    for code_patch in _of_torch():
        code_patch.put_in()
    for module in _GENERATORS:
        if module in sys.modules:
            functions, instead = _functions(module)
            space = vars(sys.modules[module])
            if not any(space.get(name) is function for name, function in instead.items()):
                before_change(functools.partial(_give_back, space, instead, functions))
                space.update(instead)


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
