"""The new file against the one that it was made of: the same random inputs, in every engine that runs the old one.

A difference is judged as ``fx2onnx verify`` judges it: by the scale of what stands beside a number, and where that is not enough by
the error that the old file itself makes against its own graph in float64. Integers have to be equal, but where they hang on numbers
that the old file rounds otherwise as soon as its inputs move by a unit in the last place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, VerificationError, first_line
from fx2onnx.file_optimizer.float64 import in_float64
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.facts import RANDOM
from fx2onnx.judge import tolerance
from fx2onnx.judge.engines import ENGINES, Run
from fx2onnx.judge.feeds import Array, InputType, make_feeds, taken_feeds
from fx2onnx.judge.movements import MOVEMENT_RATIO
from fx2onnx.sizes.stated import SizeCondition

MOST_SIZES = 3
"""Sets of sizes that are compared where dims are dynamic."""
SEEDS = (0, 1)
MOVED_RUNS = 3
PARTS = 3
"""Runs of a file of a fixed batch that make one of a dynamic one."""
_MOVE = 2.0**-22


@dataclass
class Row:
    """One output at one set of sizes in one engine."""

    engine: str
    output: str
    sizes: dict[str, int]
    seed: int
    error: float = 0.0
    allowed: float = 0.0
    problem: str = ""
    by: str = ""


@dataclass
class Comparison:
    """What was compared. ``ok`` is None where nothing could be."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool | None:
        return not any(row.problem for row in self.rows) if self.rows else None

    def raise_if_failed(self, what: str, advice: str) -> None:
        """Raises VerificationError E501 that says ``what``, with the first row that has a problem, and what to do."""
        for row in self.rows:
            if row.problem:
                why = f"{row.output or 'the file'} in {row.engine}: {row.problem} (error {row.error:.3g}, allowed {row.allowed:.3g})"
                raise VerificationError("E501", what, why=why, next=advice)

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return {"ok": self.ok, "rows": [asdict(row) for row in self.rows], "notes": self.notes}


@dataclass
class Sample:
    """Inputs, and what the old file makes of them in one engine."""

    engine: str
    sizes: dict[str, int]
    seed: int
    feeds: dict[str, Array]
    wanted: list[Any] | None
    """None where it is only to be seen that the file runs."""


