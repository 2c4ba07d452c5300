"""A model's files in its folder: the graph, and the data of large weights under a name that its content gives.

The graph's rename is what makes a model new. Before it the old graph and its data stand there untouched; after it the old
data is removed. So at every moment the folder holds the old model or the new one, whole, and a graph can never be read with
the weights of another.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import DATA_DIGESTS
from fx2onnx.base.targets import is_same_file
from fx2onnx.files.digest import digest_of, digest_of_file, known_digest, sha256_of_file
from fx2onnx.files.staging import locked, replace, replacing, sync
from fx2onnx.semantics.reading.weights import confined_path

DIGEST_DIGITS = 16
_LONGEST_STEM_BYTES = 200
"""File systems take names of 255 bytes; the digest and the endings need 40."""


def data_name(target: str, digest: str) -> str:
    """The name of the weights' file beside ``target``: ``model.onnx.<16 hex digits>.data``."""
    return f"{_stem(target)}.{digest[:DIGEST_DIGITS]}.data"


def _stem(target: str) -> str:
    """The target's own name, or of a long one the beginning and a digest."""
    name = os.path.basename(target)
    encoded = name.encode()
    if len(encoded) <= _LONGEST_STEM_BYTES:
        return name
    return f"{encoded[: _LONGEST_STEM_BYTES - 32].decode(errors='ignore')}~{digest_of(encoded)[:DIGEST_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Staged:
    """The files to be written: the path of the graph, and of the data with its name to be, where there is any."""

    graph: str
    data: str | None = None
    data_name: str | None = None


def commit(staged: Staged, target: str, *, durable: bool = False) -> None:
    """Let ``staged`` take the place of the model at ``target``. Raises OSError; then the old model stands there."""
    folder = os.path.dirname(os.path.abspath(target))
    if durable:
        for path in filter(None, (staged.data, staged.graph)):
            sync(path)
    with locked(folder):
        old = data_files(target)
        _rename(staged, folder, target)
        for name in old:
            if name != staged.data_name:
                with contextlib.suppress(OSError):  # in use, or another user's in a sticky folder: only room is lost
                    os.unlink(os.path.join(folder, name))
    if durable:
        sync(folder)


def _rename(staged: Staged, folder: str, target: str) -> None:
    if staged.data is None or staged.data_name is None:
        replace(staged.graph, target)
        return
    final = os.path.join(folder, staged.data_name)
    is_new = not os.path.lexists(final)
    try:
        replace(staged.data, final)
        replace(staged.graph, target)
    except BaseException:
        if is_new and os.path.exists(staged.graph):  # the graph that would refer to the data is not in place
            with contextlib.suppress(OSError):
                os.unlink(final)
        raise


def data_files(target: str) -> list[str]:
    """Names of data files beside ``target`` that belong to its model, or to exports there that were killed."""
    folder = os.path.dirname(os.path.abspath(target))
    ours = _pattern(target)
    try:
        found = [name for name in os.listdir(folder) if ours.fullmatch(name)]
    except PermissionError:  # a folder that may be written to but not listed
        return []
    plain = f"{os.path.basename(target)}.data"  # how torch.onnx.export names it
    if os.path.isfile(os.path.join(folder, plain)) and _mentions(target, plain):
        found.append(plain)
    return found


def is_file_of(path: str | os.PathLike[str], target: str) -> bool:
    """Return whether ``path`` is, or is named as, the graph at ``target`` or a file of its weights."""
    if is_same_file(path, target):
        return True
    name, here = os.path.basename(path), os.path.dirname(os.path.abspath(target))
    if os.path.realpath(os.path.dirname(os.path.abspath(path))) != os.path.realpath(here):
        return False
    return name == f"{os.path.basename(target)}.data" or _pattern(target).fullmatch(name) is not None


