"""Errors of table entries, with the node and the user's line."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.fx

from fx2onnx.aten_map.table.registry import TableEntry
from fx2onnx.base.errors import Fx2OnnxError, InternalError, UserError
from fx2onnx.capture.captured import GraphOutput, describe, where_of
from fx2onnx.capture.recording.eager_refusals import refusal_of_node

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Where our own entries are; the others are users'."""


def located(error: Fx2OnnxError, node: torch.fx.Node) -> Fx2OnnxError:
    """The same error with the user's line and the node."""
    kind = type(error)
    return kind(
        error.code,
        error.what,
        where=error.where or where_of(node),
        module_path=error.module_path or node.meta.get("module", ""),
        node=error.node or describe(node),
        why=error.why,
        next=error.next,
    )


def _refused(node: torch.fx.Node, sizes: Mapping[str, int]) -> UserError | None:
    """The user's error, where eager PyTorch refuses the call of which an entry made nothing that fits."""
    error = refusal_of_node(node, sizes)
    if error is None:
        return None
    return UserError(
        "E101",
        f"eager PyTorch refuses the operands of {node.target}",
        where=where_of(node),
        module_path=node.meta.get("module", ""),
        node=describe(node),
        why=f"{type(error).__name__}: {str(error).splitlines()[0][:300]}",
        next="check that the module runs in eager PyTorch with the example inputs",
    )


def failed(node: torch.fx.Node, entry: TableEntry, cause: Exception, sizes: Mapping[str, int]) -> Fx2OnnxError:
    """An entry raised something of its own: a fault of ours, of the user who wrote the entry, or of the call."""
    is_ours = entry.place.startswith(_PACKAGE)
    return _refused(node, sizes) or (InternalError if is_ours else UserError)(
        "E900" if is_ours else "E001",
        f"the translation of {node.target} failed",
        where=where_of(node),
        module_path=node.meta.get("module", ""),
        node=describe(node),
        why=f"{type(cause).__name__}: {cause} (at {entry.place})",
        next="report it with the line above" if is_ours else "correct the translation",
    )


def mistaken(node: torch.fx.Node, entry: TableEntry, given: str, wanted: str, sizes: Mapping[str, int]) -> Fx2OnnxError:
    """An entry gave something else than PyTorch does."""
    is_ours = entry.place.startswith(_PACKAGE)
    return _refused(node, sizes) or (InternalError if is_ours else UserError)(
        "E900" if is_ours else "E001",
        f"the translation of {node.target} gives {given}, PyTorch {wanted}",
        where=where_of(node),
        node=describe(node),
        why=f"at {entry.place}",
        next="report it with the line above" if is_ours else "emit what op.result says",
    )


def not_computed(output: GraphOutput) -> UserError:
    """An entry gives none of what an operator keeps for its backward pass."""
    return UserError(
        "E203",
        f"the output {output.name} has no form in ONNX",
        where=where_of(output.value) if isinstance(output.value, torch.fx.Node) else None,
        why="the operator keeps it for its own backward pass",
        next="leave it out of what forward returns",
    )
