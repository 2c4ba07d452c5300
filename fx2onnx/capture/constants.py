"""Numbers that Python asks for while a module runs: computed where only small constants lead to them."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from fx2onnx.base.dims import Dim
from fx2onnx.capture.captured import Weight
from fx2onnx.capture.torch_private import no_dispatch

MAX_ELEMENTS = 1 << 16
"""Tensors larger than this are never computed during capture: they are model data, not bookkeeping."""

_RANDOM = torch.Tag.nondeterministic_seeded


def evaluate(node: torch.fx.Node, weights: dict[str, Weight]) -> torch.Tensor | None:
    """The node's real value, or None where an input, a dynamic size, randomness or a large tensor is involved."""
    with no_dispatch(), torch.no_grad():
        value: torch.Tensor | None = _evaluate(node, weights, {})
        return value


def _evaluate(node: torch.fx.Node, weights: dict[str, Weight], known: dict[torch.fx.Node, Any]) -> Any:
    if node in known:
        return known[node]
    known[node] = None
    value: Any = None
    if node.op == "get_attr":
        tensor = weights[str(node.target)].tensor
        value = tensor if tensor.device.type != "meta" and tensor.numel() <= MAX_ELEMENTS else None
    elif (
        node.op == "call_function"
        and _is_small(node)
        and not _depends_on_size(node.args)
        and not _depends_on_size(tuple(node.kwargs.values()))
    ):
        value = _call(node, weights, known)
    known[node] = value
    return value


def _call(node: torch.fx.Node, weights: dict[str, Weight], known: dict[torch.fx.Node, Any]) -> Any:
    if isinstance(node.target, torch._ops.OpOverload):
        if _RANDOM in node.target.tags:
            return None
    elif node.target is not operator.getitem:
        return None
    operands = {found: _evaluate(found, weights, known) for found in node.all_input_nodes}
    if any(value is None for value in operands.values()):
        return None
    args = torch.fx.map_arg(node.args, operands.__getitem__)
    kwargs = torch.fx.map_arg(node.kwargs, operands.__getitem__)
    target: Any = node.target
    return target(*args, **kwargs)


def _is_small(node: torch.fx.Node) -> bool:
    infos = node.meta["val"] if isinstance(node.meta["val"], tuple) else (node.meta["val"],)
    for info in infos:
        count = 1
        for dim in info.dims if info is not None else ():
            if isinstance(dim, Dim):
                return False
            count *= dim
        if count > MAX_ELEMENTS:
            return False
    return True


def _depends_on_size(args: Any) -> bool:
    if isinstance(args, list | tuple):
        return any(map(_depends_on_size, args))
    return isinstance(args, Dim)
