"""Names and sizes of a file's inputs and outputs: those that were asked for, and a line for each that the file does not have.

Names that ``dynamic_axes`` has for sizes of outputs are given to data-dependent ones, or reported as missing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import onnx_ir as ir
import torch
import torch.fx

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.metadata import PRODUCER
from fx2onnx.capture.captured import Captured, where_of
from fx2onnx.irx import shapes
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.schema import schema_of
from fx2onnx.irx.values import Dims, dims_of
from fx2onnx.lower.preflight import nodes_with_depth, used_nodes
from fx2onnx.sizes.assumptions import Assumed, Assumption, Condition, Guard, Specialization
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.relation import Relation
from fx2onnx.sizes.sets import EVERY, SizeSet
from fx2onnx.torchcompat.operators import OpOverload

_NAME = re.compile(r"[A-Za-z_][\w.]*")


def name_output_sizes(captured: Captured, model: ir.Model, dynamic_axes: Any) -> Iterator[str]:
    """Give data-dependent sizes the names that ``dynamic_axes`` has for axes of outputs. A line for each name that the file
    does not have.

    Raises: UserError E105 for an axis that the output does not have.
    """
    if not isinstance(dynamic_axes, Mapping):
        return
    names = _Names(captured, model)
    inputs = {graph_input.name for graph_input in captured.inputs}
    for output, value in zip(captured.outputs, model.graph.outputs, strict=False):
        axes = dynamic_axes.get(output.name, ()) if output.name not in inputs else ()
        for axis, wanted in axes.items() if isinstance(axes, Mapping) else ((axis, None) for axis in axes or ()):
            yield from names.name(output.name, dims_of(value), axis, None if wanted is None else str(wanted))
    if names.new:
        _rename(model, names.new)
        captured.assumptions = [_renamed(each, names.new) for each in captured.assumptions]


aten = torch.ops.aten


@dataclass
class _Names:
    """The names that sizes have, and in ``new`` those that they get."""

    captured: Captured
    model: ir.Model
    new: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dims = [dim for graph_input in self.captured.inputs for dim in graph_input.info.dims if isinstance(dim, Dim)]
        self.given = {name for dim in dims for name in dim.symbols()}
        self.others = set(self.captured.symbols) - self.given
        self._equal: dict[str, str] | None = None

    def name(self, output: str, dims: Dims, axis: Any, wanted: str | None) -> Iterator[str]:
        """Note the name for one axis. A line where it cannot be had."""
        if not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
            raise UserError(
                "E105",
                f"dynamic_axes names axis {axis!r:.40} of the output {output}",
                why=f"it has {len(dims)} axes",
                next=f"axes go from 0 to {len(dims) - 1}" if dims else "a scalar has no axes: leave it out",
            )
        place, dim = f"axis {axis} of the output {output}", dims[axis]
        if not isinstance(dim, Dim):
            yield f"{place} is {dim} at all sizes, not " + (f"a size {wanted}" if wanted else "dynamic")
            return
        symbol = dim.as_symbol()
        if wanted is None or wanted == self.new.get(symbol or "", str(dim)):
            return
        if symbol is None or symbol in self.given or symbol in self.new or not _NAME.fullmatch(wanted):
            yield f"{place} is called {self.new.get(symbol or '', str(dim))}, not {wanted}: the file says what it is"
        elif wanted in self.given | self.others or not self._may_share(symbol, wanted):
            yield f"{place} is called {symbol}, not {wanted}: another size has that name, which need not be equal"
        else:
            self.new[symbol] = wanted

    def _may_share(self, symbol: str, wanted: str) -> bool:
        """Return whether all sizes that got the name are equal to this one. Runtimes share memory among equal shapes."""
        holders = [old for old, name in self.new.items() if name == wanted]
        if holders and self._equal is None:
            self._equal = _equal_sizes(self.model)
        equal = self._equal or {}
        return all(equal.get(old, old) == equal.get(symbol, symbol) for old in holders)


def _equal_sizes(model: ir.Model) -> dict[str, str]:
    """For names of sizes another one of an equal size, the same for all: where a node gives a size of its operands' as it is."""
    equal: dict[str, str] = {}

    def first(name: str) -> str:
        while name in equal:
            name = equal[name]
        return name

    opset = model.graph.opset_imports.get("", 0)
    for node in model.graph:
        if node.domain or node.op_type not in shapes.RULES:
            continue
        attrs = {name: attribute.value for name, attribute in node.attributes.items()}
        names = tuple(schema_of(node.op_type, opset).input_names)
        try:
            inferred = shapes.infer(shapes.ShapeCall(node.op_type, node.inputs, attrs, len(node.outputs), names))
        except (shapes.UnknownShape, Fx2OnnxError, ValueError, IndexError, KeyError, AssertionError, TypeError):
            continue  # no size of this node's is one of its operands'
        for value, (_, dims) in zip(node.outputs, inferred, strict=False):
            for one, other in zip(dims, dims_of(value), strict=False):
                symbols = [dim.as_symbol() if isinstance(dim, Dim) else None for dim in (one, other)]
                ends = [first(symbol) for symbol in symbols if symbol is not None]
                if len(ends) == 2 and ends[0] != ends[1]:
                    equal[ends[1]] = ends[0]
    return {name: first(name) for name in equal}


def _words(new: Mapping[str, str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, new))})(?![\w.])")


def rename_sizes(model: ir.Model, new: Mapping[str, str]) -> None:
    """Rename dynamic sizes of a finished model. Raises UserError E001 for a name that it does not have."""
    dims = [dim for value in (*model.graph.inputs, *model.graph.outputs) for dim in value.shape or ()]
    known = {word for dim in dims if not isinstance(dim, int) for word in re.findall(r"[^\W\d][\w.]*", str(dim.value))}
    for name in new:
        if name not in known:
            raise UserError("E001", f"the model has no size {name!r}", next=f"one of {', '.join(sorted(known))}")
    if new:
        _rename(model, new)


