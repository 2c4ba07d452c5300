"""The captured ATen graph, run on real tensors node by node: on the CPU, wherever the module lies."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import Captured, carried
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.sizes.expr import Dim, evaluate
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.operators import HIGHER_ORDER

_CPU = torch.device("cpu")
Values: TypeAlias = dict[torch.fx.Node, Any]


class AtenGraph:
    """The node-by-node evaluation of a captured graph.

    ``is_wide``: weights, inputs and casts are float64 where the module has a smaller floating type, so that the values
    are what the module's are rounded from.
    """

    def __init__(self, captured: Captured, *, is_wide: bool = False) -> None:
        self.captured = captured
        self.is_wide = is_wide
        self.sizes: dict[str, int] = {}
        self._symbols: dict[torch.fx.Node, list[tuple[str, int | None]]] = {}
        for name, symbol in captured.symbols.items():
            self._symbols.setdefault(symbol.node, []).append((name, symbol.axis))

    def run(self, inputs: Mapping[torch.fx.Node, torch.Tensor]) -> Iterator[tuple[torch.fx.Node, Any]]:
        """Every node with its value, in the order of the graph. A value is kept until its last reader is done."""
        captured = self.captured
        values: Values = {}
        kept = {output.value for output in captured.outputs} | {mutation.node for mutation in carried(captured)}
        last = {operand: node for node in captured.graph.nodes for operand in operands_of(node)}
        done: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for operand, node in last.items():
            done.setdefault(node, []).append(operand)
        for node in captured.graph.nodes:
            values[node] = self.compute(node, values, inputs)
            yield node, values[node]
            for operand in done.get(node, ()):
                if operand not in kept:
                    values.pop(operand, None)
            if node not in last and node not in kept:
                del values[node]

    def compute(
        self, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any], inputs: Mapping[torch.fx.Node, torch.Tensor]
    ) -> Any:
        """The value of one node, from those of its operands."""
        value: Any
        if node.op == "placeholder":
            value = self._widened(inputs[node])
        elif node.op == "get_attr":
            value = self._widened(self.captured.weights[str(node.target)].tensor.detach())
        elif node.target is operator.getitem:
            value = values[node.args[0]][node.args[1]]  # type: ignore[index]
        elif node.target in _CONTROL_FLOW:
            value = _CONTROL_FLOW[node.target](self, dict(values), *node.args)
        else:
            args, kwargs = self._argument(node.args, values), self._argument(node.kwargs, values)
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                value = node.target(*args, **kwargs)  # type: ignore[operator]
        for name, axis in self._symbols.get(node, ()):
            if isinstance(value, torch.Tensor):
                self.sizes[name] = int(value.item()) if axis is None else value.shape[axis]
        return value

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.cpu()
        return tensor.double() if self.is_wide and tensor.is_floating_point() else tensor

    def _argument(self, arg: Any, values: Mapping[torch.fx.Node, Any]) -> Any:
        if isinstance(arg, torch.fx.Node):
            return values[arg]
        if isinstance(arg, Dim):
            return evaluate(arg, self.sizes)
        if isinstance(arg, Relation):
            return arg.holds(self.sizes)
        if isinstance(arg, torch.device):
            return _CPU
        if isinstance(arg, torch.dtype) and self.is_wide and arg.is_floating_point:
            return torch.float64
        if isinstance(arg, list | tuple):
            return type(arg)(self._argument(item, values) for item in arg)
        if isinstance(arg, dict):
            return {key: self._argument(item, values) for key, item in arg.items()}
        return arg

    def _nested(self, graph: Nested, values: Values, operands: Sequence[Any]) -> list[Any]:
        inner = values | dict(zip(graph.inputs, operands, strict=True))
        for node in graph.graph.nodes:
            if node not in inner:
                inner[node] = self.compute(node, inner, {})
        return [inner[node] for node in graph.outputs]

    def _cond(self, values: Values, pred: Any, then: Nested, otherwise: Nested, operands: Sequence[Any]) -> Any:
        chosen = then if bool(self._argument(pred, values)) else otherwise
        return tuple(self._nested(chosen, values, self._argument(list(operands), values)))

    def _while_loop(
        self, values: Values, test: Nested, body: Nested, carried: Sequence[Any], extra: Sequence[Any]
    ) -> Any:
        state, others = self._argument(list(carried), values), self._argument(list(extra), values)
        while bool(self._nested(test, values, [*state, *others])[0]):
            state = self._nested(body, values, [*state, *others])
        return tuple(state)

    def _scan(
        self,
        values: Values,
        body: Nested,
        carry: Sequence[Any],
        xs: Sequence[Any],
        extra: Sequence[Any],
        go_on: Any = None,
    ) -> Any:
        state, others = self._argument(list(carry), values), self._argument(list(extra), values)
        sequences = self._argument(list(xs), values)
        steps: list[list[Any]] = []
        goes_on = go_on is None or bool(self._argument(go_on, values))
        while goes_on and (not sequences or len(steps) < len(sequences[0])):
            slices = [each[len(steps)] for each in sequences] or [torch.tensor(len(steps))]
            given = self._nested(body, values, [*state, *slices, *others])
            goes_on = go_on is None or bool(given.pop())
            state = given[: len(state)]
            steps.append(given[len(state) :])
        return (*state, *(torch.stack(column) for column in zip(*steps, strict=True)))


_CONTROL_FLOW: dict[Any, Callable[..., Any]] = {
    HIGHER_ORDER["cond"]: AtenGraph._cond,
    HIGHER_ORDER["while_loop"]: AtenGraph._while_loop,
    HIGHER_ORDER["scan"]: AtenGraph._scan,
}


def operands_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that a node reads, in nested graphs as well, which may lie in graphs around theirs."""
    found = list(node.all_input_nodes)
    for arg in node.args:
        if isinstance(arg, Nested):
            found += [operand for inner in arg.graph.nodes for operand in operands_of(inner)]
            found += arg.outputs
    return found
