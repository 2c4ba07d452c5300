"""From ``ModelProto`` to ``Program``: names become slots, attributes are parsed once, functions are expanded.

The protobuf is read directly and once: for a small model, making another form of the graph first would take longer
than all the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.semantics import kernels  # noqa: F401  (which names the file of each)
from fx2onnx.semantics.limits import MAX_NESTING, MAX_STEPS
from fx2onnx.semantics.reading.attributes import attribute_value, resolved
from fx2onnx.semantics.reading.gradient import add_gradient
from fx2onnx.semantics.reading.load import LoadedProto, check_domain, check_presence, functions_of, opsets_of
from fx2onnx.semantics.reading.nodes import (
    GRAPH,
    NodeText,
    check_arity,
    check_attributes,
    check_left_out,
    check_present,
    check_text,
    deprecated,
    distinct,
    in_order,
    no_kernel,
    read_nodes,
)
from fx2onnx.semantics.reading.program import Program, Slot, Step, type_of_array, type_of_info
from fx2onnx.semantics.reading.value_types import (
    agree,
    build_bodies,
    check_default,
    names_of_body,
    same_type,
    types_made,
)
from fx2onnx.semantics.reading.weights import WeightStore, declared
from fx2onnx.semantics.registry import Kernel, find_kernel, table_version, unknown_kernel
from fx2onnx.semantics.schemas import STANDARD_DOMAINS, Signature, axes_of, function_body, signature_of
from fx2onnx.semantics.types import onnx_dtype, type_name

_GRADIENT = ("ai.onnx.preview.training", "Gradient")
_GARBLED = (ValueError, TypeError, KeyError, RuntimeError, AttributeError, AssertionError, IndexError)
"""The exceptions of protobuf and onnx for a garbled model; the cause is chained."""


@dataclass(slots=True)
class BuildContext:
    """The context that all graphs of one model share."""

    functions: Mapping[tuple[str, str, str], Any]
    weights: WeightStore
    ir_version: int
    held: Mapping[str, Any]
    replaced: Mapping[str, Any]
    runs: bool
    """True if the program is to run. Otherwise operators may lack a kernel, and domains that are not ONNX's are not
    looked into."""
    max_steps: int
    n_steps: int = 0
    expanding: list[str] = field(default_factory=list)


def build_program(loaded: LoadedProto, replaced: Mapping[str, Any] | None = None, *, runs: bool = True) -> Program:
    """The Program of the model's main graph, without dead steps. ``runs=False`` builds one to look at: weights in other files
    are not opened, and a node that the runner has no kernel for is a step of which nothing is known.

    Raises: UserError E303 for a model that is not valid, E402 for an operator without kernel or function body.
    """
    try:
        return _build(loaded, replaced or {}, runs)
    except RecursionError as error:
        raise UserError("E303", "the model nests graphs or types too deeply") from error
    except _GARBLED as error:
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise UserError("E303", "the model is garbled", why=text) from error


def _build(loaded: LoadedProto, replaced: Mapping[str, Any], runs: bool) -> Program:
    proto = loaded.proto
    ir_version = check_presence(proto)
    check_text((graph := proto.graph).name)
    functions = functions_of(proto) if proto.functions else {}
    weights = WeightStore(loaded.folders, opens_files=runs)
    max_steps = MAX_STEPS if runs else MAX_STEPS + len(graph.node)
    context = BuildContext(functions, weights, ir_version, loaded.held, replaced, runs, max_steps)
    program = Program(graph.name or "main")
    GraphBuilder(context, program, opsets_of(proto.opset_import)).add_graph(graph)
    program.drop_dead_steps()
    return program


@lru_cache(maxsize=4096)
def _operator(domain: str, op_type: str, version: int, table_version: int) -> tuple[Kernel | None, Signature | None]:
    """Kernel and signature of an operator; ``table_version`` changes when a kernel is registered."""
    signature = signature_of(domain, op_type, version)
    return find_kernel(domain, op_type, signature.since_version if signature else version), signature


class GraphBuilder:
    """Adds the nodes of one graph, or of a function's body, to a program."""

    def __init__(
        self,
        context: BuildContext,
        program: Program,
        opsets: Mapping[str, int],
        parent: GraphBuilder | None = None,
        attributes: Mapping[str, Any] | None = None,
        depth: int = 0,
    ) -> None:
        if depth > MAX_NESTING:
            raise UserError("E303", f"graphs or functions are nested more than {MAX_NESTING} deep")
        self.context = context
        self.program = program
        self.opsets = opsets
        self.parent = parent
        self.attributes = attributes
        self.depth = depth
        self.slot_of: dict[str, int] = {}
        self.constants: dict[str, Any] = {}
        self.types: dict[str, Any] = {}

    def add_graph(self, graph: Any, given: Sequence[str] = ()) -> None:
        """Inputs, initializers, nodes, outputs. ``given``: the types of what is given to a body, as far as known."""
        self.collect_constants(graph)
        inputs = [(info.name, info) for info in graph.input]
        distinct((name for name, _ in inputs), "graph input")
        for place, (name, info) in enumerate(inputs):
            self.add_input(name, info, given[place] if place < len(given) else "")
        self.types = {info.name: info for info in graph.value_info}
        self.types.update((info.name, info) for info in graph.output)
        known = [*self.slot_of, *self.constants]
        own = names_of_body(graph, known, self.parent.sees) if self.parent is not None else None
        self.add_nodes(graph.node, known, graph.name)
        for info in graph.output:
            self.add_output(info, graph.name, own)
        for name, tensor in self.constants.items():
            if name not in self.slot_of:
                self.context.weights.check(tensor, f"initializer {name!r}")

    def add_input(self, name: str, info: Any, given: str) -> None:
        if not name:
            raise UserError("E303", "an input of the graph has no name")
        type_, shape = type_of_info(info)
        if self.depth == 0 and type_ is None:
            raise UserError("E303", f"the model's input {name!r} has no type")
        if name in self.constants:
            check_default(name, type_, shape, self.constants[name])
            if self.context.ir_version < 4 and self.depth == 0:
                return  # the initializer is what it is; feeds may not replace it
        slot = self.program.new_slot(name, type_, shape)
        slot.type_name = type_name(type_) if type_ is not None else given
        if not same_type(slot.type_name, given):
            what = f"the input {name!r} of the body {self.program.name!r} is declared {slot.type_name} and is given {given}"
            raise UserError("E303", what)
        self.slot_of[name] = slot.index
        self.program.inputs.append(slot.index)
        if name in self.constants:
            self.program.defaults[slot.index] = self.constant(name)
            del self.constants[name]

    def sees(self, name: str) -> bool:
        """Return whether the value is defined so far, here or in a graph around."""
        return name in self.slot_of or name in self.constants or (self.parent is not None and self.parent.sees(name))

    def add_output(self, info: Any, graph_name: str, own: Collection[str] | None) -> None:
        """``own``: the values that a body defines itself, None for the main graph."""
        name = info.name
        check_text(name)
        index = self.find(name) if own is None or name in own else None
        if index is None or index < 0:
            raise UserError("E303", f"nothing in graph {graph_name!r} makes its output {name!r}")
        slot = self.program.slots[index]
        if slot.producer < 0 or slot.type is None:
            type_, shape = type_of_info(info)
            agree(slot, name, type_)
            if slot.type is None:
                slot.type, slot.shape = type_, shape
        self.program.outputs.append(index)

    def collect_constants(self, graph: Any) -> None:
        """Initializers by name; each is read when something asks for it."""
        result = [(tensor.name, tensor) for tensor in graph.initializer]
        result += [(sparse.values.name, sparse) for sparse in graph.sparse_initializer]
        if self.depth == 0:
            result += self.context.held.items()
        self.constants = dict(result)
        if len(self.constants) < len(result):
            distinct((name for name, _ in result), "initializer")
        if "" in self.constants:
            raise UserError("E303", f"an initializer of graph {graph.name!r} has no name")

    def add_nodes(self, protos: Sequence[Any], known: Iterable[str], where: str) -> None:
        if self.context.n_steps + len(protos) > (most := self.context.max_steps):
            raise UserError("E404", f"the model has more than {most} steps after functions are expanded")
        nodes = read_nodes(protos)
        names = [text.name for text, _ in nodes if text.name and text.op_type != "Constant"]
        if len(set(names)) < len(names):
            distinct(names, "node name")
        for text, attributes in in_order(nodes, known, where, self.depth == 0):
            self.add_node(text, attributes)

    def find(self, name: str) -> int | None:
        """The slot of a value of this graph or of one around it; None where nothing defines it."""
        index = self.slot_of.get(name)
        if index is not None:
            return index
        if name in self.constants:
            const = self.constant(name)
            slot = self.program.new_constant(name, const, type_of_array(const))
        elif self.parent is not None:
            outer_index = self.parent.find(name)
            if outer_index is None or outer_index < 0:
                return outer_index
            outer = self.parent.program.slots[outer_index]
            slot = self.program.new_slot(outer.name, outer.type, outer.shape, outer.const, outer.is_const)
            slot.type_name = outer.type_name
            if not outer.is_const:
                self.program.captures.append((outer_index, slot.index))
        else:
            return None
        self.slot_of[name] = slot.index
        return slot.index

    def lookup(self, name: str, text: NodeText) -> int:
        """The slot of a node's input, -1 for an omitted one. Raises: UserError E303 for one that nothing defines."""
        if not name:
            return -1
        index = self.slot_of.get(name)
        if index is None:
            index = self.find(name)
            if index is None:
                where = self.program.name
                what = f"the input {name!r} of a node in {where!r} is made nowhere"
                raise UserError("E303", what, node=str(text))
        return index

    def constant(self, name: str) -> Any:
        """The initializer's elements, or what ``SessionOptions.add_initializer`` gave in their place."""
        tensor = self.constants[name]
        check_text(name)
        given = self.context.replaced.get(name)
        if given is None:
            return self.context.weights.any_array(tensor, f"initializer {name!r}")
        array = np.asarray(given)
        dtype, shape = declared(tensor, f"initializer {name!r}")
        if array.shape != shape or onnx_dtype(array.dtype) is not dtype:
            raise UserError("E001", f"the value for initializer {name!r} must be {dtype.name}{list(shape)}")
        return array

    def add_node(self, text: NodeText, attributes: Iterable[Any]) -> None:
        self.context.n_steps += 1
        domain, op_type = text.domain, text.op_type
        given = resolved(attributes, self.attributes, text) if attributes else {}
        version = self.opsets.get(domain)
        if self.context.runs:
            check_domain(text, version)
        if self.context.functions:
            function = self.context.functions.get((domain, op_type, text.overload))
            if function is not None:
                self.expand(text, function, opsets_of(function.opset_import), given)
                return
        if version is None or not (self.context.runs or domain in STANDARD_DOMAINS):
            self.add_step(text, unknown_kernel(op_type, domain), None, given)
            return
        kernel, signature = _operator(domain, op_type, version, table_version())
        if signature is not None:
            if signature.is_deprecated and (kernel is None or kernel.since != signature.since_version):
                raise deprecated(text, signature)  # GroupNormalization-18 never was anything else, and is in use
            check_arity(text, signature)
            check_attributes(text, signature, given)
        if (domain, op_type) == _GRADIENT and self.context.runs:
            slots = [self.lookup(name, text) for name in text.inputs]
            attrs = {name: attribute_value(attribute, text, self.context.weights) for name, attribute in given.items()}
            self.slot_of.update(zip(text.outputs, add_gradient(self.program, slots, attrs, str(text)), strict=True))
        elif kernel is not None:
            self.add_step(text, kernel, signature, given)
        elif signature is not None and signature.has_function:
            check_present(text, signature, (place for place, name in enumerate(text.inputs) if not name))
            body = function_body(domain, op_type, version)
            self.expand(text, body, opsets_of(body.opset_import) or {"": version}, given)
        elif self.context.runs or not op_type:
            raise no_kernel(text, version)
        else:
            self.add_step(text, unknown_kernel(op_type, domain), signature, given)

    def expand(self, text: NodeText, function: Any, opsets: Mapping[str, int], given: Mapping[str, Any]) -> None:
        """Add the function's nodes in place of the call."""
        name = f"{function.domain}::{function.name}"
        parameters, results = list(function.input), list(function.output)
        if name in self.context.expanding:
            raise UserError("E303", f"the function {name} calls itself", node=str(text))
        if len(text.inputs) > len(parameters) or len(text.outputs) > len(results):
            raise UserError("E303", f"{name} is called with too many inputs or outputs", node=str(text))
        attributes = {attribute.name: attribute for attribute in function.attribute_proto}
        attributes.update(given)
        inner = GraphBuilder(self.context, self.program, opsets, None, attributes, self.depth + 1)
        inner.slot_of = dict.fromkeys(parameters, -1)
        for parameter, argument in zip(parameters, text.inputs, strict=False):
            inner.slot_of[parameter] = self.lookup(argument, text)
        self.context.expanding.append(name)
        inner.add_nodes(function.node, parameters, name)
        self.context.expanding.pop()
        for output, result in zip(text.outputs, results, strict=False):
            index = inner.find(result)
            if index is None or index < 0:
                raise UserError("E303", f"nothing in function {name} makes its output {result!r}", node=str(text))
            self.slot_of[output] = index
            slot = self.program.slots[index]
            if slot.producer >= 0 and output:
                self.declare(slot, output, text)

    def declare(self, slot: Slot, name: str, text: NodeText) -> None:
        """Give the slot the name of a value and what the graph says of it."""
        slot.name = name
        info = self.types.get(name)
        if info is not None:
            slot.type, slot.shape = type_of_info(info)
            agree(slot, name, slot.type, text)

    def add_step(self, text: NodeText, kernel: Kernel, signature: Signature | None, given: Mapping[str, Any]) -> None:
        program = self.program
        inputs = [self.lookup(name, text) for name in text.inputs]
        if signature is not None and -1 in inputs:
            check_present(text, signature, (place for place, index in enumerate(inputs) if index < 0))
        attrs = {
            name: attribute_value(attribute, text, self.context.weights)
            for name, attribute in given.items()
            if attribute.type != GRAPH
        }
        if kernel.op_type == "Constant" and not kernel.domain:
            self.add_constant(text, kernel, attrs)
            return
        while inputs and inputs[-1] < 0:
            inputs.pop()
        types = tuple([program.slots[index].type_name if index >= 0 else "" for index in inputs])
        made = types_made(text, signature, types, attrs) if signature is not None else ("",) * len(text.outputs)
        bodies: dict[str, Program] = {}
        if len(attrs) < len(given):
            graphs = {name: attribute.g for name, attribute in given.items() if attribute.type == GRAPH}
            bodies, made = build_bodies(text, signature, graphs, types, attrs, self.body)
        version = signature.since_version if signature else kernel.since
        own = {"kept": {}, "n_outputs": len(text.outputs), "version": version}
        attrs.update((name, own[name]) for name in kernel.extras)
        index = len(program.steps)
        outputs = []
        for place, name in enumerate(text.outputs):
            if not name:
                if signature is not None:
                    check_left_out(text, signature, place)
                outputs.append(program.new_slot("").index if kernel.prepare is not None else -1)  # has memory in a plan
                continue
            slot = program.new_slot(name)
            slot.producer = index
            slot.type_name = made[place]
            self.slot_of[name] = slot.index
            outputs.append(slot.index)
            if name in self.types:
                self.declare(slot, name, text)
        step = Step(index, kernel, attrs.get("version", kernel.since), tuple(inputs), tuple(outputs), attrs)
        step.n_inputs = len(inputs)
        if signature is not None:
            step.dtypes = signature.input_dtypes
            step.axes = axes_of(text.domain, text.op_type, signature.since_version)
        if bodies:
            step.bodies = bodies
            captured = [outer for body in bodies.values() for outer, _ in body.captures]
            step.inputs = (*inputs, *dict.fromkeys(captured))
        step.name = text.name
        step.origin = text
        program.steps.append(step)

    def add_constant(self, text: NodeText, kernel: Kernel, attrs: Mapping[str, Any]) -> None:
        """A Constant node is a slot like an initializer's, and no step."""
        try:
            array = kernel.fn(**attrs)
        except ValueError as error:
            raise UserError("E303", "a Constant without one value", node=str(text), why=str(error)) from error
        slot = self.program.new_constant(text.outputs[0], array, type_of_array(array))
        self.slot_of[slot.name] = slot.index

    def body(self, graph: Any, name: str, given: Sequence[str]) -> Program:
        program = Program(graph.name or name)
        builder = GraphBuilder(self.context, program, self.opsets, self, self.attributes, self.depth + 1)
        builder.add_graph(graph, given)
        program.drop_dead_steps()
        return program
