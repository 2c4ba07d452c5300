"""What a graph takes for true of sizes that only the data tells, as nodes of it: each gives its tensor on where it is true.

A file fails in such a node, by a name that says what is not true, where eager PyTorch would have raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base.relations import COMPARE, Relation
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import GraphOutput, Symbol
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.torch_private.operators import OpOverload

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("checked(Tensor self, str sign, SymInt left, SymInt right, str line) -> Tensor")


def _checked(self: torch.Tensor, sign: str, left: int, right: int, line: str) -> torch.Tensor:
    if not COMPARE[sign](left, right):
        raise RuntimeError(f"{Relation(sign, (left, right))} is not true   ({line})")
    return self.clone()


_LIBRARY.impl("checked", _checked, "CompositeExplicitAutograd")
CHECKED: OpOverload = torch.ops.fx2onnx.checked.default


def comparisons(relation: Relation) -> Iterator[Relation]:
    """The comparisons of integers that have to be true, all of them, for ``relation`` to be; none where it is another thing."""
    if relation.op == "and":
        for part in relation.args:
            if isinstance(part, Relation):
                yield from comparisons(part)
    elif relation.op in COMPARE and not relation.has_reals() and not _has_relations(relation):
        yield relation


def _has_relations(relation: Relation) -> bool:
    return any(isinstance(arg, Relation | bool) for arg in relation.args)


def checked_by(node: torch.fx.Node) -> Relation:
    """What a check asks."""
    _, sign, *sides, _ = node.args
    return Relation(str(sign), tuple(sides))


def behind(node: torch.fx.Node) -> torch.fx.Node:
    """What a check gives on; ``node`` itself where it is none."""
    while node.target is CHECKED:
        node = node.args[0]  # type: ignore[assignment]
    return node


def add(recorder: BaseRecorder, node: torch.fx.Node, relation: Relation, where: SourceLocation | None) -> torch.fx.Node:
    """``node`` behind a check of ``relation``, as far as that is one of integers."""
    for comparison in comparisons(relation):
        args = (node, comparison.op, *comparison.args, "" if where is None else str(where))
        node = recorder.call(CHECKED, args, {}, node.meta["val"])
        recorder.checks.append(node)
    return node


def settle(recorder: BaseRecorder, outputs: Sequence[GraphOutput]) -> None:
    """Put what no output depends on, of all that is taken for true in the graph, before the first output that is a tensor."""
    env, nodes = recorder.shape_env, [each.value for each in outputs if isinstance(each.value, torch.fx.Node)]
    if not nodes or not (recorder.checks or env.unchecked):
        return
    needed = _needed(nodes)
    left = {
        checked_by(check): check.meta["where"]
        for check in recorder.checks
        if check not in needed and check.graph is recorder.graph
    }
    check_outputs(recorder.graph, outputs, recorder.symbols, {**left, **env.unchecked})


def check_outputs(
    graph: torch.fx.Graph,
    outputs: Sequence[GraphOutput],
    symbols: Mapping[str, Symbol],
    relations: Mapping[Relation, SourceLocation | None],
) -> None:
    """Put checks of ``relations``, as far as ``symbols`` has what they need, before the first output that is a tensor."""
    first = next((output.value for output in outputs if isinstance(output.value, torch.fx.Node)), None)
    last = first
    for relation, where in relations.items():
        for comparison in comparisons(relation) if relation.symbols() <= symbols.keys() else ():
            if last is not None and first is not None:
                line = "" if where is None else str(where)
                last = graph.call_function(CHECKED, (last, comparison.op, *comparison.args, line))
                last.meta.update({"val": first.meta["val"], "where": where, "module": ""})
    for output in outputs:
        if last is not None and output.value is first:
            output.value = last


def _needed(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    found, pending = set(nodes), list(nodes)
    while pending:
        more = [operand for operand in pending.pop().all_input_nodes if operand not in found]
        found.update(more)
        pending += more
    return found
