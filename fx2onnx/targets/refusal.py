"""The texts for nodes that a target cannot run in any dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.names import source_of

MOST_NAMED = 8


def named(nodes: Mapping[ir.Node, Sequence[str]]) -> str:
    """The nodes with their dtypes, what of them the target lacks, and lines; of many, the first."""
    texts = dict.fromkeys(_text(node, missing) for node, missing in nodes.items())
    more = len(texts) - MOST_NAMED
    return "; ".join([*texts][:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _text(node: ir.Node, missing: Sequence[str]) -> str:
    dtypes = ", ".join(
        value.dtype.name.lower() for value in node.inputs if value is not None and value.dtype is not None
    )
    where = source_of(node.metadata_props)
    asked = f" with {', '.join(missing)}" if missing else ""
    return f"{node.op_type}({dtypes}){asked}" + (f" at {where}" if where else "")


def refusal(nodes: Mapping[ir.Node, Sequence[str]], target: str) -> UserError:
    """The error of a target that was asked for."""
    return UserError(
        "E204",
        f"{target} cannot run {len(nodes)} of the nodes",
        why=f"it has no kernel for {named(nodes)}",
        next="choose another target, an opset_version in which they have other forms, or other dtypes",
    )


def float64_refusal(nodes: Mapping[ir.Node, Sequence[str]], target: str) -> UserError:
    """The error of nodes in float64 that a target has in float32 alone."""
    return UserError(
        "E204",
        f"{target} cannot compute {len(nodes)} of the nodes in float64",
        why=f"it has no float64 kernel for {named(nodes)}, and float32 has half the digits",
        next=[
            "export module.float() with float32 inputs",
            'export with target="onnx", which leaves the nodes as they are for another runtime',
        ],
    )
