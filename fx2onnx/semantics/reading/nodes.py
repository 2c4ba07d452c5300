"""The contents of a ``NodeProto``, read once: names, attributes, the order in which nodes can run, and whether its operator allows
it.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx

from fx2onnx.base import plugins
from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import CHECK
from fx2onnx.semantics.kernels import contrib as kernels_of_onnxruntime
from fx2onnx.semantics.limits import MAX_NESTING
from fx2onnx.semantics.schemas import (
    NEWEST_OPSET,
    POSITIVE_NUMBERS,
    Allowed,
    Signature,
    is_of_other_processors,
    signature_of,
)

logger = logging.getLogger("fx2onnx.runner")
LINE_CHARS = 200
"""Longer lines about a node are cut: they stand in error messages."""

GRAPH, GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS


@dataclass(slots=True)
class NodeText:
    """A node's names. Holds nothing of the protobuf, which would keep the whole file in memory."""

    op_type: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    overload: str = ""
    source: str = ""
    """The line of source code that the exporter wrote down."""
    check: str = ""
    """The condition on sizes without which the node fails."""

    def __str__(self) -> str:
        domain = f"{self.domain}::" if self.domain else ""
        inputs = ", ".join(name or "_" for name in self.inputs)
        line = f"{', '.join(name or '_' for name in self.outputs)} = {domain}{self.op_type}({inputs})"[:LINE_CHARS]
        return f"{line}  at {self.source[:LINE_CHARS]}" if self.source else line


Node: TypeAlias = tuple[NodeText, Sequence[Any]]
"""A node's text and its attributes."""


def read_nodes(protos: Iterable[Any]) -> list[Node]:
    """Reading a field of protobuf makes a new object, so each is read once.

    Raises: UserError E303 for a name that is not text.
    """
    nodes: list[Node] = []
    for proto in protos:
        domain = proto.domain
        text = NodeText(
            proto.op_type,
            "" if domain == "ai.onnx" else domain,
            proto.name,
            list(proto.input),
            list(proto.output),
            proto.overload,
        )
        try:
            "".join((text.op_type, domain, text.name, *text.inputs, *text.outputs))
        except TypeError:
            check_text(text.op_type, domain, text.name, *text.inputs, *text.outputs)
        metadata = proto.metadata_props
        if metadata:
            noted = {entry.key: entry.value for entry in metadata}
            text.source, text.check = noted.get("source", ""), noted.get(CHECK, "")
        nodes.append((text, list(proto.attribute)))
    return nodes


def check_text(*names: Any) -> None:
    """protobuf hands out text that is not UTF-8 as bytes. Raises: UserError E303."""
    for name in names:
        if isinstance(name, bytes):
            raise UserError("E303", f"the model has a name that is not text: {name[:40]!r}")


def distinct(names: Iterable[str], what: str) -> list[str]:
    """The names as a list. Raises: UserError E303 for one that occurs twice or is not text."""
    result = list(names)
    check_text(*result)
    if len(set(result)) < len(result):
        twice = next(name for name, count in collections.Counter(result).items() if count > 1)
        raise UserError("E303", f"the {what} {twice!r} occurs twice")
    return result


def in_order(nodes: list[Node], known: Iterable[str], where: str, is_main: bool) -> list[Node]:
    """The nodes so that each comes after those it reads; unchanged where that holds already. Of Constant nodes of the main graph that
    make one value, the last one, as onnxruntime does.

    Raises: UserError E303 for a value with two definitions, and for a cycle.
    """
    defined = set(known)
    producer: dict[str, int] = {}
    replaced: set[int] = set()
    for position, (text, _) in enumerate(nodes):
        for name in text.outputs:
            if name:
                if name in defined:
                    first = producer.get(name)
                    both = {nodes[first][0].op_type, text.op_type} if is_main and first is not None else set()
                    if first is None or both != {"Constant"}:
                        raise UserError("E303", f"{name!r} has two definitions in {where!r}", node=str(text))
                    logger.warning("several Constant nodes make %r: the last one counts", name)
                    replaced.add(first)
                defined.add(name)
                producer[name] = position
    if replaced:
        return in_order([node for place, node in enumerate(nodes) if place not in replaced], known, where, is_main)
    return nodes if _is_sorted(nodes, producer) else _sorted(nodes, producer)


def _is_sorted(nodes: list[Node], producer: dict[str, int]) -> bool:
    position_of = producer.get
    for place, node in enumerate(nodes):
        for name in _deep_inputs(node, 0) if node[1] else node[0].inputs:
            if position_of(name, -1) >= place:
                return False
    return True


def _sorted(nodes: list[Node], producer: dict[str, int]) -> list[Node]:
    needs = [{producer[name] for name in _deep_inputs(node, 0) if name in producer} for node in nodes]
    readers: dict[int, list[int]] = {}
    for position, producers in enumerate(needs):
        for source in producers:
            readers.setdefault(source, []).append(position)
    ready = [position for position, producers in enumerate(needs) if not producers]
    ordered: list[Node] = []
    while ready:
        position = ready.pop()
        ordered.append(nodes[position])
        for reader in readers.get(position, ()):
            needs[reader].discard(position)
            if not needs[reader]:
                ready.append(reader)
    if len(ordered) < len(nodes):
        stuck = next(position for position, producers in enumerate(needs) if producers)
        raise UserError("E303", "the graph has a cycle", node=str(nodes[stuck][0]))
    return ordered


def _deep_inputs(node: Node, depth: int) -> Iterable[str]:
    """Names that a node reads; those that its graphs read from around them too."""
    text, attributes = node
    if not attributes or not any(attribute.type == GRAPH for attribute in attributes):
        return text.inputs
    return [*text.inputs, *(name for a in attributes if a.type == GRAPH for name in _free_names(a.g, depth + 1))]


def _free_names(graph: Any, depth: int) -> Iterator[str]:
    if depth > MAX_NESTING:
        raise UserError("E303", f"graphs are nested more than {MAX_NESTING} deep")
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    inner = [(NodeText(n.op_type, "", "", list(n.input), list(n.output)), list(n.attribute)) for n in graph.node]
    for text, _ in inner:
        own.update(text.outputs)
    for node in inner:
        yield from (name for name in _deep_inputs(node, depth) if name not in own)
    yield from (info.name for info in graph.output if info.name not in own)


def check_arity(text: NodeText, signature: Signature) -> None:
    """Raises: UserError E303 for wrong numbers of inputs or outputs."""
    if not signature.min_inputs <= len(text.inputs) <= signature.max_inputs:
        allowed = f"{signature.min_inputs}..{signature.max_inputs}"
        raise UserError("E303", f"{text.op_type} takes {allowed} inputs and has {len(text.inputs)}", node=str(text))
    if not signature.min_outputs <= len(text.outputs) <= signature.max_outputs:
        allowed = f"{signature.min_outputs}..{signature.max_outputs}"
        raise UserError("E303", f"{text.op_type} has {allowed} outputs, not {len(text.outputs)}", node=str(text))


def check_present(text: NodeText, signature: Signature, left_out: Iterable[int]) -> None:
    """Raises: UserError E303 where one of these inputs, which are not given, is required."""
    for place in left_out:
        parameter = signature.inputs[min(place, len(signature.inputs) - 1)]
        if not parameter.is_optional:
            raise UserError("E303", f"{text.op_type} needs its input {place} ({parameter.name})", node=str(text))


def check_left_out(text: NodeText, signature: Signature, place: int) -> None:
    """Raises: UserError E303 where an output without a name is not optional."""
    if place < signature.min_outputs:
        what = f"{text.op_type} needs a name for its output {place} ({signature.outputs[place].name})"
        raise UserError("E303", what, node=str(text))


def check_attributes(text: NodeText, signature: Signature, given: Mapping[str, Any]) -> None:
    """Raises: UserError E303 for unknown, wrong or missing attributes."""
    for name, attribute in given.items():
        wanted = signature.attribute_types.get(name)
        if wanted is None:
            raise UserError(
                "E303",
                f"{text.op_type}-{signature.since_version} has no attribute {name!r}",
                node=str(text),
                why=f"it has {', '.join(sorted(signature.attribute_types)) or 'none'}",
            )
        if wanted != attribute.type:
            is_type, allowed = (onnx.AttributeProto.AttributeType.Name(code) for code in (attribute.type, wanted))
            raise UserError(
                "E303", f"the attribute {name!r} of {text.op_type} is {allowed}, not {is_type}", node=str(text)
            )
        if name in signature.values:
            _check_value(text, attribute, signature.values[name])
    for name in signature.required:
        if name not in given:
            raise UserError("E303", f"{text.op_type} needs the attribute {name!r}", node=str(text))


def _check_value(text: NodeText, attribute: Any, allowed: Allowed) -> None:
    if attribute.type == onnx.AttributeProto.STRING:
        values = [attribute.s.decode("utf-8", "replace")]
    else:
        values = attribute.ints if attribute.type == onnx.AttributeProto.INTS else [attribute.i]
    for value in values:
        if value not in allowed:
            said = repr(value[:40]) if isinstance(value, str) else str(value)
            raise UserError(
                "E303",
                f"the attribute {attribute.name!r} of {text.op_type} is {said}, which ONNX does not know",
                node=str(text),
                why="it must be above 0"
                if allowed is POSITIVE_NUMBERS
                else f"it may be {', '.join(map(str, sorted(allowed)))}",
            )


def deprecated(text: NodeText, signature: Signature) -> UserError:
    """The error for an operator that ONNX has taken out of an opset."""
    return UserError(
        "E303",
        f"{text.op_type} may not be used from opset {signature.since_version} on",
        node=str(text),
        why="ONNX calls it deprecated there",
        next="use the operator that took its place, or convert the model to an older opset",
    )


def no_kernel(text: NodeText, version: int) -> UserError:
    """The error for an operator that the runner cannot compute."""
    domain, op_type = text.domain, text.op_type
    if not op_type:
        return UserError("E303", "a node does not say its operator", node=str(text), why="NodeProto.op_type is empty")
    known = signature_of(domain, op_type, NEWEST_OPSET) if not domain else None
    if known is not None:
        why = f"{op_type} is not in opset {version}; it came with opset {known.since_version} or was changed then"
    elif is_of_other_processors(domain, op_type):
        why = "onnxruntime knows the operator and has no CPU kernel for it either"
    elif reason := kernels_of_onnxruntime.REFUSED.get(op_type if domain == kernels_of_onnxruntime.MICROSOFT else ""):
        why = reason
    else:
        why = f"no kernel, no function body and no model-local function for {domain or 'ai.onnx'}::{op_type}"
    why = "; ".join([why, *plugins.import_all(plugins.KERNELS)])
    return UserError(
        "E402",
        f"the runner has no kernel for {domain + '::' if domain else ''}{op_type}, opset {version}",
        node=str(text),
        why=why,
        next=f'register one: @fx2onnx.runner.kernel("{op_type}", domain="{domain}"), for all commands in a plugin: docs/extending.md',
    )
