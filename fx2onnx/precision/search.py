"""The keep-list by measurement: what each node computes in 16 bits, beside the same graph in float64.

A node stays in float32 where its values are beyond the range, and where the error that it gives is many times the one that it takes:
then what it takes has to be exact, too, so that the light nodes above it stay as well. That is done only as long as the outputs gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, UserError
from fx2onnx.base.events import record
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.schema import GRAPH_BEARING
from fx2onnx.precision.draft import LEAST_NUMBERS, Draft
from fx2onnx.precision.forms import HEAVY, LIGHT, SUMS
from fx2onnx.precision.rewrite import carry_out
from fx2onnx.precision.values import Feeds, SeenValue, distance, is_float, values_of

WHY = "it is computed of positions or sizes, which 16 bits do not hold beyond {}"
END = {"float16": "2,048", "bfloat16": "256"}


def counting(model: ir.Model, largest: Callable[[ir.Value], float]) -> Iterator[ir.Node]:
    """Nodes whose floats come of integers and constants alone, up to where they meet the model's own numbers. ``largest``: of a
    value on the example inputs; integers of 0 and 1 are masks, and count nothing.
    """
    counts: set[ir.Value] = set()
    for graph in graphs_of(model):
        for node in graph:
            if node.op_type not in GRAPH_BEARING and _counts(node, counts, largest):
                yield node
                counts.update(value for value in node.outputs if _is_float(value))


def _counts(node: ir.Node, counts: set[ir.Value], largest: Callable[[ir.Value], float]) -> bool:
    first = node.inputs[0] if node.inputs else None
    if node.op_type == "Cast" and first is not None and first.dtype is not None and first.dtype.is_integer():
        return _is_float(node.outputs[0]) and largest(node.outputs[0]) > 1
    operands = [value for value in node.inputs if _is_float(value)]
    if node.op_type == "Range" and operands:
        return True
    return not counts.isdisjoint(operands) and all(value in counts or _is_constant(value) for value in operands)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def _is_constant(value: ir.Value | None) -> bool:
    if value is None:
        return True
    producer, tensor = value.producer(), value.const_value
    if producer is not None:
        return producer.op_type in ("Constant", "ConstantOfShape")
    return tensor is not None and tensor.size < LEAST_NUMBERS


HEADROOM = 4.0
"""The factor by which values of other inputs may be larger than those of the example inputs."""
SCALED, SCALED_HEADROOM = 16.0, 2.0
"""Floats of the example inputs times this are tried as well: as large as a verification draws them."""
GOOD_UNITS = 16.0
"""Outputs that are off by no more units are as good as 16 bits are: nothing is looked for."""
JUMP = 8.0
"""A node whose error is so many times that of its operands is looked at."""
GAIN = 0.9
"""Nodes stay in float32 where the outputs' error becomes less than this share of what it was."""
MOST_ROUNDS = 4
RATIO = 8.0
"""The outputs may be so many times as far off as where the weights alone are rounded."""
MOST_FLOAT64_BYTES = 512 << 20
"""Larger weights are not widened: the model itself is the reference, whose float32 is thousands of times as fine as
float16."""

Values = Mapping[str, SeenValue]


@dataclass
class MeasuredDraft:
    """The measurements of the search."""

    outputs: dict[str, float] = field(default_factory=dict)
    """The relative distance of each output from the reference."""
    allowed: float = 0.0
    """The largest distance of an output: that of rounded weights alone, or what 16 bits cost anyway."""
    runs: int = 0
    judge: str = ""

    @property
    def worst(self) -> float:
        return max(self.outputs.values(), default=0.0)


