"""What operators with bodies give to them, and what they make of what comes out: numbers and types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.runner.nodes import NodeText
from fx2onnx.runner.program import Program
from fx2onnx.runner.schemas import Signature
from fx2onnx.runner.value_types import element_of, without_optional

Types: TypeAlias = Sequence[str]
"""Types by onnxruntime's names, "" where one is not known."""


@dataclass(frozen=True, slots=True)
class BodyRule:
    """``inputs`` of each body, and ``outputs`` of the node, from the types of the node's inputs and its attributes."""

    inputs: Callable[[Types, Mapping[str, Any]], Types]
    outputs: Callable[[Types, Sequence[Types], Mapping[str, Any]], Types]
    n_own_outputs: int = 0
    """Outputs of a body that are no outputs of the node."""
    since: int = 1
    """Of older versions nothing is said: Scan-8 gives its body slices of two axes."""


def build_bodies(
    text: NodeText,
    signature: Signature | None,
    graphs: Mapping[str, Any],
    types: Types,
    attrs: Mapping[str, Any],
    build: Callable[[Any, str, Types], Program],
) -> tuple[dict[str, Program], tuple[str, ...]]:
    """The graphs of a node as programs, each made by ``build``, and the types of the node's outputs.

    Raises: UserError E303 for a body with other inputs or outputs than the operator gives and takes.
    """
    rule = _RULES.get((text.domain, text.op_type))
    if rule is None or signature is None or signature.since_version < rule.since:
        return {name: build(graph, name, ()) for name, graph in graphs.items()}, ("",) * len(text.outputs)
    given = rule.inputs(types, attrs)
    n_outputs = len(text.outputs) + rule.n_own_outputs
    bodies: dict[str, Program] = {}
    try:
        for name, graph in graphs.items():
            if len(graph.input) != len(given):
                raise ValueError(f"the {name} takes {len(graph.input)} inputs and is given {len(given)}")
            bodies[name] = build(graph, name, given)
            n_found = len(bodies[name].outputs)
            if n_found != n_outputs:
                raise ValueError(f"the {name} has {n_found} outputs, the node needs {n_outputs}")
        made = [[body.slots[index].type_name for index in body.outputs] for body in bodies.values()]
        return bodies, tuple(rule.outputs(types, made, attrs))
    except ValueError as error:
        raise UserError("E303", f"a body of {text.op_type} does not fit it", node=str(text), why=str(error)) from error
    except UserError as error:
        if error.node:
            raise
        raise UserError(error.code, error.what, node=str(text), why=error.why, next=error.next) from error


def names_of_body(graph: Any, known: Iterable[str], is_outside: Callable[[str], bool]) -> set[str]:
    """What a body defines, of which ``known`` are its inputs and initializers.

    Raises: UserError E303 for a node's output that a graph around the body has defined before.
    """
    names = [name for node in graph.node for name in node.output if name]
    for name in names:
        if is_outside(name):
            what = f"{name!r} has two definitions: in the body {graph.name!r} and in a graph around it"
            raise UserError("E303", what)
    return {*known, *names}


def same_type(one: str, other: str) -> bool:
    """Whether two types may be those of one value: an optional may hold what it is an optional of."""
    return not one or not other or without_optional(one) == without_optional(other)


def _if_outputs(given: Types, bodies: Sequence[Types], attrs: Mapping[str, Any]) -> Types:
    one, other = bodies
    for place, (first, second) in enumerate(zip(one, other, strict=True)):
        if not same_type(first, second):
            raise ValueError(f"output {place} is {first} in one branch and {second} in the other")
    return [first or second for first, second in zip(one, other, strict=True)]


def _loop_outputs(given: Types, bodies: Sequence[Types], attrs: Mapping[str, Any]) -> Types:
    condition, *rest = bodies[0]
    if not same_type(condition, "tensor(bool)"):
        raise ValueError(f"its body's first output is the condition to go on, and is {condition}")
    _check_carried(given[2:], rest)
    return rest


def _n_state(given: Types, attrs: Mapping[str, Any]) -> int:
    return max(len(given) - int(attrs["num_scan_inputs"]), 0)


def _scan_outputs(given: Types, bodies: Sequence[Types], attrs: Mapping[str, Any]) -> Types:
    _check_carried(given[: _n_state(given, attrs)], bodies[0])
    return bodies[0]


def _check_carried(before: Types, after: Types) -> None:
    for place, (old, new) in enumerate(zip(before, after, strict=False)):
        if not same_type(old, new):
            raise ValueError(f"the carried value {place} is {old} before an iteration and {new} after it")


def _map_inputs(given: Types, attrs: Mapping[str, Any]) -> Types:
    return [element_of(given[0]), *(element_of(type_) or type_ for type_ in given[1:])]


_RULES: dict[tuple[str, str], BodyRule] = {
    ("", "If"): BodyRule(lambda given, attrs: (), _if_outputs),
    ("", "Loop"): BodyRule(
        lambda given, attrs: ("tensor(int64)", "tensor(bool)", *given[2:]), _loop_outputs, n_own_outputs=1
    ),
    ("", "Scan"): BodyRule(lambda given, attrs: given, _scan_outputs, since=9),
    ("", "SequenceMap"): BodyRule(
        _map_inputs, lambda given, bodies, attrs: [f"seq({type_})" if type_ else "" for type_ in bodies[0]]
    ),
}
