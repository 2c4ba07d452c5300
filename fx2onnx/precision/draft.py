"""A draft of the nodes of a graph that are computed in 16 bits, with the reasons for the others; measurements change
it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.schema import ELEMENTWISE, MOVES
from fx2onnx.optimize.weights import lacks_data
from fx2onnx.precision.forms import HEAVY, READS_ANY, SEQUENCE, SUMS, Form, can_hold, form_of
from fx2onnx.precision.options import LEAST, Precision
from fx2onnx.precision.values import magnitudes
from fx2onnx.targets.form import ANY, Target, find

D = ir.DataType
FLOATS = (D.FLOAT, D.FLOAT16, D.BFLOAT16)
LEAST_NUMBERS = 1024
"""Smaller weights stay as they are where float32 nodes alone read them."""
_STAYS_NEAR_ZERO = MOVES | {"Clip", "Max", "Pow", "Reciprocal", "Sqrt"}
"""Operators whose result is next to zero, or very large, where what they take is next to zero."""
_INVERTS = ("Pow", "Reciprocal")
BETWEEN = "it stands between nodes in float32"


class Draft:
    """The nodes of ``model`` that bear its float dtype, each with its form in 16 bits or why it stays in float32."""

    def __init__(self, model: ir.Model, precision: Precision, target: Target) -> None:
        self.model, self.precision = model, precision
        self.half = D.BFLOAT16 if precision.word == "bfloat16" else D.FLOAT16
        self.opset = model.graph.opset_imports.get("", 1)
        self.wide = _own_dtype(model)
        self.io = D.FLOAT if precision.io == "float32" else self.wide if precision.dtype == "mixed" else self.half
        self._check(target)
        self.main = set(model.graph.initializers.values())
        self.forms: dict[ir.Node, Form] = {}
        self.kept: dict[ir.Node, str] = {}
        self.fixed: set[ir.Node] = set()
        """Nodes around sequences, whose dtype stays."""
        self.weights: dict[ir.Value, str] = {}
        """Weights that stay in float32, and why."""
        self.vanishing: set[ir.Value] = set()
        """The weights that stay in float32 and have numbers which are 0 in 16 bits."""
        self.near_zero: set[ir.Value] = set()
        """Results that may be no larger than these."""
        self.places = _read_as_integers(model)
        """Inputs, and what is computed of them element by element, that become integers, such as places in a table."""
        self._measure_weights()
        for graph in graphs_of(model):
            for node in graph:
                if any(value is not None and value.dtype == self.wide for value in (*node.inputs, *node.outputs)):
                    self._add(node, target)

    def _check(self, target: Target) -> None:
        if self.half == D.BFLOAT16 and self.opset < 13:
            raise UserError("E202", f"opset {self.opset} has no bfloat16", next="opset 13 or newer, or float16")
        if not can_hold(target, self.half, self.opset):
            raise UserError(
                "E204",
                f"{target.name} does not compute in {self.precision.word}",
                why="no kernel of its table takes it",
                next="another --target, or leave out --dtype",
            )

    def _add(self, node: ir.Node, target: Target) -> None:
        form = form_of(node, self.wide, self.half, self.opset, target)
        if isinstance(form, str):
            self.kept[node] = form
            if form == SEQUENCE:
                self.fixed.add(node)
            return
        names = (node.name or "", str(node.op_type), *(value.name or "" for value in node.outputs))
        self.forms[node] = form
        unfit = [self.weights[value] for value in node.inputs if value in self.weights]
        if self.precision.is_kept(*names):
            self.kept[node] = "the user asked for it"
        elif self.precision.dtype == "mixed" and node.op_type in SUMS:
            self.kept[node] = "it sums, or it has another size than what it takes (mixed)"
        elif unfit:
            self.kept[node] = unfit[0]
        elif any(value in self.places for value in node.outputs):
            self.kept[node] = "its numbers become integers"
        else:
            self._keep_near_zero(node)
        if any(value in self.vanishing for value in node.inputs):
            self.near_zero.update(node.outputs)

    def _keep_near_zero(self, node: ir.Node) -> None:
        """A node behind one that takes a constant of next to nothing, which keeps from dividing by zero what it is added to."""
        makers = {place: value.producer() for place, value in enumerate(node.inputs) if value in self.near_zero}
        if not makers:
            return
        stays = node.op_type in _STAYS_NEAR_ZERO
        divides = node.op_type == "Log" or (node.op_type == "Div" and 1 in makers)
        divides |= node.op_type == "Mul" and any(
            each is not None and each.op_type in _INVERTS for each in makers.values()
        )
        if stays or divides:
            self.kept[node] = f"{self.half_word} may have zero where it divides"
        if stays:
            self.near_zero.update(node.outputs)

    def _measure_weights(self) -> None:
        """Weights that 16 bits cannot hold."""
        for name, value in self.model.graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.dtype != self.wide or lacks_data(tensor):
                continue
            largest, smallest = magnitudes(tensor)
            what = "its constant" if tensor.size == 1 else f"its weight {name}"
            if largest > self.precision.largest and not self.ends_in_softmax(value):
                self.weights[value] = f"{what} has {largest:.3g}, {self.half_word} ends at {self.precision.largest:.6g}"
            elif 0 < smallest < LEAST[self.precision.word]:
                self.vanishing.add(value)
                self.weights[value] = f"{what} has {smallest:.3g}, which is 0 in {self.half_word}"

    @property
    def half_word(self) -> str:
        return self.precision.word

    def nodes(self) -> Iterator[ir.Node]:
        """All nodes that bear the dtype, in order of the graphs."""
        for graph in graphs_of(self.model):
            yield from (node for node in graph if node in self.forms or node in self.kept)

    def is_half(self, node: ir.Node | None) -> bool:
        return node is not None and node in self.forms and node not in self.kept

    def keep(self, node: ir.Node, why: str) -> bool:
        """Have the node in float32. False where it is already."""
        if not self.is_half(node):
            return False
        self.kept[node] = why
        return True

    def home(self, value: ir.Value) -> ir.DataType:
        """The dtype that the value is made in."""
        producer = value.producer()
        if producer is not None:
            if producer in self.fixed:
                return self.wide
            is_half = self.is_half(producer) and value.index() not in self.forms[producer].outputs
            return self.half if is_half else D.FLOAT
        if value in self.main and value.const_value is not None and not value.is_graph_input():
            return self._home_of_weight(value)
        is_input = value.is_graph_input() and value.graph is self.model.graph
        return self.io if is_input and value not in self.places else D.FLOAT

    def _home_of_weight(self, value: ir.Value) -> ir.DataType:
        assert value.const_value is not None
        if value.is_graph_output():
            return self.io
        if value in self.weights:
            return D.FLOAT
        if value.const_value.size >= LEAST_NUMBERS or any(self.is_half(node) for node, _ in value.uses()):
            return self.half
        return D.FLOAT

    def wanted(self, node: ir.Node, place: int) -> ir.DataType | None:
        """The dtype that the node takes there; None: any."""
        if node.op_type in READS_ANY and not node.domain:
            return None
        if node in self.fixed:
            return self.wide
        if self.is_half(node) and place not in self.forms[node].inputs:
            return self.half
        return D.FLOAT

    def ends_in_softmax(self, value: ir.Value) -> bool:
        """Return whether the value is nothing but what a mask adds: the largest number of 16 bits does the same as a larger one."""
        pending, seen = [value], {value}
        while pending:
            current = pending.pop()
            if current.is_graph_output():
                return False
            for node, place in current.uses():
                if node.op_type in ("Softmax", "Shape", "Size"):
                    continue
                if node.op_type in ("Attention", "MultiHeadAttention", "GroupQueryAttention") and place > 2:
                    continue
                if node.op_type not in _MASKING or node.domain:
                    return False
                pending += [result for result in node.outputs if result not in seen]
                seen.update(node.outputs)
        return True

    def settle(self) -> None:
        """Let nodes that are no products and stand between nodes in float32 follow them: casts never come in pairs. A value that is
        moved and then cast is cast first, where others may want it so, too.
        """
        seen: set[ir.Node] = set()
        for node in list(self.nodes()):
            if node in seen or not self._is_light(node):
                continue
            group, is_enclosed = self._group(node)
            seen |= group
            if is_enclosed:
                for each in group:
                    self.kept[each] = BETWEEN
        for node in reversed(list(self.nodes())):
            if node.op_type in MOVES and self._is_light(node) and self._is_read_wide(node):
                self.kept[node] = BETWEEN

    def _is_read_wide(self, node: ir.Node) -> bool:
        """Return whether one value goes in, and all who read what comes out are in float32."""
        given = [value for value in node.inputs if value is not None and value.dtype == self.wide]
        return (
            len(given) == 1
            and not given[0].is_graph_input()
            and not any(value.is_graph_output() for value in node.outputs)
            and all(
                reader in self.kept and reader not in self.fixed for value in node.outputs for reader, _ in value.uses()
            )
        )

    def _is_light(self, node: ir.Node) -> bool:
        return self.is_half(node) and node.op_type not in HEAVY and not self._picks_rows(node)

    def _picks_rows(self, node: ir.Node) -> bool:
        """Return whether the node takes parts of a large weight, which is cast after that."""
        first = node.inputs[0] if node.inputs else None
        tensor = None if first is None else first.const_value
        return tensor is not None and tensor.size >= LEAST_NUMBERS and node.op_type in MOVES

    def _group(self, start: ir.Node) -> tuple[set[ir.Node], bool]:
        """Light nodes that hang together, and whether all around them is in float32."""
        group, pending, is_enclosed = {start}, [start], True
        while pending:
            node = pending.pop()
            around: list[ir.Node] = []
            for value in node.inputs:
                if value is None or value.dtype != self.wide:
                    continue
                producer = value.producer()
                if producer is not None:
                    around.append(producer)
                elif value.is_graph_input() and self.home(value) == self.half:
                    is_enclosed = False
            for value in node.outputs:
                if value.is_graph_output() and self.io == self.half and value.graph is self.model.graph:
                    is_enclosed = False
                around += [reader for reader, _ in value.uses()] if value.dtype == self.wide else []
            for each in around:
                if each in group or not self.is_half(each) or each.op_type in READS_ANY - {"Cast"}:
                    continue
                if self._is_light(each):
                    group.add(each)
                    pending.append(each)
                else:
                    is_enclosed = False
        return group, is_enclosed

    def twin(self, *, is_wide: bool = False) -> Draft:
        """The same on a copy of the graph, with the same weights; ``is_wide``: everything in float64 that can be."""
        other = copy.copy(self)
        other.model = ir.Model(self.model.graph.clone(), ir_version=self.model.ir_version or 8)
        other.main = set(other.model.graph.initializers.values())
        pairs = dict(zip(_all(self.model), _all(other.model), strict=True))
        initializers = other.model.graph.initializers
        other.fixed = {pairs[node] for node in self.fixed}
        if not is_wide:
            other.forms = {pairs[node]: form for node, form in self.forms.items()}
            other.kept = {pairs[node]: why for node, why in self.kept.items()}
            other.weights = {initializers[value.name or ""]: why for value, why in self.weights.items()}
            return other
        other.half = other.io = D.DOUBLE
        other.forms, other.kept, other.weights, anything = {}, {}, {}, find(ANY)
        for node in (pairs[each] for each in self.nodes()):
            form = form_of(node, self.wide, D.DOUBLE, self.opset, anything)
            if isinstance(form, str):
                other.kept[node] = form
            else:
                other.forms[node] = form
        return other

    def counted(self) -> Counter[str]:
        """The number of nodes in 16 bits, by operator."""
        return Counter(str(node.op_type) for node in self.nodes() if self.is_half(node))


_MASKING = frozenset(
    {
        *("Add", "Clip", "Concat", "Expand", "Gather", "Identity", "Max", "Min", "Mul", "Reshape", "Slice", "Squeeze"),
        *("Sub", "Tile", "Transpose", "Unsqueeze", "Where", "ConstantOfShape", "Trilu", "Neg"),
    }
)
"""Operators that masks are made with."""


def _all(model: ir.Model) -> Iterator[ir.Node]:
    for graph in graphs_of(model):
        yield from graph


def _own_dtype(model: ir.Model) -> ir.DataType:
    """The float dtype that most weights have, or where there are none most values."""
    sizes: Counter[ir.DataType] = Counter()
    for value in model.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in FLOATS:
            sizes[value.const_value.dtype] += value.const_value.size
    if not sizes or max(sizes.values()) < LEAST_NUMBERS:
        values = [value for node in model.graph for value in node.outputs if value.dtype in FLOATS]
        values += [value for value in model.graph.inputs if value.dtype in FLOATS]
        sizes.update(value.dtype for value in values if value.dtype is not None)
    if not sizes:
        raise UserError("E001", "there is nothing to have in another precision", why="no value of the model is float32")
    return max(sizes, key=lambda dtype: (sizes[dtype], dtype == D.FLOAT))


def _read_as_integers(model: ir.Model) -> set[ir.Value]:
    """Float inputs that are cast to integers, and the values on the way there, which is elementwise or moves elements."""
    nodes = [node for graph in graphs_of(model) for node in graph]
    steps = ELEMENTWISE | MOVES
    given = {value for value in model.graph.inputs if value.dtype in FLOATS}
    for node in nodes:
        if node.op_type in steps and any(value in given for value in node.inputs):
            given.update(value for value in node.outputs if value.dtype in FLOATS)
    found: set[ir.Value] = set()
    for node in reversed(nodes):
        to = node.attributes.get("to") if node.op_type == "Cast" else None
        becomes_integer = to is not None and to.as_int() in (D.INT32, D.INT64)
        if becomes_integer or (node.op_type in steps and any(value in found for value in node.outputs)):
            found.update(value for value in node.inputs if value in given)
    return found
