"""Random numbers that forward draws, and seeds that it sets: apart from those of the process, which other threads draw, too.

What forward draws of torch is never drawn: it is a node of the graph. Python's and NumPy's numbers come from a generator of
its own, which begins where the process's is.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import CodePatch


class _Thread(threading.local):
    own: dict[str, Any] | None = None
    """The generators of this thread's capture, by module; None outside."""


_THREAD = _Thread()


def keep_random_states() -> None:
    """Where no other thread draws: until ``Changes`` end, what is drawn is drawn again afterwards."""
    before_change(functools.partial(_put_states_back, *_states()))


def draw_apart() -> None:
    """Until ``Changes`` end, this thread draws numbers of its own."""
    before_change(functools.partial(setattr, _THREAD, "own", _THREAD.own))
    _THREAD.own = {}
    for code_patch in _of_torch():
        code_patch.put_in()
    for module in ("random", "numpy.random"):
        if module in sys.modules:
            functions, instead = _functions(module)
            space = vars(sys.modules[module])
            if not _hold(space, instead):
                before_change(functools.partial(_give_back, space, instead, functions))
                space.update(instead)


def _hold(space: dict[str, Any], functions: dict[str, Any]) -> bool:
    return any(space.get(name) is function for name, function in functions.items())


def _give_back(space: dict[str, Any], instead: dict[str, Any], functions: dict[str, Any]) -> None:
    space.update({name: functions[name] for name, function in instead.items() if space.get(name) is function})


@functools.cache
def _functions(module: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The functions of a module that draw from its one generator, and what stands for them during captures."""
    space = vars(sys.modules[module])
    common = getattr(space["random"], "__self__", None)
    functions = {
        name: function
        for name, function in space.items()
        if getattr(function, "__self__", None) is common or (name == "seed" and callable(function))
    }
    return functions, {name: _for_thread(module, name, function) for name, function in functions.items()}


def _for_thread(module: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        own = _THREAD.own
        if own is None:
            return function(*args, **kwargs)
        if module not in own:
            own[module] = _MAKERS[module]()
        return getattr(own[module], name)(*args, **kwargs)

    return chosen


def _python_generator() -> random.Random:
    made = random.Random()
    made.setstate(_functions("random")[0]["getstate"]())
    return made


def _numpy_generator() -> Any:
    made = sys.modules["numpy.random"].RandomState(0)
    made.set_state(_functions("numpy.random")[0]["get_state"]())
    return made


_MAKERS: dict[str, Callable[[], Any]] = {"random": _python_generator, "numpy.random": _numpy_generator}


def _states() -> tuple[Any, ...]:
    numpy_random: Any = sys.modules.get("numpy.random")
    return torch.get_rng_state(), random.getstate(), numpy_random.get_state() if numpy_random else None


def _put_states_back(torch_state: torch.Tensor, python_state: Any, numpy_state: Any) -> None:
    if not torch.equal(torch.get_rng_state(), torch_state):
        torch.set_rng_state(torch_state)
    random.setstate(python_state)
    if numpy_state is not None:
        sys.modules["numpy.random"].set_state(numpy_state)


def _ignored(result: Callable[[], Any] = lambda: None) -> Callable[[FunctionType], Callable[..., Any]]:
    return lambda original: lambda *_, **__: result()


@functools.cache
def _of_torch() -> tuple[CodePatch, ...]:
    """Seeds decide what a run draws; a graph draws anew."""
    of_cuda = torch.cuda.random
    setters = (torch.random.set_rng_state, of_cuda.set_rng_state, of_cuda.manual_seed, of_cuda.manual_seed_all)
    return tuple(
        CodePatch(cast(FunctionType, function), replacement)
        for function, replacement in (
            (torch.random.manual_seed, _ignored(lambda: torch.default_generator)),
            (torch.random.seed, _ignored(torch.random.initial_seed)),
            *((setter, _ignored()) for setter in (*setters, of_cuda.seed, of_cuda.seed_all)),
        )
    )
