"""Conditions of operators on sizes: those on data-dependent sizes as nodes of the graph, and those that torch checks with a plain
comparison, behind which an error is raised.

Such a node returns its tensor where the condition holds. A file fails in it, by a name that says what is not true, where eager PyTorch
would have raised.

torch's kernels say ``torch._check`` and ``TORCH_SYM_CHECK`` of some of their needs, which is seen at once. Of others they only compare
sizes, as they do to choose how they go through memory. So the operator is run on fakes once more, at sizes for which the answer
would be another: where it raises, eager PyTorch does, too, unless its own kernel takes the call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.fx
from torch.fx.node import Argument

from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.captured import GraphOutput, Symbol
from fx2onnx.capture.op_table import Op
from fx2onnx.capture.recording.values import Values, dims_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.expr import Scalar
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.operators import OpOverload

_LIBRARY: Any = torch.library.Library("fx2onnx", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("checked(Tensor self, str[] signs, Scalar[] lefts, Scalar[] rights, str line) -> Tensor")


def _checked(self: torch.Tensor, signs: list[str], lefts: list[float], rights: list[float], line: str) -> torch.Tensor:
    if not composed(signs, lefts, rights).holds({}):
        raise RuntimeError(f"what {line} needs of sizes is not true")
    return self.clone()


_LIBRARY.impl("checked", _checked, "CompositeExplicitAutograd")
CHECKED: OpOverload = torch.ops.fx2onnx.checked.default

Relations: TypeAlias = Mapping[Relation, SourceLocation | None]
"""With the lines that ask for them."""
Step: TypeAlias = tuple[str, Scalar, Scalar]
"""A comparison; or "and" and "or" with how many of what stands before they join, and 0."""


def parts(relation: Relation) -> list[Relation]:
    """Split a conjunction into its parts, each of which becomes one check."""
    if relation.op == "not" and isinstance(relation.args[0], Relation):
        turned = _turned(relation.args[0])
        return parts(turned) if isinstance(turned, Relation) else [relation]
    if relation.op != "and":
        return [relation]
    return [part for arg in relation.args if isinstance(arg, Relation) for part in parts(arg)]


def steps(relation: Relation | bool) -> list[Step]:
    """``relation`` as comparisons and what joins them, each behind what it joins; none where it has others than of numbers."""
    if isinstance(relation, bool):
        return [("eq" if relation else "ne", 0, 0)]
    if relation.op in COMPARE:
        is_plain = not any(isinstance(arg, Relation | bool) for arg in relation.args)
        return [(relation.op, *relation.args)] if is_plain else []
    if relation.op == "not":
        inner = relation.args[0]
        return steps(not inner if isinstance(inner, bool) else _turned(inner))
    found = [steps(arg) for arg in relation.args]
    return [*itertools.chain(*found), (relation.op, len(found), 0)] if all(found) else []


def _turned(relation: Relation) -> Relation | bool:
    """Return the negation of ``relation`` with every "not" pushed down to a comparison."""
    if relation.op not in ("and", "or"):
        return relation.negated()
    other = {"and": "or", "or": "and"}[relation.op]
    return Relation(other, tuple(_turned(arg) if isinstance(arg, Relation) else not arg for arg in relation.args))


def checked_by(node: torch.fx.Node) -> Relation:
    """The relation that a check tests."""
    _, signs, lefts, rights, _ = node.args
    return composed(signs, lefts, rights)  # type: ignore[arg-type]


def composed(signs: Sequence[str], lefts: Sequence[Scalar], rights: Sequence[Scalar]) -> Relation:
    """The relation that ``steps`` takes apart."""
    found: list[Relation] = []
    for sign, left, right in zip(signs, lefts, rights, strict=True):
        if sign in COMPARE:
            found.append(Relation(sign, (left, right)))
        else:
            assert isinstance(left, int)
            found[-left:] = [Relation(sign, tuple(found[-left:]))]
    return found[0]


def _arguments(node: torch.fx.Node, checked: Sequence[Step], where: SourceLocation | None) -> tuple[Argument, ...]:
    signs, lefts, rights = (list(column) for column in zip(*checked, strict=True))
    return (node, signs, lefts, rights, "" if where is None else str(where))


def behind(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor that a check passes on; ``node`` itself where it is no check."""
    while node.target is CHECKED:
        node = node.args[0]  # type: ignore[assignment]
    return node


