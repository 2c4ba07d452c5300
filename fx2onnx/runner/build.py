"""From ``onnx_ir.Model`` to ``Program``: names become slots, attributes are parsed once, functions are expanded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.runner import kernels
from fx2onnx.runner.gradient import add_gradient
from fx2onnx.runner.limits import MAX_NESTING, MAX_STEPS
from fx2onnx.runner.ort_value import as_plain
from fx2onnx.runner.program import Program, Step
from fx2onnx.runner.registry import Kernel, find_kernel
from fx2onnx.runner.schemas import NEWEST_OPSET, Signature, check_node, signature_of
from fx2onnx.runner.types import onnx_dtype, string_array
from fx2onnx.runner.weights import WeightStore

kernels.load_all()

PRIVATE_DOMAIN = "fx2onnx"


@dataclass(slots=True)
class BuildContext:
    """What all graphs of one model share."""

    functions: Mapping[Any, ir.Function]
    weights: WeightStore
    ir_version: int
    replaced: dict[str, Any] = field(default_factory=dict)
    n_steps: int = 0
    expanding: list[str] = field(default_factory=list)


def build_program(model: ir.Model, folders: tuple[str, ...], replaced: Mapping[str, Any] | None = None) -> Program:
    """The Program of the model's main graph, without dead steps.

    Raises: UserError E303 for a model that is not valid, E402 for an operator without kernel or function body.
    """
    context = BuildContext(model.functions, WeightStore(folders), model.ir_version or 8, dict(replaced or {}))
    opsets = _opsets(model.graph.opset_imports)
    program = Program(model.graph.name or "main")
    builder = GraphBuilder(context, program, opsets)
    builder.add_graph(model.graph)
    program.drop_dead_steps()
    return program


def _opsets(imports: Mapping[str, int]) -> dict[str, int]:
    opsets = {("" if domain == "ai.onnx" else domain): version for domain, version in imports.items()}
    version = opsets.get("", 1)
    if version > NEWEST_OPSET:
        raise UserError("E303", f"the model needs opset {version}; the installed onnx knows up to {NEWEST_OPSET}")
    if any(not 1 <= number < 1 << 31 for number in opsets.values()):
        raise UserError("E303", "an opset version is out of range")
    return opsets


def line_of(node: ir.Node) -> str:
    """One line about a node: outputs, operator, inputs."""
    outputs = ", ".join(value.name or "_" for value in node.outputs)
    inputs = ", ".join("_" if value is None else value.name or "?" for value in node.inputs)
    domain = f"{node.domain}::" if node.domain else ""
    return f"{outputs} = {domain}{node.op_type}({inputs})"[:200]


class GraphBuilder:
    """Adds the nodes of one graph, or of a function's body, to a program."""

    def __init__(
        self,
        context: BuildContext,
        program: Program,
        opsets: Mapping[str, int],
        parent: GraphBuilder | None = None,
        attributes: Mapping[str, ir.Attr] | None = None,
        depth: int = 0,
    ) -> None:
        if depth > MAX_NESTING:
            raise UserError("E303", f"graphs or functions are nested more than {MAX_NESTING} deep")
        self.context = context
        self.program = program
        self.opsets = opsets
        self.parent = parent
        self.attributes = attributes or {}
        self.depth = depth
        self.slot_of: dict[int, int] = {}
        self.initializers: dict[int, ir.Value] = {}

    def add_graph(self, graph: ir.Graph) -> None:
        """Inputs, initializers, nodes, outputs."""
        initializers = {id(value): value for value in graph.initializers.values()}
        is_old = self.context.ir_version < 4 and self.depth == 0
        for value in graph.inputs:
            if is_old and id(value) in initializers:
                continue
            if self.depth == 0 and value.type is None:
                raise UserError("E303", f"the model's input {value.name!r} has no type")
            slot = self.program.new_slot(value.name or "", type=value.type, shape=_dims(value))
            self.slot_of[id(value)] = slot.index
            self.program.inputs.append(slot.index)
            if id(value) in initializers:
                what = f"initializer {value.name!r}"
                self.program.defaults[slot.index] = self.context.weights.array(value.const_value, what)
                del initializers[id(value)]
        self.initializers = initializers
        self.add_nodes(graph)
        for value in graph.outputs:
            index = self.lookup(value, "the graph's output")
            slot = self.program.slots[index]
            if slot.type is None:
                slot.type, slot.shape = value.type, _dims(value)
            self.program.outputs.append(index)

    def add_nodes(self, nodes: Iterable[ir.Node]) -> None:
        for node in in_order(list(nodes)):
            self.add_node(node)

    def lookup(self, value: ir.Value, what: str) -> int:
        """The slot of a value of this graph or of one around it.

        Raises: UserError E303 for a value that nothing defines.
        """
        found = self.slot_of.get(id(value))
        if found is not None:
            return found
        if id(value) in self.initializers:
            if value.const_value is None:
                raise UserError("E303", f"the initializer {value.name!r} has no data")
            const = self.constant(value)
            slot = self.program.new_slot(
                value.name or "",
                type=ir.TensorType(value.const_value.dtype),
                shape=const.shape,
                const=const,
                is_const=True,
            )
        elif self.parent is not None:
            outer_index = self.parent.lookup(value, what)
            outer = self.parent.program.slots[outer_index]
            slot = self.program.new_slot(
                outer.name, type=outer.type, shape=outer.shape, const=outer.const, is_const=outer.is_const
            )
            if not outer.is_const:
                self.program.captures.append((outer_index, slot.index))
        else:
            raise UserError("E303", f"{what}: nothing makes the value {value.name!r}")
        self.slot_of[id(value)] = slot.index
        return slot.index

    def constant(self, value: ir.Value) -> Any:
        """The initializer's elements, or what ``SessionOptions.add_initializer`` gave in their place."""
        given = self.context.replaced.get(value.name or "")
        tensor = value.const_value
        assert tensor is not None
        if given is None:
            return self.context.weights.array(tensor, f"initializer {value.name!r}")
        array = np.asarray(as_plain(given))
        shape = tuple(tensor.shape)
        if array.shape != shape or onnx_dtype(array.dtype) is not tensor.dtype:
            raise UserError(
                "E001", f"the value for initializer {value.name!r} must be {tensor.dtype.name}{list(shape)}"
            )
        return array

    def add_node(self, node: ir.Node) -> None:
        self.context.n_steps += 1
        if self.context.n_steps > MAX_STEPS:
            raise UserError("E404", f"the model has more than {MAX_STEPS} steps after functions are expanded")
        domain = "" if node.domain == "ai.onnx" else node.domain
        line = line_of(node)
        function = self.context.functions.get(node.op_identifier())
        if function is not None:
            self.expand(node, function, _opsets(function.opset_imports), line)
            return
        if domain == PRIVATE_DOMAIN:
            raise UserError("E303", f"the domain {domain!r} is the runner's own; models cannot use it", node=line)
        version = self.opsets.get(domain)
        if version is None:
            if domain and find_kernel(domain, node.op_type, 1) is None:
                raise UserError("E303", f"the model imports no opset of domain {domain!r}", node=line)
            version = 1
        signature = signature_of(domain, node.op_type, version)
        kernel = find_kernel(domain, node.op_type, signature.since_version if signature else version)
        known: dict[str, ir.Attr] = {}
        for name, given in node.attributes.items():
            attribute = self.resolve(given, line)
            if attribute is not None:
                known[name] = attribute
        if signature is not None:
            check_node(node, signature, line, {name: attribute.type for name, attribute in known.items()})
        if (domain, node.op_type) == ("ai.onnx.preview.training", "Gradient"):
            slots = [self.lookup(value, line) for value in node.inputs if value is not None]
            attrs = {name: self.attribute_value(attribute, line) for name, attribute in known.items()}
            results = add_gradient(self.program, slots, attrs, line)
            self.slot_of.update((id(value), slot) for value, slot in zip(node.outputs, results, strict=True))
        elif kernel is not None:
            self.add_step(node, kernel, signature, known, line)
        elif signature is not None and signature.function is not None:
            body = ir.serde.deserialize_function(signature.function)
            opsets = _opsets(body.opset_imports) or {"": version}
            self.expand(node, body, opsets, line)
        else:
            self.refuse(node, domain, version, line)

    def refuse(self, node: ir.Node, domain: str, version: int, line: str) -> None:
        known = signature_of(domain, node.op_type, NEWEST_OPSET) if not domain else None
        if known is not None:
            why = f"{node.op_type} is not in opset {version}; it came with opset {known.since_version} or was changed then"
        else:
            why = f"no kernel, no function body and no model-local function for {domain or 'ai.onnx'}::{node.op_type}"
        raise UserError(
            "E402",
            f"the runner has no kernel for {domain + '::' if domain else ''}{node.op_type}, opset {version}",
            node=line,
            why=why,
            next=f'register one: @fx2onnx.runner.kernel("{node.op_type}", domain="{domain}")',
        )

    def resolve(self, attribute: ir.Attr, line: str) -> ir.Attr | None:
        """A reference to a function's attribute becomes the caller's attribute, or None where it gave none."""
        if not attribute.is_ref():
            return attribute
        given = self.attributes.get(str(attribute.ref_attr_name))
        if given is None:
            return None
        if given.type is not attribute.type and attribute.type is not ir.AttributeType.UNDEFINED:
            raise UserError("E303", f"the attribute {attribute.ref_attr_name!r} has the wrong type", node=line)
        return ir.Attr(attribute.name, given.type, given.value)

    def expand(self, node: ir.Node, function: ir.Function, opsets: Mapping[str, int], line: str) -> None:
        """Add the function's nodes in place of the call."""
        name = f"{function.domain}::{function.name}"
        if name in self.context.expanding:
            raise UserError("E303", f"the function {name} calls itself", node=line)
        if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
            raise UserError("E303", f"{name} is called with too many inputs or outputs", node=line)
        given = {key: self.resolve(attribute, line) for key, attribute in node.attributes.items()}
        attributes = {key: a for key, a in function.attributes.items() if a.type is not ir.AttributeType.UNDEFINED}
        attributes.update({key: attribute for key, attribute in given.items() if attribute is not None})
        inner = GraphBuilder(self.context, self.program, opsets, None, attributes, self.depth + 1)
        for parameter, argument in zip(function.inputs, node.inputs, strict=False):
            if argument is not None:
                inner.slot_of[id(parameter)] = self.lookup(argument, line)
        for parameter in function.inputs:
            inner.slot_of.setdefault(id(parameter), -1)
        self.context.expanding.append(name)
        inner.add_nodes(function)
        self.context.expanding.pop()
        for value, result in zip(node.outputs, function.outputs, strict=False):
            index = inner.lookup(result, line)
            self.slot_of[id(value)] = index
            slot = self.program.slots[index]
            if slot.producer >= 0 and value.name:
                slot.name, slot.type, slot.shape = value.name, value.type or slot.type, _dims(value) or slot.shape

    def add_step(
        self, node: ir.Node, kernel: Kernel, signature: Signature | None, given: dict[str, ir.Attr], line: str
    ) -> None:
        inputs = [-1 if value is None else self.lookup(value, line) for value in node.inputs]
        bodies: dict[str, Program] = {}
        attrs: dict[str, Any] = {}
        for name, attribute in given.items():
            if attribute.type is ir.AttributeType.GRAPH:
                bodies[name] = self.body(attribute.value, name)
            else:
                attrs[name] = self.attribute_value(attribute, line)
        while inputs and inputs[-1] < 0:
            inputs.pop()
        if "n_outputs" in kernel.extras:
            attrs["n_outputs"] = len(node.outputs)
        if "version" in kernel.extras:
            attrs["version"] = signature.since_version if signature else kernel.since
        attrs_key = f"{len(self.program.steps)}"
        outputs = []
        for value in node.outputs:
            if not value.name and not value.uses():
                outputs.append(-1)
                continue
            slot = self.program.new_slot(value.name or f"_{attrs_key}", type=value.type, shape=_dims(value))
            slot.producer = len(self.program.steps)
            self.slot_of[id(value)] = slot.index
            outputs.append(slot.index)
        captured = [outer for body in bodies.values() for outer, _ in body.captures]
        step = Step(len(self.program.steps), kernel, attrs.get("version", kernel.since), (), tuple(outputs), attrs)
        step.n_inputs = len(inputs)
        step.inputs = (*inputs, *dict.fromkeys(captured))
        step.name = node.name or ""
        step.origin = line
        step.bodies = bodies
        self.program.steps.append(step)

    def body(self, graph: ir.Graph, name: str) -> Program:
        program = Program(graph.name or name)
        builder = GraphBuilder(self.context, program, self.opsets, self, self.attributes, self.depth + 1)
        builder.add_graph(graph)
        program.drop_dead_steps()
        return program

    def attribute_value(self, attribute: ir.Attr, line: str) -> Any:
        kind = attribute.type
        if kind is ir.AttributeType.TENSOR:
            return self.context.weights.array(attribute.value, f"attribute {attribute.name!r} of {line}")
        if kind is ir.AttributeType.STRINGS:
            return tuple(_text(item) for item in attribute.value)
        if kind is ir.AttributeType.STRING:
            return _text(attribute.value)
        if kind is ir.AttributeType.TENSORS:
            return tuple(self.context.weights.array(item, f"attribute {attribute.name!r}") for item in attribute.value)
        if kind in (ir.AttributeType.INTS, ir.AttributeType.FLOATS):
            return tuple(attribute.value)
        return attribute.value


