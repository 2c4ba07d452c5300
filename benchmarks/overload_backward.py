"""Calls of backward overloads as autograd makes them: their kernels do not check that arguments fit together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

RENAMED = {"embedding_dense": "embedding", "_pdist": "_pdist_forward", "_cdist": "_cdist_forward", "weight_norm": "_weight_norm"}  # fmt: skip
"""Forward operators whose name is not that of the backward one without its suffix."""


class _Calls(TorchDispatchMode):
    """Keeps the calls of one overload."""

    def __init__(self, overload: torch._ops.OpOverload) -> None:
        super().__init__()
        self.overload = overload
        self.found: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.overload:
            self.found.append(
                pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().clone(), (args, kwargs or {}))
            )
        return func(*args, **(kwargs or {}))


def is_backward(overload: torch._ops.OpOverload) -> bool:
    return "backward" in overload._schema.name


def forwards_of(overload: torch._ops.OpOverload) -> list[torch._ops.OpOverload]:
    """Overloads whose gradient may be the backward overload."""
    name = re.sub(r"(_double)?_backward(_data|_jvp)?(_with_.*)?$", "", overload._schema.name.partition("::")[2])
    packets = [RENAMED.get(name, name), name.lstrip("_"), f"_{name}", name.removesuffix("_interface")]
    found = [getattr(torch.ops.aten, packet, None) for packet in dict.fromkeys(packets)]
    return [
        getattr(packet, each) for packet in found if packet is not None for each in packet.overloads() if each != "out"
    ]


def backward_calls(
    overload: torch._ops.OpOverload, index: int, calls_of: Callable[[torch._ops.OpOverload], Iterator[tuple[Any, Any]]]
) -> Iterator[tuple[Any, Any]]:
    """Arguments with which autograd calls the overload, for calls of its forward."""
    forwards = forwards_of(overload)
    for each in range(len(forwards)):
        forward = forwards[(index + each) % len(forwards)]
        for args, kwargs in calls_of(forward):
            with _Calls(overload) as calls:
                try:
                    _differentiate(forward, args, kwargs)
                except Exception:  # eager PyTorch refuses arguments by classes of every kind
                    continue
            yield from calls.found


def _differentiate(forward: torch._ops.OpOverload, args: Any, kwargs: Any) -> None:
    def watched(leaf: Any) -> Any:
        is_watched = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        return leaf.clone().requires_grad_() if is_watched else leaf

    args, kwargs = pytree.tree_map(watched, (args, kwargs))
    outputs = [leaf for leaf in pytree.tree_leaves(forward(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    outputs = [leaf for leaf in outputs if leaf.requires_grad]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype) for leaf in outputs]
    torch.autograd.backward(outputs, weights)
