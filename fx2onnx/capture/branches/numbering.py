"""Comparison of recorded programs, which may give the same at certain sizes: their values are numbered, equal ones by equal numbers.

So one program is found for both ways of a decision by whether a size is a multiple, where the other way pads it to one.
``if n % 4: x = F.pad(x, (0, 4 - n % 4))``: the padded size is ``4 * ceil(n / 4)`` on either way, ``n`` where nothing is padded.
The program that pads, written with such sizes, is compared with the other one, call by call, as it is where ``n`` is a multiple. It
says nothing about programs that were not run: each combination of decisions has one of its own.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import Captured, TensorInfo, Weight
from fx2onnx.capture.op_table import Op, name_of
from fx2onnx.capture.python.held import signs_of
from fx2onnx.capture.recording.control_flow import GraphCopy, Nested
from fx2onnx.sizes.ceilings import Rewrite, Way, multiple_of, ways_to_write, where_it_is_one
from fx2onnx.sizes.expr import Dim, Scalar, Undefined
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import SizeSet
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.operators import HIGHER_ORDER

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node
Sizes: TypeAlias = Mapping[str, Scalar]


def equivalent_at(one: Captured, two: Captured, at: Sizes) -> bool:
    """Return whether both programs give the same outputs and leave the same state where sizes are ``at``."""
    numbers: dict[object, int] = {}
    return ValueNumbering(one, one, at, numbers).ends() == ValueNumbering(two, one, at, numbers).ends()


def common_calls(one: Captured, two: Captured) -> int:
    """The number of calls at the beginning of both programs that are the same, types included."""
    numbers: dict[object, int] = {}
    sides = [ValueNumbering(one, one, {}, numbers, exactly=True), ValueNumbering(two, one, {}, numbers, exactly=True)]
    count = 0
    for first, second in zip(*(side.in_order() for side in sides), strict=False):
        if first != second:
            break
        count += 1
    return count


def common_weights(one: Captured, two: Captured) -> int:
    """The number of weights at the beginning of both programs that are the same, in the order in which they were
    met."""
    pairs = zip(one.weights.values(), two.weights.values(), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: is_same_weight(*pair), pairs))


def is_same_weight(one: Weight, two: Weight) -> bool:
    if one.name != two.name:
        return False
    if one.tensor is two.tensor:
        return True
    is_constant = one.kind == two.kind == "constant" and not one.tensor.is_meta and not two.tensor.is_meta
    is_alike = (one.tensor.dtype, one.tensor.shape) == (two.tensor.dtype, two.tensor.shape)
    with no_dispatch():
        if not (is_constant and is_alike and torch.equal(one.tensor, two.tensor)):
            return False
        first, second = (
            torch.view_as_real(each.tensor) if each.tensor.is_complex() else each.tensor for each in (one, two)
        )
        return not first.is_floating_point() or torch.equal(first.signbit(), second.signbit())


class ValueNumbering:
    """The values of a program, each with a number that equal values share. ``exactly``: every call as it stands; ``rewrite``: what
    else is known of sizes.
    """

    def __init__(
        self,
        captured: Captured,
        first: Captured,
        at: Sizes,
        numbers: dict[object, int],
        exactly: bool = False,
        rewrite: Rewrite | None = None,
    ) -> None:
        self._captured, self._numbers, self._exactly, self._rewrite = captured, numbers, exactly, rewrite
        self._at = dict(at)
        self._of: dict[Node, Any] = {}
        """The number of a value; of an If whose branch is known, those of the branch's outputs."""
        self._drawn = 0
        self._fresh: dict[Node, list[tuple[str, int | None]]] = {}
        for name, symbol in captured.symbols.items():
            if symbol.node.op == "call_function":
                self._fresh.setdefault(symbol.node, []).append((name, symbol.axis))
        for index, graph_input in enumerate(captured.inputs):
            self._of[graph_input.node] = self._number(("input", index))
        for weight in captured.weights.values():
            same = first.weights.get(weight.name)
            is_same = same is not None and is_same_weight(same, weight)
            self._of[weight.node] = self._number(("weight", weight.name if is_same else id(weight)))

    def ends(self) -> object:
        """The outputs of the program, and the state that it leaves."""
        for _ in self._all(self._captured.graph):
            pass
        outputs = [(output.name, self.form(output.value)) for output in self._captured.outputs]
        return outputs, {mutation.name: self.form(mutation.node) for mutation in self._captured.mutations}

    def met(self, node: Node) -> tuple[object, object]:
        """The number of a call, whose operands were met before, and its type."""
        for _ in self._one(node):
            pass
        return self.form(node), self._type(node.meta["val"])

    def _type(self, info: Any) -> object:
        if isinstance(info, TensorInfo):
            return info.dtype, tuple(map(self._size, info.dims))
        return tuple(map(self._type, info)) if isinstance(info, tuple | list) else info

    def in_order(self) -> Iterator[object]:
        """The number of each call and its type, in order."""
        for node in self._all(self._captured.graph):
            yield self._of[node], node.meta["val"]

    def _all(self, graph: torch.fx.Graph) -> Iterator[Node]:
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            yield from self._one(node)
            yield node

    def _one(self, node: Node) -> Iterator[Node]:
        branch = None if self._exactly else self._branch_taken(node)
        if branch is not None:
            yield from self._all(branch.graph)
            self._of[node] = [self._of[output] for output in branch.outputs]
        elif node.target is operator.getitem and isinstance(self._of.get(node.args[0]), list):  # type: ignore[arg-type]
            self._of[node] = self._of[node.args[0]][node.args[1]]  # type: ignore[index]
        else:
            alias = None if self._exactly else self._operand_given(node)
            self._of[node] = self._number(self._call(node)) if alias is None else self._of[alias]
        for name, axis in self._fresh.get(node, ()):
            self._at[name] = Dim.symbol(f"{self._of[node]} {axis}")

    def _branch_taken(self, node: Node) -> Nested | None:
        if node.target is not HIGHER_ORDER["cond"] or not isinstance(node.args[0], Relation) or node.args[3]:
            return None
        holds = self.form(node.args[0])
        return node.args[2 - holds] if isinstance(holds, bool) else None

    def _operand_given(self, node: Node) -> Node | None:
        """The operand that a call gives back as it is, at these sizes."""
        gives_back = _GIVES_BACK.get(node.target)
        operand = None if gives_back is None else gives_back(node, self._size)
        return operand if isinstance(operand, Node) else None

    def _call(self, node: Node) -> object:
        draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        self._drawn += draws
        normal = None if self._exactly else _NORMAL.get(node.target)
        given = (node.args, node.kwargs) if normal is None else normal(arguments_of(node), self._size)
        return node.target, self.form(given), self._drawn if draws else 0

    def _number(self, form: object) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def _size(self, size: object) -> Any:
        if not isinstance(size, Dim):
            return size
        try:
            found = size.substitute(self._at) if self._at else size
        except Undefined:
            return "undefined", size  # it equals itself alone
        return found if self._rewrite is None else self._rewrite(found)

    def form(self, value: Any) -> Any:
        """The value as one that is equal where it is the same."""
        if isinstance(value, Node):
            found = self._of[value]
            return ("value", *found) if isinstance(found, list) else ("value", found)
        if isinstance(value, Dim):
            return self._size(value)
        if isinstance(value, Relation):
            return self._truth(value)
        if isinstance(value, Nested):
            return self._nested(value)
        if isinstance(value, Mapping):
            return tuple((key, self.form(part)) for key, part in value.items())
        if isinstance(value, list | tuple):
            return tuple(self.form(part) for part in value)
        if isinstance(value, slice):
            return "slice", self.form((value.start, value.stop, value.step))
        return type(value), value, signs_of(value) if isinstance(value, float | complex) else None

    def _truth(self, relation: Relation) -> object:
        try:
            return relation.at(self._at)
        except Undefined:
            return "undefined", relation

    def _nested(self, nested: Nested) -> object:
        """The key of a nested graph: what it does with its inputs; sizes at which a branch is taken are said by the
        test before it."""
        for index, node in enumerate(nested.inputs):
            self._of[node] = self._number(("inner", len(nested.inputs), index, str(node.meta["val"])))
        for _ in self._all(nested.graph):
            pass
        return "graph", self.form(nested.outputs)


