"""Value ranges of an ONNX file over declared ranges of its inputs: bounds of its outputs and of their rounding, and what may go wrong.

Bounds follow node by node (``spans.py``), so that they hold for all inputs in the ranges, at the sizes that were taken. They may be far
wider than what inputs give: a finding is *shown* where one of a few inputs of the ranges has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.escape import Shown
from fx2onnx.base.stack_frames import public, public_methods
from fx2onnx.irx.given import as_file
from fx2onnx.irx.inference import without_maps
from fx2onnx.irx.names import scope_of, source_of
from fx2onnx.judge.engines import ENGINES
from fx2onnx.judge.feeds import conditions_of, inputs_of, taken_feeds
from fx2onnx.proof import span_products  # noqa: F401  (whose rules register themselves)
from fx2onnx.proof.domains import check_domain, is_seen, seen_fault
from fx2onnx.proof.nodes import Array, attributes_of, reads_of
from fx2onnx.proof.opened import OpenedFile
from fx2onnx.proof.spans import RULES, Call, Interval, unit_of
from fx2onnx.semantics.folding import compute_all

SAMPLES = 4
"""Inputs of the ranges that are run: both ends, and random ones."""
HALF = float(np.finfo(np.float16).max)
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_LOOSE = frozenset(["NonZero", "NonMaxSuppression", "Unique", "Compress", "If", "Loop", "Scan"])
_FIXED = frozenset(["Shape", "Size"])
"""Operators whose result the shape alone tells."""


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
    """Nodes without a rule, by name, and their operators: nothing is known of what they give."""
    lost_at: str = ""
    """The first node whose rounding may be as large as its largest number, with its line: behind it bounds say little."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def _shown(self) -> dict[str, Any]:
        return {"findings": len(self.findings), "float16": len(self.float16), "unknown": len(self.unknown)}


def parse_ranges(text: str) -> dict[str, tuple[float, float]]:
    """``x=0:1,y=-1:1`` as numbers by input. Raises UserError E001."""
    found = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, ends = part.rpartition("=")
        try:
            low, high = (float(each) for each in ends.split(":"))
        except ValueError:
            low, high = 1.0, 0.0
        if name in found or not name or not low <= high:
            what = f"gives two ranges for {name!r}" if name in found else f"{part!r} is no range"
            raise UserError("E001", f"--ranges {what}", next="write INPUT=LOW:HIGH, such as --ranges x=0:1")
        found[name] = low, high
    return found


@public
def value_ranges(
    model: Any, ranges: Mapping[str, tuple[float, float]], *, sizes: Mapping[str, int] | None = None
) -> ValueRanges:
    """Bound every value of an ONNX file, and its rounding, for all inputs in ``ranges``: ``{"x": (0, 1)}``.

    An input that ``ranges`` leaves out may be any number of its dtype. sizes: numbers for dynamic sizes; default: small ones.

    Raises: UserError E001 for a name that is no input, or a range of none; E302, E303 for a file that cannot be read.
    """
    with as_file(model) as path:
        file = OpenedFile(path)
    for name, (low, high) in ranges.items():
        if name not in file.inputs:
            raise UserError(
                "E001", f"ranges: the file has no input {name!r}", next=f"its inputs: {', '.join(file.inputs)}"
            )
        if not low <= high:
            raise UserError("E001", f"ranges: {name}={low}:{high} is empty", next="give (low, high) with low <= high")
    with np.errstate(all="ignore"):
        return Walk(file, ranges, sizes or {}).run()