class Search:
    """Changes ``draft`` until its outputs are as good as they get."""

    def __init__(self, draft: Draft, samples: Sequence[Feeds]) -> None:
        self.draft = draft
        self.precision = draft.precision
        self.samples = samples
        self.measured = MeasuredDraft()
        self.outputs = [value.name or "" for value in draft.model.graph.outputs]

    def run(self) -> MeasuredDraft:
        """Raises UserError E001 where the example itself is beyond the range."""
        with record("measure in float64"):
            self.wanted = [self._judge(feeds) for feeds in self.samples]
            self.scaled = [self._judge(feeds) for feeds in map(_scaled, self.samples[:1]) if feeds is not None]
        self._check_inputs()
        keep_counts(self.draft, self._on_sample)
        self._keep_ranges()
        self.draft.settle()
        unit, errors = self.precision.unit, self._errors()
        for _ in range(MOST_ROUNDS):
            if self._worst(errors) <= GOOD_UNITS * unit:
                break
            before = dict(self.draft.kept)
            if not self._keep_jumps(errors):
                break
            self.draft.settle()
            found = self._errors()
            if self._worst(found) > GAIN * self._worst(errors):
                self.draft.kept = before
                break
            errors = found
        self.measured.allowed = GOOD_UNITS * unit
        if self._worst(errors) > self.measured.allowed:
            errors = self._fall_back(errors)
        self.measured.outputs = {
            name: max(each[name] for each in errors) for name in self.outputs if all(name in each for each in errors)
        }
        return self.measured

    def _judge(self, feeds: Feeds) -> Values:
        """The values in float64, or where that cannot be as the model has them."""
        self.measured.runs += 1
        tensors = [value.const_value for value in self.draft.model.graph.initializers.values()]
        if sum(tensor.nbytes for tensor in tensors if tensor is not None) <= MOST_FLOAT64_BYTES:
            try:
                wide = self.draft.twin(is_wide=True)
                carry_out(wide)
                found = values_of(wide.model, in_dtype(feeds, wide.model))
                self.measured.judge = "float64"
                return found
            except Fx2OnnxError:
                pass
        self.measured.judge = self.measured.judge or self.draft.wide.name.lower()
        return values_of(self.draft.model, feeds)

    def _errors(self, draft: Draft | None = None) -> list[dict[str, float]]:
        """The error of each value in the draft, for each sample."""
        trial = (draft or self.draft).twin()
        carry_out(trial)
        found = []
        with record("measure in 16 bits"):
            for feeds, wanted in zip(self.samples, self.wanted, strict=True):
                self.measured.runs += 1
                got = values_of(trial.model, in_dtype(feeds, trial.model))
                found.append({
                    name: distance(got[name], want, self.precision.largest) for name, want in wanted.items() if name in got
                })  # fmt: skip
        return found

    def _worst(self, errors: Sequence[Mapping[str, float]]) -> float:
        return max((each.get(name, 0.0) for each in errors for name in self.outputs), default=0.0)

    def _largest(self, value: ir.Value | None) -> float:
        """The largest magnitude of a value that other inputs may give."""
        name = "" if value is None else value.name or ""
        seen = [HEADROOM * wanted[name].largest for wanted in self.wanted if name in wanted]
        seen += [SCALED_HEADROOM * scaled[name].largest for scaled in self.scaled if name in scaled]
        return max(seen, default=0.0)

    def _on_sample(self, value: ir.Value) -> float:
        name = value.name or ""
        return max((wanted[name].largest for wanted in self.wanted if name in wanted), default=0.0)

    def _check_inputs(self) -> None:
        for value in self.draft.model.graph.inputs:
            name, is_half = value.name or "", self.draft.home(value) == self.draft.half
            largest = max((wanted[name].largest for wanted in self.wanted if is_half and name in wanted), default=0.0)
            if value.dtype == self.draft.wide and largest > self.precision.largest:
                raise UserError(
                    "E001",
                    f"the input {value.name} has {largest:.4g}, {self.precision.word} ends at {self.precision.largest:.6g}",
                    next='--io float32 (io="float32"): inputs and outputs stay as they are',
                )

    def _keep_ranges(self) -> None:
        """Nodes whose values are beyond the range, or that were not run."""
        limit, word = self.precision.largest, self.precision.word
        for node in self.draft.nodes():
            if not self.draft.is_half(node):
                continue
            if not any((value.name or "") in wanted for wanted in self.wanted for value in node.outputs):
                if any(value.dtype == self.draft.wide for value in node.outputs):
                    self.draft.keep(node, "the sample does not reach it")
                continue
            for value in (*node.outputs, *node.inputs):
                if value is None or value.dtype != self.draft.wide:
                    continue
                largest = self._largest(value)
                if largest > limit and not self.draft.ends_in_softmax(value):
                    end = f"{word} ends at {self.precision.largest:.6g}"
                    self.draft.keep(node, f"its values may reach {largest:.3g}, {end}")

    def _keep_jumps(self, errors: Sequence[Mapping[str, float]]) -> bool:
        """Nodes that make much error of little, and the light ones above them. False where there is none."""
        is_changed = False
        for node in list(self.draft.nodes()):
            if not self.draft.is_half(node):
                continue
            most = 0.0
            for each in errors:
                given = max((each.get(v.name or "", 0.0) for v in node.inputs if v is not None), default=0.0)
                made = max((each.get(v.name or "", 0.0) for v in node.outputs), default=0.0)
                if made > max(JUMP * max(given, self.precision.unit), GOOD_UNITS * self.precision.unit):
                    most = max(most, made)
            if most:
                is_changed |= self._keep_above(node, most)
        return is_changed

    def _keep_above(self, node: ir.Node, error: float) -> bool:
        size = "NaN or infinity" if error == float("inf") else f"an error of {error:.1%}"
        is_changed = self.draft.keep(node, f"it makes {size} of what {self.precision.word} rounds")
        pending = [node]
        while pending:
            for value in pending.pop().inputs:
                above = None if value is None or value.dtype != self.draft.wide else value.producer()
                if above is None or (above.op_type not in LIGHT and (above.op_type in HEAVY or len(above.inputs) != 1)):
                    continue
                if self.draft.keep(above, f"{node.op_type} {node.outputs[0].name} needs it exactly"):
                    is_changed = True
                    pending.append(above)
        return is_changed

    def _fall_back(self, errors: list[dict[str, float]]) -> list[dict[str, float]]:
        """Compare with what rounded weights alone do; keep all but products, then those, too, where that is much better."""
        weights_alone = self.draft.twin()
        for node in list(weights_alone.nodes()):
            weights_alone.keep(node, "")
        least = self._worst(self._errors(weights_alone))
        self.measured.allowed = max(self.measured.allowed, RATIO * least)
        for spared in (HEAVY, frozenset[str]()):
            if self._worst(errors) <= self.measured.allowed:
                break
            before = dict(self.draft.kept)
            for node in list(self.draft.nodes()):
                if node.op_type not in spared:
                    self.draft.keep(node, f"the outputs would be off by {_share(self._worst(errors))}")
            self.draft.settle()
            found = self._errors()
            if self._worst(found) > GAIN * self._worst(errors):
                self.draft.kept = before
                continue
            errors = found
        return errors


