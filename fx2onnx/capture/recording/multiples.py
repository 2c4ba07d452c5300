"""One program for both ways of a decision by whether a size is a multiple, where the other way pads it to one.

``if n % 4: x = F.pad(x, (0, 4 - n % 4))``: the padded size is ``4 * ceil(n / 4)`` on either way, ``n`` where nothing is padded.
The program that pads, written with such sizes, is compared with the other one, call by call, as it is where ``n`` is a multiple. It
says nothing about programs that were not run: each combination of decisions has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch.fx

from fx2onnx.capture.captured import Captured, TensorInfo
from fx2onnx.capture.overloads.op_table import Op, name_of
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.capture.recording.same_programs import Numbered
from fx2onnx.sizes.ceilings import Rewrite, Way, multiple_of, ways_to_write, where_it_is_one
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import SizeSet

Node: TypeAlias = torch.fx.Node


def one_for_both(
    test: Relation, one: Captured, two: Captured, calls: int, sets: Mapping[str, SizeSet]
) -> Captured | None:
    """A program that does what ``one`` does where ``test`` holds, and what ``two`` does where it does not; None if none is found.
    ``calls``: how many they have in common, before the decision; ``sets``: the sizes that either way is for.
    """
    multiple = multiple_of(test)
    if multiple is None:
        return None
    plain, padded = (one, two) if multiple.where_it_holds else (two, one)
    if _is_too_much(plain) or _is_too_much(padded):
        return None
    return _Serving(plain, padded, ways_to_write(multiple, sets), where_it_is_one(multiple, sets)).program(calls)


def _is_too_much(captured: Captured) -> bool:
    """Sizes that the data gives, and branches within."""
    return any(symbol.node.op == "call_function" for symbol in captured.symbols.values()) or any(
        isinstance(arg, Nested) for node in captured.graph.nodes for arg in node.args
    )


class _Serving:
    """The program ``padded``, each size written in the way in which it does as ``plain`` where something is a multiple."""

    def __init__(self, plain: Captured, padded: Captured, ways: Sequence[Way], known: Rewrite) -> None:
        self._plain, self._padded = plain, padded
        self._ways = [(args, types) for args in ways for types in ways]
        self._graph = torch.fx.Graph()
        self._seen: dict[Node, Node] = {}
        for node in padded.graph.nodes:
            if node.op != "call_function":
                self._seen[node] = self._copied(node)
        self._made = replace(
            padded,
            graph=self._graph,
            inputs=[replace(each, node=self._seen[each.node]) for each in padded.inputs],
            weights={name: replace(each, node=self._seen[each.node]) for name, each in padded.weights.items()},
            symbols={name: replace(each, node=self._seen[each.node]) for name, each in padded.symbols.items()},
        )
        numbers: dict[object, int] = {}
        self._of_plain, self._of_made = (
            Numbered(captured, plain, {}, numbers, rewrite=known) for captured in (plain, self._made)
        )

    def program(self, common: int) -> Captured | None:
        types = dict(self._of_plain.met(node) for node in _calls(self._plain))
        for place, node in enumerate(_calls(self._padded)):
            made = self._copied(node) if place < common else self._fitting(node, types)
            if made is None:
                return None
            if place < common:
                self._of_made.met(made)
            self._seen[node] = made
        outputs = [replace(each, value=self._value(each.value)) for each in self._padded.outputs]
        mutations = [replace(each, node=each.node and self._seen[each.node]) for each in self._padded.mutations]
        program = replace(self._made, outputs=outputs, mutations=mutations)
        return program if _ends(self._of_made, program) == _ends(self._of_plain, self._plain) else None

    def _value(self, value: Node | Scalar | bool) -> Node | Scalar | bool:
        return self._seen[value] if isinstance(value, Node) else value

    def _fitting(self, node: Node, types: Mapping[object, object]) -> Node | None:
        """The call as one that the plain program has, with the same type; or None."""
        for index, (of_args, of_type) in enumerate(self._ways):
            made = self._copied(node, of_args, _type(node.meta["val"], of_type.rewrite))
            form, kind = self._of_made.met(made)
            if types.get(form, kind if self._is_operand(form, made) else None) == kind:
                if index:
                    self._ways.insert(0, self._ways.pop(index))
                return made
            self._graph.erase_node(made)
            if not _has_sizes(node):
                return None
        return None

    def _is_operand(self, form: object, made: Node) -> bool:
        """Whether a call gives an input or a weight back as it is."""
        operand = made.args[0] if made.args else None
        return isinstance(operand, Node) and operand.op != "call_function" and self._of_made.form(operand) == form

    def _copied(self, node: Node, way: Way | None = None, info: object = None) -> Node:
        def leaf(value: object) -> Any:
            if isinstance(value, Node):
                return self._seen[value]
            return way.rewrite(value) if way is not None and isinstance(value, Dim) else value

        args: Any = torch.fx.node.map_aggregate(node.args, leaf)
        kwargs: Any = torch.fx.node.map_aggregate(node.kwargs, leaf)
        if way is not None and name_of(node.target) in Op.PADS.names and way.width != 1:
            args = (args[0], [width * way.width if type(width) is int else width for width in args[1]], *args[2:])
        made = self._graph.create_node(node.op, node.target, args, kwargs, node.name)
        made.meta = dict(node.meta) if info is None else {**node.meta, "val": info}
        return made


def _calls(captured: Captured) -> list[Node]:
    return [node for node in captured.graph.nodes if node.op == "call_function"]


def _ends(numbered: Numbered, captured: Captured) -> object:
    """What the program gives and leaves."""
    outputs = [(output.name, numbered.form(output.value)) for output in captured.outputs]
    return outputs, {mutation.name: numbered.form(mutation.node) for mutation in captured.mutations}


def _has_sizes(node: Node) -> bool:
    found: list[object] = []
    torch.fx.node.map_aggregate((node.args, node.kwargs), lambda value: found.append(value) or value)  # type: ignore[func-returns-value]
    infos = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else (node.meta["val"],)
    found += [dim for info in infos if isinstance(info, TensorInfo) for dim in info.dims]
    return name_of(node.target) in Op.PADS.names or any(isinstance(value, Dim) for value in found)


def _type(info: object, rewrite: Rewrite) -> object:
    if isinstance(info, TensorInfo):
        return TensorInfo(info.dtype, tuple(map(rewrite, info.dims)))  # type: ignore[arg-type]
    return tuple(_type(part, rewrite) for part in info) if isinstance(info, tuple | list) else info
