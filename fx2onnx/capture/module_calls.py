"""Modules of chosen classes, each call of them one node: an operator is declared for it, whose fake runs the module."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx2onnx.capture.module_tree import modules

_LIBRARY: Any = torch.library.Library("fx2onnx_modules", "FRAGMENT")  # type: ignore[no-untyped-call]
_numbers = itertools.count()

Declared = Callable[[torch._ops.OpOverload, torch.nn.Module, int, Sequence[str]], None]
"""Is told of each new overload: whose module, how many inputs come first, the names of the weights that follow."""


@contextlib.contextmanager
def as_single_calls(root: torch.nn.Module, kinds: Sequence[type], declared: Declared) -> Iterator[None]:
    """Inside, a call of any submodule of ``kinds`` (not of ``root`` itself) is one call of an operator."""
    chosen = [module for module in modules(root) if module is not root and isinstance(module, tuple(kinds))]
    before = {id(module): vars(module).get("forward") for module in chosen}
    try:
        for module in chosen:
            object.__setattr__(module, "forward", _forward_of(module, declared))
        yield
    finally:
        for module in chosen:
            vars(module).pop("forward", None)
            if before[id(module)] is not None:
                object.__setattr__(module, "forward", before[id(module)])


def _forward_of(module: torch.nn.Module, declared: Declared) -> Callable[..., Any]:
    original = module.forward
    weights = dict(itertools.chain(module.named_parameters(), module.named_buffers()))

    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        structure: list[Any] = []

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=False):
                filled[place] = tensor
            given, named = pytree.tree_unflatten(filled, spec)
            results, shape = pytree.tree_flatten(original(*given, **named))
            structure[:] = [results, shape]
            return [result for result in results if isinstance(result, torch.Tensor)]

        overload = _declared_operator(type(module).__name__, len(places), len(weights), run)
        declared(overload, module, len(places), list(weights))
        tensors = iter(overload(*(leaves[place] for place in places), *weights.values()))
        results, shape = structure
        return pytree.tree_unflatten(
            [next(tensors) if isinstance(result, torch.Tensor) else result for result in results], shape
        )

    return forward


def _declared_operator(
    kind: str, inputs: int, weights: int, run: Callable[..., list[torch.Tensor]]
) -> torch._ops.OpOverload:
    name = f"{kind}_{next(_numbers)}"
    arguments = [f"Tensor input{index}" for index in range(inputs)]
    arguments += [f"Tensor weight{index}" for index in range(weights)]
    _LIBRARY.define(f"{name}({', '.join(arguments)}) -> Tensor[]")
    torch.library.impl(f"fx2onnx_modules::{name}", "CompositeExplicitAutograd", run, lib=_LIBRARY)
    torch.library.register_fake(f"fx2onnx_modules::{name}", run, lib=_LIBRARY)
    overload: torch._ops.OpOverload = getattr(torch.ops.fx2onnx_modules, name).default
    return overload
