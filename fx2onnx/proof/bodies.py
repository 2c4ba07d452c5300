"""Graphs that nodes hold, on spans: each is a pass of its own. ``If`` joins the branches that the bounds of its condition allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.irx.model_files import graphs_within
from fx2onnx.judge.engines import ENGINES, Run
from fx2onnx.proof.domains import ValueRanges, hull_of
from fx2onnx.proof.nodes import Array
from fx2onnx.proof.spans import RULES, Interval, SpanCall, Unbounded

Spans = list[Interval | None]


class GraphPass(Protocol):
    """A pass over a graph (``walk.py``), as the rules of nodes that hold graphs see it."""

    file: Any
    spans: dict[str, Interval]
    samples: list[dict[str, Any]]
    wide: list[dict[str, Any]]
    found: ValueRanges
    place: str
    bodies: dict[str, HeldGraph]
    hulls: dict[str, Interval]

    def inside(
        self,
        body: HeldGraph,
        spans: Mapping[str, Interval],
        samples: list[dict[str, Any]],
        wide: list[dict[str, Any]],
        found: ValueRanges,
        place: str,
    ) -> GraphPass:
        """The pass over a graph that a node holds."""

    def known(self, name: str) -> Interval | None: ...

    def wide_of(self, name: str, index: int) -> Any: ...

    def note_wide(self, index: int, names: Sequence[str], arrays: Sequence[Any]) -> None: ...

    def note_unknown(self, node: onnx.NodeProto, reason: str) -> None: ...


class HeldGraph:
    """A graph that a node holds, as a file of its own: the values that it reads from outside are inputs too."""

    def __init__(self, graph: onnx.GraphProto, walk: GraphPass) -> None:
        self.formal = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        self.opsets: dict[str, int] = walk.file.opsets
        if any(each.external_data for each in graph.initializer) or graph.sparse_initializer:
            raise Unbounded("its graph has weights of its own in another file")
        self.constants: dict[str, Array] = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
        made = {*self.formal, *self.constants, *(name for node in graph.node for name in node.output)}
        parts = [part for part in graphs_within(graph) if isinstance(part, onnx.GraphProto)]
        read = [name for part in parts for node in part.node for name in node.input]
        read += [value.name for part in parts for value in part.output]
        outer = {**walk.file.constants, **walk.samples[0]}
        self.captured = [name for name in dict.fromkeys(read) if name in outer and name not in made]
        self.names = list(dict.fromkeys(name for node in graph.node for name in node.output if name))
        self.proto: onnx.ModelProto = onnx.ModelProto(ir_version=max(walk.file.proto.ir_version, 4))
        self.proto.opset_import.extend(
            onnx.helper.make_opsetid(domain, number) for domain, number in self.opsets.items()
        )
        self.proto.graph.CopyFrom(graph)
        del self.proto.graph.input[:]
        self._runs: dict[tuple[Any, ...], Run] = {}

    @property
    def inputs(self) -> list[str]:
        return [*self.formal, *self.captured]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """All values of one run in the runner. Raises what the runner does."""
        kinds = tuple((name, type(feeds[name]), getattr(feeds[name], "dtype", None)) for name in self.inputs)
        run = self._runs.get(kinds)
        asked = list(dict.fromkeys([*self.names, *self.outputs]))
        if run is None:
            model = onnx.ModelProto()
            model.CopyFrom(self.proto)
            model.graph.input.extend(onnx.ValueInfoProto(name=name, type=_type_of(feeds[name])) for name in self.inputs)
            del model.graph.output[:], model.graph.value_info[:]
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
            run = self._runs[kinds] = ENGINES["runner"](model.SerializeToString())
        found = run({name: feeds[name] for name in self.inputs})
        return {**feeds, **dict(zip(asked, found, strict=True))}

    def tried(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """All values of one run; None where the numbers are none that it runs on."""
        try:
            return self.run(feeds)
        except (Fx2OnnxError, ValueError, IndexError):
            return None


def _type_of(value: Any) -> onnx.TypeProto:
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, np.ndarray | np.generic):
        raise Unbounded("its graph reads an optional value or an empty sequence")
    kind = onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(first.dtype), None)
    return onnx.helper.make_sequence_type_proto(kind) if isinstance(value, list) else kind


@dataclass(frozen=True, slots=True)
class Turn:
    """The formal inputs of one run of a body, or its outputs: spans, and arrays on the sampled inputs that run it, by their places."""

    spans: Spans
    results: dict[int, list[Any]]
    wide: dict[int, list[Any]]
    """The same in float64; None where it is not known."""
    base: list[Any]
    """The arrays on the input that tells shapes."""
    hulls: Spans = field(default_factory=list)
    """Bounds of all elements of the outputs."""


def value_at(walk: GraphPass, name: str, place: int) -> Any:
    return walk.samples[place].get(name, walk.file.constants.get(name))


def run_body(
    walk: GraphPass, node: onnx.NodeProto, attribute: str, given: Turn, found: ValueRanges | None = None
) -> Turn:
    """Run a body once. Faults are noted in ``found``; default: in what is found for the file."""
    place = f"{walk.place}{node.name or node.output[0]}/{attribute}/"
    if place not in walk.bodies:
        walk.bodies[place] = HeldGraph(next(each.g for each in node.attribute if each.name == attribute), walk)
    body = walk.bodies[place]

    def feeds_of(index: int, arrays: list[Any]) -> dict[str, Any]:
        outer = {name: value_at(walk, name, index) for name in body.captured}
        return outer | dict(zip(body.formal, arrays, strict=True))

    samples = {index: body.tried(feeds_of(index, arrays)) for index, arrays in given.results.items()}
    ran = {index: sample for index, sample in samples.items() if sample is not None}
    known = {name: walk.spans[name] for name in body.captured if name in walk.spans}
    known |= {name: span for name, span in zip(body.formal, given.spans, strict=True) if span is not None}
    base = body.tried(feeds_of(0, given.base)) or next(iter(ran.values()), None)
    for share in (0.5, 0.0, 1.0):
        base = base or body.tried(_between(feeds_of(0, given.base), known, share))
    if base is None:
        raise Unbounded("its graph runs on none of a few inputs")
    wide = []
    for index in ran:
        far = {name: walk.wide_of(name, index) for name in body.captured}
        far |= dict(zip(body.formal, given.wide.get(index) or [None] * len(body.formal), strict=True))
        wide.append({name: array for name, array in far.items() if array is not None})
    here = walk.inside(body, known, [base, *ran.values()], wide, walk.found if found is None else found, place)
    return Turn(
        [here.spans.get(name) for name in body.outputs],
        {index: [sample[name] for name in body.outputs] for index, sample in ran.items()},
        {index: [far.get(name) for name in body.outputs] for index, far in zip(ran, here.wide, strict=True)},
        [base[name] for name in body.outputs],
        [here.known(name) for name in body.outputs],
    )


def _between(feeds: Mapping[str, Any], spans: Mapping[str, Interval], share: float) -> dict[str, Any]:
    """Numbers inside of the bounds in the place of those that a graph does not run on."""
    found = dict(feeds)
    for name, span in spans.items():
        low, high = (np.nan_to_num(end, posinf=1e4, neginf=-1e4) for end in (span.low, span.high))
        array = low + share * (high - low)
        dtype = np.asarray(feeds[name]).dtype
        found[name] = (np.rint(array) if dtype.kind in "iub" else array).astype(dtype)
    return found


def if_spans(walk: GraphPass, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> Spans:
    """The values of the branch that a condition takes, or of both as ``Where`` joins them."""
    name = node.input[0]
    condition = walk.known(name)
    if condition is None:
        raise Unbounded("nothing is known of its condition")
    condition = hull_of(condition)
    is_open = bool(condition.error > 0)
    made: dict[bool, Turn] = {}
    for side, attribute in ((True, "then_branch"), (False, "else_branch")):
        if is_open or (condition.high > 0 if side else condition.low < 1):
            places = range(1, len(walk.samples))
            taken: dict[int, list[Any]] = {index: [] for index in places if bool(value_at(walk, name, index)) == side}
            made[side] = run_body(walk, node, attribute, Turn([], taken, {}, []))
            for index, arrays in made[side].wide.items():
                far = walk.wide_of(name, index)
                if far is not None and bool(far) == side:
                    walk.note_wide(index, node.output, arrays)
    if len(made) == 1:
        (only,) = made.values()
        walk.hulls.update({name: hull_of(hull) for name, hull in zip(node.output, only.hulls, strict=True) if hull})
        return only.spans
    found: Spans = []
    for place, output in enumerate(node.output):
        pair = [each.spans[place] for each in made.values()]
        is_fixed = pair[0] is not None and pair[1] is not None and pair[0].low.shape == pair[1].low.shape
        if not is_fixed:
            pair = [hull and hull_of(hull) for hull in (each.hulls[place] for each in made.values())]
        dtype = np.asarray(made[True].base[place]).dtype if is_fixed else np.dtype(np.float64)
        if any(each is None for each in pair):
            walk.note_unknown(node, "a branch gives a value of which nothing is known")
            found.append(None)
            continue
        joined = RULES["Where"](SpanCall("Where", walk.file.opsets.get("", 0), {}, [condition, *pair], 1, dtype))
        assert isinstance(joined, Interval)
        if not is_fixed:
            walk.hulls[output] = joined
        found.append(joined if is_fixed else None)
    return found
