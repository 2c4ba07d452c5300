"""Inputs that an engine, or the file itself, refuses with an error, where that is no wrong result."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from fx2onnx.base.metadata import CHECK
from fx2onnx.judge.engines import Array
from fx2onnx.verify.float_values import BY_ANY_ENGINE
from fx2onnx.verify.locating.onnx_file import OnnxFile
from fx2onnx.verify.locating.side_by_side import run_cut
from fx2onnx.verify.samples import Sample

_PASSES_ON = ("Reshape", "Unsqueeze", "Where")
"""Operators between a comparison and the check that reads it."""


def refused(sample: Sample, path: str, failure: str, feeds: Mapping[str, Array]) -> str:
    """A phrase for what was refused; empty where the failure is a fault."""
    if sample.is_empty:
        return "what is empty"
    if sample.values in BY_ANY_ENGINE:
        return "such numbers"
    check = _stopped_at_one(path, failure, feeds) if sample.sizes else ""
    return check and f"a size of 1, which eager PyTorch broadcasts, by its condition '{check}'"


def _stopped_at_one(path: str, failure: str, feeds: Mapping[str, Array]) -> str:
    """The name of the check of ``path`` that the engine's message ``failure`` names, where it asks two sizes to be equal and one of
    them is 1 on these inputs; empty where another thing failed.
    """
    file = OnnxFile.read(path)
    failed = [node for node in file.nodes if _is_check(node) and node.name in failure]
    check = max(failed, key=lambda node: len(node.name), default=None)
    compared = [] if check is None else _compared(file, check)
    made = [name for name in compared if name in file.producer]
    if check is None or not made:
        return ""
    cut = file.cut(file.segment(made, feeds), feeds, made)
    try:
        sizes = run_cut(file, cut, feeds, "runner")
    except Exception:  # of any kind: what leads to the check failed itself
        return ""
    sizes |= {name: file.weight(name) for name in compared if file.is_weight(name)}
    numbers = [int(size.reshape(-1)[0]) for size in sizes.values()]
    return check.name if 1 in numbers else ""


def _is_check(node: onnx.NodeProto) -> bool:
    return any(each.key == CHECK for each in node.metadata_props)


def _compared(file: OnnxFile, check: onnx.NodeProto) -> list[str]:
    """The two values that a check takes for equal; none where it asks for another thing."""
    name = check.input[1]
    while name in file.producer:
        node = file.nodes[file.producer[name]]
        if node.op_type == "Equal":
            return list(node.input)
        if node.op_type not in _PASSES_ON:
            break
        name = node.input[0]
    return []