def _text(item: Any) -> Any:
    return string_array([item], (1,))[0] if isinstance(item, bytes) else item


def _dims(value: ir.Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def in_order(nodes: list[ir.Node]) -> list[ir.Node]:
    """The nodes so that each comes after those it reads; unchanged where that holds already.

    Raises: UserError E303 for a cycle.
    """
    own = {id(node): position for position, node in enumerate(nodes)}
    if all(
        own.get(id(value.producer()), -1) < position
        for position, node in enumerate(nodes)
        for value in _deep_inputs(node)
    ):
        return nodes
    needs = [{own[id(p)] for value in _deep_inputs(node) if id(p := value.producer()) in own} for node in nodes]
    readers: dict[int, list[int]] = {}
    for position, producers in enumerate(needs):
        for producer in producers:
            readers.setdefault(producer, []).append(position)
    ready = [position for position, producers in enumerate(needs) if not producers]
    ordered: list[ir.Node] = []
    while ready:
        position = ready.pop()
        ordered.append(nodes[position])
        for reader in readers.get(position, ()):
            needs[reader].discard(position)
            if not needs[reader]:
                ready.append(reader)
    if len(ordered) < len(nodes):
        stuck = next(position for position, producers in enumerate(needs) if producers)
        raise UserError("E303", "the graph has a cycle", node=line_of(nodes[stuck]))
    return ordered


def _deep_inputs(node: ir.Node) -> Iterator[ir.Value]:
    for value in node.inputs:
        if value is not None:
            yield value
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
            for inner in attribute.value:
                yield from _deep_inputs(inner)
