"""Operators: their type, those that are registered, and what PyTorch makes of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch._decomp import core_aten_decompositions
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op

OpOverload: TypeAlias = torch._ops.OpOverload

PackedWeight: TypeAlias = Any
"""A weight of an eager-quantized layer, of which torch has no Python type."""

HIGHER_ORDER: dict[str, Any] = {
    "cond": torch.ops.higher_order.cond,
    "while_loop": while_loop_op,
    "scan": scan_op,
    "map_impl": map_impl,
}
"""Control-flow operators whose arguments are functions."""

CUSTOM_FUNCTION = torch._functorch.autograd_function.custom_function_call
"""An ``autograd.Function`` within ``torch.vmap`` or ``torch.func.grad``."""

mkldnn_is_enabled: Callable[[], bool] = torch._C._get_mkldnn_enabled
"""Returns True if oneDNN's kernels are used, which give other strides."""


@lru_cache(maxsize=1)
def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """PyTorch's decompositions into core ATen overloads (those into ``prims`` help nobody here)."""
    return dict(core_aten_decompositions())


def registered_overloads(namespace: str) -> Iterator[OpOverload]:
    """Every overload that is registered in a namespace; those that cannot be called from Python are left out."""
    packets = getattr(torch.ops, namespace)
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, rest = name.partition("::")
        packet_name, _, overload_name = rest.partition(".")
        packet = getattr(packets, packet_name, None) if space == namespace else None
        overload = getattr(packet, overload_name or "default", None)
        if overload is not None:
            yield overload


def quantized_decomposed() -> Any:
    """``torch.ops.quantized_decomposed``, which exists once its declarations are imported."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    return torch.ops.quantized_decomposed


KERNELS_OF_NN: object = torch._C._nn
"""The functions that ``torch.nn.functional`` calls where it does not compute by itself."""


def is_decomposable(func: OpOverload) -> bool:
    """Return whether PyTorch can split ``func`` into simpler overloads."""
    return func in decompositions() or func._can_decompose()


def decompose(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run PyTorch's own decomposition of ``func``, or return NotImplemented."""
    known = decompositions().get(func)
    return known(*args, **kwargs) if known is not None else func.decompose(*args, **kwargs)
