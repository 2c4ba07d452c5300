"""One pass over a graph, from inputs to outputs: the bounds of each value, and the faults that an input in the ranges may cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from fx2onnx.irx.names import scope_of, source_of
from fx2onnx.proof import span_moves, span_products, span_steps  # noqa: F401  (whose rules register themselves)
from fx2onnx.proof.bodies import HeldGraph, if_spans
from fx2onnx.proof.domains import (
    OutputBound,
    RangeFinding,
    ValueRanges,
    check_domain,
    hull_of,
    hull_spans,
    is_seen,
    seen_fault,
)
from fx2onnx.proof.nodes import RANDOM, OpenedFile, attributes_of, reads_of
from fx2onnx.proof.spans import RULES, Interval, SpanCall, Unbounded, limits_of, unit_of
from fx2onnx.proof.turns import loop_spans, scan_spans
from fx2onnx.semantics.folding import compute_all

HALF = float(np.finfo(np.float16).max)
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
FOLLOWED = {"If": if_spans, "Loop": loop_spans, "Scan": scan_spans}
_LOOSE = frozenset(["NonZero", "NonMaxSuppression", "Unique", "Compress", *FOLLOWED])
_SHAPING = {
    **dict.fromkeys(("Range", "ConstantOfShape", "RandomNormal", "RandomUniform", "Col2Im"), 0),
    **dict.fromkeys(
        ("Reshape", "Expand", "Tile", "Slice", "Pad", "Resize", "Upsample", "TopK", "Split", "Squeeze", "Unsqueeze"), 1
    ),
    **dict.fromkeys(
        ("OneHot", "CenterCropPad", "AffineGrid", "DFT", "STFT", "MaxUnpool", "ReduceSum", "ReduceMean", "ReduceMax"), 1
    ),
    **dict.fromkeys(
        ("ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), 1
    ),
}
"""The first operand whose numbers may tell the shape of the result."""
_FIXED = frozenset(["Shape", "Size"])
"""Operators whose result the shape alone tells."""


class Walk:
    """One pass over a file, from inputs to outputs."""

    def __init__(
        self,
        file: OpenedFile | HeldGraph,
        spans: Mapping[str, Interval],
        samples: list[dict[str, Any]],
        wide: list[dict[str, Any]],
        found: ValueRanges,
        *,
        failed: bool = False,
        place: str = "",
    ) -> None:
        """samples: each value by name on one set of inputs; the first is for shapes alone. wide: the inputs of the others in float64."""
        self.file, self.samples, self.wide, self.found, self.failed, self.place = (
            file,
            samples,
            wide,
            found,
            failed,
            place,
        )
        self.spans: dict[str, Interval] = {
            name: Interval.of(array) for name, array in file.constants.items() if array.dtype.kind not in "OUS"
        }
        self.spans.update(spans)
        self.bodies: dict[str, HeldGraph] = {}
        """The graphs that nodes hold, by node and attribute."""
        self.hulls: dict[str, Interval] = {}
        """Bounds of all elements of the values whose shape depends on data."""
        self.loose: set[str] = set()
        """Values whose shape may depend on data."""
        self.comparisons = {
            node.output[0]: node
            for node in file.proto.graph.node
            if node.op_type in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
        }

    def run(self) -> ValueRanges:
        for node in self.file.proto.graph.node:
            notes: list[tuple[str, str]] = []
            if (
                node.op_type in _LOOSE
                or not all(name in self.spans for name in node.input if name)
                or self._is_shaped(node)
            ):
                self.loose.update(node.output)
            spans = self._node(node, notes)
            for name, span in zip(node.output, spans, strict=True):
                if name and span is not None:
                    self.spans[name] = span
            if node.op_type not in FOLLOWED or self._name(node) in self.found.unknown:
                self._judge(node, notes)
            self._widen(node)
        for name in () if self.place else self.file.outputs:
            span = self.known(name)
            if span is not None and span.low.size:
                measured = self.measured(name)
                self.found.outputs[name] = OutputBound(
                    float(span.low.min()), float(span.high.max()), float(span.error.max()), measured
                )
        return self.found

    def _is_shaped(self, node: onnx.NodeProto) -> bool:
        """Return whether numbers that inputs change may tell the shape of a node's outputs."""
        first = _SHAPING.get(node.op_type)
        return first is not None and any(self.spans[name].value is None for name in node.input[first:] if name)

    def _call(self, node: onnx.NodeProto, notes: list[tuple[str, str]]) -> SpanCall:
        opset = self.file.opsets.get(node.domain, 0)
        attrs = _attributes(node, opset)
        args = [self.known(name) for name in node.input]
        if any(name and span is None for name, span in zip(node.input, args, strict=True)):
            raise LookupError(node.op_type)
        like = np.asarray(self.samples[0][next(filter(None, node.output))])
        first = next(filter(None, node.input), "")
        operand = np.asarray(self.samples[0].get(first, self.file.constants.get(first))).dtype
        extreme = self._extreme(node)
        args = args[1:] if extreme else args
        return SpanCall(
            extreme or node.op_type, opset, attrs, args, len(node.output), like.dtype, notes, like.shape, operand
        )

    def _extreme(self, node: onnx.NodeProto) -> str:
        """Max or Min for a Where that picks the larger or the smaller of the two numbers that it compares; else nothing."""
        compared = self.comparisons.get(node.input[0]) if node.op_type == "Where" else None
        pair = [] if compared is None else list(compared.input)
        if compared is None or list(node.input[1:]) not in (pair, pair[::-1]):
            return ""
        return "Max" if compared.op_type.startswith("Greater") == (node.input[1] == pair[0]) else "Min"

    def _node(self, node: onnx.NodeProto, notes: list[tuple[str, str]]) -> Sequence[Interval | None]:
        """The spans of a node's outputs; None where a value has no numbers."""
        try:
            if node.domain not in ("", "ai.onnx"):
                raise LookupError(node.op_type)
            if node.op_type in FOLLOWED:
                return FOLLOWED[node.op_type](self, node, _attributes(node, self.file.opsets.get("", 0)))
            fixed = self._fixed(node)
            if fixed is not None:
                return fixed
            call = self._call(node, notes)
            if any(name and name not in self.spans for name in node.input):
                return self._hulls(node, call)
            check_domain(call)
            made = RULES[call.op_type](call)
            spans = made if isinstance(made, list) else [made]
            spans = [self._wrapped(name, span, notes) for name, span in zip(node.output, spans, strict=False)]
            return [*spans, *[self._unknown(name) for name in node.output[len(spans) :]]]
        except (LookupError, ValueError, TypeError, AssertionError) as cause:
            return self._without_rule(node, cause, notes)

    def _without_rule(
        self, node: onnx.NodeProto, cause: Exception, notes: list[tuple[str, str]]
    ) -> Sequence[Interval | None]:
        """The outputs that a rule has no bounds of: those of all of their elements where they are known."""
        if node.op_type in FOLLOWED or node.domain not in ("", "ai.onnx"):
            self.note_unknown(node, str(cause) if isinstance(cause, Unbounded) else "")
        elif all(self.known(name) is not None for name in node.input if name):  # else its operand is the unknown one
            try:
                return self._hulls(node, self._call(node, notes))
            except (LookupError, ValueError, TypeError, AssertionError) as other:
                told = next((str(each) for each in (cause, other) if isinstance(each, Unbounded)), "")
                self.note_unknown(node, told or "its rule covers no such operands" if node.op_type in RULES else "")
        return [self._unknown(name) for name in node.output]

    def _hulls(self, node: onnx.NodeProto, call: SpanCall) -> Sequence[Interval | None]:
        """Keep the bounds of all elements of the outputs; spans where all inputs give one shape."""
        found: list[Interval | None] = []
        made = hull_spans(call)
        for index, name in enumerate(node.output):
            span = self._unknown(name)
            if index < len(made):
                hull = self.hulls[name] = hull_of(self._wrapped(name, made[index], call.notes))
                fields = (hull.low, hull.high, hull.error)
                span = span and Interval(*(np.broadcast_to(each, span.low.shape) for each in fields))
            elif name:
                self.note_unknown(node, "the shape of what it reads depends on data")
            found.append(span)
        if call.op_type.startswith(("Gather", "Scatter")) and call.span(1).value is None:
            if any(name not in self.spans for name in node.input[:2]):
                self.note_unknown(node, "the places that it reads or writes depend on data, and may be out of range")
            else:
                check_domain(call)
        return found

    def known(self, name: str) -> Interval | None:
        """The span of a value, or the bounds of all of its elements."""
        return self.spans.get(name) or self.hulls.get(name)

    def _wrapped(self, name: str, span: Interval, notes: list[tuple[str, str]]) -> Interval:
        """No bound is NaN. Integers: whole numbers, and any number of the dtype for an element that may not fit it."""
        if any(np.isnan(each).any() for each in (span.low, span.high, span.error)):
            span = Interval.between(span.low, span.high, span.error)
        like = self.samples[0].get(name)
        if (
            not isinstance(like, np.ndarray)
            or like.dtype.kind in "OUS"
            or unit_of(like.dtype)
            or span.value is not None
        ):
            return span
        least, most = limits_of(like.dtype)
        if like.dtype == np.bool_:
            return Interval(np.clip(span.low, 0, 1), np.clip(span.high, 0, 1), np.minimum(span.error, 1))
        low, high = np.ceil(span.low), np.floor(span.high)
        is_outside = (low - span.error < least) | (high + span.error > most)
        if is_outside.any() and not notes:
            notes.append(
                ("overflow", f"a number may not fit {like.dtype}: it is from {low.min():.6g} to {high.max():.6g}")
            )
        return Interval(
            np.where(is_outside, least, low),
            np.where(is_outside, most, high),
            np.where(is_outside, most - least, span.error),
        )

    def _name(self, node: onnx.NodeProto) -> str:
        return self.place + (node.name or node.output[0])

    def note_unknown(self, node: onnx.NodeProto, reason: str) -> None:
        """Name a node of whose outputs nothing is known, or not all."""
        op_type = "::".join(filter(None, (node.domain, node.op_type)))
        self.found.unknown[self._name(node)] = f"{op_type}: {reason}" if reason else op_type

    def inside(
        self,
        body: HeldGraph,
        spans: Mapping[str, Interval],
        samples: list[dict[str, Any]],
        wide: list[dict[str, Any]],
        found: ValueRanges,
        place: str,
    ) -> Walk:
        """The pass over a graph that a node holds."""
        here = Walk(body, spans, samples, wide, found, place=place)
        here.bodies, here.hulls = self.bodies, {name: self.hulls[name] for name in body.captured if name in self.hulls}
        here.run()
        return here

    def wide_of(self, name: str, index: int) -> Any:
        """A value in float64 on a sampled input; None where it is not known."""
        known = self.wide[index - 1]
        return known[name] if name in known else widened(self.file.constants.get(name))

    def note_wide(self, index: int, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """Keep values in float64 on a sampled input, of those that are known."""
        known = self.wide[index - 1]
        known.update({name: array for name, array in zip(names, arrays, strict=False) if name and array is not None})

    def _fixed(self, node: onnx.NodeProto) -> list[Interval | None] | None:
        """The outputs that are the same for all inputs: of constants without rounding, and of shapes."""
        known = [self.spans.get(name) for name in node.input if name]
        outputs = [np.asarray(self.samples[0][name]) if name else None for name in node.output]
        is_exact = all(each is None or each.dtype.kind in "iub" for each in outputs)
        is_shape = node.op_type in _FIXED and known[0] is not None
        is_fixed = is_shape or all(each is not None and each.value is not None for each in known)
        if not is_fixed or not (is_exact or node.op_type in ("Constant", "ConstantOfShape")) or node.op_type in RANDOM:
            return None
        return [None if each is None else Interval.of(each) for each in outputs]

    def _unknown(self, name: str) -> Interval | None:
        """Any number of the dtype; None where the shape is not the same for all inputs."""
        arrays = [sample.get(name) for sample in self.samples]
        like = arrays[0]
        shapes = {each.shape if isinstance(each, np.ndarray) else None for each in arrays}
        if not isinstance(like, np.ndarray) or like.dtype.kind in "OUS" or len(shapes) > 1 or name in self.loose:
            return None
        if like.dtype == np.bool_:
            return Interval(np.zeros(like.shape), np.ones(like.shape), np.ones(like.shape))
        wide = np.full(like.shape, np.inf)
        return Interval(-wide, wide, wide)

    def _judge(self, node: onnx.NodeProto, notes: list[tuple[str, str]]) -> None:
        """Note the faults that inputs may cause at a node."""
        for name in filter(None, node.output):
            span, like = self.known(name), self.samples[0].get(name)
            if span is None or not isinstance(like, np.ndarray) or not unit_of(like.dtype) or not span.low.size:
                continue
            most, reach = float(ml_dtypes.finfo(like.dtype).max), float(span.reach.max())
            is_known = self._name(node) not in self.found.unknown
            if reach > most and is_known and not notes and not any(map(self._is_too_large, node.input)):
                notes.append(("overflow", f"too large for {like.dtype}: up to {reach:.4g}"))
            if reach > HALF and like.dtype != np.float16 and is_known:
                half = self._finding(node, "overflow", f"up to {reach:.4g}, and float16 ends at 65504", HALF)
                if half.node not in {each.node for each in self.found.float16[-200:]}:
                    self.found.float16.append(half)
            if not self.found.lost_at and span.error.max() >= max(float(span.size.max()), 1e-30):
                self.found.lost_at = " ".join(filter(None, (self._name(node), source_of(_metadata(node)))))
        if not notes:
            notes += filter(None, [next(filter(None, map(partial(self._seen, node), self.samples[1:])), None)])
        for kind, problem in notes:
            self._add(self._finding(node, kind, problem))

    def _add(self, finding: RangeFinding) -> None:
        """Keep a finding once, whatever the turns of a loop that have it; one that an input shows is kept rather."""
        known = self.found.findings
        place = next(
            (i for i, each in enumerate(known) if (each.kind, each.node) == (finding.kind, finding.node)), None
        )
        if place is None:
            known.append(finding)
        elif finding.is_shown:
            known[place] = finding

    def _is_too_large(self, name: str) -> bool:
        """Return whether a value has numbers beyond its own dtype already."""
        span, like = self.known(name), self.samples[0].get(name, self.file.constants.get(name))
        if span is None or not isinstance(like, np.ndarray):
            return False
        return bool(unit_of(like.dtype)) and float(span.reach.max(initial=0)) > float(ml_dtypes.finfo(like.dtype).max)

    def _seen(self, node: onnx.NodeProto, sample: Mapping[str, Any]) -> tuple[str, str] | None:
        """The fault that one sampled input shows at a node, where the bounds do not tell."""
        found = seen_fault(*self._numbers(node, sample))
        return None if found is None else (found[0], f"{node.op_type} {found[1]}")

    def _numbers(self, node: onnx.NodeProto, sample: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """The outputs and the operands of a node on one sampled input."""
        operands = [sample.get(name, self.file.constants.get(name)) for name in (*node.input, *reads_of(node))]
        return [sample.get(name) for name in node.output], operands

    def _finding(self, node: onnx.NodeProto, kind: str, problem: str, most: float = np.inf) -> RangeFinding:
        name, metadata = node.name or node.output[0], _metadata(node)
        runs = [self._numbers(node, sample) for sample in self.samples[1:]]
        arrays = [np.asarray(each) for outputs, _ in runs for each in outputs if each is not None]
        if kind == "index":
            is_shown = self.failed
        elif most < np.inf:
            wide = [array.astype(np.float64) for array in arrays if array.dtype.kind not in "OUSb"]
            is_shown = any(not (np.abs(array) < most).all() for array in wide)
        else:
            is_shown = any(is_seen(node.op_type, kind, *run) for run in runs)
        scope = scope_of(name, metadata)
        return RangeFinding(kind, problem, node.op_type, self._name(node), scope, source_of(metadata), is_shown)

    def _widen(self, node: onnx.NodeProto) -> None:
        """The node in float64 on each sampled input."""
        opset = self.file.opsets.get(node.domain, 0)
        for place, known in enumerate(self.wide):
            sample = self.samples[place + 1]
            arrays = [known.get(name, widened(self.file.constants.get(name))) if name else None for name in node.input]
            found = None
            is_known = all(array is not None or not name for array, name in zip(arrays, node.input, strict=True))
            if is_known and node.domain in ("", "ai.onnx") and node.op_type not in ("Constant", *FOLLOWED, *RANDOM):
                attrs = _attributes(node, opset)
                attrs |= {"to": onnx.TensorProto.DOUBLE} if attrs.get("to") in _FLOATS else {}
                found = compute_all(node.op_type, opset, arrays, attrs, len(node.output))
            for index, name in enumerate(node.output):
                array = sample.get(name)
                fixed = self.spans.get(name)
                if found is not None:
                    known[name] = widened(found[index])
                elif (
                    name not in known
                    and isinstance(array, np.ndarray)
                    and (not unit_of(array.dtype) or (fixed and fixed.value is not None))
                ):
                    known[name] = widened(array)

    def measured(self, name: str) -> float:
        """The largest rounding of a value on the sampled inputs, in the runner against float64."""
        worst = 0.0
        for sample, wide in zip(self.samples[1:], self.wide, strict=True):
            if name in wide and isinstance(sample[name], np.ndarray) and unit_of(sample[name].dtype):
                with np.errstate(invalid="ignore"):
                    apart = np.abs(sample[name].astype(np.float64) - wide[name])
                worst = max(worst, float(np.nan_to_num(apart, nan=0.0, posinf=0.0).max(initial=0.0)))
        return worst


def _attributes(node: onnx.NodeProto, opset: int) -> dict[str, Any]:
    """Attributes as kernels take them."""
    found = attributes_of(node, opset)
    for name, value in found.items():
        if isinstance(value, bytes):
            found[name] = value.decode()
        elif isinstance(value, onnx.TensorProto):
            found[name] = onnx.numpy_helper.to_array(value)
    return found


def _metadata(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}


def widened(array: Any) -> Any:
    return array.astype(np.float64) if isinstance(array, np.ndarray) and unit_of(array.dtype) else array