def external_files(graph: str | os.PathLike[str]) -> list[str]:
    """Paths of the files in which tensors of an ONNX file lie. Raises what onnx_ir raises for a file that is none."""
    model = ir.load(graph)
    found: dict[str, None] = {}
    for part in model.graphs():
        tensors = [value.const_value for value in part.initializers.values()]
        tensors += [attribute.value for node in part for attribute in node.attributes.values()]
        for tensor in tensors:
            if isinstance(tensor, ir.ExternalTensor):
                found[str(tensor.path)] = None
    return list(found)


def digest_of_model(graph: str | os.PathLike[str]) -> str | None:
    """The digest of an ONNX file and of the files of its weights; None where one of them is not there or no such file."""
    try:
        digests = [digest_of_file(graph), *map(known_digest, external_files(graph))]
        found = [digest for digest in digests if digest is not None]
        return found[0] if len(digests) == 1 else digest_of(" ".join(found).encode()) if found == digests else None
    except Exception:  # protobuf and onnx_ir have a class for each kind of damage
        return None


def add_metadata(path: str | os.PathLike[str], entries: Mapping[str, str]) -> None:
    """Put entries into the metadata of an ONNX file. Weights beside it stay as they are."""
    model = onnx.load(os.fspath(path), load_external_data=False)
    kept = [entry for entry in model.metadata_props if entry.key not in entries]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    for key, value in entries.items():
        model.metadata_props.add(key=key, value=value)
    with replacing(path) as stage:
        stage.write_bytes(model.SerializeToString(deterministic=True))


def nodes_within(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of the graph, of graphs inside nodes, and of functions."""
    for part in (model.graph, *model.functions):
        for graph in graphs_within(part):
            yield from graph.node


def graphs_within(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The graph itself, and those inside of its nodes."""
    waiting = [graph]
    while waiting:
        each = waiting.pop()
        yield each
        for node in each.node:
            for attribute in node.attribute:
                waiting += [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]


def data_locations(model: onnx.ModelProto) -> list[str]:
    """The names of the files beside the graph in which its tensors lie, each once and in order."""
    graphs = list(graphs_within(model.graph))
    tensors = [tensor for graph in graphs if isinstance(graph, onnx.GraphProto) for tensor in graph.initializer]
    attributes = [attribute for node in nodes_within(model) for attribute in node.attribute]
    tensors += [tensor for each in attributes for tensor in (*([each.t] if each.HasField("t") else ()), *each.tensors)]
    places = [
        entry.value
        for tensor in tensors
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    ]
    return list(dict.fromkeys(places))


def check_data_digests(model: onnx.ModelProto, folders: tuple[str, ...], *, may_lack: bool = False) -> None:
    """Raises UserError E304 where a file of the model's weights does not have the digest that the graph's metadata has for it.

    may_lack: a graph whose metadata has none is right.
    """
    locations = data_locations(model)
    text = next((entry.value for entry in model.metadata_props if entry.key == DATA_DIGESTS), None)
    try:
        digests = dict(json.loads(text or "{}"))
    except (ValueError, TypeError, RecursionError):
        raise UserError("E304", f"the metadata {DATA_DIGESTS} is no table of digests", next=BIND) from None
    if text is None and may_lack:
        return
    for name in locations:
        if name not in digests:
            raise UserError("E304", f"the graph has no digest of its data {name!r}", next=BIND)
        path = confined_path(name, folders, "the model")
        if sha256_of_file(path) != digests[name]:
            why = "it was changed, cut off, or belongs to another graph"
            raise UserError("E304", f"the data {path!r} does not have the digest that the graph has for it", why=why)


BIND = "fx2onnx attest FILE --bind writes the digests into the graph, where its data is known to be right"


def _pattern(target: str) -> re.Pattern[str]:
    return re.compile(re.escape(_stem(target)) + rf"\.[0-9a-f]{{{DIGEST_DIGITS}}}\.data")


def _mentions(graph: str, name: str) -> bool:
    try:
        with open(graph, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(name.encode()) >= 0
    except (OSError, ValueError):  # no such file, an empty one
        return False
