"""ONNX files as proofs read them: the file, its nodes and their attributes, and their values on constants."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx.inliner
import onnx.shape_inference
from onnx.reference import ReferenceEvaluator

from fx2onnx.irx.model_files import graphs_within
from fx2onnx.proof.sizes import Dim, NamedSize
from fx2onnx.semantics.check import open_file
from fx2onnx.semantics.reading.weights import WeightStore
from fx2onnx.semantics.schemas import onnx_schema

Array: TypeAlias = npt.NDArray[Any]
RANDOM = frozenset(
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"]
)
_STEPS_NAMES = """
ArgMax ArgMin Bernoulli Cast CastLike Ceil DynamicQuantizeLinear Equal Floor Greater GreaterOrEqual Hardmax IsInf IsNaN Less LessOrEqual
MaxUnpool Mod Multinomial NonMaxSuppression NonZero OneHot QuantizeLinear Range Resize Round Shrink Sign ThresholdedRelu TopK Unique
Upsample
"""
STEPS = frozenset(_STEPS_NAMES.split())
"""Operators whose results jump: a rounding of a float that they read may change them by more."""
FOLD_BYTES = 64 << 20
"""Constants up to here are computed by value."""


def evaluated(node: onnx.NodeProto, arrays: Sequence[Array | None], opset: int) -> list[Array] | None:
    """The outputs of a node on constants, by the evaluator of the onnx package; None where it has none or they are large."""
    if node.op_type == "Transpose" and arrays[0] is not None:  # a view, whatever its size
        return [np.transpose(arrays[0], attributes_of(node, opset).get("perm"))]
    total = sum(0 if array is None else array.nbytes for array in arrays)
    if total > FOLD_BYTES or node.op_type in RANDOM or node.op_type in ("Conv", "If", "Loop", "Scan"):
        return None
    if any(array is not None and array.dtype.kind not in "fiubOU" for array in arrays):
        return None
    if node.op_type == "GatherElements":  # onnx's evaluator has no value where the first axis is 1
        return _gathered(arrays, int(attributes_of(node, opset).get("axis", 0)))
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(name for name in node.input if name)]
    for value in inputs:
        array = next(array for name, array in zip(node.input, arrays, strict=True) if name == value.name)
        assert array is not None
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        value.type.CopyFrom(onnx.helper.make_tensor_type_proto(kind, array.shape))
    names = [name for name in node.output if name]
    graph = onnx.GraphProto(name="constant", node=[node], input=inputs)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=[onnx.helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, {n: a for n, a in zip(node.input, arrays, strict=True) if n})
    except Exception:  # an evaluator of the onnx package has classes of its own for what it lacks
        return None
    results = [np.asarray(each) for each in found]
    return None if sum(each.nbytes for each in results) > FOLD_BYTES else results


def _gathered(arrays: Sequence[Array | None], axis: int) -> list[Array] | None:
    data, places = arrays
    if data is None or places is None:
        return None
    parts = tuple(slice(None if each == axis % data.ndim else size) for each, size in enumerate(places.shape))
    try:
        return [np.take_along_axis(data[parts], places, axis)]
    except IndexError:
        return None


def may_step(node: onnx.NodeProto, dtypes: Mapping[str, str]) -> bool:
    """Return whether a rounding of a float that a node reads may change its results by more than roundings.

    dtypes: those of the values that have one.
    """
    held = [each.g for each in node.attribute if each.HasField("g")]
    if any(may_step(inner, dtypes) for graph in held for inner in graph.node):
        return True
    if node.domain not in ("", "ai.onnx"):
        return node.domain != "com.microsoft" or "Quant" in node.op_type or node.op_type.startswith("Q")
    if node.op_type not in STEPS:
        return False
    if node.op_type in ("Cast", "CastLike") and dtypes.get(node.output[0], "").startswith(("float", "bfloat")):
        return False
    return any(dtypes.get(name, "float").startswith(("float", "bfloat")) for name in node.input if name)


def attributes_of(node: onnx.NodeProto, opset: int) -> dict[str, Any]:
    """The attributes of a node as Python values, with the defaults of its schema."""
    schema = onnx_schema(node.op_type, opset, node.domain)
    found: dict[str, Any] = {}
    for name, attribute in (schema.attributes if schema is not None else {}).items():
        if attribute.default_value is not None and attribute.default_value.type:
            found[name] = onnx.helper.get_attribute_value(attribute.default_value)
    for attribute in node.attribute:
        found[attribute.name] = onnx.helper.get_attribute_value(attribute)
    return found


def as_key(value: Any) -> Any:
    """An attribute as part of a key."""
    if isinstance(value, onnx.TensorProto | onnx.SparseTensorProto | onnx.TypeProto | onnx.GraphProto):
        return value.SerializeToString(deterministic=True)
    if isinstance(value, float):  # 1.0 is not 1, and 0.0 not -0.0
        return value.hex()
    return tuple(map(as_key, value)) if isinstance(value, list | tuple) else value


def reads_of(node: onnx.NodeProto) -> list[str]:
    """The names that the graphs of a node read, in the order of their first use."""
    held = [each for each in node.attribute if each.HasField("g") or each.graphs]
    graphs = [graph for each in held for graph in (*([each.g] if each.HasField("g") else ()), *each.graphs)]
    parts = [part for graph in graphs for part in graphs_within(graph) if isinstance(part, onnx.GraphProto)]
    names = [name for part in parts for inner in part.node for name in inner.input]
    return list(dict.fromkeys([*names, *(value.name for part in parts for value in part.output)]))


_SEEN_BYTES = 1024
_IR_OF_DEFAULTS = 4


class OpenedFile:
    """An ONNX file as proofs read it: its nodes without functions, its constants, and what shapes are known."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        loaded = open_file(path)
        self.path, self.proto = os.fspath(path), loaded.proto
        graph = self.proto.graph
        if self.proto.functions:
            self.proto = onnx.inliner.inline_local_functions(self.proto)
            graph = self.proto.graph
        store = WeightStore(loaded.folders)
        self.constants = {each.name: store.any_array(each, each.name) for each in graph.initializer}
        self.constants |= {
            each.values.name: store.any_array(each, each.values.name) for each in graph.sparse_initializer
        }
        takes_defaults = self.proto.ir_version >= _IR_OF_DEFAULTS
        self.defaults = [value.name for value in graph.input if takes_defaults and value.name in self.constants]
        """The inputs that are weights where nothing is given for them."""
        self.inputs = [value.name for value in graph.input if value.name not in self.constants]
        self.outputs = [value.name for value in graph.output]
        self.opsets = {
            "" if each.domain == "ai.onnx" else each.domain: each.version for each in self.proto.opset_import
        }
        self.dims: dict[str, tuple[Dim | None, ...]] = {}
        """Sizes as numbers or as the names that the inputs give them."""
        self.dtypes: dict[str, str] = {}
        self._unsure: set[str] = set()
        self._infer()
        for name in self._unsure:
            del self.dims[name]

    def _infer(self) -> None:
        """Shapes by onnx, whose inference sees no large weights, and what the file declares."""
        proto = onnx.ModelProto(ir_version=self.proto.ir_version, opset_import=self.proto.opset_import)
        graph = self.proto.graph
        proto.graph.node.extend(graph.node)
        proto.graph.input.extend(graph.input)
        proto.graph.output.extend(graph.output)
        proto.graph.value_info.extend(graph.value_info)
        declared = {value.name for value in graph.input}
        for name, array in self.constants.items():
            if array.nbytes <= _SEEN_BYTES and array.dtype.kind in "iufb":
                proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
            elif name not in declared and array.dtype != object:
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                proto.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
        try:
            proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception:  # onnx has classes of its own; what the file declares stays
            proto = self.proto
        sized = [value.type.tensor_type.shape.dim for value in graph.input]
        names = {dim.dim_param for dims in sized for dim in dims if dim.dim_param}
        for part in graphs_within(proto.graph):
            assert isinstance(part, onnx.GraphProto)
            for value in (*part.value_info, *part.input, *part.output):
                self._note(value, names, is_inner=part is not proto.graph)
        for name, array in self.constants.items():
            self.dims[name], self.dtypes[name] = array.shape, str(array.dtype)

    def _note(self, value: onnx.ValueInfoProto, names: set[str], *, is_inner: bool) -> None:
        """Keep dtype and sizes of a value; two branches may each have one of its name, of which nothing is kept where they differ."""
        kind = value.type.tensor_type
        if kind.elem_type:
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
            known = self.dtypes.setdefault(value.name, dtype)
            self.dtypes[value.name] = dtype if not is_inner or known == dtype else ""
        if kind.HasField("shape"):
            named = [NamedSize.of("size", dim.dim_param) if dim.dim_param in names else None for dim in kind.shape.dim]
            sizes = zip(kind.shape.dim, named, strict=True)
            dims = tuple(dim.dim_value if dim.HasField("dim_value") else name for dim, name in sizes)
            if is_inner and self.dims.setdefault(value.name, dims) != dims:
                self._unsure.add(value.name)
            self.dims[value.name] = dims

    def with_outputs(self, names: Iterable[str]) -> bytes:
        """The file with further values as outputs, its weights inside."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        for tensor in proto.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                name = tensor.name
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(self.constants[name]), name))
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in self.outputs)
        content: bytes = proto.SerializeToString()
        return content
