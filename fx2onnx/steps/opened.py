"""A file of any origin as a graph that rewrites can take: no functions, weights in one place, every name once.

What is done, and for which files: functions are inlined; sparse weights become dense; weights of nested graphs move to the main
graph; weights that IR 3 lists among the inputs are weights alone (there a file could not leave them out); nodes are put in an order
in which they can run. Operators of other domains stay as they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from fx2onnx.base.errors import UserError, first_line
from fx2onnx.irx.edit import graphs_of, replace
from fx2onnx.irx.inference import has_map
from fx2onnx.optimize.fold_constants import store_constants
from fx2onnx.optimize.weights import DerivedTensor
from fx2onnx.semantics.check import check_model, open_file
from fx2onnx.semantics.reading.load import load_model
from fx2onnx.semantics.reading.weights import WeightStore, confined_path, dense_array

LITERAL_BYTES = 1024
"""Weights up to here count as constants that the exporter wrote down: they are folded and merged."""

FIRST_FREE_IR = 4
"""IR version from which a weight need not be an input, too."""


@dataclass
class Opened:
    """A file that was read; ``fresh`` makes a graph of it as often as one is needed."""

    proto: onnx.ModelProto
    path: str
    folders: tuple[str, ...]
    notes: list[str] = field(default_factory=list)
    maps: dict[str, onnx.TypeProto] = field(default_factory=dict)
    """Types of values that are maps, by name: onnx_ir has none."""

    dense: list[str] = field(default_factory=list)
    """Sentences of the last message that was written on sparse weights that it has dense."""

    literals: dict[int, tuple[ir.TensorProtocol, ir.TensorProtocol]] = field(default_factory=dict)
    """Small weights as they were read, and as the file has them: packed numbers take less room than bytes."""

    def as_in_file(self, model: ir.Model) -> None:
        """Give small weights that are as they were the form that the file has."""
        for name, value in model.graph.initializers.items():
            _, written = self.literals.get(id(value.const_value), (None, None))
            if written is not None and written.name == name:
                value.const_value = written

    def __post_init__(self) -> None:
        """Keep the types of maps here, so that onnx_ir takes the file: ``plain`` is the message without them."""
        self.plain = self.proto
        if not any(has_map(value.type) for value in (*self.proto.graph.output, *self.proto.graph.value_info)):
            return
        self.plain = onnx.ModelProto()
        self.plain.CopyFrom(self.proto)
        for value in (*self.plain.graph.output, *self.plain.graph.value_info):
            if has_map(value.type):
                self.maps[value.name] = onnx.TypeProto()
                self.maps[value.name].CopyFrom(value.type)
                value.ClearField("type")

    def finish(self, proto: onnx.ModelProto) -> None:
        """Give a message to be written what onnx_ir does not know: types of outputs, and weights that are sparse."""
        self.dense = _store_sparse(proto, self.proto)
        for value in proto.graph.output:
            if value.name in self.maps:
                value.type.CopyFrom(self.maps[value.name])

    @property
    def has_external_data(self) -> bool:
        """True if weights lie in other files."""
        return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in self.proto.graph.initializer)

    def fresh(self) -> ir.Model:
        """The model in the form that rewrites take. Raises UserError E302, E303."""
        notes: list[str] = []
        try:
            model = ir.from_proto(self.plain)
            _keep_names(model)
            _add_sparse(model, self.proto)
            _inline_functions(model, notes)
            for graph in graphs_of(model):
                graph.sort()
        except UserError:
            raise
        except Exception as error:  # onnx_ir has a class for each kind of damage
            raise UserError("E303", f"{self.what} is not a valid ONNX model", why=_root(error)) from error
        if self.proto.training_info:
            notes.append("the file's training_info is left out: optimized weights have other names")
        _name_all(model)
        _lift_weights(model)
        _free_inputs(model, notes)
        store_constants(model)
        self._bring_weights(model)
        self._check(model)
        self.notes = notes
        return model

    @property
    def what(self) -> str:
        return f"'{self.path}'" if self.path else "the given model"

    def _bring_weights(self, model: ir.Model) -> None:
        """Weights in other files are mapped, and small ones read."""
        store = WeightStore(self.folders)
        for name, value in model.graph.initializers.items():
            tensor = value.const_value
            what = f"{self.what}: {name!r}"
            if isinstance(tensor, ir.ExternalTensor):
                confined_path(str(tensor.location), self.folders, what)
                value.const_value = _Mapped(store, tensor, what)
            if value.const_value is not None and _is_literal(value.const_value):
                array = np.asarray(value.const_value.numpy())
                literal = ir.Tensor(array, dtype=value.const_value.dtype, name=name)
                self.literals[id(literal)] = literal, value.const_value
                value.const_value = literal

    def _check(self, model: ir.Model) -> None:
        """Raises UserError E303 where a node reads what nobody makes."""
        for graph in graphs_of(model):
            for node in graph:
                for value in node.inputs:
                    if (
                        value is not None
                        and value.producer() is None
                        and not value.is_initializer()
                        and not value.is_graph_input()
                    ):
                        what = f"{self.what} is not a valid ONNX model"
                        raise UserError(
                            "E303", what, why=f"{node.op_type} {node.name} reads {value.name!r}, which nothing makes"
                        )
        for value in model.graph.outputs:
            if value.producer() is None and not value.is_initializer() and not value.is_graph_input():
                raise UserError(
                    "E303", f"{self.what} is not a valid ONNX model", why=f"nothing makes the output {value.name!r}"
                )


class _Read(ir.serde.TensorProtoTensor):
    """A weight as the message has it, with a name of its own: onnx_ir's renames the message, which is read more than once."""

    __slots__ = ("_own_name",)

    def __init__(self, proto: onnx.TensorProto) -> None:
        super().__init__(proto)
        self._own_name = proto.name

    @property
    def name(self) -> str:
        """The name of the value whose weight this is."""
        return self._own_name

    @name.setter
    def name(self, value: str | None) -> None:
        self._own_name = value or ""

    @property
    def raw(self) -> onnx.TensorProto:
        """The tensor that is written: the message's own tensor, or a copy where the name is another."""
        proto = super().raw
        if proto.name == self._own_name:
            return proto
        renamed = onnx.TensorProto()
        renamed.CopyFrom(proto)
        renamed.name = self._own_name
        return renamed


