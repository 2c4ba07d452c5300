"""The opsets and functions of a model, which stand beside its graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.limits import MAX_NESTING
from fx2onnx.semantics.reading.nodes import GRAPH, NodeText, check_text, distinct
from fx2onnx.semantics.registry import PRIVATE_DOMAIN
from fx2onnx.semantics.schemas import newest_opset


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
