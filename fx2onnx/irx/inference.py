"""Types of a graph that others wrote: dtype and dims of every value, from what the operators say.

What a file declares of values between nodes is not believed (it may be wrong, or of another size) except where an
operator is of a domain that nobody here knows. First ``onnx.shape_inference``, which knows every operator; then the
rules of ``irx.shapes``, which compute with symbolic sizes, and what integer values hold (``size_values``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, InternalError
from fx2onnx.irx import shapes
from fx2onnx.irx.schema import BROADCASTING, schema_of
from fx2onnx.irx.shapes.linear import CONTRIB, infer_contrib
from fx2onnx.irx.shapes.table import Contradiction
from fx2onnx.irx.size_values import SizeValues
from fx2onnx.irx.values import Dims, dims_of, forget_dims, note_dims, set_type
from fx2onnx.sizes.expr import Dim, DimLike, product
from fx2onnx.sizes.text import named, parse_dim

STANDARD = frozenset({"", "ai.onnx.ml"})
"""Domains whose operators ``onnx.shape_inference`` knows."""

LARGE_BYTES = 1024
"""Weights above this are described to onnx's inference, not shown."""

OWN_RULES = frozenset(shapes.RULES) - {
    "Dropout",
    "BatchNormalization",
    "RandomNormal",
    "RandomUniform",
    "TopK",
    "OneHot",
}
"""Operators whose dims are computed with symbolic sizes; of the others onnx's inference says as much."""

_NO_SHAPE = (
    shapes.UnknownShape, Contradiction, ValueError, IndexError, KeyError, AssertionError, TypeError, ZeroDivisionError,
)  # fmt: skip
"""The exceptions of a rule on operands for which it gives no shape."""


def infer_types(model: ir.Model) -> list[InternalError]:
    """Give every value its dtype and dims, as far as they follow. Returns an error for each contradiction, which names
    the nodes."""
    _clear(model)
    _infer_by_onnx(model)
    faults: list[InternalError] = []
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        _note_declared(value)
    _refine(model.graph, model.graph.opset_imports.get("", 0), SizeValues(), faults)
    return faults


