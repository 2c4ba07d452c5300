"""From a path, bytes, a ``ModelProto`` or an ``onnx_ir.Model`` to a ``ModelProto``, its opsets, its functions and the places of its weights."""

from __future__ import annotations

import io
import os
import string
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from fx2onnx.base.errors import UserError, no_such_file
from fx2onnx.semantics.limits import MAX_NESTING
from fx2onnx.semantics.reading.nodes import GRAPH, NodeText, check_text, distinct
from fx2onnx.semantics.registry import PRIVATE_DOMAIN
from fx2onnx.semantics.schemas import newest_opset


@dataclass(frozen=True, slots=True)
class LoadedProto:
    """A model, the folders its external data may lie in, and weights that are in memory already, by name."""

    proto: onnx.ModelProto
    folders: tuple[str, ...]
    path: str = ""
    held: Mapping[str, Any] = field(default_factory=dict)


def load_model(source: Any, external_folder: str = "") -> LoadedProto:
    """Read a model; ``build_program`` checks what it says.

    Raises: UserError E302 for a file that cannot be read, E303 for bytes that are no model, E001 for another type.
    """
    folders: tuple[str, ...] = (external_folder,) if external_folder else ()
    if isinstance(source, onnx.ModelProto):
        return LoadedProto(source, folders)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        # A hub cache keeps links to files in another folder: both the link's and its target's folder are the model's.
        folders += (os.path.dirname(path) or ".", os.path.dirname(os.path.realpath(path)))
        return LoadedProto(_parse(_read(path), path), folders, path)
    content = content_of(source)
    if content is not None:
        return LoadedProto(_parse(content, "the given bytes"), folders)
    if _is_onnx_ir_model(source):
        proto, held = _without_weights(source)
        return LoadedProto(proto, folders, "", held)
    own = getattr(source, "model_proto", None)  # of an ExportResult, and of torch's ONNXProgram
    if isinstance(own, onnx.ModelProto):
        return LoadedProto(own, folders)
    raise UserError(
        "E001",
        f"a model is a path, bytes, an onnx.ModelProto, an onnx_ir.Model or an ExportResult, not {type(source).__name__}",
        next="give the file: model.onnx; a PyTorch module becomes one with fx2onnx.export(module, args, 'model.onnx')",
    )


def content_of(source: Any) -> bytes | None:
    """The bytes of a model that are in memory, as such or in an ``io.BytesIO``; None where ``source`` is something else."""
    source = source.getbuffer() if isinstance(source, io.BytesIO) else source
    return bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else None


_OTHER_FILES = {
    b"version https://git-lfs": ("it is the pointer of a file in Git LFS", "git lfs pull"),
    b"<": ("it is a page or another text, as a failed download leaves it", "download the file again"),
    b"PK": ("it is an archive, as torch.save writes it", "load it into its module, and export that"),
}
"""First bytes of other files, and what to do about them."""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            raise no_such_file(path) from error
        raise UserError("E302", f"cannot read '{path}'", why=str(error)) from error


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    if not data:
        raise UserError("E303", f"{what} is not an ONNX model", why="it is empty", next=AGAIN)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        known = (why_next for start, why_next in _OTHER_FILES.items() if data.lstrip().startswith(start))
        is_text = not data.translate(None, string.printable.encode())
        other = ("it is a text file", "give the path of an ONNX file") if is_text else _DAMAGED
        why, step = next(known, other)
        raise UserError("E303", f"{what} is not an ONNX model", why=why, next=step) from error
    return proto


AGAIN = "copy, download or export the file again"
"""Advice for a file that is empty, cut off or damaged."""
_DAMAGED = ("it is cut off, damaged or of another format", AGAIN)


def _is_onnx_ir_model(source: Any) -> bool:
    onnx_ir = sys.modules.get("onnx_ir")  # whoever has such a model has imported it
    return onnx_ir is not None and isinstance(source, onnx_ir.Model)


