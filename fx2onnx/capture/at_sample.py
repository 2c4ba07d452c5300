"""A trial of the graph's conditions on the example inputs before a file is written, also of those on data-dependent
sizes.

Only what leads to such a size is computed, as far as that is little work.
"""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import Captured, Symbol, where_of
from fx2onnx.capture.recording.size_checks import CHECKED, checked_by
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.operators import OpOverload

MOST_ELEMENTS = 1 << 20
"""The most elements of a tensor that is computed."""
MOST_NODES = 400
"""The most nodes that are computed for one condition."""


class NotComputed(Exception):
    """A value is not computed here."""


Value: TypeAlias = Any
"""The value of a node, or an argument of one."""


def try_at_sample(captured: Captured) -> None:
    """Raises UserError E101 for what eager PyTorch needs and the example inputs break, E105 for another condition that
    they do. A note says which were not tried.
    """
    for assumed in captured.broken_at(captured.sample_sizes()):
        raise UserError(
            "E105",
            f"the file would not be for its own example inputs: {assumed.expression}",
            where=assumed.where,
            why="another branch of the module, or an operator, needs it where these inputs do not lead",
            next="declare a range of the size that has one of the branches, torch.export.Dim(NAME, min=..., max=...), and report it",
        )
    sample = SampleValues(captured)
    for node in captured.graph.nodes:
        if node.target is CHECKED:
            relation = checked_by(node)
            try:
                holds = relation.holds({name: sample.size(name) for name in relation.symbols()})
            except NotComputed as cause:
                what = f"not tried on the example inputs, as {cause}: {relation}"
                captured.assumptions.append(Assumption(what, where_of(node)))
                continue
            if not holds:
                raise _broken(relation, sample, node)


def _broken(relation: Relation, sample: SampleValues, node: torch.fx.Node) -> UserError:
    names = sorted(relation.symbols())
    sizes = ", ".join(f"{name} is {sample.size(name)}" for name in names)
    origins = [f"; {symbol.name} is {symbol.origin()}" for symbol in map(sample.symbol, names) if symbol is not None]
    return UserError(
        "E101",
        f"the example inputs break what the module needs: {relation}",
        where=where_of(node),
        module_path=node.meta.get("module") or "",
        why=f"{sizes} at these inputs{''.join(origins)}",
        next=(
            "check that module(*args, **kwargs) runs in eager PyTorch with these arguments",
            "give example inputs with another number there, if it does"
            if origins
            else "give example inputs at which the sizes are different, if it does: a size that is 1 stands for no other",
        ),
    )


class SampleValues:
    """Values and sizes at the example inputs."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._values: dict[torch.fx.Node, Value] = {each.node: each.sample.detach() for each in captured.inputs}

    def symbol(self, name: str) -> Symbol | None:
        """The origin of a data-dependent size; None for that of an axis of an input."""
        symbol = self._captured.symbols.get(name)
        return None if symbol is None or symbol.node.op == "placeholder" else symbol

    def size(self, name: str) -> int:
        """The size of that name. Raises Unknown."""
        symbol = self._captured.symbols.get(name)
        if symbol is None:
            if name in self._captured.sizes:
                return self._captured.sizes[name]
            raise NotComputed(f"{name} belongs to a branch")
        if symbol.axis is not None and symbol.node in self._values:
            return int(self._values[symbol.node].shape[symbol.axis])
        value = self._value(symbol.node)
        return int(value.item()) if symbol.axis is None else int(value.shape[symbol.axis])

    def _value(self, node: torch.fx.Node) -> Value:
        """Raises Unknown for what is large, random or in a branch."""
        ordered: dict[torch.fx.Node, None] = {}
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [each for each in self._operands(current) if each not in ordered and each not in self._values]
            if current in self._values or not missing:
                pending.pop()
                ordered[current] = None
            pending += missing
            if len(ordered) + len(pending) > MOST_NODES:
                raise NotComputed("much leads to it")
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for each in ordered:
                if each not in self._values:
                    self._values[each] = self._computed(each)
        return self._values[node]

    def _operands(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        if node in self._values:
            return []
        symbols = self._captured.symbols
        found = [symbols[name].node for name in _symbols((node.args, node.kwargs)) if name in symbols]
        return [*node.all_input_nodes, *(each for each in found if each is not node)]

    def _computed(self, node: torch.fx.Node) -> Value:
        target: Value = node.target
        if node.op == "get_attr":
            value = self._captured.weights[str(target)].tensor.detach()
        elif target is operator.getitem:
            return self._values[node.args[0]][node.args[1]]  # type: ignore[index]
        elif not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
            raise NotComputed(f"it depends on {target}")
        else:
            operands = [self._values[each] for each in node.all_input_nodes]
            if any(_is_large(operand) for operand in operands):
                raise NotComputed("it depends on large tensors")
            try:
                value = target(*self._argument(node.args), **self._argument(node.kwargs))
            except (RuntimeError, IndexError, ValueError, NotImplementedError) as error:
                raise NotComputed(f"{target} fails: {str(error).splitlines()[0]:.100}") from error
        return value

    def _argument(self, arg: Value) -> Value:
        if isinstance(arg, torch.fx.Node):
            return self._values[arg]
        if isinstance(arg, Dim):
            return arg.evaluate({name: self.size(name) for name in arg.symbols()})
        if isinstance(arg, list | tuple):
            return type(arg)(map(self._argument, arg))
        if isinstance(arg, dict):
            return {key: self._argument(item) for key, item in arg.items()}
        return arg


def _is_large(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.device.type == "meta" or value.numel() > MOST_ELEMENTS)


def _symbols(arg: object) -> frozenset[str]:
    if isinstance(arg, Dim):
        return arg.symbols()
    parts = arg.values() if isinstance(arg, dict) else arg if isinstance(arg, list | tuple) else ()
    return frozenset().union(*map(_symbols, parts))
