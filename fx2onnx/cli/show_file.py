"""The facts on any ONNX file: its graph alone is read, never the data of weights beside it."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from fx2onnx.base.errors import UserError
from fx2onnx.cli.files import check_apart, check_readable
from fx2onnx.cli.show_parts import Outline, dims_of, length_of, modules_of, outline_of, owner_of, sources_of, tied_of
from fx2onnx.files.folder_commit import MANIFEST
from fx2onnx.files.staging import write_text
from fx2onnx.irx.values import dtype_name
from fx2onnx.report.document import model_page
from fx2onnx.runner.trainer import METADATA_KEY as STATE_KEY
from fx2onnx.semantics.check import open_file
from fx2onnx.sizes import stated as size_conditions
from fx2onnx.sizes.stated import SizeCondition


def facts_of_path(path: Path, html: Path | None) -> dict[str, Any]:
    """The facts on a file or a folder of fx2onnx, as JSON types; ``html`` is a page to write. Raises UserError E001,
    E301 to E303.
    """
    if os.path.isdir(path) and os.path.lexists(path / MANIFEST):
        if html is not None:
            raise UserError("E001", "--html shows one graph", next=f"name one of the files in '{path}'")
        return _folder_facts(path)
    from fx2onnx.cli.run_data import model_in

    file = model_in(path)
    check_readable(file)
    return facts_of(file) if html is None else write_page(file, html)


def _folder_facts(folder: Path) -> dict[str, Any]:
    """The facts in the manifest, without the digests of files. Raises UserError E302."""
    from fx2onnx.manifest.form import read_manifest

    manifest = read_manifest(folder)
    stated = dataclasses.asdict(manifest)
    for form, graph in zip(manifest.graphs, stated["graphs"], strict=True):
        graph["conditions"] = conditions(form.size_conditions())
    said = {key: value for key, value in stated.items() if key not in ("files", "copied", "obsolete")}
    files = {**(manifest.files or {}), **(manifest.copied or {})}
    return {"folder": str(folder), **said, "files": {name: entry.bytes for name, entry in files.items()}}


def facts_of(path: Path) -> dict[str, Any]:
    """The facts as JSON types. Raises UserError E302 for a file that cannot be read, E303 for one that is no ONNX model."""
    return described(path, open_file(path).proto)[0]


def write_page(path: Path, page: Path) -> dict[str, Any]:
    """Write the page of a file, and give its facts. Raises as ``facts_of``, and UserError E301."""
    facts, outline = described(path, open_file(path).proto)
    check_apart([page], [path, *(path.parent / beside["file"] for beside in facts["weights"]["external"])])
    modules = {row["module"] for row in facts["modules"]}
    weights = [
        {"name": w.name, "module": owner_of(w, modules), "dtype": w.dtype, "shape": w.shape, "bytes": w.bytes}
        for w in outline.weights
    ]
    write_text(page, model_page(facts, outline.nodes, weights))
    return facts


def described(path: Path, proto: onnx.ModelProto) -> tuple[dict[str, Any], Outline]:
    """The facts, and every node and weight that they sum up."""
    graph, held = proto.graph, _Contents()
    held.take_graph(graph)
    for function in proto.functions:
        held.take_nodes(function.node)
    initializers = {tensor.name for tensor in graph.initializer} | {
        each.values.name for each in graph.sparse_initializer
    }
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    sides = {
        "input": [_value(value) for value in graph.input if value.name not in initializers],
        "output": [_value(value) for value in graph.output],
    }
    outline = outline_of(proto)
    facts = {
        "file": str(path),
        "bytes": path.stat().st_size,
        "graph": graph.name,
        "producer": " ".join(filter(None, (proto.producer_name, proto.producer_version))),
        "ir_version": proto.ir_version,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        "inputs": sides["input"],
        "outputs": sides["output"],
        "dims": dims_of(sides),
        "nodes": held.operators.total(),
        "operators": dict(held.operators.most_common()),
        "functions": len(proto.functions),
        "weights": held.described(path.parent),
        "parameters": sum(weight.elements for weight in outline.weights),
        "tied": tied_of(outline),
        "modules": modules_of(outline),
        "sources": sources_of(outline),
        **_stated(metadata),
    }
    return facts, outline


def conditions(rows: Iterable[SizeCondition]) -> list[dict[str, Any]]:
    """The conditions as JSON types: the dims, the text, and the line that asks for it."""
    return [{"dims": sorted(row.names), "condition": row.text, "where": row.where} for row in rows]


def _stated(metadata: dict[str, str]) -> dict[str, Any]:
    """The metadata that fx2onnx and other tools wrote beside the graph. What cannot be read is shown as it stands."""
    found: dict[str, Any] = {"conditions": [], "state": {}}
    try:
        found["conditions"] = conditions(size_conditions.read(metadata.get(size_conditions.METADATA_KEY, "[]")))
        metadata.pop(size_conditions.METADATA_KEY, None)
        found["state"] = dict(json.loads(metadata.get(STATE_KEY, "{}")))
        metadata.pop(STATE_KEY, None)
    except (UserError, ValueError, TypeError, RecursionError):
        pass
    return found | {"metadata": metadata}


@dataclass
class _Contents:
    """Nodes and tensors of graphs, those inside nodes included."""

    operators: collections.Counter[str] = field(default_factory=collections.Counter)
    tensors: int = 0
    bytes: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """Bytes that lie in other files."""

    def take_graph(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._take_tensor(tensor)
        for sparse in graph.sparse_initializer:
            self._take_tensor(sparse.values)
        self.take_nodes(graph.node)

    def take_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            is_standard = node.domain in ("", "ai.onnx")
            self.operators[node.op_type if is_standard else f"{node.domain}::{node.op_type}"] += 1
            for attribute in node.attribute:
                for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
                    self._take_tensor(tensor)
                for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                    self.take_graph(graph)

    def _take_tensor(self, tensor: onnx.TensorProto) -> None:
        self.tensors += 1
        length = length_of(tensor)
        self.bytes += length
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
            self.files[place] = self.files.get(place, 0) + length

    def described(self, folder: Path) -> dict[str, Any]:
        beside = [
            {"file": name, "bytes": length, "is_there": bool(name) and os.path.isfile(folder / name)}
            for name, length in self.files.items()
        ]
        return {"tensors": self.tensors, "bytes": self.bytes, "external": beside}


def _value(value: onnx.ValueInfoProto) -> dict[str, Any]:
    dtype, shape = _type(value.type)
    return {"name": value.name, "dtype": dtype, "shape": shape}


def _type(kind: onnx.TypeProto) -> tuple[str, list[int | str | None] | None]:
    """The dtype, and of tensors (also those in sequences) the shape: None where the rank is not known."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        name = dtype_name(tensor.elem_type)
        return (name if which == "tensor_type" else f"sparse({name})"), (
            [*_dims(tensor.shape)] if tensor.HasField("shape") else None
        )
    if which in ("sequence_type", "optional_type"):
        dtype, shape = _type(getattr(kind, which).elem_type)
        return f"{which.removesuffix('_type')}({dtype})", shape
    if which == "map_type":
        return f"map({dtype_name(kind.map_type.key_type)}, {_type(kind.map_type.value_type)[0]})", None
    return "unknown", None


def _dims(shape: onnx.TensorShapeProto) -> Iterator[int | str | None]:
    for dim in shape.dim:
        yield dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
