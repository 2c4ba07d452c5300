"""Values of nodes to which only small constants lead: they are computed, and their numbers are known in Python."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import Weight
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.operators import OpOverload

MAX_ELEMENTS = 1 << 16
"""Tensors larger than this are never computed during capture: they are model data, not bookkeeping."""

_RANDOM = torch.Tag.nondeterministic_seeded


Known: TypeAlias = dict[torch.fx.Node, torch.Tensor | None]

KEPT_ELEMENTS = 1024
"""Values of more are computed each time rather than kept: Python reads small numbers, again and again."""


def evaluate(node: torch.fx.Node, weights: dict[str, Weight], known: Known) -> torch.Tensor | None:
    """The node's real value, or None where an input, a dynamic size, randomness or a large tensor is involved.

    ``known`` keeps what was computed for later calls.
    """
    found: Known = {}
    pending = [node]
    with no_dispatch(), torch.no_grad():
        while pending:
            current = pending[-1]
            if current not in found and current in known:
                found[current] = known[current]
            if current not in found:
                operands = current.all_input_nodes if _is_computable(current) else ()
                missing = [operand for operand in operands if operand not in found]
                if missing and not any(found.get(operand, 0) is None for operand in operands):
                    pending += missing
                    continue
                found[current] = _value(current, weights, found)
            pending.pop()
    known.update((key, value) for key, value in found.items() if value is None or _is_kept(value))
    return found[node]


def _is_kept(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() <= KEPT_ELEMENTS


def _is_computable(node: torch.fx.Node) -> bool:
    """Return whether numbers of the operands would give the node's."""
    target = node.target
    if isinstance(target, OpOverload):
        if _RANDOM in target.tags:
            return False
    elif target is not operator.getitem:
        return False
    return _is_small(node) and not _depends_on_size(node.args) and not _depends_on_size(tuple(node.kwargs.values()))


def _value(node: torch.fx.Node, weights: dict[str, Weight], found: dict[torch.fx.Node, Any]) -> Any:
    """The value of a node whose operands have theirs."""
    if node.op == "get_attr":
        tensor = weights[str(node.target)].tensor
        return tensor if tensor.device.type != "meta" and tensor.numel() <= MAX_ELEMENTS else None
    if not _is_computable(node) or any(found.get(operand) is None for operand in node.all_input_nodes):
        return None
    args = torch.fx.map_arg(node.args, found.__getitem__)
    kwargs = torch.fx.map_arg(node.kwargs, found.__getitem__)
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


def _depends_on_size(args: object) -> bool:
    if isinstance(args, list | tuple):
        return any(map(_depends_on_size, args))
    return isinstance(args, Dim)
