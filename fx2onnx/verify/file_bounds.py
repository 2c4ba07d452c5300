"""The bounds in a file that may matter far from the example inputs: numbers that bound a size or an integer of an input, and
integers that it turns into what has less room for them. The end of a table is no such number: engines refuse what is
behind it, and modules that make longer tables when they need them are many.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto

from fx2onnx.irx.schema import MOVES, VIEW
from fx2onnx.verify.marks import AS_IT_IS, Line, at_input, line_of, whole_beside

_READS = (torch.ops.aten._local_scalar_dense.default,)
_ROUNDS = frozenset({"Round", "QuantizeLinear", "DynamicQuantizeLinear"})
_MAKE_AS_MANY = (torch.ops.aten.repeat_interleave.Tensor, torch.ops.aten.bincount.default)
"""Operators that make as many numbers as an integer says."""
_MOST = 1 << 16
"""The largest number of integers that are compared with those of an input."""
_OPERANDS = frozenset({"self", "other", "input"})


@dataclass(slots=True)
class Turned:
    """``floats``: some become floats; ``raw``: integers of inputs do, as they are; ``whole_again``: floats become integers; ``bits``: of narrower integers;
    ``is_read``: one becomes a size, a count of a loop's turns or a number of Python's, as which it may not be large.
    """

    floats: bool = False
    raw: bool = False
    whole_again: bool = False
    bits: set[int] = field(default_factory=set)
    is_read: bool = False

    def more_than(self, module: Turned) -> bool:
        """Return whether a file may lose what its ``module`` keeps."""
        is_other = (
            (self.floats and not module.floats)
            or (self.raw and not module.raw)
            or (self.whole_again and not module.whole_again)
        )
        return not (self.is_read or module.is_read) and (is_other or bool(self.bits - module.bits))

    def see(self, func: Any, args: Any, result: Any, inputs: Set[int]) -> None:
        """One call of an operator in eager PyTorch. ``inputs``: all integers of the inputs."""
        if func in _READS or func in _MAKE_AS_MANY:
            self.is_read |= any(isinstance(each, torch.Tensor) and _bits(each) > 8 for each in args)
        if not isinstance(result, torch.Tensor):
            return
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.name not in _OPERANDS or not isinstance(given, torch.Tensor):
                continue
            if _bits(given):
                if result.is_floating_point():
                    self.floats = True
                    self.raw |= given.numel() > _MOST or inputs >= set(given.reshape(-1).tolist())
                if 0 < _bits(result) < _bits(given):
                    self.bits.add(_bits(result))
            elif given.is_floating_point() and _bits(result) and func.name().startswith("aten::_to_copy"):
                self.whole_again = True


def _bits(tensor: torch.Tensor) -> int:
    """The bits of integers; 0 of all else, such as quantized values that have a scale."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized or tensor.dtype == torch.bool:
        return 0
    return 8 * tensor.element_size()


def whole_numbers(inputs: Iterable[torch.Tensor]) -> set[int]:
    """All integers of the inputs."""
    found: set[int] = set()
    for tensor in inputs:
        if _bits(tensor) and tensor.numel() <= _MOST:
            found.update(tensor.reshape(-1).tolist())
    return found


_COMPARES = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_BOUNDS = _COMPARES | {"Clip", "Max", "Min", "Mod"}
"""A number beside a size, or beside an integer, is one at which the result is another."""
_PLACES = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size"})
"""Their results are places or sizes, whatever they read."""
_KEEPS = VIEW | {"Cast", "Expand", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Tile", "Transpose"}
"""Operators whose results have numbers of their first operand."""
_PICKS = frozenset({"Gather", "GatherElements", "GatherND"})
_GRAPH = onnx.AttributeProto.GRAPH
_COUNTS: dict[str, tuple[int, ...]] = {
    "Loop": (0, 1),
    "Range": (0, 1, 2),
    **dict.fromkeys(("Expand", "Reshape", "Resize", "Tile"), (1,)),
    "ConstantOfShape": (0,),
}
"""Operands that say how often a body runs, or how many numbers there will be."""
_LARGEST = 1 << 20
_MOST_NUMBERS = 64
"""The largest number of elements of a constant that counts as bounds."""
_ROOM: dict[int, int] = {
    **dict.fromkeys((TensorProto.INT64, TensorProto.UINT64, TensorProto.DOUBLE), 64),
    **dict.fromkeys((TensorProto.INT32, TensorProto.UINT32, TensorProto.FLOAT), 32),
    **dict.fromkeys((TensorProto.INT16, TensorProto.UINT16, TensorProto.FLOAT16, TensorProto.BFLOAT16), 16),
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8), 8),
}
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_WHOLE = frozenset(_ROOM) - _FLOATS

_SIZE, _WHOLE_INPUT, _OTHER, _RAW = 1, 2, 4, 8
"""Bits for the operands of a value: sizes, integers of inputs, anything else; and that it has integers of inputs as
they are. Constants have none."""