def add(values: Values, node: torch.fx.Node, relation: Relation, where: SourceLocation | None) -> torch.fx.Node:
    """``node`` behind checks of ``relation``."""
    for checked in filter(None, map(steps, parts(relation))):
        node = values.call(CHECKED, _arguments(node, checked, where), {}, node.meta["val"])
        values.checks.append(node)
    return node


def settle(values: Values, env: ShapeEnv, outputs: Sequence[GraphOutput]) -> None:
    """Put what no output depends on, of all that is taken for true in the graph, before the first output that is a tensor."""
    nodes = [each.value for each in outputs if isinstance(each.value, torch.fx.Node)]
    if not nodes:
        return
    needed = _needed(nodes)
    left = {
        checked_by(check): check.meta["where"]
        for check in values.checks
        if check not in needed and check.graph is values.graph
    }
    check_outputs(values.graph, outputs, values.symbols, {**left, **env.unchecked})


def check_outputs(
    graph: torch.fx.Graph, outputs: Sequence[GraphOutput], symbols: Mapping[str, Symbol], relations: Relations
) -> None:
    """Put checks of ``relations``, as far as the graph has what they need, before the first output that is a tensor."""
    first = next((output.value for output in outputs if isinstance(output.value, torch.fx.Node)), None)
    if first is None:
        return
    last = with_checks(graph, first, symbols, relations)
    for output in outputs:
        if output.value is first:
            output.value = last


def with_checks(
    graph: torch.fx.Graph, node: torch.fx.Node, symbols: Mapping[str, Symbol], relations: Relations
) -> torch.fx.Node:
    """``node`` behind checks at the end of ``graph``, as far as its sizes are what they need."""
    info = node.meta["val"]
    for relation, where in relations.items():
        sources = [symbols[name].node if name in symbols else None for name in relation.symbols()]
        is_known = all(source and (source.op == "placeholder" or source.graph is graph) for source in sources)
        for checked in filter(None, map(steps, parts(relation))) if is_known else ():
            node = graph.call_function(CHECKED, _arguments(node, checked, where))
            node.meta.update({"val": info, "where": where, "module": ""})
    return node


def _needed(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    found, pending = set(nodes), list(nodes)
    while pending:
        more = [operand for operand in pending.pop().all_input_nodes if operand not in found]
        found.update(more)
        pending += more
    return found


_TAKES_EVERY_SIZE = "aten::unbind"
"""An overload whose kernel asks for the number of its results only."""


def note_needs(
    env: ShapeEnv,
    operator: Callable[[], object],
    is_taken: Callable[[], bool],
    operands: Sequence[object],
    result: object,
    since: int,
) -> None:
    """Make conditions of those questions, asked in ``env`` behind the first ``since``, behind which the operator raises, and that the
    first of ``operands`` and the result are not empty, where it needs that. ``is_taken``: whether the real kernel is known to take
    the call.
    """
    if not env.unbacked and env.during != _TAKES_EVERY_SIZE:
        _note_what_ends_runs(env, operator, is_taken, since)
    if env.during in Op.NEEDS_ELEMENTS.names and isinstance(result, torch.Tensor):
        for operand in operands:
            if isinstance(operand, torch.Tensor):
                env.check_some((*dims_of(operand)[1:], *dims_of(result)[1:]))


def _note_what_ends_runs(
    env: ShapeEnv, operator: Callable[[], object], is_taken: Callable[[], bool], since: int
) -> None:
    for how, what, answer in env.asked[since:]:
        if how != "guard" or not isinstance(what, Relation) or len(what.symbols()) != 1:
            continue
        true = what if answer else what.negated()
        if not true.is_bound():
            continue
        if (env.during, true) in env.tried:
            env.leans |= env.tried[env.during, true]
            continue
        others = env.facts.sizes_against(true)
        ends_run = bool(others) and _raises_at_all(env, operator, is_taken, others)
        env.tried = {**env.tried, (env.during, true): ends_run}
        if ends_run:
            env.check(true)


def _raises_at_all(
    env: ShapeEnv, operator: Callable[[], object], is_taken: Callable[[], bool], others: Sequence[dict[str, int]]
) -> bool:
    for sizes in others:
        with env.tried_at(sizes):
            try:
                operator()
            except Exception:  # torch's operators raise whatever they like
                if not is_taken():
                    continue
            return False
    return True
