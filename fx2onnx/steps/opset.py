"""The change to another opset: node by node, one opset after the other, by the table of changes. An operator that an
older opset lacks is written as ONNX's own definition of it in others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from fx2onnx.base.errors import UserError
from fx2onnx.irx.edit import graphs_of, replace
from fx2onnx.irx.inference import infer_types
from fx2onnx.irx.schema import GRAPH_BEARING
from fx2onnx.irx.values import known_sizes
from fx2onnx.semantics.opset_changes import CHANGES, NoForm
from fx2onnx.semantics.schemas import onnx_schema, types_of

LEAST = 7
"""The oldest opset: before it, operators broadcast by attributes."""
NEWEST = onnx.defs.onnx_opset_version()
_BODIES = "fx2onnx.definitions"
_NEUTRAL = {"dilations": 1}
"""Attributes that do nothing where all their numbers are these; ONNX declares no default."""
_NAMES = "fx2onnx.names"


def _names_of(model: ir.Model) -> set[str]:
    """The names of all values and nodes."""
    found: set[str] = set()
    for graph in graphs_of(model):
        values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
        found.update(value.name or "" for value in values)
        found.update(node.name or "" for node in graph)
    return found


class Edit:
    """One node that another opset writes otherwise."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model = model
        self.node = node

    def input(self, index: int) -> ir.Value | None:
        """Input ``index``, None where it is not given."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute's value; tuples as lists."""
        found = self.node.attributes.get(name)
        if found is None:
            return default
        return list(found.value) if isinstance(found.value, tuple) else found.value

    def numbers(self, index: int) -> npt.NDArray[Any] | None:
        """The constant at an input; None where none is given. Raises NoForm where it is computed."""
        value = self.input(index)
        if value is None:
            return None
        tensor = value.const_value or ir.convenience.get_const_tensor(value)
        if tensor is None or value.is_graph_input():
            raise NoForm(f"its input {index} is computed, and is an attribute there")
        return np.asarray(tensor.numpy())

    def integers(self, index: int) -> list[int] | None:
        """The same as a list of whole numbers."""
        array = self.numbers(index)
        return None if array is None else [int(item) for item in array.reshape(-1)]

    def known_sizes(self, index: int) -> Sequence[Any] | None:
        """The numbers of an input that holds sizes, as far as they are known; None where they are not."""
        return known_sizes(self.input(index))

    def rank(self) -> int:
        """The number of axes of the first input. Raises NoForm."""
        value = self.input(0)
        if value is None or value.shape is None:
            raise NoForm("the rank of its input is not known")
        return len(value.shape)

    def drop(self, *names: str) -> None:
        """Remove attributes, where they are there."""
        for name in names:
            self.node.attributes.pop(name, None)

    def set(self, name: str, value: Any) -> None:
        """Give the node an attribute."""
        self.node.attributes[name] = ir.convenience.convert_attribute(name, value)

    def give(self, index: int, value: ir.Value | None) -> None:
        """Put a value at an input, new or not."""
        if index >= len(self.node.inputs):
            self.node.resize_inputs(index + 1)
        self.node.replace_input_with(index, value)

    def keep_inputs(self, count: int) -> None:
        """Leave only the first inputs."""
        for index in range(count, len(self.node.inputs)):
            self.node.replace_input_with(index, None)
        if len(self.node.inputs) > count:
            self.node.resize_inputs(count)

    def constant(self, data: Any, dtype: Any = np.int64) -> ir.Value:
        """A new weight."""
        array = np.asarray(data, dtype)
        value = ir.Value(name=self._free("const"), const_value=ir.Tensor(array))
        value.type, value.shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape(array.shape)
        assert value.name is not None
        self.model.graph.initializers[value.name] = value
        return value

    def new(
        self, op_type: str, inputs: Sequence[ir.Value | None], like: ir.Value | None = None, **attributes: Any
    ) -> ir.Value:
        """A new node before this one; its output has the type of ``like``."""
        attrs = [
            ir.convenience.convert_attribute(name, value) for name, value in attributes.items() if value is not None
        ]
        made = ir.Node("", op_type, inputs, attrs, name=self._free(op_type))
        made.metadata_props.update(self.node.metadata_props)
        value = made.outputs[0]
        value.name = self._free(op_type.lower())
        if like is not None:
            value.type, value.shape = like.type, like.shape
        assert self.node.graph is not None
        self.node.graph.insert_before(self.node, made)
        return value

    def become(self, value: ir.Value) -> None:
        """The node goes; its readers read ``value``."""
        old = self.node.outputs[0]
        replace(old, value)
        if old.name:
            old.name, value.name = f"{old.name}.gone", old.name
        graph = self.node.graph
        assert graph is not None
        graph.remove(self.node, safe=True)

    def rename(self, op_type: str) -> None:
        """The same node by another operator."""
        self.node.op_type = op_type

    def _free(self, stem: str) -> str:
        """A name that nothing has."""
        taken = self.model.meta.get(_NAMES)
        if taken is None:
            taken = self.model.meta[_NAMES] = _names_of(self.model)
        name, count = stem, 0
        while name in taken:
            count += 1
            name = f"{stem}_{count}"
        taken.add(name)
        return name