class Original:
    """The old file, run once for each engine and set of inputs; new files are compared with what it gave."""

    def __init__(
        self, source: str | bytes, inputs: Sequence[InputType], outputs: Sequence[str], loose: frozenset[str],
        engines: Sequence[str], seed: int = 0, conditions: Sequence[SizeCondition] = (),
    ) -> None:  # fmt: skip
        self.outputs = list(outputs)
        self.loose = loose
        """Outputs that random numbers decide: these are compared by type."""
        self.notes: list[str] = []
        self.samples: list[Sample] = []
        self.limits: dict[str, int] = {}
        self._source = source
        self._conditions = conditions
        self._exact: Run | None = None
        self._tried_exact = False
        self._runs: dict[str, Run] = {}
        for engine in engines:
            try:
                run = ENGINES[engine](source)
                found = self._samples(engine, run, inputs, seed)
            except Exception as error:  # engines have classes of their own
                self.notes.append(f"{engine} does not run the file: {failure_text(error)}")
                continue
            if not found:
                self.notes.append(f"{engine} takes no random inputs of this file")
                continue
            self._runs[engine] = run
            self.samples += found

    def _samples(self, engine: str, run: Run, inputs: Sequence[InputType], seed: int) -> list[Sample]:
        found: list[Sample] = []
        for taken in itertools.islice(taken_feeds(inputs, run, self._conditions, seed=seed), MOST_SIZES):
            self.limits[engine] = taken.limit
            found.append(Sample(engine, taken.sizes, seed, taken.feeds, taken.results))
            for other in SEEDS[1:] if len(found) == 1 else ():
                again = make_feeds(inputs, taken.sizes, taken.limit, seed + other)
                if again is not None:
                    found.append(Sample(engine, taken.sizes, seed + other, again, run(again)))
        return found

    def add_parts(
        self, inputs: Sequence[InputType], places: Mapping[str, str], varying: frozenset[str], seed: int
    ) -> None:
        """Samples of sizes that the old file does not take: what it makes of the parts, one after the other.

        places: the names of sizes by ``input:axis``. varying: outputs whose first axis grows with them. Where a size is not that of
        the first axis of inputs, nothing is known of the parts, and the file has to run.
        """
        by_input: dict[str, list[int]] = {}
        for place in places:
            name, _, axis_text = place.rpartition(":")
            by_input.setdefault(name, []).append(int(axis_text))
        is_batch = all(axes == [0] for axes in by_input.values())
        for engine, run in self._runs.items():
            first = next(sample for sample in self.samples if sample.engine == engine)
            parts = [first.feeds]
            for index in range(1, PARTS):
                feeds = make_feeds(inputs, first.sizes, self.limits[engine], seed + 10 + index)
                assert feeds is not None
                parts.append({name: array if name in by_input else first.feeds[name] for name, array in feeds.items()})
            whole = dict(first.feeds)
            for name, axes in by_input.items():
                for axis in axes:
                    pieces = [part[name] for part in parts] if is_batch else [whole[name]] * PARTS
                    whole[name] = np.concatenate(pieces, axis)
            sizes = {f"{name}:{axis}": int(whole[name].shape[axis]) for name, axes in by_input.items() for axis in axes}
            wanted: list[Any] | None = None
            if is_batch:
                made = [run(part) for part in parts]
                wanted = [
                    np.concatenate([each[index] for each in made]) if name in varying else made[0][index]
                    for index, name in enumerate(self.outputs)
                ]
            self.samples.append(Sample(engine, sizes, seed, whole, wanted))

    def compare(self, new: str | bytes) -> Comparison:
        """Raises nothing: an engine that fails on the new file is a problem of it."""
        result = Comparison(notes=list(self.notes))
        runs: dict[str, Run | Exception] = {}
        for sample in self.samples:
            if sample.engine not in runs:
                try:
                    runs[sample.engine] = ENGINES[sample.engine](new)
                except Exception as error:  # as above
                    runs[sample.engine] = error
            run = runs[sample.engine]
            base = Row(sample.engine, "", sample.sizes, sample.seed)
            try:
                if isinstance(run, Exception):
                    raise run
                got = run(sample.feeds)
            except Exception as error:  # as above
                base.problem = f"does not run: {failure_text(error)}"
                result.rows.append(base)
                continue
            if sample.wanted is None:
                result.rows.append(base)
                continue
            if len(got) != len(sample.wanted):
                base.problem = f"{len(got)} outputs instead of {len(sample.wanted)}"
                result.rows.append(base)
                continue
            for index, name in enumerate(self.outputs):
                row = Row(sample.engine, name, sample.sizes, sample.seed)
                result.rows.append(self._judged(row, index, got[index], sample))
        return result

    def _judged(self, row: Row, index: int, got: Any, sample: Sample) -> Row:
        assert sample.wanted is not None
        want = sample.wanted[index]
        if not isinstance(got, np.ndarray) or not isinstance(want, np.ndarray):
            row.problem = "" if _same(got, want) else "differs"
            return row
        if got.shape != want.shape or got.dtype != want.dtype:
            row.problem = f"{got.dtype} {list(got.shape)} instead of {want.dtype} {list(want.shape)}"
            return row
        if row.output in self.loose:
            return row
        if want.dtype.kind not in "fV":
            row.problem = "" if np.array_equal(got, want) or self._may_move(index, got, sample) else "differs"
            return row
        if tolerance.wrong_places(got.astype(np.float64), want.astype(np.float64)):
            row.problem = "NaN or infinity in other places"
            return row
        scale = tolerance.Scale.of(want)
        found = tolerance.by_difference(got, want, scale)
        if not found.ok:
            exact = self._in_float64(sample, index)
            found = (exact is not None and tolerance.by_float64(got, want, exact, scale)) or found
        row.error, row.allowed, row.by = found.error, found.allowed, found.by
        if not found.ok and not self._may_move(index, got, sample):
            row.problem = "differs"
        return row

    def _in_float64(self, sample: Sample, index: int) -> Array | None:
        if not self._tried_exact:
            self._tried_exact = True
            wide = in_float64(self._source)
            try:
                self._exact = ENGINES["runner"](wide) if wide is not None else None
            except Fx2OnnxError:
                self._exact = None
        if self._exact is None:
            return None
        feeds = {name: _wide(array) for name, array in sample.feeds.items()}
        try:
            return np.asarray(self._exact(feeds)[index])
        except Fx2OnnxError:
            return None

    def _may_move(self, index: int, got: Array, sample: Sample) -> bool:
        """Whether the old file itself gives other numbers in as many places, by as much, where its inputs move by rounding."""
        assert sample.wanted is not None
        run, want = self._runs[sample.engine], sample.wanted[index]
        off = _off(got, want)
        for seed in range(MOVED_RUNS):
            rng = np.random.default_rng(seed)
            moved = {
                name: (array * (1 + _MOVE * rng.uniform(-1, 1, array.shape))).astype(array.dtype)
                if array.dtype in (np.float32, np.float64)
                else array
                for name, array in sample.feeds.items()
            }
            try:
                again = np.asarray(run(moved)[index])
            except Exception:  # sizes that the old file does not take
                return False
            if again.shape == want.shape and 0 < off <= MOVEMENT_RATIO * _off(again, want):
                return True
        return False


def _off(one: Array, other: Array) -> float:
    """How many integers differ, or the largest difference of floats."""
    if one.dtype.kind == "f":
        return float(tolerance.largest_gap(one, other))
    return float(np.count_nonzero(one != other))


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, list | tuple):
        return isinstance(got, list | tuple) and len(got) == len(want) and all(map(_same, got, want))
    if isinstance(want, Mapping):
        return isinstance(got, Mapping) and list(got) == list(want) and all(_same(got[key], want[key]) for key in want)
    if isinstance(want, np.ndarray | float) and not isinstance(want, str):
        try:
            return bool(np.allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5, equal_nan=True))
        except (TypeError, ValueError):
            return bool(np.array_equal(got, want))
    return bool(got == want)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype in (np.float32, np.float16) or array.dtype.kind == "V" else array


def failure_text(error: Exception) -> str:
    """One line of what an engine raised."""
    return error.what if isinstance(error, Fx2OnnxError) else f"{type(error).__name__}: {first_line(error)[:200]}"


def random_outputs(model: ir.Model) -> frozenset[str]:
    """Names of outputs that random numbers reach."""
    reached: set[ir.Value] = set()
    for graph in reversed(list(graphs_of(model))):
        for node in graph:
            draws = node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.inputs) > 2)
            inner = [value for attribute in node.attributes.values() if attribute.type == ir.AttributeType.GRAPH
                     for value in attribute.as_graph().outputs]  # fmt: skip
            if draws or any(value in reached for value in (*node.inputs, *inner)):
                reached.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in reached)