class Walk:
    """One pass over a file, from inputs to outputs."""

    def __init__(self, file: OpenedFile, ranges: Mapping[str, tuple[float, float]], sizes: Mapping[str, int]) -> None:
        self.file = file
        self.spans: dict[str, Interval] = {
            name: Interval.of(array) for name, array in file.constants.items() if array.dtype.kind not in "OUS"
        }
        self.wide: list[dict[str, Array]] = []
        self._start(ranges, sizes)
        self.found = ValueRanges({name: self.samples[0][name].shape for name in file.inputs})
        self.lost = False
        self.loose: set[str] = set()
        """Values whose shape may depend on data."""
        self.comparisons = {
            node.output[0]: node
            for node in file.proto.graph.node
            if node.op_type in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
        }

    def _start(self, ranges: Mapping[str, tuple[float, float]], sizes: Mapping[str, int]) -> None:
        """Spans of the inputs, and what a few inputs give at each node."""
        names = [name for node in self.file.proto.graph.node for name in node.output if name]
        names = list(dict.fromkeys(names))
        run = ENGINES["runner"](self.file.with_outputs(names))
        outputs = list(dict.fromkeys([*self.file.outputs, *names]))
        model = ir.from_proto(without_maps(self.file.proto))
        taken = next(iter(taken_feeds(inputs_of(model), run, conditions_of(model), sizes)))
        self.samples = [{**taken.feeds, **dict(zip(outputs, taken.results, strict=True))}]
        self.failed = False
        feeds: list[dict[str, Array]] = [{} for _ in range(SAMPLES)]
        generator = np.random.default_rng(0)
        for name in self.file.inputs:
            like = np.asarray(taken.feeds[name])
            if like.dtype.kind in "OUS":
                for each in feeds:
                    each[name] = taken.feeds[name]
                continue
            least, most = _all_of(like.dtype)
            low, high = ranges.get(name, (least, most))
            if not least <= low <= high <= most:
                what = f"ranges: {name}={low:g}:{high:g} is not within {like.dtype}"
                raise UserError("E001", what, next=f"its numbers are from {least:g} to {most:g}")
            self.spans[name] = _on_grid(np.full(like.shape, float(low)), np.full(like.shape, float(high)), like.dtype)
            ends = [np.full(like.shape, float(end)) for end in (low, high)]
            drawn = [
                generator.uniform(low / 2, high / 2, like.shape) * 2 for _ in range(SAMPLES - 2)
            ]  # high - low may overflow
            for each, array in zip(feeds, ends + drawn, strict=True):
                each[name] = (np.rint(array) if like.dtype.kind in "iub" else array).astype(like.dtype)
        for each in feeds:
            try:
                self.samples.append({**each, **dict(zip(outputs, run(each), strict=True))})
                self.wide.append({name: _widened(array) for name, array in each.items()})
            except (Fx2OnnxError, ValueError, IndexError):
                self.failed = True

    def run(self) -> ValueRanges:
        for node in self.file.proto.graph.node:
            notes: list[tuple[str, str]] = []
            if node.op_type in _LOOSE or not all(name in self.spans for name in node.input if name):
                self.loose.update(node.output)
            spans = self._node(node, notes)
            for name, span in zip(node.output, spans, strict=True):
                if name and span is not None:
                    self.spans[name] = span
            self._judge(node, notes)
            self._widen(node)
        for name in self.file.outputs:
            span = self.spans.get(name)
            if span is not None and span.low.size:
                measured = self.measured(name)
                self.found.outputs[name] = OutputBound(
                    float(span.low.min()), float(span.high.max()), float(span.error.max()), measured
                )
        return self.found

    def _call(self, node: onnx.NodeProto, notes: list[tuple[str, str]]) -> Call:
        opset = self.file.opsets.get(node.domain, 0)
        attrs = _attributes(node, opset)
        if any(name and name not in self.spans for name in node.input):
            raise LookupError(node.op_type)
        args = [self.spans[name] if name else None for name in node.input]
        dtype = np.asarray(self.samples[0][next(filter(None, node.output))]).dtype
        extreme = self._extreme(node)
        args = args[1:] if extreme else args
        return Call(extreme or node.op_type, opset, attrs, args, len(node.output), dtype, notes)

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
            fixed = self._fixed(node)
            if fixed is not None:
                return fixed
            call = self._call(node, notes)
            check_domain(call)
            made = RULES[call.op_type](call)
            spans = made if isinstance(made, list) else [made]
            return [*spans, *[self._unknown(name) for name in node.output[len(spans) :]]]
        except (LookupError, ValueError, TypeError, AssertionError):
            if all(name in self.spans for name in node.input if name):  # else its operand is the unknown one
                self.found.unknown[node.name or node.output[0]] = "::".join(filter(None, (node.domain, node.op_type)))
            return [self._unknown(name) for name in node.output]

    def _fixed(self, node: onnx.NodeProto) -> list[Interval | None] | None:
        """The outputs that are the same for all inputs: of constants without rounding, and of shapes."""
        known = [self.spans.get(name) for name in node.input if name]
        outputs = [np.asarray(self.samples[0][name]) if name else None for name in node.output]
        is_exact = all(each is None or each.dtype.kind in "iub" for each in outputs)
        is_fixed = node.op_type in _FIXED or all(each is not None and each.value is not None for each in known)
        if (
            not is_fixed
            or not (is_exact or node.op_type in ("Constant", "ConstantOfShape"))
            or node.op_type.startswith("Random")
        ):
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
            span, like = self.spans.get(name), self.samples[0].get(name)
            if span is None or not isinstance(like, np.ndarray) or not unit_of(like.dtype) or not span.low.size:
                continue
            most, reach = float(ml_dtypes.finfo(like.dtype).max), float(span.reach.max())
            is_known = (node.name or node.output[0]) not in self.found.unknown
            if reach > most and is_known and not notes and not any(map(self._is_too_large, node.input)):
                notes.append(("overflow", f"too large for {like.dtype}: up to {reach:.4g}"))
            if reach > HALF and like.dtype != np.float16 and is_known:
                self.found.float16.append(
                    self._finding(node, "overflow", f"up to {reach:.4g}, and float16 ends at 65504", HALF)
                )
            if not self.lost and span.error.max() >= max(float(span.size.max()), 1e-30):
                self.lost, self.found.lost_at = (
                    True,
                    " ".join(filter(None, (node.name or name, source_of(_metadata(node))))),
                )
        if not notes:
            notes += filter(None, [next(filter(None, map(partial(self._seen, node), self.samples[1:])), None)])
        for kind, problem in notes:
            self.found.findings.append(self._finding(node, kind, problem))

    def _is_too_large(self, name: str) -> bool:
        """Return whether a value has numbers beyond its own dtype already."""
        span, like = self.spans.get(name), self.samples[0].get(name, self.file.constants.get(name))
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
        return RangeFinding(kind, problem, node.op_type, name, scope_of(name, metadata), source_of(metadata), is_shown)

    def _widen(self, node: onnx.NodeProto) -> None:
        """The node in float64 on each sampled input."""
        opset = self.file.opsets.get(node.domain, 0)
        for place, known in enumerate(self.wide):
            sample = self.samples[place + 1]
            arrays = [known.get(name, _widened(self.file.constants.get(name))) if name else None for name in node.input]
            found = None
            is_known = all(array is not None or not name for array, name in zip(arrays, node.input, strict=True))
            if is_known and node.domain in ("", "ai.onnx") and node.op_type not in ("Constant", "If", "Loop", "Scan"):
                attrs = _attributes(node, opset)
                attrs |= {"to": onnx.TensorProto.DOUBLE} if attrs.get("to") in _FLOATS else {}
                found = compute_all(node.op_type, opset, arrays, attrs, len(node.output))
            for index, name in enumerate(node.output):
                array = sample.get(name)
                fixed = self.spans.get(name)
                if found is not None:
                    known[name] = _widened(found[index])
                elif isinstance(array, np.ndarray) and (
                    not unit_of(array.dtype) or (fixed and fixed.value is not None)
                ):
                    known[name] = _widened(array)

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


def _widened(array: Any) -> Any:
    return array.astype(np.float64) if isinstance(array, np.ndarray) and unit_of(array.dtype) else array


def _all_of(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The smallest and the largest number of a dtype."""
    if dtype == np.bool_:
        return 0.0, 1.0
    limits: Callable[[Any], Any] = ml_dtypes.finfo if unit_of(dtype) else np.iinfo
    return float(limits(dtype).min), float(limits(dtype).max)


def _on_grid(low: Array, high: Array, dtype: np.dtype[Any]) -> Interval:
    """Numbers of the dtype: an end that integers lack is the next one inside, and floats are rounded as they are fed."""
    if unit_of(dtype):
        low, high = (each.astype(dtype).astype(np.float64) for each in (low, high))
    else:
        low, high = np.ceil(low), np.floor(high)
    return Interval(low, high, np.zeros(low.shape))
