"""``torch.fx``'s tracing, seen by the tracing thread alone.

``Tracer.trace`` puts its wrappers into ``nn.Module``, into ``math`` and into modules' files, for all threads. Here its code
runs with other globals: the wrappers are reached by this thread only.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from types import FunctionType
from typing import cast

import torch
import torch.fx

from fx2onnx.base.changes import Changes
from fx2onnx.base.code_patch import CodePatch, content_of, put_name
from fx2onnx.torchcompat.dispatch import Named, Operands, Types, UnnotedMode
from fx2onnx.torchcompat.modules import MODULE_CALL
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.versions import found

_fx = torch.fx._symbolic_trace
_TRACE = cast(FunctionType, inspect.unwrap(torch.fx.Tracer.trace))  # torch._dynamo puts a wrapper around it
Wrapper = Callable[..., object]


class _Thread(threading.local):
    wrappers: dict[str, Wrapper] | None = None
    """The functions that stand for ``nn.Module``'s methods in this thread's trace; None outside."""


_THREAD = _Thread()


def trace(
    target: torch.nn.Module | Callable[..., object], constants: dict[str, object]
) -> tuple[torch.nn.Module, torch.fx.Graph]:
    """``Tracer().trace(target, constants)``: the root and the graph."""
    tracer = torch.fx.Tracer()
    space = vars(_fx) | {
        "_new_patcher": lambda: contextlib.nullcontext(_Patcher()),
        "_autowrap_check": _autowrap_check,
        "_orig_module_call": _METHODS["__call__"].original,
        "_orig_module_getattr": _METHODS["__getattr__"].original,
    }
    run = FunctionType(_TRACE.__code__, space, "trace", _TRACE.__defaults__)
    with Changes():
        put_name(_THREAD, "wrappers", {})
        for code_patch in (*_METHODS.values(), *_QUESTIONS):
            code_patch.put_in()
        with NoDraws():  # type: ignore[no-untyped-call]
            graph = run(tracer, target, constants)
    return tracer.root, graph


class _Patcher:
    """A patcher in the place of ``torch.fx._symbolic_trace._Patcher``."""

    def __init__(self) -> None:
        self.visited: set[int] = set()

    def patch(self, space: dict[str, Wrapper], name: str, wrapper: Wrapper, deduplicate: bool = True) -> None:
        found = content_of(space, name)
        if not getattr(found, "__fx2onnx_traced__", False):
            put_name(space, name, _for_thread(wrapper, found if name in space else getattr(builtins, name)))

    def patch_method(self, kind: type, name: str, wrapper: Wrapper, deduplicate: bool = True) -> None:
        if kind is torch.nn.Module and name in _METHODS and _THREAD.wrappers is not None:
            _THREAD.wrappers[name] = wrapper
        else:
            put_name(kind, name, _for_thread(wrapper, getattr(kind, name)))


def _autowrap_check(patcher: _Patcher, space: dict[str, Wrapper], functions: set[int]) -> None:
    """Wraps functions such as ``math.sqrt`` under the names that a file has for them."""
    if id(space) not in patcher.visited:
        patcher.visited.add(id(space))
        for name, value in tuple(space.items()):  # other threads may add names meanwhile
            if not name.startswith("_") and callable(value) and id(value) in functions:
                patcher.patch(space, name, _fx._create_wrapped_func(value))


def _for_thread(wrapper: Wrapper, original: Wrapper) -> Wrapper:
    @functools.wraps(original)
    def chosen(*args: object, **kwargs: object) -> object:
        return (original if _THREAD.wrappers is None else wrapper)(*args, **kwargs)

    chosen.__fx2onnx_traced__ = True  # type: ignore[attr-defined]
    return chosen


def _method(function: Wrapper, name: str) -> CodePatch:
    def replacement(original: FunctionType) -> Wrapper:
        def called(*args: object, **kwargs: object) -> object:
            return (_THREAD.wrappers or {}).get(name, original)(*args, **kwargs)

        return called

    return CodePatch(function, replacement, _TRACED)


_TRACED = "torch.fx traces a copy of the module"
_METHODS = {
    "__call__": _method(MODULE_CALL, "__call__"),
    "__getattr__": _method(torch.nn.Module.__getattr__, "__getattr__"),
}
_QUESTIONS = tuple(
    CodePatch(function, lambda original: lambda: True, _TRACED)
    for function in found("fx._symbolic_trace.is_fx_tracing", "fx._symbolic_trace.is_fx_symbolic_tracing")
)
"""Patches of the functions that say whether a trace is running; torch has a variable of the process for it."""


class NoDraws(UnnotedMode):  # type: ignore[no-untyped-call]
    """Refuses random numbers: a trace would draw them once, for every run of the file."""

    def __torch_dispatch__(self, func: OpOverload, types: Types, args: Operands = (), kwargs: Named = None) -> object:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise RuntimeError(f"{func} would be drawn once, while the module is traced")
        return func(*args, **(kwargs or {}))
