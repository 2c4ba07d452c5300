"""From a path, bytes, a ``ModelProto`` or an ``onnx_ir.Model`` to a checked ``onnx_ir.Model``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from fx2onnx.base.errors import UserError
from fx2onnx.runner.limits import MAX_NESTING, check_shape
from fx2onnx.runner.types import numpy_dtype_of_code

_DESERIALIZE_FAULTS = (ValueError, TypeError, KeyError, RuntimeError, AttributeError, AssertionError, IndexError)
"""What protobuf and onnx_ir raise on a garbled model; the cause is chained."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and the folders its external data may lie in."""

    model: ir.Model
    folders: tuple[str, ...]
    path: str = ""


def load_model(source: Any, external_folder: str = "") -> LoadedModel:
    """Read and check a model.

    Raises: UserError E302 for a file that cannot be read, E303 for a model that is not valid, E001 for another type.
    """
    if isinstance(source, ir.Model):
        return LoadedModel(source, (external_folder,) if external_folder else ())
    folders: tuple[str, ...] = (external_folder,) if external_folder else ()
    path = ""
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        data = _read(path)
        # A hub cache keeps links to files in another folder: both the link's and its target's folder are the model's.
        folders += (os.path.dirname(path) or ".", os.path.dirname(os.path.realpath(path)))
        proto = _parse(data, path)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        proto = _parse(bytes(source), "the given bytes")
    elif isinstance(source, onnx.ModelProto):
        proto = source
    else:
        raise UserError(
            "E001",
            f"a model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, not {type(source).__name__}",
        )
    return LoadedModel(_deserialize(proto), folders, path)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise UserError("E302", f"the model file {path!r} cannot be read", why=str(error)) from error


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        raise UserError("E303", f"{what} is not an ONNX model", why=str(error)[:200]) from error
    return proto


def _deserialize(proto: onnx.ModelProto) -> ir.Model:
    try:
        check_proto(proto)
        if any(_is_sparse(graph) for graph in _graphs(proto.graph, 0)):
            dense = onnx.ModelProto()
            dense.CopyFrom(proto)
            for graph in list(_graphs(dense.graph, 0)):
                _densify(graph)
            proto = dense
        return ir.serde.deserialize_model(proto)
    except RecursionError as error:
        raise UserError("E303", "the model nests graphs or types too deeply") from error
    except _DESERIALIZE_FAULTS as error:
        raise UserError("E303", "the model is garbled", why=_innermost(error)) from error


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[:200]}"


def _graphs(graph: onnx.GraphProto, depth: int) -> Iterable[onnx.GraphProto]:
    if depth > MAX_NESTING:
        raise UserError("E303", f"graphs are nested more than {MAX_NESTING} deep")
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g, depth + 1)
            for inner in attribute.graphs:
                yield from _graphs(inner, depth + 1)


def check_proto(proto: onnx.ModelProto) -> None:
    """What must hold before ``onnx_ir`` reads the model: a graph, opsets, single assignment, known names.

    Raises: UserError E303.
    """
    if not proto.HasField("graph"):
        raise UserError("E303", "the model has no graph")
    if not proto.opset_import:
        raise UserError("E303", "the model has no opset_import")
    _check_text(proto.graph.name, *(entry.domain for entry in proto.opset_import))
    _check_graph(proto.graph, (), 0)
    seen: set[tuple[str, str, str]] = set()
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        _check_text(*key, *function.input, *function.output, *function.attribute)
        if key in seen:
            raise UserError("E303", f"the function {function.domain}::{function.name} is defined twice")
        seen.add(key)
        _check_nodes(function.node, set(_distinct(function.input, "function input")), (), function.name, 0)
        produced = {name for node in function.node for name in node.output} | set(function.input)
        for name in function.output:
            if name not in produced:
                raise UserError("E303", f"nothing in function {function.name} makes its output {name!r}")


def _check_text(*names: str | bytes) -> None:
    """protobuf hands out text that is not UTF-8 as bytes."""
    if bytes in map(type, names):
        wrong = next(name for name in names if isinstance(name, bytes))
        raise UserError("E303", f"the model has a name that is not text: {wrong[:40]!r}")