def convert_opset(model: ir.Model, target: int) -> None:
    """Give the model another opset of the standard domain, in place.

    Raises: UserError E001 for an opset that is none, E202 with every node that has no form in it.
    """
    current = model.graph.opset_imports.get("", 0)
    if not LEAST <= target <= NEWEST:
        raise UserError("E001", f"opset {target} is none that files are converted to", next=f"{LEAST} to {NEWEST}")
    if current == target:
        return
    if current and current < LEAST:
        raise UserError(
            "E202",
            f"files of opset {current} are not converted",
            why=f"conversion begins at opset {LEAST}",
            next=f"convert it to opset {LEAST} with onnx.version_converter first",
        )
    infer_types(model)
    missing: dict[ir.Node, str] = {}
    step = 1 if target > current else -1
    for version in range(current, target, step) if current else ():
        _step(model, version, version + step, missing)
    if missing:
        raise UserError(
            "E202", f"{len(missing)} nodes have no form in opset {target}", why="; ".join(missing.values()),
            next="leave these nodes' opset, or choose one that has the operators",
        )  # fmt: skip
    model.graph.opset_imports[""] = target
    _settle_ir_version(model, is_down=step < 0)


def _settle_ir_version(model: ir.Model, *, is_down: bool) -> None:
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
    least = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
    now = model.ir_version or least
    model.ir_version = max(4, min(now, least) if is_down else max(now, least))


def _step(model: ir.Model, before: int, after: int, missing: dict[ir.Node, str]) -> None:
    """All nodes from one opset to the next or the one before."""
    model.graph.opset_imports[""] = before
    for _ in range(8):  # definitions may hold operators that have to be defined in turn
        bodies = 0
        for graph in list(graphs_of(model)):
            for node in list(graph):
                if node.domain or node.graph is None or node in missing or _is_same(node.op_type, before, after):
                    continue
                try:
                    bodies += _change(model, node, before, after)
                except NoForm as reason:
                    missing[node] = f"{node.op_type} {node.name or node.outputs[0].name} ({reason})"
        if not bodies:
            break
        InlinePass()(model)
        model.graph.opset_imports.pop(_BODIES, None)
        infer_types(model)
    model.graph.opset_imports[""] = after
    infer_types(model)


def _since(op_type: str, opset: int) -> int | None:
    """The version of an operator in an opset; None where the opset has it not."""
    schema = onnx_schema(op_type, opset)
    return None if schema is None or schema.deprecated else int(schema.since_version)


def _is_same(op_type: str, before: int, after: int) -> bool:
    return _since(op_type, before) == _since(op_type, after)


def _change(model: ir.Model, node: ir.Node, before: int, after: int) -> int:
    """Bring one node to the other opset. Returns 1 where its definition takes its place, else 0. Raises NoForm."""
    up, down = CHANGES.get((node.op_type, max(before, after)), (None, None))
    change = up if after > before else down
    if change is not None:
        try:
            change(Edit(model, node))
        except NoForm:
            if after < before and _define(model, node, before):
                return 1
            raise
        if node.graph is None:
            return 0
    if _since(node.op_type, after) is None:
        if after < before and _define(model, node, before):
            return 1
        raise NoForm(f"opset {after} has no such operator")
    try:
        _drop_defaults(node, before, after)
        _require(node, after)
    except NoForm:
        if after < before and _define(model, node, before):
            return 1
        raise
    return 0


