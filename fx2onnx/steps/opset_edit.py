"""What changes of operators between opsets are written with: a node, its constants, and new nodes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.irx.edit import graphs_of, replace

_NAMES = "fx2onnx.names"


def _names_of(model: ir.Model) -> set[str]:
    """The names of all values and nodes."""
    found: set[str] = set()
    for graph in graphs_of(model):
        values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
        found.update(value.name or "" for value in values)
        found.update(node.name or "" for node in graph)
    return found


class NoForm(Exception):
    """The node cannot be expressed in the other opset; the text says why."""


class Edit:
    """One node that another opset writes otherwise."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model = model
        self.node = node

    # -- looking ------------------------------------------------------------------------------------------------
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

    def rank(self) -> int:
        """How many axes the first input has. Raises NoForm."""
        value = self.input(0)
        if value is None or value.shape is None:
            raise NoForm("the rank of its input is not known")
        return len(value.shape)

    # -- editing ------------------------------------------------------------------------------------------------
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
