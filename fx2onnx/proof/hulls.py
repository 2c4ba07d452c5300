"""Values whose shape depends on data, on spans: one pair of bounds for all of their elements.

Where rounding may change which elements are kept, each may be any of them: the error is the distance between any two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fx2onnx.proof.domains import check_domain
from fx2onnx.proof.span_moves import MOVED
from fx2onnx.proof.spans import RULES, Call, Interval, Unbounded

_POINTWISE = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "Ceil",
        "Clip",
        "Cos",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Sqrt",
        "Sub",
        "Sum",
        "Tanh",
        "Where",
        "Xor",
    ]
)
"""Operators of which each element of the result is made of one of each operand."""
_LARGEST = 2.0**62
"""A number above all sizes."""
_PADDED = frozenset(["Pad", "Trilu", "CenterCropPad"])
_KEPT = {**MOVED, **dict.fromkeys(("Gather", "Unique", "MaxPool", "TopK"), (0,))}
"""Operators whose first output holds elements of these operands; of none: of all."""


def hull_of(span: Interval) -> Interval:
    """Bounds of all elements of a value."""
    if span.low.size == 1:
        return span.reshape(())
    low, high = np.asarray(span.low.min(initial=np.inf)), np.asarray(span.high.max(initial=-np.inf))
    return Interval(low, high, np.asarray(span.error.max(initial=0)), None, np.asarray(span.lowest.min(initial=np.inf)))


def join_of(spans: Sequence[Interval], *, mixed: bool = False) -> Interval:
    """Bounds of all elements of several values; ``mixed``: rounding may put any of them in the place of another."""
    hulls = [hull_of(each) for each in spans if each.low.size]
    if not hulls:
        return Interval.of(np.zeros(()))
    low, high = min(each.low for each in hulls), max(each.high for each in hulls)
    error = max(each.error for each in hulls) + (np.nan_to_num(high - low, nan=np.inf) if mixed else 0.0)
    return Interval(low, high, np.asarray(error), None, min(each.lowest for each in hulls))


def hull_spans(call: Call) -> list[Interval]:
    """Bounds of all elements of each output. Raises Unbounded."""
    op_type, known = call.op_type, [each for each in call.args if each is not None]
    if op_type in _POINTWISE:
        inner = replace(call, args=[None if each is None else hull_of(each) for each in call.args], shape=())
        check_domain(inner)
        made = RULES[op_type](inner)
        return [hull_of(each) for each in (made if isinstance(made, list) else [made])]
    if op_type in _KEPT:
        places = _KEPT[op_type] or range(len(call.args))
        kept = [call.span(index) for index in places if call.has(index)]
        rest = [each for index, each in enumerate(call.args) if each is not None and index not in places]
        if call.attrs.get("reduction", "none") not in ("none", b"none"):
            raise Unbounded("how many updates it adds depends on data")
        if op_type in _PADDED:
            kept.append(Interval.of(np.zeros(())))
        if op_type == "TopK":
            rest = kept
        first = join_of(kept, mixed=any(each.error.any() for each in rest))
        if op_type in ("TopK", "Unique"):  # and their places and counts
            count = float(call.span(0).low.size) if call.span(0).low.ndim else _LARGEST
            return [first, *[Interval(np.zeros(()), np.asarray(count), np.asarray(count))] * (call.outputs - 1)]
        return [first] * (call.outputs if op_type == "Split" else 1)
    off = any(each.error.any() for each in known)
    match op_type:
        case "NonZero" | "NonMaxSuppression":
            sizes = [size for each in known[:2] for size in each.low.shape]
            last = float(max(sizes) - 1) if all(each.low.ndim for each in known[:2]) else _LARGEST
        case "Shape" | "Size":
            return [Interval(np.zeros(()), np.asarray(_LARGEST), np.asarray(_LARGEST))]
        case "Softmax" if np.isfinite(call.span(0).reach).all():
            return [Interval(np.zeros(()), np.ones(()), np.ones(()))]
        case "ConstantOfShape":
            value = call.attrs.get("value")
            return [Interval.of(np.zeros(()) if value is None else np.asarray(value).reshape(()))]
        case "Range" if not call.unit:
            return [join_of(known[:2], mixed=off)]
        case _:
            raise Unbounded("the shape of what it reads depends on data")
    return [Interval(np.zeros(()), np.asarray(last), np.asarray(last * off))]
