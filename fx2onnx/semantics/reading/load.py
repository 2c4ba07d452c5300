"""From a path, bytes, a ``ModelProto`` or an ``onnx_ir.Model`` to a ``ModelProto`` and the places of its weights."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from fx2onnx.base.errors import UserError, no_such_file


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, the folders its external data may lie in, and weights that are in memory already, by name."""

    proto: onnx.ModelProto
    folders: tuple[str, ...]
    path: str = ""
    held: Mapping[str, Any] = field(default_factory=dict)


def load_model(source: Any, external_folder: str = "") -> LoadedModel:
    """Read a model; ``build_program`` checks what it says.

    Raises: UserError E302 for a file that cannot be read, E303 for bytes that are no model, E001 for another type.
    """
    folders: tuple[str, ...] = (external_folder,) if external_folder else ()
    if isinstance(source, onnx.ModelProto):
        return LoadedModel(source, folders)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        # A hub cache keeps links to files in another folder: both the link's and its target's folder are the model's.
        folders += (os.path.dirname(path) or ".", os.path.dirname(os.path.realpath(path)))
        return LoadedModel(_parse(_read(path), path), folders, path)
    content = content_of(source)
    if content is not None:
        return LoadedModel(_parse(content, "the given bytes"), folders)
    if _is_onnx_ir_model(source):
        proto, held = _without_weights(source)
        return LoadedModel(proto, folders, "", held)
    own = getattr(source, "model_proto", None)  # of an ExportResult, and of torch's ONNXProgram
    if isinstance(own, onnx.ModelProto):
        return LoadedModel(own, folders)
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
            missing = no_such_file(path)
            if re.fullmatch(r"[\w.]+:\w[^/\\]*", path):
                missing.add_next((), before=("the ONNX file comes first, then the model: fx2onnx verify FILE SOURCE",))
            raise missing from error
        raise UserError("E302", f"cannot read '{path}'", why=str(error)) from error


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    if not data:
        raise UserError("E303", f"{what} is not an ONNX model", why="it is empty", next=AGAIN)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RuntimeError, ValueError) as error:
        known = (why_next for start, why_next in _OTHER_FILES.items() if data.lstrip().startswith(start))
        why, step = next(known, ("it is cut off, damaged or of another format", AGAIN))
        raise UserError("E303", f"{what} is not an ONNX model", why=why, next=step) from error
    return proto


AGAIN = "copy, download or export the file again"
"""Advice for a file that is empty, cut off or damaged."""


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