Size: TypeAlias = Callable[[object], Any]


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a call by name, defaults among them."""
    parameters = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((parameter.name for parameter in parameters), node.args, strict=False)) | dict(node.kwargs)
    return {parameter.name: given.get(parameter.name, parameter.default_value) for parameter in parameters}


def _whole_slice(node: Node, size: Size) -> object:
    """The operand of a slice that goes from end to end."""
    given = arguments_of(node)
    whole, start, end = size(_info(given["self"]).dims[given["dim"]]), given["start"], size(given["end"])
    is_whole = start in (None, 0) and given["step"] == 1 and (end is None or end == whole or end == (1 << 63) - 1)
    return given["self"] if is_whole else None


def _padded_by_nothing(node: Node, size: Size) -> object:
    """The operand of a pad whose widths are all 0."""
    given = arguments_of(node)
    return given["self"] if all(size(width) == 0 for width in given["pad"]) else None


def _only_part(node: Node, size: Size) -> object:
    """The one operand of a cat that is not empty, with dtype and rank of the result."""
    given = arguments_of(node)
    full = [part for part in given["tensors"] if all(size(dim) != 0 for dim in _info(part).dims)]
    if len(full) != 1 or _info(full[0]).dtype != _info(node).dtype:
        return None
    return full[0] if len(_info(full[0]).dims) == len(_info(node).dims) else None


def _first(node: Node, size: Size) -> object:
    return node.args[0]


def _one_key(given: dict[str, Any], size: Size) -> dict[str, Any]:
    """The arguments of attention without ``is_causal`` if there is one key, which every query sees either way."""
    return given | {"is_causal": False} if size(_info(given["key"]).dims[-2]) == 1 else given


def _info(node: Any) -> TensorInfo:
    info: TensorInfo = node.meta["val"]
    return info


_GIVES_BACK: dict[object, Callable[[Node, Size], object]] = {
    aten.alias.default: _first,
    aten.clone.default: _first,
    aten.contiguous.default: _first,
    aten.slice.Tensor: _whole_slice,
    aten.constant_pad_nd.default: _padded_by_nothing,
    aten.pad.default: _padded_by_nothing,
    aten.cat.default: _only_part,
}
"""Functions for calls that may return an operand unchanged. Each returns that operand, or None."""
_NORMAL: dict[object, Callable[[dict[str, Any], Size], dict[str, Any]]] = {
    aten.scaled_dot_product_attention.default: _one_key
}
"""The functions, by overload, that remove the arguments which have no effect at certain sizes."""


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
    return _OneProgram(plain, padded, ways_to_write(multiple, sets), where_it_is_one(multiple, sets)).program(calls)


def _is_too_much(captured: Captured) -> bool:
    """Sizes that the data gives, and branches within."""
    return any(symbol.node.op == "call_function" for symbol in captured.symbols.values()) or any(
        isinstance(arg, Nested) for node in captured.graph.nodes for arg in node.args
    )


class _OneProgram:
    """The program ``padded``, each size written in the way in which it does as ``plain`` where something is a multiple."""

    def __init__(self, plain: Captured, padded: Captured, ways: Sequence[Way], known: Rewrite) -> None:
        self._plain, self._padded = plain, padded
        self._ways = [(args, types) for args in ways for types in ways]
        self._graph = torch.fx.Graph()
        self._copy = GraphCopy(self._graph, keeps_names=True)
        self._seen = self._copy.seen
        self._copy.add(node for node in padded.graph.nodes if node.op != "call_function")
        self._made = replace(
            padded,
            graph=self._graph,
            inputs=[replace(each, node=self._seen[each.node]) for each in padded.inputs],
            weights={name: replace(each, node=self._seen[each.node]) for name, each in padded.weights.items()},
            symbols={name: replace(each, node=self._seen[each.node]) for name, each in padded.symbols.items()},
        )
        numbers: dict[object, int] = {}
        self._of_plain, self._of_made = (
            ValueNumbering(captured, plain, {}, numbers, rewrite=known) for captured in (plain, self._made)
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
        """True if the call gives an input or a weight back as it is."""
        operand = made.args[0] if made.args else None
        return isinstance(operand, Node) and operand.op != "call_function" and self._of_made.form(operand) == form

    def _copied(self, node: Node, way: Way | None = None, info: object = None) -> Node:
        """A copy of a call, with its sizes written in a way."""
        if way is None:
            return self._copy.copied(node)

        def written(value: object) -> Any:
            return way.rewrite(value) if isinstance(value, Dim) else value

        args, kwargs = self._copy.mapped(node.args, written), self._copy.mapped(node.kwargs, written)
        if name_of(node.target) in Op.PADS.names and way.width != 1:
            args = (args[0], [width * way.width if type(width) is int else width for width in args[1]], *args[2:])
        made = self._graph.create_node(node.op, node.target, args, kwargs, node.name)
        made.meta = {**node.meta, "val": info}
        return made


def _calls(captured: Captured) -> list[Node]:
    return [node for node in captured.graph.nodes if node.op == "call_function"]


def _ends(numbered: ValueNumbering, captured: Captured) -> object:
    """The outputs of the program, and the state that it leaves."""
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
