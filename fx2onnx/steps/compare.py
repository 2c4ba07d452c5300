"""The new file against the one that it was made of: the same random inputs, in every engine that runs the old one."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError, first_line
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.schema import RANDOM
from fx2onnx.judge import Effort
from fx2onnx.judge.arrays import first_problem
from fx2onnx.judge.constants import INPUT_MOVE, INPUT_RUNS
from fx2onnx.judge.engines import ENGINES, Run
from fx2onnx.judge.feeds import Array, InputType, make_feeds, taken_feeds
from fx2onnx.judge.memory import weights_bytes
from fx2onnx.judge.movements import settled
from fx2onnx.judge.tolerance import Judged, structure_problem
from fx2onnx.judge.verdict import Row, Tried, Verdict
from fx2onnx.sizes.stated import SizeCondition

MOST_BYTES = 512 << 20
"""Larger weights are not widened: they would be in memory three times."""
_NARROW = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_DTYPE_ATTRIBUTES = ("to", "dtype", "stash_type")


def in_float64(source: str | bytes) -> bytes | None:
    """The model with float64 in the place of every narrower float; None where that is too large, or cannot be."""
    try:
        proto = onnx.load(source) if isinstance(source, str) else onnx.load_from_string(source)
        if weights_bytes(proto) > MOST_BYTES or proto.functions:
            return None
        _widen(proto.graph)
        return bytes(proto.SerializeToString())
    except Exception:  # damaged files: then there is no judge
        return None


def _widen(graph: Any) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen(attribute.g)
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i in _NARROW:
                attribute.i = onnx.TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                tensor = onnx.numpy_helper.from_array(np.array(numbers, np.float64))
                node.ClearField("attribute")
                node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)
                break


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type in _NARROW:
        wide = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))


INPUT = "the input file"
"""The reference."""
MOST_SIZES: dict[Effort, int] = {"quick": 1, "normal": 3, "full": 12}
"""Sets of sizes that are compared where dims are dynamic."""
SEEDS = (0, 1)
PARTS = 3
"""Runs of a file of a fixed batch that make one of a dynamic one."""


@dataclass
class ComparedSample:
    """Inputs, and what the old file makes of them in one engine."""

    engine: str
    sizes: dict[str, int]
    seed: int
    feeds: dict[str, Array]
    wanted: list[Any] | None
    """None where it is only to be seen that the file runs."""
    exact: list[Any] | None = None
    """The outputs of the old file's float64 twin, once they are needed; empty where it gives none."""
    moved: list[list[Any]] | None = None
    """The outputs of the old file on inputs that move by rounding, once they are needed."""

    @property
    def name(self) -> str:
        """The seed and the sizes."""
        return f"seed {self.seed}" + "".join(f", {dim} {size}" for dim, size in self.sizes.items())


RunOn: TypeAlias = Callable[[Run, ComparedSample], Sequence[Any]]
Judge: TypeAlias = Callable[[str, int, Any, Any, ComparedSample], Judged]
"""A comparison of an output: its name and index, its value, the wanted value, and the inputs."""


