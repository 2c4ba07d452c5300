"""Modules of chosen classes, each call of them one node: an operator stands for it, whose fake runs the module.

torch keeps an operator for the life of the process, so there is one for all calls of a kind, in every export; its last
argument is the number of the call.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fx2onnx.base.code_patch import put_name
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.torchcompat.operators import OpOverload
from fx2onnx.torchcompat.pytrees import pytree

_LIBRARY: Any = torch.library.Library("fx2onnx_modules", "FRAGMENT")  # type: ignore[no-untyped-call]
_DECLARED: dict[str, OpOverload] = {}

MOST_DECLARED = 1000
"""The number of operators that are named after classes; later ones share one for each number of inputs and weights."""

SHAPED = "fx2onnx_shaped"
"""A method that a module may have: as ``forward``, but its results need have nothing but their sizes and dtypes."""

Called = Callable[[OpOverload, int, torch.nn.Module, Sequence[str]], None]
"""Called for each call: operator and number, whose call it is, the names of the weights that follow the inputs."""


Run = Callable[..., list[torch.Tensor]]


class _Thread(threading.local):
    calls: list[Run] | None = None
    """The operations that each call of this thread's capture runs, by the number of the call."""


_THREAD = _Thread()


def call_as_one(root: torch.nn.Module, kinds: Sequence[type], called: Called) -> None:
    """Until ``Changes`` end, a call of any submodule of ``kinds`` (not of ``root`` itself) is one call of an operator, in this
    thread.
    """
    chosen = [module for module in ModuleTree(root).modules if module is not root and isinstance(module, tuple(kinds))]
    names = _distinct_names(map(type, chosen))
    calls: list[Run] = []
    put_name(_THREAD, "calls", calls)
    for module in chosen:
        put_name(vars(module), "forward", _forward_of(module, names[type(module)], calls, called))


def _distinct_names(kinds: Iterator[type]) -> dict[type, str]:
    """A name for each class; another class of the same name gets a number."""
    names: dict[type, str] = {}
    for kind in dict.fromkeys(kinds):
        same = sum(other.__name__ == kind.__name__ for other in names)
        names[kind] = f"{kind.__name__}_{same}" if same else kind.__name__
    return names


def _forward_of(module: torch.nn.Module, name: str, calls: list[Run], called: Called) -> Callable[..., object]:
    original, thread = module.forward, threading.get_ident()
    shaped = getattr(module, SHAPED, original)
    weights = dict(itertools.chain(module.named_parameters(), module.named_buffers()))

    def forward(*args: object, **kwargs: object) -> object:
        if threading.get_ident() != thread:
            return original(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        structure: list[Any] = []

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=False):
                filled[place] = tensor
            given, named = pytree.tree_unflatten(filled, spec)
            results, shape = pytree.tree_flatten(shaped(*given, **named))
            structure[:] = [results, shape]
            return [result for result in results if isinstance(result, torch.Tensor)]

        overload = _operator(name, len(places), len(weights))
        calls.append(run)
        number = len(calls) - 1
        called(overload, number, module, list(weights))
        tensors = iter(overload(*(leaves[place] for place in places), *weights.values(), number))
        results, shape = structure
        return pytree.tree_unflatten(
            [next(tensors) if isinstance(result, torch.Tensor) else result for result in results], shape
        )

    return forward


def _operator(name: str, inputs: int, weights: int) -> OpOverload:
    full = f"{name}_{inputs}_{weights}"
    if full not in _DECLARED and len(_DECLARED) >= MOST_DECLARED:
        full = f"Module_{inputs}_{weights}"
    if full not in _DECLARED:
        arguments = [f"Tensor input{index}" for index in range(inputs)]
        arguments += [f"Tensor weight{index}" for index in range(weights)]
        _LIBRARY.define(f"{full}({', '.join([*arguments, 'int call'])}) -> Tensor[]")
        torch.library.impl(f"fx2onnx_modules::{full}", "CompositeExplicitAutograd", _run, lib=_LIBRARY)
        torch.library.register_fake(f"fx2onnx_modules::{full}", _run, lib=_LIBRARY)
        _DECLARED[full] = getattr(torch.ops.fx2onnx_modules, full).default
    return _DECLARED[full]


def _run(*arguments: Any) -> object:
    assert _THREAD.calls is not None, "the capture that this call belongs to is over"
    return _THREAD.calls[arguments[-1]](*arguments[:-1])