def _rename(model: ir.Model, new: Mapping[str, str]) -> None:
    words = _words(new)

    def renamed(text: str) -> str:
        return words.sub(lambda match: new[match[0]], text)

    graphs = [*graphs_of(model), *(function.graph for function in model.functions.values())]
    for graph in graphs:
        values = [*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)]
        for value in {id(value): value for value in values}.values():
            if value.shape is not None and any(isinstance(dim, ir.SymbolicDim) for dim in value.shape):
                value.shape = ir.Shape(
                    renamed(str(dim.value)) if isinstance(dim, ir.SymbolicDim) and dim.value is not None else dim
                    for dim in value.shape
                )
    for key, text in model.metadata_props.items():
        if key.startswith(f"{PRODUCER}."):  # others are the user's own
            model.metadata_props[key] = renamed(text)


def _renamed(assumed: Assumed, new: Mapping[str, str]) -> Assumed:
    sizes = {old: Dim.symbol(name) for old, name in new.items()}
    match assumed:
        case Condition():
            name = new.get(assumed.name, assumed.name)
            return replace(assumed, name=name, relation=cast(Relation, assumed.relation.at(sizes)))
        case Guard():
            return replace(assumed, relation=cast(Relation, assumed.relation.at(sizes)))
        case Specialization():
            value = assumed.value.substitute(sizes) if isinstance(assumed.value, Dim) else assumed.value
            return replace(assumed, size=cast(Dim, assumed.size.substitute(sizes)), value=cast(DimLike, value))
        case Assumption():
            return replace(assumed, what=_words(new).sub(lambda match: new[match[0]], assumed.what))


def renamed_outputs(captured: Captured, model: ir.Model) -> Iterator[str]:
    """A line for each output whose name an input or another output has."""
    for output, value in zip(captured.outputs, model.graph.outputs, strict=False):
        if value.name != output.name:
            yield f"the output {output.name} is called {value.name}: names in a file differ, and {output.name} is taken"


def import_versions(model: ir.Model, versions: Mapping[str, int]) -> Iterator[str]:
    """Import operator sets at the ``versions`` that are asked for. A line for each that no node is of."""
    if not versions:
        return
    used = {node.domain for node in model.graph.all_nodes()}
    for function in model.functions.values():
        used |= {node.domain for node in function.all_nodes()}
    for domain, version in versions.items():
        for imports in (model.graph.opset_imports, *(function.opset_imports for function in model.functions.values())):
            if domain in imports:
                imports[domain] = version
        if domain not in used:
            yield f"custom_opsets has no effect for {domain!r}: no node is of it"


def limited_sizes(captured: Captured) -> Iterator[str]:
    """A line for each dynamic size of an input that holds for a short interval, or with gaps, unless it is declared so."""
    own = {name for name, symbol in captured.symbols.items() if symbol.node.op == "placeholder"}
    conditions = [each for each in captured.assumptions if isinstance(each, Condition) and each.name in own]
    declared = {each.name: each.sizes for each in conditions if each.where is None}
    for condition in conditions:
        sizes = condition.sizes
        if not _is_wide(sizes) and not declared.get(condition.name, EVERY).is_within(sizes):
            place = f"   ({condition.where})" if condition.where else ""
            step = _declaration(condition.name, sizes)
            yield f"the file is right only where {condition.expression}{place}{step}"


def _declaration(name: str, sizes: SizeSet) -> str:
    """The words that tell how to declare the sizes, where a ``torch.export.Dim`` says them."""
    (first, last), (_, step) = sizes.ends(), sizes.progression()
    if step > 1 and first % step == 0:
        return f'; if that is meant, declare "{step}*{name}", or {step} * torch.export.Dim("{name}")'
    if step == 1 and last is not None:
        return f'; if that is meant, declare torch.export.Dim("{name}", min={first}, max={last})'
    return ""


_VECTORS: Mapping[object, tuple[int, ...]] = {
    aten.linalg_svd.default: (0, 2),
    aten.svd.default: (0, 2),
    aten.linalg_eigh.default: (1,),
}
"""The results of decompositions whose signs are the algorithm's."""


def unsigned_vectors(captured: Captured) -> Iterator[str]:
    """A line for each decomposition of which vectors are used."""
    if not [
        node for node in captured.graph.nodes if node.op == "call_function" and type(node.target) is not OpOverload
    ]:
        return  # neither one of several results nor graphs inside
    parts = [node for node, _ in nodes_with_depth(captured.graph) if node.target is operator.getitem]
    used = used_nodes(captured) if parts else set()
    for node in parts:
        made = node.args[0] if node in used else None
        if isinstance(made, torch.fx.Node) and node.args[1] in _VECTORS.get(made.target, ()):
            yield (
                f"{made.target}: vectors of a decomposition are unique up to their signs, and up to rotations where values are "
                f"equal: the file's may be others than PyTorch's ({where_of(made)})"
            )


_LONG = 8
"""Sizes up to fewer than these are a short interval."""


def _is_wide(sizes: SizeSet) -> bool:
    """Return whether the sizes are all from a least one on, to twice that one and ``_LONG`` at least: a table of positions has an end.
    0 is nobody's case.
    """
    found = [size for size, holds in enumerate(sizes.array(len(sizes.members)).tolist()) if holds and size]
    rest = sizes.members[sizes.start :]
    has_gaps = bool(found) and found != list(range(found[0], found[-1] + 1))
    has_room = bool(found) and not any(rest) and found[-1] >= max(2 * found[0], _LONG)
    return not has_gaps and (all(rest) or has_room)
