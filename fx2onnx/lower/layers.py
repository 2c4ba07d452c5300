"""Identical layers: what one of them became is stamped for each that follows.

A layer is the run of nodes below one numbered module (``encoder.layer.3``). Two are identical where their nodes have the
same overloads, arguments, types and source lines, read each other in the same places, and read values of the same kind
from outside. Then their ONNX nodes differ in nothing but the values from outside and in names.

The first layer of a kind is translated node by node. So is the second, where the first made what all share (sizes, masks);
it becomes the pattern. What its translation read beyond the types of operands (``Builder.reads``) must be the very
same in the layers that are stamped from it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import Any

import onnx_ir as ir
import torch.fx

from fx2onnx.capture.captured import REPEAT
from fx2onnx.irx.builder import Builder, Key
from fx2onnx.irx.edit import nested_graphs
from fx2onnx.irx.private_names import new_node
from fx2onnx.irx.values import copied_type, notes_of
from fx2onnx.lower.weights import ModuleWeight
from fx2onnx.sizes.expr import Dim

_PLAIN = (
    *(bool, int, float, complex, str, type(None), Dim),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)
FEWEST = 4
"""Nodes of the smallest layer that is worth comparing."""

LONG = 4
"""ONNX nodes of the smallest call that is worth comparing."""

DEEPEST = 8
"""Layers in layers are looked at down to here: modules nested a thousand deep would be compared at every level."""

Values = dict[torch.fx.Node, Any]


@dataclass
class LayerPattern:
    """A translated layer: its nodes, the ONNX nodes of each, and the values that it reads from outside."""

    nodes: Sequence[torch.fx.Node]
    made: list[list[ir.Node]]
    outside: list[ir.Value]
    fixed: dict[int, ir.Value]
    """The values of ``outside``, by index, that must be the very same in every layer: shared values were made from
    them, or they were read."""


class RepeatedLayers:
    """The layers met so far in one conversion.

    translate: turns one node into ONNX nodes. finish: takes a stamped node and its value, as ``translate`` would have
    left it. may_repeat: whether a node's translation depends on nothing but its operands.
    """

    def __init__(
        self,
        builder: Builder,
        values: Values,
        translate: Callable[[torch.fx.Node], None],
        finish: Callable[[torch.fx.Node, Any, Sequence[ir.Node]], None],
        may_repeat: Callable[[torch.fx.Node], bool],
    ) -> None:
        self.builder = builder
        self.values = values
        self._translate = translate
        self._finish = finish
        self._may_repeat = may_repeat
        self._made: dict[torch.fx.Node, tuple[int, int]] = {}
        self._seen: set[int] = set()
        self._long: set[int] = set()
        """The ids of overloads that take so many ONNX nodes that a stamp is made of each form of them."""
        self._kinds: dict[Any, int] = {}
        """A number for each kind met: what tells it apart is hashed once a layer."""
        self._mentioned: dict[int, int] = {}
        """The ids of values in the keys of what the builder has emitted, and the first key of each."""
        self._judged: dict[int, int] = {}
        """The same of its verdicts. So many keys of both were looked at:"""
        self._looked_at = (0, 0)
        self._patterns: dict[int, LayerPattern] = {}

    def run(self, nodes: Sequence[torch.fx.Node], depth: int = 0) -> None:
        """Translate or stamp ``nodes``, in order. Layers may hold layers: ``depth`` numbers precede theirs."""
        for (copy, path), members in groupby(nodes, lambda node: _part_of(node, depth)):
            group = list(members)
            if copy is not None:
                self._one(self._kind_of_copy(copy[0], group), group, self._each)
            elif path is None or len(group) < FEWEST:
                self._each(group)
            else:
                self._one(self._kind(path, group), group, lambda group: self.run(group, depth + 1))

    def _each(self, group: Sequence[torch.fx.Node]) -> None:
        """Translate one by one, or stamp what takes many ONNX nodes."""
        for node in group:
            if id(node.target) in self._long:
                self._one(self._kind_of_node(node), [node], self._plainly)
            else:
                self._plainly((node,))

    def _plainly(self, group: Sequence[torch.fx.Node]) -> None:
        made = self.builder.nodes
        for node in group:
            start = len(made)
            self._translate(node)
            end = len(made)
            self._made[node] = (start, end)
            if end - start >= LONG:
                self._long.add(id(node.target))

    def _one(
        self,
        found: tuple[int, list[ir.Value]] | None,
        group: list[torch.fx.Node],
        translate: Callable[[list[torch.fx.Node]], None],
    ) -> None:
        """Stamp a layer, or ``translate`` it."""
        if found is None:
            translate(group)
            return
        kind, outside = found
        pattern = self._patterns.get(kind)
        if pattern is not None and all(outside[index] is value for index, value in pattern.fixed.items()):
            self._stamp(pattern, group, outside)
            return
        reads, cached, looked = len(self.builder.reads), len(self.builder.emitted), len(self.builder.verdicts)
        translate(group)
        found_all = (len(self.builder.emitted), len(self.builder.verdicts)) == (cached, looked)
        if (kind in self._seen or found_all) and all(map(self._may_repeat, group)):
            self._add_pattern(kind, group, outside, (cached, looked), set(self.builder.reads[reads:]))
        self._seen.add(kind)

    def _kind_of_node(self, node: torch.fx.Node) -> tuple[int, list[ir.Value]] | None:
        """The key that calls of an overload have in common which take the same form, wherever they stand."""
        return self._kind(node.meta.get("module") or "", [node], with_lines=False)

    def _kind_of_copy(self, number: int, group: list[torch.fx.Node]) -> tuple[int, list[ir.Value]] | None:
        """The key that copies of a recorded program have in common, and the values read from outside."""
        inside = set(group)
        outside: dict[int, tuple[int, ir.Value]] = {}
        try:
            parts = [
                _outer(self.values[arg], outside) for node in group for arg in _operands(node) if arg not in inside
            ]
        except TypeError:
            return None
        kind = (number, tuple([node.target for node in group]), tuple(parts))
        return self._kinds.setdefault(kind, len(self._kinds)), [value for _, value in outside.values()]

    def _kind(
        self, path: str, group: list[torch.fx.Node], *, with_lines: bool = True
    ) -> tuple[int, list[ir.Value]] | None:
        """The key that identical layers have in common, and the values read from outside; None where they cannot be compared."""
        compared = _Compared(self.values, {node: place for place, node in enumerate(group)})
        part, start = compared.part, len(path)
        try:
            kind = tuple(
                [
                    (
                        node.op,
                        node.target if node.op != "call_function" else id(node.target),  # overloads hash in Python
                        (node.meta.get("module") or "")[start:],
                        node.meta.get("where") if with_lines else None,
                        node.meta.get("val"),
                        part(node.args),
                        tuple([(name, part(arg)) for name, arg in node.kwargs.items()]) if node.kwargs else (),
                    )
                    for node in group
                ]
            )
            number = self._kinds.setdefault(kind, len(self._kinds))
        except TypeError:
            return None
        return number, [value for _, value in compared.outside.values()]

    def _add_pattern(
        self, kind: int, group: list[torch.fx.Node], outside: list[ir.Value], before: tuple[int, int], read: set[int]
    ) -> None:
        """Keep a translated layer. ``before`` it, the builder's cache and its verdicts had so many keys."""
        cached = before[0]
        made = [self.builder.nodes[slice(*self._made[node])] for node in group]
        if any(nested_graphs(node) for nodes in made for node in nodes):
            return
        weights = {id(value) for value in outside if isinstance(value.const_value, ModuleWeight)}
        own = weights | {id(value) for nodes in made for node in nodes for value in node.outputs}
        if any(own.isdisjoint(map(id, key.values)) for key in islice(self.builder.emitted, cached, None)):
            return  # it made what later layers find made
        keyed: tuple[Iterable[Key], ...] = (self.builder.emitted, self.builder.verdicts)
        for keys, first, start in zip(keyed, (self._mentioned, self._judged), self._looked_at, strict=True):
            for index, key in enumerate(islice(keys, start, None), start):
                for value in key.values:
                    first.setdefault(id(value), index)
        self._looked_at = (len(self.builder.emitted), len(self.builder.verdicts))

        def is_decisive(name: int) -> bool:
            if name in own and name not in weights:
                return name in read
            most = before if name in weights else (sys.maxsize, sys.maxsize)  # what an earlier call made of its weights
            is_mentioned = self._mentioned.get(name, most[0]) < most[0] or self._judged.get(name, most[1]) < most[1]
            return is_mentioned or name in read

        fixed = {
            index: value
            for index, value in enumerate(outside)
            if is_decisive(id(value)) or is_decisive(id(value.const_value))
        }
        self._patterns[kind] = LayerPattern(group, made, outside, fixed)

    def _stamp(self, pattern: LayerPattern, group: list[torch.fx.Node], outside: list[ir.Value]) -> None:
        new = {id(old): value for old, value in zip(pattern.outside, outside, strict=True)}
        for old_node, node, made in zip(pattern.nodes, group, pattern.made, strict=True):
            start = len(self.builder.nodes)
            scope = node.meta.get("module") or ""
            for old in made:
                self._copy(old, new, scope)
            fresh = self.builder.nodes[start:]
            self._made[node] = (start, len(self.builder.nodes))
            self._finish(node, _replaced(self.values[old_node], new), fresh)

    def _copy(self, old: ir.Node, new: dict[int, ir.Value], scope: str) -> None:
        unique = self.builder.unique
        outputs = []
        for value in old.outputs:
            copy = new[id(value)] = copied_type(value, unique(old.op_type.lower()))
            outputs.append(copy)
        inputs = [value if value is None else new.get(id(value), value) for value in old.inputs]
        name = unique(f"{scope}/{old.op_type}" if scope else old.op_type)
        attributes = old.attributes.data.values()
        self.builder.nodes.append(new_node(old.domain, old.op_type, inputs, attributes, outputs, name))