def _without_weights(model: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model as a ``ModelProto``, and the weights of its main graph, which stay where they are."""
    import onnx_ir as ir

    proto = onnx.ModelProto(
        ir_version=model.ir_version or 8,
        producer_name=model.producer_name or "",
        domain=model.domain or "",
        model_version=model.model_version or 0,
        doc_string=model.doc_string or "",
    )
    for domain, version in model.graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    onnx.helper.set_model_props(proto, model.metadata_props)
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    graph = proto.graph
    graph.name, graph.doc_string = model.graph.name or "", model.graph.doc_string or ""
    for value in model.graph.inputs:
        ir.serde.serialize_value_into(graph.input.add(), value)
    for node in model.graph:
        ir.serde.serialize_node_into(graph.node.add(), node)
        for value in node.outputs:
            if value.type is not None and not value.is_graph_output():
                ir.serde.serialize_value_into(graph.value_info.add(), value)
    for value in model.graph.outputs:
        ir.serde.serialize_value_into(graph.output.add(), value)
    held = {name: value.const_value for name, value in model.graph.initializers.items()}
    for name, tensor in held.items():
        if tensor is None:
            raise UserError("E303", f"the initializer {name!r} has no data")
    return proto, held


def check_presence(proto: Any) -> int:
    """The model's IR version. Raises: UserError E303 for none, one from the future, and a model without graph or opset."""
    version: int = proto.ir_version
    if version < 1:
        raise UserError(
            "E303",
            "the model does not say its IR version",
            why=f"ModelProto.ir_version must be there, and is {version or 'missing'}",
            next="set it: model.ir_version = 10 in Python",
        )
    if version > onnx.IR_VERSION:
        raise UserError(
            "E303",
            f"the model has IR version {version}; the installed onnx knows up to {onnx.IR_VERSION}",
            next="install a newer onnx",
        )
    if not proto.HasField("graph"):
        raise UserError("E303", "the model has no graph")
    check_text(proto.producer_name, proto.producer_version, proto.domain)
    check_text(*(text for entry in proto.metadata_props for text in (entry.key, entry.value)))
    if not proto.opset_import:
        raise UserError("E303", "the model has no opset_import")
    return version


def opsets_of(imports: Iterable[Any]) -> dict[str, int]:
    """Version by domain, the standard one as "". Raises: UserError E303 for a version that cannot be."""
    opsets: dict[str, int] = {}
    for entry in imports:
        domain, version = entry.domain, entry.version
        check_text(domain)
        if not 1 <= version < 1 << 31:
            raise UserError("E303", "an opset version is out of range")
        name = "" if domain == "ai.onnx" else domain
        if opsets.setdefault(name, version) != version:
            raise UserError("E303", f"two versions of the opset {domain!r} are imported: {opsets[name]} and {version}")
    for name, version in opsets.items():
        newest = newest_opset(name)
        if newest is not None and version > newest:
            what = f"opset {version} of {name}" if name else f"opset {version}"
            raise UserError(
                "E303", f"the model needs {what}; the installed onnx knows up to {newest}", next="install a newer onnx"
            )
    return opsets


def check_domain(text: NodeText, version: int | None) -> None:
    """Raises: UserError E303 for a node of a domain that the model does not import, and of the runner's own."""
    if text.domain == PRIVATE_DOMAIN:
        what = f"the domain {text.domain!r} is the runner's own; models cannot use it"
        raise UserError("E303", what, node=str(text))
    if version is None:
        raise UserError(
            "E303",
            f"the model imports no opset of domain {text.domain or 'ai.onnx'!r}",
            node=str(text),
            next="add the domain and its version to opset_import",
        )


def functions_of(proto: Any) -> dict[tuple[str, str, str], Any]:
    """The model's functions by domain, name and overload, without those of the standard domain: its operators win there.

    Raises: UserError E303 for one that is defined twice, calls itself, or uses what it does not define or import.
    """
    result: dict[tuple[str, str, str], Any] = {}
    calls: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for function in proto.functions:
        domain = _plain(function.domain)
        check_text(domain, function.name, function.overload, *function.output, *function.attribute)
        key = (domain, function.name, function.overload)
        if key in calls:
            raise UserError("E303", f"the function {domain}::{function.name} is defined twice")
        _check_function(function)
        calls[key] = _check_imports(function)
        if domain:
            result[key] = function
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        domain, name, _ = error.args[1][0]
        raise UserError("E303", f"the function {domain}::{name} calls itself") from error
    return result


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _check_function(function: Any) -> None:
    """Raises: UserError E303 for a name that occurs twice, and for a value that nothing makes."""
    inputs = distinct(function.input, f"input of the function {function.name}")
    distinct(function.output, f"output of the function {function.name}")
    with_default = [attribute.name for attribute in function.attribute_proto]
    distinct([*function.attribute, *with_default], f"attribute of the function {function.name}")
    known = {*inputs, *(name for node in function.node for name in node.output)}
    for node in function.node:
        for name in node.input:
            if name and name not in known:
                raise UserError("E303", f"the input {name!r} of a node in {function.name!r} is made nowhere")
    for name in function.output:
        if name not in known:
            raise UserError("E303", f"nothing in function {function.name} makes its output {name!r}")


def _check_imports(function: Any) -> list[tuple[str, str, str]]:
    """The operators that the function's nodes may call. Raises: UserError E303 for one of a domain that the function does not
    import.
    """
    imported = opsets_of(function.opset_import)
    called = []
    for node in _deep_nodes(function.node, 0):
        check_text(node.op_type, node.domain, node.name, node.overload, *node.input, *node.output)
        domain = _plain(node.domain)
        if domain not in imported:
            raise UserError(
                "E303",
                f"the function {function.domain}::{function.name} imports no opset of domain {node.domain!r}",
                node=f"{node.op_type}({', '.join(node.input)})"[:200],
                why="each function says itself which opsets its nodes are of",
                next="add the domain to the function's opset_import",
            )
        called.append((domain, node.op_type, node.overload))
    return called


def _deep_nodes(nodes: Iterable[Any], depth: int) -> Iterator[Any]:
    """The nodes, and those of the graphs in their attributes."""
    if depth > MAX_NESTING:
        raise UserError("E303", f"graphs are nested more than {MAX_NESTING} deep")
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == GRAPH:
                yield from _deep_nodes(attribute.g.node, depth + 1)