class _Mapped(DerivedTensor):
    """A weight in another file: mapped when it is read, never copied as a whole."""

    def __init__(self, store: WeightStore, tensor: ir.ExternalTensor, what: str) -> None:
        sizes = [int(size) for size in tensor.shape]  # type: ignore[arg-type]
        super().__init__(lambda: store.held(tensor, what), (), tensor.dtype, sizes, str(tensor.name))


def open_model(source: Any) -> Opened:
    """Read a path, a ``ModelProto`` or an ``onnx_ir.Model``. Raises UserError E001, E302, E303."""
    if isinstance(source, (str, os.PathLike)):
        loaded = open_file(source)
    else:
        loaded = check_model(load_model(ir.to_proto(source) if isinstance(source, ir.Model) else source))
    return Opened(loaded.proto, loaded.path, loaded.folders)


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)[:200]


def _is_literal(tensor: ir.TensorProtocol) -> bool:
    small = tensor.nbytes <= LITERAL_BYTES and tensor.dtype != ir.DataType.STRING
    return small and type(tensor) is not ir.Tensor


def _keep_names(model: ir.Model) -> None:
    for graph in graphs_of(model):
        for value in graph.initializers.values():
            if type(value.const_value) is ir.serde.TensorProtoTensor:
                value.const_value = _Read(value.const_value.raw)


def _add_sparse(model: ir.Model, proto: onnx.ModelProto) -> None:
    """onnx_ir leaves these out. Whatever read one reads the dense weight."""
    for sparse in proto.graph.sparse_initializer:
        array = dense_array(sparse)
        name = sparse.values.name
        dense = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        for graph in graphs_of(model):
            for node in graph:
                for value in node.inputs:
                    if value is not None and value.name == name and value.producer() is None:
                        replace(value, dense)
        model.graph.register_initializer(dense)


def _store_sparse(proto: onnx.ModelProto, before: onnx.ModelProto) -> list[str]:
    """Let ``proto`` have the sparse weights of ``before`` that are as they were. Returns a sentence for each other one."""
    said, graph = [], proto.graph
    for sparse in before.graph.sparse_initializer:
        name = sparse.values.name
        place = next((at for at, tensor in enumerate(graph.initializer) if tensor.name == name), None)
        array = dense_array(sparse)
        if place is None or not _holds(graph.initializer[place], array):
            said.append(f"the sparse weight {name} is stored dense")
        elif sparse.ByteSize() < graph.initializer[place].ByteSize():
            del graph.initializer[place]
            graph.sparse_initializer.add().CopyFrom(sparse)
    return said


def _holds(tensor: onnx.TensorProto, array: npt.NDArray[Any]) -> bool:
    """Return whether these are the numbers of a tensor in the message itself."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    found = onnx.numpy_helper.to_array(tensor)
    return found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()


def _inline_functions(model: ir.Model, notes: list[str]) -> None:
    if not model.functions:
        return
    count = len(model.functions)
    names = {key[0] for key in model.functions}
    InlinePass()(model)
    notes.append(f"{count} functions were inlined")
    left = {node.domain for node in model.graph.all_nodes()}
    for domain in names - left - {""}:
        model.graph.opset_imports.pop(domain, None)


def _name_all(model: ir.Model) -> None:
    """Every value that is read has a name, and none has that of another; those of inputs and outputs stay."""
    graphs = list(graphs_of(model))
    fixed = [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]
    taken = {value.name: value for value in fixed}
    count = 0
    for graph in graphs:
        values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
        for value in values:
            if not value.name and not value.uses() and not value.is_graph_output():
                continue
            if value.name and taken.setdefault(value.name, value) is value:
                continue
            stem = value.name or "value"
            while (name := f"{stem}_{count}") in taken:
                count += 1
            if value.is_initializer():
                assert value.name is not None
                graph.initializers.pop(value.name)
                value.name = name
                graph.initializers[name] = value
            value.name = name
            taken[name] = value


def _lift_weights(model: ir.Model) -> None:
    """Weights of nested graphs live in the main graph, where every nested node can read them."""
    for graph in list(graphs_of(model))[1:]:
        for name, value in list(graph.initializers.items()):
            if value.is_graph_input():
                continue
            if value.is_graph_output():
                node = ir.Node("", "Identity", [value], name=f"{name}/given")
                node.outputs[0].name = f"{name}.given"
                node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
                graph.append(node)
                for index, output in enumerate(graph.outputs):
                    if output is value:
                        graph.outputs[index] = node.outputs[0]
            graph.initializers.pop(name)
            model.graph.initializers[name] = value


def _free_inputs(model: ir.Model, notes: list[str]) -> None:
    if (model.ir_version or 0) >= FIRST_FREE_IR:
        return
    weights = [value for value in model.graph.inputs if value.is_initializer()]
    for value in weights:
        model.graph.inputs.remove(value)
    model.ir_version = FIRST_FREE_IR
    if weights:
        notes.append(f"{len(weights)} weights are no inputs any more, as IR version {FIRST_FREE_IR} allows")