def _share(error: float) -> str:
    return "NaN or infinity" if error == float("inf") else f"{error:.1%}"


def _scaled(feeds: Feeds) -> Feeds | None:
    """The inputs with larger floats; None where there is none."""
    if not any(is_float(array) and np.abs(array.astype(np.float32)).max(initial=0) > 1 for array in feeds.values()):
        return None
    return {
        name: array * np.asarray(SCALED, array.dtype) if is_float(array) else array for name, array in feeds.items()
    }


def keep_counts(draft: Draft, largest: Callable[[ir.Value], float]) -> None:
    """Nodes that count."""
    why = WHY.format(END[draft.precision.word])
    for node in list(counting(draft.model, largest)):
        draft.keep(node, why)


def keep_unmeasured(draft: Draft) -> None:
    """Keep in float32 the nodes that are known to leave the range, and all that computes with integers, where nothing
    can be run."""
    keep_counts(draft, lambda value: float("inf"))
    for node in list(draft.nodes()):
        if node.op_type in SUMS:
            draft.keep(node, "it was not measured")
    draft.settle()


def in_dtype(feeds: Feeds, model: ir.Model) -> Feeds:
    """The arrays in the dtypes that the model's inputs have."""
    wanted = {value.name: value.dtype for value in model.graph.inputs}
    found = {}
    for name, array in feeds.items():
        dtype = wanted.get(name)
        is_other = dtype is not None and dtype.is_floating_point() and array.dtype != dtype.numpy()
        found[name] = array.astype(dtype.numpy()) if is_other and dtype is not None else array
    return found
