"""The gradient properties of a recorded value: its graph is run again on meta tensors, for which autograd keeps its
notes.

Operators are recorded above autograd, so a recorded result has no history of its own.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.operators import OpOverload


class Gradients:
    """Meta tensors with the autograd history of ``tracer``'s values, made where they are asked for."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._made: dict[torch.fx.Node, Any] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A meta tensor of the tensor's dtype that requires gradients, and is a leaf, as the tensor is in eager PyTorch."""
        node = self._tracer.values.node_of(tensor)
        if id(tensor) in self._tracer.values.detached:
            with no_dispatch():
                return self._tensor(node.meta["val"])
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [operand for operand in current.all_input_nodes if operand not in self._made]
            if missing:
                pending += missing
                continue
            pending.pop()
            if current not in self._made:
                with no_dispatch(), torch.set_grad_enabled(current not in self._tracer.values.without_grad):
                    self._made[current] = self._of_node(current)
        made: torch.Tensor = self._made[node]
        return made

    def _of_node(self, node: torch.fx.Node) -> Any:
        index: Any
        tracer, info = self._tracer, node.meta["val"]
        if node.op == "placeholder":
            return self._tensor(info, node in tracer.values.wants_grad)
        if node.op == "get_attr":
            return self._tensor(info, tracer.values.weights[str(node.target)].tensor.requires_grad)
        operands = [self._made[operand] for operand in node.all_input_nodes]
        target: Any = node.target
        if target is operator.getitem:
            (whole,), index = operands, node.args[1]
            return whole[index] if isinstance(whole, tuple | list) else self._like(info, operands)
        tensors = [
            part for operand in operands for part in (operand if isinstance(operand, tuple | list) else [operand])
        ]
        if not any(part.requires_grad for part in tensors if part is not None) or not isinstance(target, OpOverload):
            return self._like(info, [])
        try:
            return target(*self._plain(node.args), **self._plain(node.kwargs))
        except Exception:  # an operator without an implementation for meta tensors
            return self._like(info, tensors)

    def _tensor(self, info: TensorInfo, is_tracked: bool = False) -> torch.Tensor:
        """``requires_grad_`` is refused where functions are transformed."""
        sizes = [int(self._tracer.sizes.hint(dim)) for dim in info.dims]
        return torch.empty(sizes, dtype=info.dtype, device="meta", requires_grad=is_tracked)

    def _like(self, info: Any, operands: list[Any]) -> Any:
        """A value of that type, computed from ``operands``: autograd tracks what is of floating point."""
        if isinstance(info, tuple):
            return tuple(None if part is None else self._like(part, operands) for part in info)
        is_tracked = any(part.requires_grad for part in operands if isinstance(part, torch.Tensor))
        if is_tracked and torch.is_grad_enabled() and (info.dtype.is_floating_point or info.dtype.is_complex):
            return self._tensor(info, is_tracked=True).clone()
        return self._tensor(info)

    def _plain(self, value: Any) -> Any:
        """``value`` with meta tensors for nodes, numbers for dimensions, and the meta device for every other."""
        if isinstance(value, torch.fx.Node):
            return self._made[value]
        if isinstance(value, list | tuple):
            return type(value)([self._plain(part) for part in value])
        if isinstance(value, dict):
            return {name: self._plain(part) for name, part in value.items()}
        if isinstance(value, Dim):
            return self._tracer.sizes.hint(value)
        return torch.device("meta") if isinstance(value, torch.device) else value
