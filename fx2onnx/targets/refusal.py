"""What is said of nodes that a target cannot run in any dtype."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.irx.origin import source_of

MOST_NAMED = 8


def named(nodes: list[ir.Node]) -> str:
    """The nodes with their dtypes and lines; of many, the first."""
    texts = dict.fromkeys(_text(node) for node in nodes)
    more = len(texts) - MOST_NAMED
    return "; ".join([*texts][:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _text(node: ir.Node) -> str:
    dtypes = ", ".join(
        value.dtype.name.lower() for value in node.inputs if value is not None and value.dtype is not None
    )
    where = source_of(node.metadata_props)
    return f"{node.op_type}({dtypes})" + (f" at {where}" if where else "")


def refusal(nodes: list[ir.Node], target: str) -> UserError:
    """The error of a target that was asked for."""
    return UserError(
        "E204",
        f"{target} cannot run {len(nodes)} of the nodes",
        why=f"it has no kernel for {named(nodes)}",
        next="choose another target, an opset_version in which they have other forms, or other dtypes",
    )
