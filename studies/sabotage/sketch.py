"""A small model in memory that is easy to harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]


@dataclass
class Site:
    """The place where a file was harmed: the values that come out of it, and what was done."""

    values: tuple[str, ...]
    text: str


@dataclass
class Sketch:
    """One copy of a file. ``sample``: what the export was made with, by input."""

    proto: onnx.ModelProto
    random: np.random.Generator
    sample: dict[str, Array]
    types: dict[str, tuple[int, tuple[str | int, ...]]] = field(default_factory=dict)

    @staticmethod
    def of(proto: onnx.ModelProto, seed: int, sample: dict[str, Array]) -> Sketch:
        copied = onnx.ModelProto()
        copied.CopyFrom(proto)
        sketch = Sketch(copied, np.random.default_rng(seed), sample)
        graph = copied.graph
        for value in [*graph.input, *graph.output, *graph.value_info]:
            kind = value.type.tensor_type
            dims = tuple(dim.dim_param or dim.dim_value for dim in kind.shape.dim)
            sketch.types[value.name] = kind.elem_type, dims
        for weight in graph.initializer:
            sketch.types[weight.name] = weight.data_type, tuple(weight.dims)
        return sketch

    @property
    def nodes(self) -> list[Any]:
        return list(self.proto.graph.node)

    def pick(self, candidates: list[Any]) -> Any:
        """One of them, or None."""
        return candidates[int(self.random.integers(len(candidates)))] if candidates else None

    def node_of(self, *op_types: str, where: Callable[[Any], bool] = lambda node: True) -> Any:
        return self.pick([node for node in self.nodes if node.op_type in op_types and where(node)])

    def weight(self, name: str) -> onnx.TensorProto | None:
        return next((each for each in self.proto.graph.initializer if each.name == name), None)

    def array(self, name: str) -> Array | None:
        found = self.weight(name)
        return None if found is None else np.array(numpy_helper.to_array(found))

    def readers(self, name: str) -> list[Any]:
        return [node for node in self.nodes if name in node.input]

    def is_float(self, name: str) -> bool:
        return self.types.get(name, (0, ()))[0] == onnx.TensorProto.FLOAT

    def is_whole(self, name: str) -> bool:
        return self.types.get(name, (0, ()))[0] == onnx.TensorProto.INT64

    def rank(self, name: str) -> int:
        return len(self.types.get(name, (0, ()))[1])

    def is_weight(self, name: str) -> bool:
        return self.weight(name) is not None

    def weights(self, kind: str = "f", least_rank: int = 1) -> list[tuple[str, Array]]:
        """Weights that a node reads, by name."""
        read = {name for node in self.nodes for name in node.input}
        arrays = [(each.name, np.array(numpy_helper.to_array(each))) for each in self.proto.graph.initializer]
        return [
            (name, array)
            for name, array in arrays
            if name in read and array.dtype.kind == kind and array.ndim >= least_rank
        ]

    def constants_of(self, node: Any, first: int = 1) -> Iterator[tuple[int, Array]]:
        """The node's inputs from ``first`` on that are whole numbers in the file, with their places."""
        for place, name in enumerate(node.input):
            array = self.array(name) if place >= first else None
            if array is not None and array.dtype == np.int64:
                yield place, array

    def fresh(self, base: str) -> str:
        taken = {name for node in self.nodes for name in [*node.input, *node.output]} | set(self.types)
        return next(name for number in range(1 << 20) if (name := f"harm_{base}_{number}") not in taken)

    def constant(self, array: Array) -> str:
        name = self.fresh("const")
        self.proto.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        self.types[name] = helper.np_dtype_to_tensor_dtype(array.dtype), tuple(array.shape)
        return name

    def set_weight(self, name: str, array: Array) -> None:
        old = self.weight(name)
        assert old is not None
        old.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))

    def set_input(self, node: Any, place: int, name: str) -> None:
        node.input[place] = name

    def insert(self, op_type: str, inputs: list[str], before: Any = None, **attributes: Any) -> str:
        """A new node in front of another one, or at the end; returns its output."""
        name = self.fresh(op_type)
        node = helper.make_node(op_type, inputs, [name], name=name, **attributes)
        self._place(node, before)
        return name

    def _place(self, node: Any, before: Any) -> None:
        nodes = self.nodes
        place = (
            len(nodes)
            if before is None
            else next(i for i, each in enumerate(nodes) if each is before or each == before)
        )
        self.proto.graph.node.insert(place, node)

    def after(self, node: Any, output: int, make: Callable[[str], str]) -> None:
        """Put in what ``make`` inserts from a renamed output of ``node``, which every reader then reads."""
        name = node.output[output]
        hidden = self.fresh("hidden")
        node.output[output] = hidden
        self.types[hidden] = self.types.get(name, (0, ()))
        place = next(i for i, each in enumerate(self.nodes) if hidden in each.output) + 1
        count = len(self.nodes)
        made = make(hidden)
        added = [helper_copy(each) for each in self.nodes[count:]]
        del self.proto.graph.node[count:]
        for each in reversed(added):
            each.output[0] = name if each.output[0] == made else each.output[0]
            self.proto.graph.node.insert(place, each)

    def bypass(self, node: Any, source: str) -> None:
        """Readers of the node's first output read ``source``; where it is an output of the file, it is a copy."""
        name = node.output[0]
        del node.output[:]
        node.output.append(self.fresh("dead"))
        self.proto.graph.node.insert(
            next(i for i, each in enumerate(self.nodes) if each.output == node.output) + 1,
            helper.make_node("Identity", [source], [name], name=self.fresh("Identity")),
        )

    def attribute(self, node: Any, name: str) -> Any:
        found = next((each for each in node.attribute if each.name == name), None)
        return None if found is None else helper.get_attribute_value(found)

    def set_attribute(self, node: Any, name: str, value: Any) -> None:
        for place, each in enumerate(node.attribute):
            if each.name == name:
                del node.attribute[place]
                break
        node.attribute.append(helper.make_attribute(name, value))

    def written(self) -> bytes:
        """The file; what was said of inner sizes may be wrong now and is left out."""
        del self.proto.graph.value_info[:]
        return bytes(self.proto.SerializeToString())


def helper_copy(node: Any) -> Any:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied
