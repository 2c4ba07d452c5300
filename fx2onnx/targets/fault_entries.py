"""A fault of a runtime as an entry of a table: which nodes meet it, in JSON, and such an entry made of a node that was found.

``{"op_type": "Resize", "attributes": {"mode": "cubic"}, "inputs": ["float", null, {"equals": [1, 1, 2, 2]}]}`` is a Resize
with that attribute, of a float and of that constant; what is not said may be anything. In the place of an input another
such object stands for the node that makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base import typed_json
from fx2onnx.base.errors import UserError
from fx2onnx.files.staging import write_text
from fx2onnx.irx.values import known_array
from fx2onnx.targets.match import word_of

MOST_NUMBERS = 8
"""Constants of more are weights, of which the dtype alone is said."""
_COMPARED = (
    ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING, ir.AttributeType.INTS,
    ir.AttributeType.FLOATS, ir.AttributeType.STRINGS,
)  # fmt: skip
"""Attributes that an entry can name."""


@dataclass(frozen=True)
class NodePattern:
    """The pattern of a node."""

    op_type: str
    domain: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Any, ...] = ()
    """The pattern of each input: None (anything), a dtype, ``{"equals": numbers}``, or a NodePattern."""

    def fits(self, node: ir.Node) -> bool:
        """Return whether the node looks so, and those that it reads."""
        if (node.op_type, node.domain) != (self.op_type, self.domain) or len(self.inputs) > len(node.inputs):
            return False
        if not all(_is_equal(_plain(node.attributes.get(name)), wanted) for name, wanted in self.attributes.items()):
            return False
        return all(_fits(wanted, value) for wanted, value in zip(self.inputs, node.inputs, strict=False))

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types, without those that say nothing."""
        inputs = [each.as_dict() if isinstance(each, NodePattern) else each for each in self.inputs]
        fields = {"domain": self.domain, "attributes": dict(self.attributes), "inputs": inputs}
        return {"op_type": self.op_type, **{name: value for name, value in fields.items() if value}}


@dataclass(frozen=True)
class FaultEntry:
    """One fault. ``since`` and ``until`` are the first and the last release that have it."""

    name: str
    runtime: str
    since: str
    until: str
    what: str
    node: NodePattern
    instead: str = "another form of it, or another release"
    ends_process: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The entry as it stands in a file."""
        return {**asdict(self), "node": self.node.as_dict()}


def read_entries(path: str | PathLike[str]) -> list[FaultEntry]:
    """The entries of a file. Raises UserError E001 where it is none."""
    try:
        return entries_of(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as cause:
        raise UserError(
            "E001",
            f"{path} is no table of faults",
            why=str(cause)[:300],
            next="a list of entries as in docs/runtime_faults.md; fx2onnx locate --faults FILE writes them",
        ) from cause


def entries_of(stated: Any) -> list[FaultEntry]:
    """The entries of a list, as ``json.loads`` gives it. Raises Misfit."""
    if not isinstance(stated, list):
        raise typed_json.Misfit("a table of faults is a list")
    return [_entry(each, f"[{place}]") for place, each in enumerate(stated)]


def add_entries(entries: Sequence[FaultEntry], path: str | PathLike[str]) -> int:
    """Write those that are not there yet into a file, which may be new. Gives how many. Raises UserError E001, E301."""
    there = read_entries(path) if Path(path).exists() else []
    known = {(each.runtime, json.dumps(each.node.as_dict(), sort_keys=True)) for each in there}
    new = [each for each in entries if (each.runtime, json.dumps(each.node.as_dict(), sort_keys=True)) not in known]
    if new or not Path(path).exists():
        write_text(path, json.dumps([each.as_dict() for each in (*there, *new)], indent=1) + "\n")
    return len(new)


def entry_of(node: ir.Node, runtime: str, release: str, what: str) -> FaultEntry:
    """The entry of a fault that was seen at a node, and at those before it in its graph: as narrow as what was seen."""
    release = ".".join(release.split(".")[:2])
    pattern = _pattern(node)
    digest = sha256(json.dumps(pattern.as_dict(), sort_keys=True).encode()).hexdigest()[:8]
    return FaultEntry(f"{node.op_type.lower()}-{digest}", runtime, release, release, what, pattern)


def _pattern(node: ir.Node) -> NodePattern:
    given = {name: _plain(each) for name, each in sorted(node.attributes.items()) if each.type in _COMPARED}
    return NodePattern(node.op_type, node.domain, given, tuple(_input_pattern(value) for value in node.inputs))


def _input_pattern(value: ir.Value | None) -> Any:
    if value is None:
        return None
    constant = known_array(value)
    if constant is not None and constant.size <= MOST_NUMBERS and constant.dtype.kind in "biuf":
        return {"equals": constant.tolist()}
    producer = value.producer()
    if producer is not None and constant is None:
        return _pattern(producer)
    return word_of(value.dtype) or None


def _fits(wanted: Any, value: ir.Value | None) -> bool:
    if wanted is None:
        return True
    if value is None:
        return False
    if isinstance(wanted, NodePattern):
        producer = value.producer()
        return producer is not None and wanted.fits(producer)
    if isinstance(wanted, str):
        return word_of(value.dtype) in ("", wanted)
    constant = known_array(value)
    return constant is not None and _is_equal(constant.tolist(), wanted["equals"])


def _plain(attribute: Any) -> Any:
    """The value as JSON has it."""
    if attribute is None or attribute.type not in _COMPARED:
        return None
    value = attribute.value
    return list(value) if isinstance(value, (list, tuple)) else value


def _is_equal(one: Any, other: Any) -> bool:
    """Numbers up to the rounding of float32, which the file has them in."""
    left, right = np.asarray(one), np.asarray(other)
    if left.dtype.kind in "biuf" and right.dtype.kind in "biuf":
        return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-6, atol=0.0, equal_nan=True))
    return bool(one == other)


def _entry(stated: Any, path: str) -> FaultEntry:
    if not isinstance(stated, dict) or "node" not in stated:
        raise typed_json.Misfit(f"{path} is no entry: it has no node")
    pattern = _read_pattern(stated["node"], f"{path}.node")
    plain = typed_json.built(FaultEntry, {**stated, "node": {"op_type": pattern.op_type}}, path)
    return FaultEntry(**{**vars(plain), "node": pattern})


def _read_pattern(stated: Any, path: str) -> NodePattern:
    found = typed_json.built(NodePattern, stated, path)
    return NodePattern(found.op_type, found.domain, found.attributes, tuple(_read_inputs(found.inputs, path)))


def _read_inputs(stated: Sequence[Any], path: str) -> Iterator[Any]:
    for place, each in enumerate(stated):
        here = f"{path}.inputs[{place}]"
        if isinstance(each, dict) and set(each) != {"equals"}:
            yield _read_pattern(each, here)
        elif each is None or isinstance(each, (str, dict)):
            yield each
        else:
            raise typed_json.Misfit(f"{here} is {str(each)[:50]!r}, not null, a dtype, an object with equals or a node")
