"""Values whose shape depends on data, and operands for which an operator has no number: NaN, a division by 0, and an index out of range, by the bounds of the operands.

The checks need no bounds of the result, so they also find what may go wrong at an operator without a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fx2onnx.base.escape import Shown
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.proof.nodes import Array
from fx2onnx.proof.span_moves import MOVED
from fx2onnx.proof.spans import RULES, Interval, SpanCall, Unbounded, reaches_zero

_DOMAINS = {
    "Log": (0.0, np.inf), "Sqrt": (0.0, np.inf), "Acos": (-1.0, 1.0), "Asin": (-1.0, 1.0), "Atanh": (-1.0, 1.0), "Acosh": (1.0, np.inf),
}  # fmt: skip
_POLES = {"Log": "-inf", "Atanh": "an infinity"}
"""The result at the ends of the domain, where it is no number."""


def check_domain(call: SpanCall) -> None:
    """Note what some input causes at an operator."""
    found = _CHECKS.get(call.op_type)
    if found is not None:
        found(call)


def _inside(call: SpanCall) -> None:
    x, (low, high) = call.span(0), _DOMAINS[call.op_type]
    least, most = x.lowest.min(initial=np.inf), (x.high + x.error).max(initial=-np.inf)
    told = "a negative number" if low == 0 else f"a number outside of {low:g} to {high:g}"
    told += f" gives NaN: {_ends(x)}"
    if least < low or most > high:
        call.notes.append(("nan", f"{call.op_type} of {told}"))
    elif call.op_type in _POLES and (least == low or most == high < np.inf):
        end = low if least == low else high
        call.notes.append(("division", f"{call.op_type} of {end:g} gives {_POLES[call.op_type]}"))


def _shared(call: SpanCall) -> None:
    """Minus infinity everywhere has no largest number."""
    x = call.span(0)
    axis = int(call.attrs.get("axis", -1))
    if (np.isneginf(x.low) & np.isfinite(x.error)).all(axis).any():
        call.notes.append(("nan", f"{call.op_type} of minus infinity alone gives NaN: a mask may hide all of a row"))


def _divided(call: SpanCall) -> None:
    x = call.span(0 if call.op_type == "Reciprocal" else 1)
    if reaches_zero(x).any():
        call.notes.append(("division", f"a divisor can be 0: {_ends(x)}"))


def _ends(x: Interval) -> str:
    """The bounds of an operand, and how far rounding may move it where they alone do not show the fault."""
    low, high, off = (float(each.max(initial=-np.inf)) for each in (-x.low, x.high, x.error))
    told = f"it is from {-low:.6g} to {high:.6g}"
    return told if off <= 1e-3 * min(abs(low), abs(high)) else f"{told}, and rounding may move it by {off:.3g}"


def _raised(call: SpanCall) -> None:
    x, exponent = call.span(0), call.span(1)
    least = np.broadcast_to(exponent.low, np.broadcast_shapes(x.low.shape, exponent.low.shape))
    is_whole = exponent.value is not None and bool((exponent.low == np.rint(exponent.low)).all())
    if (x.lowest < 0).any() and not is_whole:
        call.notes.append(
            ("nan", f"a power of a negative number that is no integer gives NaN: it is from {x.low.min():.6g}")
        )
    elif (np.broadcast_to(reaches_zero(x), least.shape) & (least < 0)).any():
        call.notes.append(("division", f"a power below 0 of 0 is infinite: it is from {x.low.min():.6g}"))


def _picked(call: SpanCall) -> None:
    """Check each index against the axis that it counts in."""
    data, places = call.span(0).low.shape, call.span(1)
    if not places.low.size:
        return
    if call.op_type.endswith("ND"):
        start = int(call.attrs.get("batch_dims", 0))
        rows: Array = np.asarray(data[start : start + places.low.shape[-1]])
    else:
        rows = np.asarray([data[int(call.attrs.get("axis", 0)) % len(data)]])
    outside = (places.low < -rows) | (places.high > rows - 1)
    if outside.any():
        low, high, size = (np.broadcast_to(each, outside.shape)[outside] for each in (places.low, places.high, rows))
        told = f"{low.min():.0f} to {high.max():.0f} of {size.min()} rows"
        call.notes.append(("index", f"an index is out of range: {told}"))


_CHECKS: dict[str, Callable[[SpanCall], None]] = {
    **dict.fromkeys(_DOMAINS, _inside),
    **dict.fromkeys(("Div", "Mod", "Reciprocal"), _divided),
    "Pow": _raised,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _shared),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"), _picked),
}


_DIVISORS = {"Div": 1, "Mod": 1, "Reciprocal": 0}
"""The place of the operand that must not be 0."""


def is_seen(op_type: str, kind: str, outputs: list[Any], operands: list[Any]) -> bool:
    """Return whether the numbers of one run show the fault at this operator: what it was given does not have it already."""
    if kind == "division" and op_type in _DIVISORS:
        divisor = operands[_DIVISORS[op_type]]
        return isinstance(divisor, np.ndarray) and bool((divisor == 0).any())
    return seen_fault(outputs, operands) is not None


def seen_fault(outputs: list[Any], operands: list[Any]) -> tuple[str, str] | None:
    """The fault that the numbers of one run show: NaN of numbers, or an infinity of finite ones."""
    floats = [[_wide(each) for each in arrays if _is_float(each)] for arrays in (outputs, operands)]
    if not floats[1]:
        return None
    for kind, test, told in (
        ("nan", np.isnan, "gives NaN"),
        ("overflow", lambda each: ~np.isfinite(each), "gives an infinity"),
    ):
        made, given = (any(bool(test(each).any()) for each in arrays) for arrays in floats)
        if made and not given:
            return kind, told
    return None


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind not in "OUSbiuc"


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


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


def hull_spans(call: SpanCall) -> list[Interval]:
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


@public_methods
@dataclass(frozen=True, slots=True)
class RangeFinding:
    """A fault that an input in the ranges may cause at a node."""

    kind: str
    """``overflow``, ``nan``, ``division`` or ``index``."""
    problem: str
    op_type: str
    node: str
    module: str
    """The module whose forward makes the node."""
    where: str
    """The line of source code."""
    is_shown: bool
    """True if a sampled input causes it; else the bounds cannot rule it out."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OutputBound:
    """Bounds of one output over all inputs in the ranges."""

    low: float
    high: float
    rounding: float
    """The largest distance between an element in the file's floats and in real numbers."""
    measured: float
    """The same between the runner and float64 on the sampled inputs."""


@public_methods
@dataclass(repr=False)
class ValueRanges(Shown):
    """Bounds and findings of an ONNX file for declared ranges of its inputs."""

    sizes: dict[str, tuple[int, ...]]
    """The shape of each input that the bounds are for."""
    outputs: dict[str, OutputBound] = field(default_factory=dict)
    findings: list[RangeFinding] = field(default_factory=list)
    float16: list[RangeFinding] = field(default_factory=list)
    """Nodes whose numbers may be too large for float16."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Nodes without a bound, by name: their operators, and the reason where there is a rule."""
    lost_at: str = ""
    """The first node whose rounding may be as large as its largest number, with its line: behind it bounds say little."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; what is not finite as text."""
        outputs = {
            name: {key: value if math.isfinite(value) else str(value) for key, value in asdict(bound).items()}
            for name, bound in self.outputs.items()
        }
        return {**asdict(self), "outputs": outputs}

    def _shown(self) -> dict[str, Any]:
        return {"findings": len(self.findings), "float16": len(self.float16), "unknown": len(self.unknown)}