def _part_of(node: torch.fx.Node, depth: int) -> tuple[tuple[int, int] | None, str | None]:
    """The copy of a recorded program, or the layer that the node belongs to."""
    copy = node.meta.get(REPEAT)
    return (copy, None) if copy is not None else (None, _layer(node.meta.get("module") or "", depth))


def _operands(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes among the arguments, one as often as it is there."""
    for arg in (*node.args, *node.kwargs.values()):
        for part in arg if isinstance(arg, list | tuple) else (arg,):
            if isinstance(part, torch.fx.Node):
                yield part


_NUMBER = re.compile(r"(?:^|(?<=[._]))\d+(?=\.|$)")


def _layer(path: str, depth: int) -> str | None:
    """``path`` up to its number (``3`` or ``layer_3``) after ``depth`` others: the layer that the module lies in."""
    layers = _layers(path)
    return layers[depth] if depth < len(layers) else None


@lru_cache(maxsize=65536)
def _layers(path: str) -> tuple[str, ...]:
    """The layers around a module, outer ones first."""
    return tuple(path[: number.end()] for number in islice(_NUMBER.finditer(path), DEEPEST))


class _Compared:
    """Arguments as they are compared. No function that calls itself: it would hold the values until the collector comes by."""

    def __init__(self, values: Mapping[torch.fx.Node, Any], places: Mapping[torch.fx.Node, int]) -> None:
        self._values, self._places = values, places
        self.outside: dict[int, tuple[int, ir.Value]] = {}
        """The values read from outside, by id, and which of them each is."""

    def part(self, arg: Any) -> Any:
        """An argument. Raises TypeError for one that is not compared by type and value."""
        if isinstance(arg, torch.fx.Node):
            place = self._places.get(arg)
            return ("inside", place) if place is not None else _outer(self._values[arg], self.outside)
        if isinstance(arg, list | tuple):
            return tuple(map(self.part, arg))
        if isinstance(arg, _PLAIN):
            return (type(arg), arg, str(arg)) if arg == 0 else (type(arg), arg)  # 0.0 is equal to -0.0
        raise TypeError("not compared by type and value")


def _outer(value: Any, outside: dict[int, tuple[int, ir.Value]]) -> Any:
    """The properties that a translation may know of an operand from outside the layer. Raises TypeError for several values in
    one.
    """
    if not isinstance(value, ir.Value):
        raise TypeError("not one value")
    place, _ = outside.setdefault(id(value), (len(outside), value))
    constant = value.const_value
    if constant is None:
        return ("outside", place, value.dtype, *notes_of(value))
    if isinstance(constant, ModuleWeight):
        return ("weight", place, value.dtype, constant.lacks_data, *notes_of(value))
    return ("constant", place, id(value))


def _replaced(value: Any, new: dict[int, ir.Value]) -> Any:
    if isinstance(value, ir.Value):
        return new.get(id(value), value)
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, new) for item in value)
    return value