@dataclass(slots=True)
class FileBounds:
    """``sizes``: numbers behind which a size may make another result; ``whole``: those beside integers of inputs;
    ``numbers``: those beside anything computed; ``turned``: what integers are turned into.
    """

    numbers: dict[float, None] = field(default_factory=dict)
    rounds: bool = False
    """Inputs at the numbers may be ties of rounding, of which engines and PyTorch choose as they like."""
    sizes: dict[int, None] = field(default_factory=dict)
    whole: dict[int, None] = field(default_factory=dict)
    turned: Turned = field(default_factory=Turned)

    @staticmethod
    def of(model: onnx.ModelProto) -> FileBounds:
        """``model`` may be without the data beside it."""
        scan = _Scan(FileBounds(), {(each.domain, each.name): each for each in model.functions})
        scan.graph(model.graph)
        return scan.found


class _Scan:
    """One pass over the nodes, in their order: a function's nodes where it is called, a body's where its node is."""

    def __init__(self, found: FileBounds, functions: Mapping[tuple[str, str], onnx.FunctionProto]) -> None:
        self.found = found
        self._functions = functions
        self._of: dict[str, int] = {}
        self._follows: set[str] = set()
        """Values that depend on integers of inputs, whatever else they depend on."""
        self._kinds: dict[str, int] = {}
        self._constants: dict[str, list[float]] = {}
        self._lines: dict[str, Line] = {}
        """Values on a line of numbers of an input."""
        self._declared: dict[str, list[int]] = {}
        """Sizes of values, 0 where it is no number."""

    def graph(self, graph: onnx.GraphProto, *, is_body: bool = False) -> None:
        for tensor in graph.initializer:
            self._constant(tensor.name, tensor)
        for value in (*graph.value_info, *graph.input):
            if value.type.tensor_type.HasField("shape"):
                self._declared[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input:
            kind = value.type.tensor_type.elem_type
            if value.name not in self._of:
                is_whole = kind in _WHOLE and not is_body
                self._of[value.name] = _WHOLE_INPUT | _RAW if is_whole else _OTHER
                self._kinds[value.name] = kind
                if not is_body:
                    self._lines[value.name] = AS_IT_IS
                if is_whole:
                    self._follows.add(value.name)
        self._nodes(graph.node)

    def _nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            if node.op_type == "Constant" and not node.domain:
                for attribute in node.attribute:
                    self._constant_attribute(node.output[0], attribute)
                continue
            for attribute in node.attribute:
                if attribute.type == _GRAPH:
                    self.graph(attribute.g, is_body=True)
            function = self._functions.get((node.domain, node.op_type))
            if function is not None:
                self._call(node, function)
                continue
            self._note(node)
            self._pass_on(node)

    def _call(self, node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
        """Each call has its own operands; names of its body are its own, too."""
        tables: tuple[dict[str, Any], ...] = (self._of, self._kinds, self._constants, self._lines)
        for table in tables:
            for inner, outer in zip(function.input, node.input, strict=False):
                table.pop(inner, None)
                if outer in table:
                    table[inner] = table[outer]
        for inner, outer in zip(function.input, node.input, strict=False):
            (self._follows.add if outer in self._follows else self._follows.discard)(inner)
        self._nodes(function.node)
        for outer, inner in zip(node.output, function.output, strict=False):
            self._of[outer] = self._of.get(inner, _OTHER)
            if inner in self._follows:
                self._follows.add(outer)
            self._kinds[outer] = self._kinds.get(inner, 0)

    def _constant(self, name: str, tensor: TensorProto) -> None:
        self._of[name] = 0
        self._kinds[name] = tensor.data_type
        is_here = tensor.data_location != TensorProto.EXTERNAL and tensor.data_type in _ROOM
        self._constants.pop(name, None)
        if is_here and math.prod(tensor.dims) <= _MOST_NUMBERS:
            self._constants[name] = [float(number) for number in onnx.numpy_helper.to_array(tensor).reshape(-1)]

    def _constant_attribute(self, name: str, attribute: onnx.AttributeProto) -> None:
        if attribute.name == "value":
            self._constant(name, attribute.t)
        elif attribute.name in ("value_int", "value_ints"):
            numbers = list(attribute.ints) or [attribute.i]
            self._constant(name, onnx.numpy_helper.from_array(np.array(numbers, np.int64)))

    def _note(self, node: onnx.NodeProto) -> None:
        """The bounds that a node has, and what it turns integers of inputs into."""
        self.found.turned.is_read |= self._is_counted(node)
        self.found.rounds |= node.op_type in _ROUNDS
        read = [self._of.get(name, 0) & ~_RAW for name in node.input]
        whole = max(read, default=0)
        if node.op_type in _BOUNDS:
            numbers = list(self._numbers(node.input))
            if any(each & _SIZE for each in read):
                self.found.sizes |= dict.fromkeys(map(abs, numbers))
            if any(each == _WHOLE_INPUT for each in read):
                self.found.whole |= dict.fromkeys(whole_beside(self._at_input(node)))
            if any(each & (_OTHER | _WHOLE_INPUT) for each in read):
                self.found.numbers |= dict.fromkeys(self._at_input(node))
        elif node.op_type == "Slice":
            if read[0] and not self._is_static(node):
                self.found.sizes |= dict.fromkeys(map(abs, self._numbers(node.input[1:3])))
        elif node.op_type == "Cast" and whole == _WHOLE_INPUT:
            self._note_cast(node.input[0], _to(node))

    def _is_counted(self, node: onnx.NodeProto) -> bool:
        """Return whether an integer of an input says how often a body runs, or how many numbers there are."""
        counts = [node.input[place] for place in _COUNTS.get(node.op_type, ()) if place < len(node.input)]
        if node.op_type == "Loop":
            counts += [attribute.g.output[0].name for attribute in node.attribute if attribute.name == "body"]
        return any(name in self._follows for name in counts)

    def _is_static(self, node: onnx.NodeProto) -> bool:
        """Return whether the file says of a Slice that it cuts an axis of a known size."""
        dims = self._declared.get(node.input[0])
        axes = self._constants.get(node.input[3]) if len(node.input) > 3 else None
        return (
            dims is not None
            and axes is not None
            and all(dims[int(axis)] for axis in axes if -len(dims) <= axis < len(dims))
        )

    def _note_cast(self, name: str, to: int) -> None:
        turned, kind = self.found.turned, self._kinds.get(name, 0)
        if kind in _WHOLE and to in _FLOATS:
            turned.floats = True
            turned.raw |= bool(self._of[name] & _RAW)
        elif kind in _FLOATS and to in _WHOLE:
            turned.whole_again = True
        elif kind in _WHOLE and to in _WHOLE and _ROOM[to] < _ROOM[kind]:
            turned.bits.add(_ROOM[to])

    def _at_input(self, node: onnx.NodeProto) -> list[float]:
        """The numbers of an input at which the constants of a node stand."""
        line = next((self._lines[name] for name in node.input if name in self._lines), None)
        found = at_input(self._numbers(node.input, must_be_whole=False), line)
        return [number for number in found if abs(number) <= _LARGEST]

    def _line(self, node: onnx.NodeProto) -> Line | None:
        """The line of a node's result, if it has one."""
        at = next((place for place, name in enumerate(node.input[:2]) if name in self._lines), None)
        if at is None:
            return None
        line = self._lines[node.input[at]]
        if at == 0 and node.op_type in _KEEPS:
            return line
        other = self._constants.get(node.input[1 - at], []) if len(node.input) > 1 else []
        return line_of(node.op_type.lower(), line, other[0], is_left=at == 1) if len(other) == 1 else None

    def _numbers(self, names: Iterable[str], *, must_be_whole: bool = True) -> Iterator[Any]:
        """The numbers of constants; within a table those that have another neighbour than the next integers."""
        for name in names:
            table = dict.fromkeys(self._constants.get(name, ()))
            for number in table:
                if not abs(number) <= _LARGEST or {number - 1, number + 1} <= table.keys():
                    continue
                if not must_be_whole:
                    yield number
                elif abs(number) > 1 and number == int(number):
                    yield int(number)

    def _pass_on(self, node: onnx.NodeProto) -> None:
        """Note for the results what they are computed from, and their dtype."""
        given = [self._of.get(name, 0) for name in node.input if name]
        of = functools.reduce(operator.or_, given, 0)
        is_moved = node.op_type in VIEW | MOVES
        takes_rows = node.op_type in _PICKS and not given[0] and self._kind(node, 0) in _FLOATS
        if node.op_type in ("Shape", "Size"):
            of = _SIZE if of else 0
        elif of & _OTHER or (takes_rows and of):
            of = _OTHER
        elif not is_moved or of & ~_RAW != _WHOLE_INPUT:
            of &= ~_RAW
        kind = self._kind_of_results(node)
        given_inside = [
            value.name for attribute in node.attribute if attribute.type == _GRAPH for value in attribute.g.output
        ]
        if node.op_type not in ("Shape", "Size") and not self._follows.isdisjoint([*node.input, *given_inside]):
            self._follows.update(node.output)
        line = self._line(node)
        for name in node.output:
            self._of[name], self._kinds[name] = of, kind
            self._constants.pop(name, None)
            self._lines.pop(name, None)
            if line is not None:
                self._lines[name] = line

    def _kind_of_results(self, node: onnx.NodeProto) -> int:
        """Their dtype: that of the operands, where nothing else is known."""
        if node.op_type == "Cast":
            return _to(node)
        if node.op_type in _PLACES:
            return TensorProto.INT64
        if node.op_type in _COMPARES:
            return TensorProto.BOOL
        if node.op_type == "Where":
            return self._kind(node, 1)
        return next((self._kinds[name] for name in node.input if self._kinds.get(name)), 0)

    def _kind(self, node: onnx.NodeProto, place: int) -> int:
        return self._kinds.get(node.input[place], 0)


def _to(node: onnx.NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