def _drop_defaults(node: ir.Node, before: int, after: int) -> None:
    """Attributes that the other opset has not and that say what holds without them."""
    other = onnx_schema(node.op_type, after)
    own = None if _since(node.op_type, before) is None else onnx_schema(node.op_type, before)
    for name in list(node.attributes):
        if name in other.attributes:
            continue
        known = None if own is None else own.attributes.get(name)
        default = (
            None
            if known is None or not known.default_value.name
            else onnx.helper.get_attribute_value(known.default_value)
        )
        value = node.attributes[name].value
        plain = value.encode() if isinstance(value, str) else value
        is_neutral = name in _NEUTRAL and all(item == _NEUTRAL[name] for item in plain)
        if (default is None or plain != default) and not is_neutral:
            raise NoForm(f"opset {after} has no attribute {name}")
        node.attributes.pop(name)


def _require(node: ir.Node, opset: int) -> None:
    schema = onnx_schema(node.op_type, opset)
    if len(node.inputs) > schema.max_input:
        extra = [value for value in node.inputs[schema.max_input :] if value is not None]
        if extra:
            raise NoForm(f"opset {opset} has no input {schema.max_input}")
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
            continue
        parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
        name = f"tensor({value.dtype.name.lower()})"
        if name not in types_of(parameter, schema):
            raise NoForm(f"opset {opset} does not take {value.dtype.name.lower()} there")


def _define(model: ir.Model, node: ir.Node, opset: int) -> bool:
    """Let the node call ONNX's definition of its operator, which is inlined then. False where ONNX has none, or one that takes a
    graph.
    """
    schema = onnx_schema(node.op_type, opset)
    body = None if node.op_type in GRAPH_BEARING else _body(schema, node, opset)
    if body is None:
        return False
    number = len(model.functions)
    body.domain, body.name, body.overload = _BODIES, f"{node.op_type}_{number}", ""
    del body.opset_import[:]
    body.opset_import.add(domain="", version=opset)
    del body.output[len(node.outputs) :]
    made = {name for each in body.node for name in each.output}
    for name, value in zip(body.output, node.outputs, strict=True):
        if name not in made:  # the definition leaves out what the node does not give
            if value.name and (value.uses() or value.is_graph_output()):
                raise NoForm(f"opset {opset} does not define its output {name}")
            value.name = value.name or f"{body.name}/{name}"
            body.node.append(onnx.helper.make_node("Identity", [body.input[0]], [name]))
    for name, known in schema.attributes.items():
        if name not in node.attributes and known.default_value.name:
            node.attributes[name] = ir.serde.deserialize_attribute(known.default_value)
    function = ir.serde.deserialize_function(body)
    model.functions[function.identifier()] = function
    model.graph.opset_imports[_BODIES] = 1
    node.domain, node.op_type = _BODIES, body.name
    return True


def _body(schema: Any, node: ir.Node, opset: int) -> Any:
    """The definition as a ``FunctionProto``, or None."""
    if schema.has_function:
        body: Any = schema.get_function_with_opset_version(schema.since_version)
        content: bytes = body if isinstance(body, bytes) else body.SerializeToString()
        return onnx.FunctionProto.FromString(content)
    if schema.has_context_dependent_function:
        proto = ir.to_proto(node)
        types = []
        for value in node.inputs:
            kind = onnx.TypeProto()
            if value is not None and value.type is not None:
                ir.serde.serialize_type_into(kind, value.type)
                if value.shape is not None:
                    ir.serde.serialize_shape_into(kind, value.shape)
            types.append(kind.SerializeToString())
        made = schema.get_context_dependent_function_with_opset_version(
            schema.since_version, proto.SerializeToString(), types
        )
        return onnx.FunctionProto.FromString(made) if made else None
    return None
