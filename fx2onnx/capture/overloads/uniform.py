"""Tensors of which all elements are one number that neither data nor sizes change: masks of zeros, and what is made of them."""

from __future__ import annotations

import torch
import torch.fx

from fx2onnx.capture.op_table import Op, name_of
from fx2onnx.capture.recording.size_checks import behind
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten

MOST = 40
"""Operators that are gone through for a number."""
_FILLS = {
    f"aten::{form}": number
    for number, forms in ((0, ("zeros", "zeros_like", "new_zeros")), (1, ("ones", "ones_like", "new_ones")))
    for form in forms
}
_FILLS_WITH = frozenset({"aten::full", "aten::full_like", "aten::new_full"})
_CASTS = frozenset({"aten::to", "aten::_to_copy"})
_WHERE_EMPTY = {aten.all.default: True, aten._is_all_true.default: True, aten.any.default: False}
"""The truth of all elements where there are none."""


def truth_of_uniform(tracer: Tracer, node: torch.fx.Node) -> bool | Relation | None:
    """The truth of ``all()`` or ``any()`` of a tensor of one number, by sizes where it differs without elements; else None."""
    if node.target not in _WHERE_EMPTY:
        return None
    where_empty = _WHERE_EMPTY[node.target]
    with no_dispatch():
        number = _number(tracer, node.args[0], {})
        if number is None or bool(number) is where_empty:
            return None if number is None else where_empty
    count: int | Dim = 1
    for size in node.args[0].meta["val"].dims:  # type: ignore[union-attr]
        count = count * size
    known = tracer.sizes.certain("ge", count, 1)
    relation = Relation("eq" if where_empty else "ne", (count, 0))
    if known is None:
        return None if relation.symbols() & tracer.sizes.unbacked else relation
    return known is not where_empty


def _number(tracer: Tracer, node: object, seen: dict[object, torch.Tensor | None]) -> torch.Tensor | None:
    """The element that all of a tensor are equal to, without axes; None where nothing says so, or only what is behind many operators."""
    if node not in seen:
        seen[node] = None
        if isinstance(node, torch.fx.Node) and len(seen) <= MOST:
            seen[node] = _told(tracer, behind(node), seen)
    return seen[node]


def _told(tracer: Tracer, node: torch.fx.Node, seen: dict[object, torch.Tensor | None]) -> torch.Tensor | None:
    value = tracer.values.value_of(node)
    if value is not None:
        is_uniform = value.numel() > 0 and bool((value == value.flatten()[0]).all())
        return value.flatten()[0] if is_uniform else None
    if not isinstance(node.target, OpOverload):
        return None
    name, dtype = name_of(node.target), node.meta["val"].dtype
    if name in _FILLS or name in _FILLS_WITH:
        number = node.args[1] if name in _FILLS_WITH else _FILLS[name]
        return torch.full((), number, dtype=dtype) if isinstance(number, bool | int | float) else None
    if name in _CASTS or (name in Op.MOVES.names and len(node.all_input_nodes) == 1):
        moved = _number(tracer, node.args[0], seen)
        if moved is None or (name not in _CASTS and moved.dtype != dtype):  # view(dtype) reads the bits
            return None
        return moved.to(dtype)
    if torch.Tag.pointwise not in node.target.tags or torch.Tag.nondeterministic_seeded in node.target.tags:
        return None
    operands = [_number(tracer, arg, seen) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    if any(each is None or isinstance(each, Dim | list | tuple) for each in operands) or node.kwargs:
        return None
    return node.target(*operands).to(dtype)  # type: ignore[no-any-return]