def _clear(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        for value in node.outputs:
            forget_dims(value)
            if node.domain in STANDARD and not value.is_graph_output():
                value.shape, value.type = None, None
    for value in model.graph.inputs:
        forget_dims(value)


def _infer_by_onnx(model: ir.Model) -> None:
    outputs = [value for value in model.graph.outputs if value.producer() is not None]
    declared = [(value.type, value.shape) for value in outputs]
    for value in outputs:
        node = value.producer()
        if node is not None and node.domain in STANDARD:
            value.shape = None
    try:
        with _light(model):
            proto = ir.to_proto(model)
        told = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        for value in (*told.graph.value_info, *told.graph.output):
            if has_map(value.type):
                value.ClearField("type")
        inferred = ir.from_proto(told)
    except Exception:  # onnx's C++ has errors of its own for what it does not understand; then only our rules speak
        inferred = None
    for value, (kind, shape) in zip(outputs, declared, strict=True):
        value.type, value.shape = kind, shape
    if inferred is not None:
        _copy(inferred.graph, model.graph)


def has_map(kind: onnx.TypeProto) -> bool:
    """Return whether the type is a map or a sequence of maps, of which onnx_ir has none."""
    if kind.HasField("sequence_type"):
        return has_map(kind.sequence_type.elem_type)
    return bool(kind.HasField("map_type"))


@contextlib.contextmanager
def _light(model: ir.Model) -> Iterator[None]:
    """Large weights are inputs for as long as the model is described, so that no number of theirs is copied."""
    graph = model.graph
    large = [
        value
        for value in graph.initializers.values()
        if value.const_value is None or value.const_value.nbytes > LARGE_BYTES
    ]
    tensors = [value.const_value for value in large]
    added = [value for value in large if not value.is_graph_input()]
    for value in large:
        tensor = value.const_value
        if tensor is not None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape([int(size) for size in tensor.shape])  # type: ignore[arg-type]
        assert value.name is not None
        graph.initializers.pop(value.name)
        value.const_value = None
    graph.inputs.extend(added)
    try:
        yield
    finally:
        for value in added:
            graph.inputs.remove(value)
        for value, tensor in zip(large, tensors, strict=True):
            value.const_value = tensor
            assert value.name is not None
            graph.initializers[value.name] = value


def _copy(inferred: ir.Graph, graph: ir.Graph) -> None:
    """Types from a graph of the same nodes in the same order, nested ones too."""
    for told, node in zip(inferred, graph, strict=True):
        for source, value in zip(told.outputs, node.outputs, strict=False):
            if source.type is not None:
                value.type = source.type
            if source.shape is not None and not any(isinstance(dim, int) and dim < 0 for dim in source.shape):
                value.shape = source.shape.copy()
        for name, attribute in told.attributes.items():
            if attribute.type == ir.AttributeType.GRAPH:
                body, own = attribute.as_graph(), node.attributes[name].as_graph()
                for source, value in zip(body.inputs, own.inputs, strict=False):
                    if source.type is not None and value.type is None:
                        value.type = source.type
                    if source.shape is not None and value.shape is None:
                        value.shape = source.shape.copy()
                _copy(body, own)


def _note_declared(value: ir.Value) -> None:
    """The dims that a file gives an input, expressions read (``2*batch``), and those of a weight."""
    tensor = value.const_value
    if tensor is not None:
        value.type = ir.TensorType(tensor.dtype)
        value.shape = ir.Shape([int(size) for size in tensor.shape])  # type: ignore[arg-type]
    if value.shape is not None:
        note_dims(value, [_dim(value, axis, dim) for axis, dim in enumerate(value.shape)])


def _dim(value: ir.Value, axis: int, dim: int | ir.SymbolicDim) -> DimLike:
    if isinstance(dim, int):
        return dim
    if dim.value is None:
        return Dim.symbol(f"{value.name}_{axis}")
    read = parse_dim(str(dim.value))
    return read if isinstance(read, Dim) else named(str(dim.value))


def _refine(graph: ir.Graph, opset: int, sizes: SizeValues, faults: list[InternalError]) -> None:
    for node in graph:
        if (node.domain, node.op_type) in CONTRIB:
            _refine_contrib(node)
        elif not node.domain:
            if node.op_type in OWN_RULES:
                _refine_node(node, opset, faults)
            sizes.visit(node)
        elif node.domain == "ai.onnx.ml":
            _note_ml_types(node)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _refine(attribute.as_graph(), opset, sizes, faults)


_LABELS = ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")
_FLOATS = ("LinearRegressor", "Normalizer", "OneHotEncoder", "SVMRegressor", "Scaler", "TreeEnsembleRegressor")


def _note_ml_types(node: ir.Node) -> None:
    """dtypes of outputs of ``ai.onnx.ml``, where onnx's inference says nothing."""
    first = node.outputs[0]
    if node.op_type in _LABELS:
        has_integers = any(name in node.attributes for name in ("classlabels_ints", "classlabels_int64s"))
        first.dtype = first.dtype or (ir.DataType.INT64 if has_integers else ir.DataType.STRING)
        if len(node.outputs) > 1 and node.outputs[1].dtype is None:
            node.outputs[1].dtype = ir.DataType.FLOAT
    elif node.op_type in _FLOATS and first.dtype is None:
        first.dtype = ir.DataType.FLOAT
    elif node.op_type == "ArrayFeatureExtractor" and node.inputs[0] is not None:
        source, places = node.inputs[0], node.inputs[1]
        if source.dtype is not None:
            first.dtype = source.dtype
        if source.dtype is not None and source.shape is not None and places is not None and places.shape is not None:
            dims = dims_of(source)
            set_type(first, source.dtype, (*(dims[:-1] if len(dims) > 1 else (1,)), product(dims_of(places))))


def _refine_node(node: ir.Node, opset: int, faults: list[InternalError]) -> None:
    if any(value is not None and (value.dtype is None or value.shape is None) for value in node.inputs):
        return
    if node.op_type in BROADCASTING and _is_open_broadcast(node):
        return
    try:
        attrs = {name: _plain(attribute) for name, attribute in node.attributes.items()}
        names = schema_of(node.op_type, opset).input_names
        typed = shapes.infer(shapes.ShapeCall(node.op_type, node.inputs, attrs, len(node.outputs), names))
    except Contradiction as found:
        found.node = found.node or f"{node.op_type} {node.name or node.outputs[0].name}"
        faults.append(found)
        return
    except (*_NO_SHAPE, Fx2OnnxError):
        return
    _note_types(node, typed)


def _note_types(node: ir.Node, typed: list[shapes.Typed]) -> None:
    for value, (dtype, dims) in zip(node.outputs, typed, strict=False):
        merged = _merged(value, dims)
        if merged is not None and value.dtype in (None, dtype):
            set_type(value, dtype, merged)


def _refine_contrib(node: ir.Node) -> None:
    """The same of an operator that onnxruntime has and ONNX has not; no schema says the names of its inputs."""
    if any(value is not None and (value.dtype is None or value.shape is None) for value in node.inputs):
        return
    attrs = {name: _plain(attribute) for name, attribute in node.attributes.items()}
    with contextlib.suppress(*_NO_SHAPE, Fx2OnnxError):
        _note_types(node, infer_contrib(node.domain, shapes.ShapeCall(node.op_type, node.inputs, attrs, 1, ())))


def _is_open_broadcast(node: ir.Node) -> bool:
    """Return whether two different symbolic sizes meet: either may be 1 while the model runs."""
    all_dims = [dims_of(value) for value in node.inputs if value is not None]
    for axis in range(1, max(map(len, all_dims), default=0) + 1):
        met = {dims[-axis] for dims in all_dims if axis <= len(dims) and isinstance(dims[-axis], Dim)}
        if len(met) > 1:
            return True
    return False


def _merged(value: ir.Value, dims: Dims) -> Dims | None:
    """The dims of both values together: a number wins over an expression. None where the two do not agree on the rank."""
    if value.shape is None:
        return dims
    if len(value.shape) != len(dims):
        return None
    return tuple(told if isinstance(told, int) else own for told, own in zip(value.shape, dims, strict=True))


def _plain(attribute: ir.Attr) -> object:
    found = attribute.value
    return list(found) if isinstance(found, tuple) else found


def without_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy in which values that are maps have no type: onnx_ir does not read them."""
    if not any(has_map(value.type) for value in _typed(proto)):
        return proto
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    for value in _typed(plain):
        if has_map(value.type):
            value.ClearField("type")
    return plain


def _typed(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