def _distinct(names: Iterable[str], what: str) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        _check_text(name)
        if name in found:
            raise UserError("E303", f"the {what} {name!r} occurs twice")
        found[name] = None
    return list(found)


def _check_graph(graph: onnx.GraphProto, outer: tuple[set[str], ...], depth: int) -> None:
    if depth > MAX_NESTING:
        raise UserError("E303", f"graphs are nested more than {MAX_NESTING} deep")
    inputs = _distinct((info.name for info in graph.input), "graph input")
    constants = [tensor.name for tensor in graph.initializer]
    constants += [sparse.values.name for sparse in graph.sparse_initializer]
    if "" in constants:
        raise UserError("E303", f"an initializer of graph {graph.name!r} has no name")
    own = {*inputs, *_distinct(constants, "initializer")}
    _check_nodes(graph.node, own, outer, graph.name, depth)
    for info in graph.output:
        _check_text(info.name)
        if info.name not in own and not any(info.name in names for names in outer):
            raise UserError("E303", f"nothing in graph {graph.name!r} makes its output {info.name!r}")


def _check_nodes(
    nodes: Iterable[onnx.NodeProto], own: set[str], outer: tuple[set[str], ...], where: str, depth: int
) -> None:
    # Each repeated field is read once: reading protobuf is most of the time that a small model takes here.
    fields = [(node, list(node.input), list(node.attribute)) for node in nodes]
    for node, inputs, _ in fields:
        outputs = list(node.output)
        _check_text(node.op_type, node.domain, node.name, *inputs, *outputs)
        for name in outputs:
            if name and name in own:
                raise UserError("E303", f"{name!r} has two definitions in {where!r}", node=_line(node))
            own.add(name)
    for node, inputs, attributes in fields:
        for name in inputs:
            if name and name not in own and not any(name in names for names in outer):
                raise UserError("E303", f"the input {name!r} of a node in {where!r} is made nowhere", node=_line(node))
        if attributes:
            _distinct((attribute.name for attribute in attributes), f"attribute of {node.op_type}")
        for attribute in attributes:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _check_graph(inner, (*outer, own), depth + 1)


def _line(node: onnx.NodeProto) -> str:
    text = (
        f"{', '.join(node.output)} = {node.domain + '::' if node.domain else ''}{node.op_type}({', '.join(node.input)})"
    )
    return text[:200]


def _is_sparse(graph: onnx.GraphProto) -> bool:
    constants = (node for node in graph.node if node.op_type == "Constant")
    return bool(graph.sparse_initializer) or any(a.HasField("sparse_tensor") for n in constants for a in n.attribute)


def _densify(graph: onnx.GraphProto) -> None:
    """Replace sparse initializers and sparse Constants by dense ones; onnx_ir does not read sparse tensors."""
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("sparse_tensor"):
                dense = dense_array(attribute.sparse_tensor)
                attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(dense)))
    for sparse in graph.sparse_initializer:
        tensor = onnx.numpy_helper.from_array(dense_array(sparse), sparse.values.name)
        graph.initializer.append(tensor)
    del graph.sparse_initializer[:]


def dense_array(sparse: Any) -> Any:
    """The dense form of a ``SparseTensorProto``. Raises: UserError E303 for indices out of range."""
    import numpy as np

    dims = tuple(sparse.dims)
    check_shape(dims, numpy_dtype_of_code(sparse.values.data_type), "a sparse tensor")
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices).astype(np.int64)
    if indices.ndim == 2:
        if indices.shape[1] != len(dims) or (indices < 0).any() or (indices >= np.array(dims)).any():
            raise UserError("E303", f"the sparse tensor {sparse.values.name!r} has indices out of range")
        indices = indices @ np.array([int(np.prod(dims[axis + 1 :])) for axis in range(len(dims))], np.int64)
    dense = np.zeros(dims, values.dtype)
    if indices.size != values.size or (indices < 0).any() or (indices >= dense.size).any():
        raise UserError("E303", f"the sparse tensor {sparse.values.name!r} has indices out of range")
    dense.reshape(-1)[indices] = values
    return dense
