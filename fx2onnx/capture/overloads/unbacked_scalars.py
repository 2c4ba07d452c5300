"""The number of an integer tensor as a size: a symbol for each value, and arithmetic of symbols for that of values."""

from __future__ import annotations

import operator

import torch
import torch.fx

from fx2onnx.base.dims import Dim, Scalar, apply
from fx2onnx.capture.captured import Symbol
from fx2onnx.capture.python.frames import subscripts
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.shapes.certain import certain
from fx2onnx.capture.torch_private.dispatch import no_dispatch

aten = torch.ops.aten

_SIGNS = {
    aten.add.Tensor: (1, 1),
    aten.add.Scalar: (1, 1),
    aten.sub.Tensor: (1, -1),
    aten.sub.Scalar: (1, -1),
    aten.rsub.Tensor: (-1, 1),
    aten.rsub.Scalar: (-1, 1),
}
"""Sums: the factors of the operands."""


def number_of(recorder: BaseRecorder, node: torch.fx.Node) -> Scalar:
    """The number of the one-element integer ``node``, which depends on data; the same node has the same symbol."""
    known = _derived(recorder, node)
    if known is not None:
        return known
    symbol = recorder.unbacked_scalars[node] = recorder.unknown_size()
    recorder.symbols[str(symbol)] = Symbol(str(symbol), node, None)
    return symbol


def _derived(recorder: BaseRecorder, node: torch.fx.Node) -> Scalar | None:
    """The expression over symbols that other nodes already have; None where there is none."""
    if node in recorder.unbacked_scalars:
        return recorder.unbacked_scalars[node]
    node = _element_of(node)
    if node.target is aten.scalar_tensor.default and not subscripts():
        number = node.args[0]
        return number if type(number) is int or (isinstance(number, Dim) and not number.is_real) else None
    if node.target is aten.div.Tensor_mode:
        top, bottom = (_operand(recorder, arg) for arg in node.args)
        return _quotient(top, bottom, node.kwargs.get("rounding_mode"))
    signs = _SIGNS.get(node.target)  # type: ignore[call-overload]
    if signs is None or len(node.args) != 2 or node.kwargs:
        return None
    left, right = (_operand(recorder, arg) for arg in node.args)
    return None if left is None or right is None else signs[0] * left + signs[1] * right


def _element_of(node: torch.fx.Node) -> torch.fx.Node:
    """What was stacked at the place that ``node`` is taken from; ``node`` itself where it is taken from nothing else."""
    if node.target is aten.select.int:
        held, axis, place = node.args
    elif node.target is operator.getitem and getattr(node.args[0], "target", None) is aten.unbind.int:
        held, axis, place = node.args[0].args[0], (*node.args[0].args, 0)[1], node.args[1]  # type: ignore[union-attr]
    else:
        return node
    if not isinstance(held, torch.fx.Node) or held.target is not aten.stack.default or (*held.args, 0)[1] != axis:
        return node
    found = held.args[0][place] if type(place) is int else node  # type: ignore[index]
    return found if isinstance(found, torch.fx.Node) else node


def _quotient(top: Scalar | None, bottom: Scalar | None, rounding: object) -> Scalar | None:
    if rounding not in ("floor", "trunc") or type(bottom) is not int or bottom <= 0 or top is None:
        return None
    if rounding == "trunc" and apply("mod", top, bottom) != 0 and not certain("ge", top, 0):
        return None
    return apply("floordiv", top, bottom)


_COMPARED = {
    **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar), "eq"),
    **dict.fromkeys((aten.ne.Tensor, aten.ne.Scalar), "ne"),
}


def truth_of(recorder: BaseRecorder, node: torch.fx.Node) -> bool | None:
    """The truth of a comparison of integers that have equal symbols; None where it depends on data."""
    op = _COMPARED.get(node.target)  # type: ignore[call-overload]
    if op is None or node.kwargs:
        return None
    left, right = (_operand(recorder, arg) for arg in node.args)
    return None if left is None or right is None else certain(op, left, right)


def _operand(recorder: BaseRecorder, arg: object) -> Scalar | None:
    if not isinstance(arg, torch.fx.Node):
        return arg if isinstance(arg, int | Dim) and not isinstance(arg, bool) else None
    if arg.meta["val"].dtype != torch.int64 or any(size != 1 for size in arg.meta["val"].dims):
        return None
    value = recorder.value_of(arg)
    if value is None:
        return _derived(recorder, arg)
    with no_dispatch():
        return int(value.item())
