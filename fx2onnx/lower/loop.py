"""The loop over the ATen nodes: each becomes what its table entry emits."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
import torch.fx

from fx2onnx.aten_map.table.dtypes import onnx_dtype
from fx2onnx.aten_map.table.registry import Table, TableEntry, fill_defaults
from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.events import details, record
from fx2onnx.base.metadata import BAKED, CHANGED, PRODUCER, STATE, VERSION
from fx2onnx.base.opsets import IR_VERSIONS
from fx2onnx.capture.captured import NEXT, OF_CALLER, Captured, GraphOutput, TensorInfo, carried, label_of, where_of
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.irx.builder import Builder
from fx2onnx.irx.edit import nested_graphs
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.table import Contradiction, differ
from fx2onnx.irx.values import OutputType, dims_of, dtype_of, let_go, mark_complex, new_value, set_known_sizes, set_type
from fx2onnx.lower import control_flow, preflight, torchlib
from fx2onnx.lower.layers import RepeatedLayers
from fx2onnx.lower.weights import as_onnx
from fx2onnx.sizes import stated as size_conditions
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.text import named


class Lowering:
    """One conversion: ATen node -> ONNX value(s)."""

    def __init__(self, captured: Captured, table: Table, opset: int, metadata: str, lift_state: bool) -> None:
        self.captured = captured
        self.state_key = STATE if lift_state else CHANGED
        self.lifted = carried(captured, lift_state)  # each an input, if the module holds it, and an output
        self.state_inputs: list[ir.Value] = []
        self.table = table
        self.metadata = metadata
        self.builder = Builder(opset)
        self.op = Emit(self.builder)
        self.values: dict[torch.fx.Node, Any] = {}
        self.output_names: list[str] = []
        self.refusals: list[tuple[torch.fx.Node, Fx2OnnxError]] = []
        self.resorts: dict[str, str] = {}
        """Overloads without an entry of ours, and where their form comes from."""
        self._named: set[int] = set()
        recorder = details()
        self._log = recorder.log if recorder is not None else []
        self._is_timed = recorder is not None
        self.used: set[torch.fx.Node] = set()
        self._touching_complex: frozenset[torch.fx.Node] = frozenset()
        self._entries: dict[torch.fx.Node, TableEntry] = {}
        """The entry of each call that the table has."""
        self._files: dict[str, str] = {}
        """The files of source lines as metadata names them."""
        self._symbols: dict[torch.fx.Node, list[str]] = {}
        """The names of the sizes that each node gives."""
        for name, symbol in captured.symbols.items():
            self._symbols.setdefault(symbol.node, []).append(name)
        self._lifted_weights = {mutation.name for mutation in self.lifted if mutation.kind not in OF_CALLER}

    def run(self) -> ir.Model:
        captured = self.captured
        with record("preflight"):
            used = preflight.used_nodes(captured, [mutation.node for mutation in self.lifted])
            nodes = list(preflight.nodes_with_depth(captured.graph))
            touching = self._touching_complex = preflight.touching_complex(nodes)
            preflight.check_depth(nodes, used)
            preflight.check_numbers_read(captured, self._lifted_weights)
            self._entries = preflight.check(nodes, used, touching, self.table, self.builder.opset)
        with record("translate"):
            self.builder.sizes = captured.sizes
            inputs = self.builder.inputs = [self._input(graph_input) for graph_input in captured.inputs]
            for name in sorted(self._lifted_weights):  # inputs, whose names come first
                self.builder.unique(name)
            self.output_names = [self.builder.unique(output.name) for output in captured.outputs]
            self.output_names += [self.builder.unique(mutation.name + NEXT) for mutation in self.lifted]
            for name, symbol in captured.symbols.items():
                if symbol.node.op == "placeholder":
                    self.builder.symbols[name] = (self.values[symbol.node], symbol.axis)
            self.used = used
            translate = self._translate if self._is_timed else self._node
            layers = RepeatedLayers(self.builder, self.values, translate, self._stamped, self._may_repeat)
            layers.run([node for node in captured.graph.nodes if node in used])
            if self.refusals:
                raise preflight.combined(self.refusals, self.builder.opset)
            outputs = self._outputs([*inputs, *self.state_inputs])
        with record("build"):
            return self._model([*inputs, *self.state_inputs], outputs)

    def _input(self, graph_input: Any) -> ir.Value:
        dtype, dims = self._type(graph_input.info)
        value = new_value(self.builder.unique(graph_input.name), dtype, dims)
        if graph_input.info.dtype.is_complex:
            mark_complex(value)
        self.values[graph_input.node] = value
        return value

    @staticmethod
    def _type(info: TensorInfo) -> OutputType:
        dtype = onnx_dtype(info.dtype)
        return (onnx_dtype(info.dtype.to_real()), (*info.dims, 2)) if info.dtype.is_complex else (dtype, info.dims)

    def _weight(self, node: torch.fx.Node) -> ir.Value:
        weight = self.captured.weights[str(node.target)]
        tensor = weight.tensor
        if weight.name in self._lifted_weights:
            value = new_value(weight.name, *self._type(node.meta["val"]))
            self.state_inputs.append(value)
            return value
        is_complex = tensor.is_complex()
        may_be_read = weight.kind == "constant" and tensor.device.type != "meta"
        if may_be_read and tensor.numel() <= 64 and not is_complex:
            return self.builder.constant(as_onnx(tensor, weight.name).numpy(), onnx_dtype(tensor.dtype))
        held = torch.view_as_real(tensor.resolve_conj()) if is_complex else tensor
        kept = as_onnx(held, weight.name, self.builder.reads)
        value = self.builder.add_initializer(weight.name, kept, tuple(held.shape))
        return mark_complex(value) if is_complex else value

    def _outputs(self, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Graph outputs under their names. Each needs a value of its own: one that is an input, a weight or another
        output already is copied by Identity, save an input returned under its own name.
        """
        self.op.origin, self.op.scope = {}, ""
        given = {id(value) for value in inputs}
        taken = given | {id(value) for value in self.builder.initializers.values()}
        results: list[ir.Value] = []
        wanted = [*self.captured.outputs, *(GraphOutput(m.name, m.node, m.name) for m in self.lifted)]
        for index, (output, name) in enumerate(zip(wanted, self.output_names, strict=True)):
            value = self._output_value(output)
            if id(value) in taken:
                is_own = index < len(self.captured.outputs) and value.name == output.name
                if is_own and id(value) in given:
                    given.discard(id(value))
                    results.append(value)
                    continue
                value = self.op.Identity(value)
            taken.add(id(value))
            value.name = name
            results.append(value)
        return results

    def _output_value(self, output: GraphOutput) -> ir.Value:
        if isinstance(output.value, torch.fx.Node):
            value = self.values[output.value]
            if not isinstance(value, ir.Value):
                raise preflight.not_computed(output)
            return value
        if isinstance(output.value, Dim):
            return self.op.size(output.value)
        is_real = isinstance(output.value, float)
        return self.op.const(output.value, ir.DataType.DOUBLE if is_real else None)

    def _model(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
        builder = self.builder
        reachable = {value for node in builder.nodes for value in node.inputs if value is not None} | set(outputs)
        inner = _inner_uses(builder.nodes)
        initializers = [value for value in builder.initializers.values() if value in reachable or id(value) in inner]
        graph = ir.Graph(
            list(inputs),
            list(outputs),
            nodes=builder.nodes,
            initializers=initializers,
            opset_imports=builder.opset_imports,
            name="main",
        )
        state = dict(zip((m.name for m in self.lifted), self.output_names[len(self.captured.outputs) :], strict=True))
        captured, has_lines = self.captured, self.metadata != "none"
        assumed, kept = captured.assumptions, captured.states_guards
        conditions = size_conditions.written(assumed, with_guards=kept, with_lines=has_lines) if assumed else None
        properties = {} if conditions is None else {size_conditions.METADATA_KEY: conditions}
        if captured.baked:
            properties[BAKED] = json.dumps(captured.baked)
        if state:
            properties[self.state_key] = json.dumps(state)
        return ir.Model(
            graph,
            metadata_props=properties or None,
            ir_version=IR_VERSIONS[builder.opset],
            producer_name=PRODUCER,
            producer_version=VERSION,
            functions=list(builder.functions.values()),
        )

    def _translate(self, node: torch.fx.Node) -> None:
        if not self._is_timed or node.op != "call_function":  # a weight takes a few microseconds, and there are many
            self._node(node)
            return
        start_ns = time.perf_counter_ns()
        try:
            self._node(node)
        finally:
            self._log.extend((node, start_ns, time.perf_counter_ns(), label_of, None))

    def _node(self, node: torch.fx.Node) -> None:
        if node.op == "placeholder":
            return
        if node.op == "get_attr":
            self.values[node] = self._weight(node)
            return
        if node.target is operator.getitem:
            source, index = node.args
            self.values[node] = self.values[source][index]  # type: ignore[index]
        else:
            self._call(node)
        if self._symbols:
            self._bind_symbols(node)

    def _may_repeat(self, node: torch.fx.Node) -> bool:
        """Return whether a node's ONNX form follows from its operands alone: it is none of the user's, and no size comes from it."""
        if node in self._symbols or self.refusals:
            return False
        entry = self._entries.get(node)
        return entry.is_ours if entry is not None else node.op != "call_function" or node.target is operator.getitem

    def _stamped(self, node: torch.fx.Node, value: Any, made: Sequence[ir.Node]) -> None:
        """Leave a node that was stamped as ``_node`` would have."""
        origin = self._origin(node)
        if origin:
            for item in made:
                item.metadata_props.update(origin)
        self.values[node] = value
        if node.target is not operator.getitem:
            for index, one in enumerate(value if isinstance(value, tuple) else (value,)):
                if isinstance(one, ir.Value):
                    self._name(one, node.name if index == 0 else f"{node.name}_{index}")

    def nested(self, graph: Nested, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """Emit a nested graph here, its inputs being ``operands``; returns its outputs."""
        self.values.update(zip(graph.inputs, operands, strict=True))
        outer = self.builder.sizes
        self.builder.sizes = graph.sizes or outer
        for node in graph.graph.nodes:
            if node in self.used:
                self._translate(node)
        self.builder.sizes = outer
        return [self.values[node] for node in graph.outputs]

    def _call(self, node: torch.fx.Node) -> None:
        op = self.op
        infos = node.meta["val"]
        is_tuple = isinstance(infos, tuple)
        types = op.result = tuple([self._type(info) for info in (infos if is_tuple else (infos,)) if info is not None])
        op.scope = node.meta.get("module") or ""
        op.origin = self._origin(node)
        entry = self._entries.get(node)
        if entry is None:
            if node.target in control_flow.EMITTERS:
                control_flow.check_dtypes(node, types, self.builder.opset)
                self.values[node] = control_flow.EMITTERS[node.target](self, node)
                return
            entry = torchlib.entry_for(node.target, node in self._touching_complex)
            self.resorts[str(node.target)] = "torchlib"
        assert entry is not None, "preflight let a missing entry pass"
        operands = [self._operand(arg) for arg in node.args]
        named = {name: self._operand(arg) for name, arg in node.kwargs.items()} if node.kwargs else {}
        arguments = fill_defaults(entry.overload, operands, named)
        try:
            result = entry.call(op, arguments)
        except UserError as error:  # what follows is still looked at, so that one message names all that is refused
            located = preflight.located(error, node)
            located.__cause__ = error.__cause__
            self.refusals.append((node, located))
            values = (new_value(self.builder.unique(node.name), dtype, dims) for dtype, dims in types)
            result = tuple(None if info is None else next(values) for info in infos) if is_tuple else next(values)
        except Fx2OnnxError as error:
            if isinstance(error, Contradiction) or not preflight.is_ours(entry):
                raise preflight.failed(node, entry, error, self.builder.sizes) from error
            raise preflight.located(error, node) from error.__cause__
        except Exception as cause:  # an entry may be the user's; the error names entry, node and line
            raise preflight.failed(node, entry, cause, self.builder.sizes) from cause
        if is_tuple:
            self.values[node] = self._all_checked(node, entry, result, infos)
            return
        if isinstance(result, tuple | list) and len(result) == 1:
            (result,) = result
        self.values[node] = self._checked(node, entry, result, infos, node.name)

    def _origin(self, node: torch.fx.Node) -> dict[str, str]:
        if self.metadata == "none":
            return {}
        origin = {}
        where = where_of(node)
        if where is not None:
            file = self._files.get(where.file)
            if file is None:
                file = self._files[where.file] = where.relative_file()
            origin["source"] = f"{file}:{where.line}"
        if self.metadata == "full":
            origin["aten"] = str(node.target)
            origin["fx"] = node.name
        return origin

    def _operand(self, arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return self.values[arg]
        if isinstance(arg, list | tuple):
            return [self._operand(item) for item in arg]
        return arg

    def _all_checked(self, node: torch.fx.Node, entry: TableEntry, result: Any, infos: Sequence[Any]) -> Any:
        """Check what the entry returned for several results, and name it."""
        values = list(result) if isinstance(result, tuple | list) else [] if result is None else [result]
        values += [None] * (len(infos) - len(values))
        checked = [
            None
            if value is None or info is None
            else self._checked(node, entry, value, info, node.name if index == 0 else f"{node.name}_{index}")
            for index, (value, info) in enumerate(zip(values, infos, strict=False))
        ]
        used: set[Any] = {user.args[1] for user in node.users if user in self.used and user.target is operator.getitem}
        is_lacking = not preflight.is_ours(entry) and any(values[index] is None for index in used)
        if len(values) > len(infos) or is_lacking:
            raise preflight.mistaken(node, entry, preflight.shown(values), str(len(infos)), self.builder.sizes)
        return tuple(checked)

    def _checked(self, node: torch.fx.Node, entry: TableEntry, value: Any, info: TensorInfo, name: str) -> ir.Value:
        """Check what the entry returned against PyTorch's type, and name it."""
        if not isinstance(value, ir.Value):
            raise preflight.mistaken(node, entry, preflight.shown(value), "one tensor", {})
        dtype, dims = self._type(info)
        known = dims_of(value)
        is_same = known == dims
        is_unlike = not is_same and any(differ(*pair, self.builder.sizes) for pair in zip(known, dims, strict=False))
        if dtype_of(value) != dtype or len(known) != len(dims) or is_unlike:
            given, wanted = preflight.shown_type(dtype_of(value), known), preflight.shown_type(dtype, dims)
            raise preflight.mistaken(node, entry, given, wanted, self.builder.sizes)
        if info.dtype.is_complex:
            mark_complex(value)
        if self._name(value, name) and not is_same:
            set_type(value, dtype, dims)
        return value

    def _name(self, value: ir.Value, name: str) -> bool:
        """Name what a node made after it; False where the value has its name or came from elsewhere."""
        if value.producer() is None or id(value) in self._named:
            return False
        self._named.add(id(value))
        value.name = self.builder.unique(name)
        return True

    def _bind_symbols(self, node: torch.fx.Node) -> None:
        """Sizes that follow from the data come from the node that has them."""
        for name in self._symbols.get(node, ()):
            if name not in self.builder.symbols:
                self.builder.symbols[name] = value, axis = self.values[node], self.captured.symbols[name].axis
                if axis is None:
                    set_known_sizes(value, (named(name),))


def _inner_uses(nodes: Sequence[ir.Node]) -> set[int]:
    """Ids of the values that nested graphs read."""
    result: set[int] = set()
    for node in nodes:
        for graph in nested_graphs(node):
            inner = list(graph)
            result |= {id(value) for item in inner for value in item.inputs if value is not None}
            result |= {id(value) for value in graph.outputs}
            result |= _inner_uses(inner)
    return result


def lower(
    captured: Captured,
    table: Table,
    opset: int,
    metadata: str = "light",
    lift_state: bool = False,
    resorts: dict[str, str] | None = None,
    values: dict[torch.fx.Node, Any] | None = None,
    has_checks: bool = True,
) -> ir.Model:
    """The captured graph as an ONNX model in exactly ``opset``.

    ``resorts`` is filled with the overloads without an entry in ``table``, and where their form is from, ``values`` with nodes'.
    ``lift_state`` makes every buffer that forward changes an input and an output, every changed input an output; the
    model's metadata ``fx2onnx.state`` maps one to the other, as JSON. ``has_checks``: nodes check data-dependent sizes.

    Raises: UserError E2xx with the user's line; nothing is emitted where an overload has no translation.
    """
    table = table if has_checks else control_flow.without_checks(table)
    lowering = Lowering(captured, table, opset, metadata, lift_state)
    try:
        model = lowering.run()
    except BaseException:
        let_go(lowering.builder.initializers.values())
        raise
    if resorts is not None:
        resorts.update(lowering.resorts)
    if values is not None:
        values.update(lowering.values)
    return model
