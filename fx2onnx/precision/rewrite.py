"""A draft carried out: dtypes of values and weights, and a Cast for each value that is wanted in both."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.names import FreeNames
from fx2onnx.irx.values import copied_type
from fx2onnx.precision.draft import Draft
from fx2onnx.precision.forms import DTYPE_ATTRIBUTES
from fx2onnx.precision.options import METADATA_KEY
from fx2onnx.precision.values import in_dtype
from fx2onnx.targets.match import word_of

D = ir.DataType


def carry_out(draft: Draft) -> int:
    """Change the draft's model in place. Returns how many casts that took."""
    return _Writer(draft).run()


class _Writer:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.model = draft.model
        self.names = FreeNames(draft.model)
        self.casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.homes: dict[ir.Value, ir.DataType] = {}

    def run(self) -> int:
        """All edits: what a value becomes is decided before any is made."""
        draft, wide = self.draft, self.draft.wide
        nodes = list(draft.nodes())
        values = [value for graph in graphs_of(self.model) for value in (*graph.inputs, *graph.initializers.values())]
        values += [value for node in nodes for value in node.outputs]
        tensors = [value for value in values if value.dtype == wide and _is_tensor(value)]
        self.homes = {value: draft.home(value) for value in tensors}
        wanted = [
            (node, place, value, dtype)
            for node in nodes
            for place, value in enumerate(node.inputs)
            if value in self.homes and (dtype := draft.wanted(node, place)) is not None
        ]
        ends = [(graph, place, value) for graph in graphs_of(self.model) for place, value in enumerate(graph.outputs)]
        for node in nodes:
            self._set_attributes(node)
        for value, home in self.homes.items():
            self._set_type(value, home)
        for node, place, value, dtype in wanted:
            if self.homes[value] != dtype:
                node.replace_input_with(place, self._cast(value, dtype, node))
        for graph, place, value in ends:
            if value in self.homes:
                self._give_out(graph, place, value)
        self.model.metadata_props[METADATA_KEY] = draft.precision.metadata()
        return len(self.casts)

    def _set_type(self, value: ir.Value, home: ir.DataType) -> None:
        tensor = value.const_value
        if value.dtype == home:
            return
        value.type = ir.TensorType(home)
        if tensor is not None and tensor.dtype != home and value.producer() is None:
            value.const_value = in_dtype(tensor, home)

    def _set_attributes(self, node: ir.Node) -> None:
        """The dtype that a node says of its result, and numbers among its attributes."""
        draft = self.draft
        home = draft.home(node.outputs[0]) if node.outputs and node.outputs[0].dtype == draft.wide else None
        if home is None or home == draft.wide:
            return
        for name in DTYPE_ATTRIBUTES:
            attribute = node.attributes.get(name)
            if attribute is not None and attribute.type == ir.AttributeType.INT and attribute.as_int() == draft.wide:
                node.attributes[name] = ir.AttrInt64(name, home)
        value = node.attributes.get("value")
        if value is not None and value.type == ir.AttributeType.TENSOR and value.as_tensor().dtype == draft.wide:
            node.attributes["value"] = ir.AttrTensor("value", in_dtype(value.as_tensor(), home))

    def _cast(self, value: ir.Value, dtype: ir.DataType, reader: ir.Node) -> ir.Value:
        """The value in another dtype: one Cast for all readers, where the value is made."""
        found = self.casts.get((value, dtype))
        if found is not None:
            return found
        result = copied_type(value, self.names.free(f"{value.name}/as_{word_of(dtype)}"))
        result.type = ir.TensorType(dtype)
        result.const_value = None
        cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], outputs=[result], name=f"{result.name}/Cast")
        producer = value.producer()
        cast.metadata_props.update((producer or reader).metadata_props)
        if producer is not None and producer.graph is not None:
            producer.graph.insert_after(producer, cast)
        else:
            home = value.graph if isinstance(value.graph, ir.Graph) else self.model.graph
            home.insert_before(next(iter(home)), cast)
        self.casts[value, dtype] = result
        return result

    def _give_out(self, graph: ir.Graph, place: int, value: ir.Value) -> None:
        """An output in the dtype that it is to have, under its name."""
        is_main = graph is self.model.graph
        wanted = self.draft.io if is_main else D.FLOAT
        if self.homes[value] == wanted:
            return
        last = next(reversed(graph), None)
        assert last is not None
        result = self._cast(value, wanted, last)
        graph.outputs[place] = result
        if is_main and value not in graph.outputs and not value.is_graph_input():
            name = value.name
            value.name = self.names.free(f"{name}/in_{word_of(self.homes[value])}")
            result.name = name


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType)
