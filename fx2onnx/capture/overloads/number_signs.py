"""Which integer values of a graph are >= 0 whatever the data is: counts, indices, and what is made of such."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.recording import size_checks
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.sizes.expr import Dim
from fx2onnx.torchcompat.dispatch import no_dispatch

DEEPEST = 40
"""Operators between a number and what tells its sign."""

_COUNTS = frozenset(
    f"aten::{name}"
    for name in ("argmax", "argmin", "argsort", "bincount", "bucketize", "count_nonzero", "nonzero", "searchsorted")
)
"""Overloads whose integers are counts or indices."""
_KEEP = frozenset(
    f"aten::{name}"
    for name in (
        *(
            "_to_copy",
            "abs",
            "add",
            "alias",
            "amax",
            "amin",
            "cat",
            "clamp",
            "clamp_max",
            "clamp_min",
            "clone",
            "contiguous",
        ),
        *(
            "cumprod",
            "cumsum",
            "detach",
            "div",
            "expand",
            "flatten",
            "floor_divide",
            "index",
            "index_select",
            "lift_fresh",
        ),
        *("long", "max", "maximum", "median", "min", "minimum", "mul", "permute", "prod", "remainder", "repeat"),
        *("repeat_interleave", "reshape", "select", "slice", "sort", "squeeze", "stack", "sum", "t", "to", "topk"),
        *("transpose", "unbind", "unsqueeze", "view", "where"),
    )
)
"""Overloads whose integers are >= 0 where their operands are."""
_WITH_NUMBERS = frozenset(
    f"aten::{name}"
    for name in ("add", "clamp", "clamp_max", "clamp_min", "div", "floor_divide", "mul", "remainder", "where")
)
"""Those of them whose numbers count as operands."""
_WITH_LEAST = (torch.ops.aten.clamp.default, torch.ops.aten.clamp_min.default)
"""Overloads whose first number is the least that a result has."""


def is_nonnegative(recorder: BaseRecorder, node: torch.fx.Node) -> bool:
    """Whether all numbers of the node's value are >= 0."""
    seen: dict[torch.fx.Node, bool] = {}

    def holds(node: torch.fx.Node, depth: int) -> bool:
        if node not in seen:
            seen[node] = depth < DEEPEST and _holds(recorder, node, lambda operand: holds(operand, depth + 1))
        return seen[node]

    return holds(node, 0)


def _holds(recorder: BaseRecorder, node: torch.fx.Node, of: Callable[[torch.fx.Node], bool]) -> bool:
    info = node.meta.get("val")
    if isinstance(info, TensorInfo) and info.dtype in (torch.bool, torch.uint8):
        return True
    value = recorder.value_of(node)
    if value is not None:
        with no_dispatch():
            return not value.is_complex() and bool((value >= 0).all())
    if node.op != "call_function":
        return False
    if node.target in (operator.getitem, size_checks.CHECKED):
        return of(node.all_input_nodes[0])
    name = getattr(getattr(node.target, "_schema", None), "name", "")
    if node.target in _WITH_LEAST:
        least = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
        if isinstance(least, int | float) and least >= 0 and not _has_negative(node):
            return True
    if name in _WITH_NUMBERS and _has_negative(node):
        return False
    return name in _COUNTS or (name in _KEEP and all(map(of, node.all_input_nodes)))


def _has_negative(node: torch.fx.Node) -> bool:
    """Whether a number among the arguments may be negative."""
    numbers = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, int | float | Dim)]
    return any(isinstance(number, Dim) or number < 0 for number in numbers)