class Original:
    """The old file, run once for each engine and set of inputs; new files are compared with what it gave."""

    def __init__(
        self, source: str | bytes, inputs: Sequence[InputType], outputs: Sequence[str], loose: frozenset[str],
        engines: Sequence[str], seed: int = 0, conditions: Sequence[SizeCondition] = (),
        effort: Effort = "normal",
    ) -> None:  # fmt: skip
        self.outputs = list(outputs)
        self.loose = loose
        """Outputs that random numbers decide: these are compared by type."""
        self.notes: list[str] = []
        self.samples: list[ComparedSample] = []
        self.limits: dict[str, int] = {}
        self._source = source
        self._conditions = conditions
        self._sizes = MOST_SIZES[effort]
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

    def _samples(self, engine: str, run: Run, inputs: Sequence[InputType], seed: int) -> list[ComparedSample]:
        found: list[ComparedSample] = []
        for taken in itertools.islice(taken_feeds(inputs, run, self._conditions, seed=seed), self._sizes):
            self.limits[engine] = taken.limit
            found.append(ComparedSample(engine, taken.sizes, seed, taken.feeds, taken.results))
            for other in SEEDS[1:] if len(found) == 1 else ():
                again = make_feeds(inputs, taken.sizes, taken.limit, seed + other)
                if again is not None:
                    found.append(ComparedSample(engine, taken.sizes, seed + other, again, run(again)))
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
            self.samples.append(ComparedSample(engine, sizes, seed, whole, wanted))

    def compare(self, new: str | bytes, run_on: RunOn | None = None, judge: Judge | None = None) -> Verdict:
        """The verdict on a new file: an engine that fails on it is a wrong row. ``run_on``: runs the file on a sample where its
        inputs are other ones; ``judge``: compares an output where not all rounding is that of float32.
        """
        result = Verdict(notes=list(self.notes))
        runs: dict[str, Run] = {}
        for sample in self.samples:
            tried = next((each for each in result.tried if each.name == sample.name), None)
            if tried is None:
                result.tried.append(tried := Tried(sample.name, sample.sizes, "random", []))
            tried.engines.append(sample.engine)
            try:
                run = runs.get(sample.engine) or runs.setdefault(sample.engine, ENGINES[sample.engine](new))
                got = run(sample.feeds) if run_on is None else run_on(run, sample)
            except Exception as error:  # as above
                result.rows.append(Row.failed(sample.engine, "", sample.name, f"does not run: {failure_text(error)}"))
                continue
            if sample.wanted is None:
                result.rows.append(Row(sample.engine, "", 0.0, 0.0, True, sample.name))
            elif len(got) != len(sample.wanted):
                problem = f"{len(got)} outputs instead of {len(sample.wanted)}"
                result.rows.append(Row.failed(sample.engine, "", sample.name, problem))
            else:
                outputs = enumerate(zip(self.outputs, got, sample.wanted, strict=True))
                result.rows += [
                    Row.of(sample.engine, name, sample.name, (judge or self._judged)(name, index, value, want, sample))
                    for index, (name, value, want) in outputs
                ]
        return result

    def _judged(self, name: str, index: int, got: Any, want: Any, sample: ComparedSample) -> Judged:
        if not isinstance(got, np.ndarray) or not isinstance(want, np.ndarray):
            problem = first_problem(got, want, lambda one, other: "" if settled(one, other).ok else "differs")
            return Judged.wrong(problem) if problem else Judged(0.0, 0.0, True)
        if name in self.loose:
            problem = structure_problem(got, want, INPUT)
            return Judged.wrong(problem) if problem else Judged(0.0, 0.0, True)
        moved = partial(self._moved, index, sample)
        return settled(got, want, partial(self._in_float64, index, sample), moved, reference=INPUT)

    def _in_float64(self, index: int, sample: ComparedSample) -> Array | None:
        if sample.exact is None:
            sample.exact = []
            run = self._twin
            with contextlib.suppress(Fx2OnnxError):
                feeds = {name: _wide(array) for name, array in sample.feeds.items()}
                sample.exact = [] if run is None else run(feeds)
        return np.asarray(sample.exact[index]) if sample.exact else None

    @functools.cached_property
    def _twin(self) -> Run | None:
        """The old file in float64; None where there is no such form."""
        wide = in_float64(self._source)
        try:
            return ENGINES["runner"](wide) if wide is not None else None
        except Fx2OnnxError:
            return None

    def _moved(self, index: int, sample: ComparedSample) -> Iterator[Array]:
        """The outputs of the old file where its inputs move by rounding."""
        if sample.moved is None:
            sample.moved = []
            for seed in range(INPUT_RUNS):
                with contextlib.suppress(Exception):  # sizes that the old file does not take
                    sample.moved.append(self._runs[sample.engine](_moved_inputs(sample.feeds, seed)))
        yield from (np.asarray(results[index]) for results in sample.moved)


def _moved_inputs(feeds: Mapping[str, Array], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: (array * (1 + INPUT_MOVE * rng.uniform(-1, 1, array.shape))).astype(array.dtype)
        if array.dtype in (np.float32, np.float64)
        else array
        for name, array in feeds.items()
    }


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
