"""The file's values beside eager PyTorch's, remembered by a few sums of their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir
import torch

from fx2onnx.base.errors import first_line
from fx2onnx.judge.constants import SKETCH_ROUNDED
from fx2onnx.judge.engines import ENGINES, Array
from fx2onnx.judge.tolerance import Exact
from fx2onnx.verify.locating.aten_values import AtenValues
from fx2onnx.verify.locating.first_wrong import FirstWrong, NodeDifference, difference
from fx2onnx.verify.locating.program import Cut, OnnxFile, reads_of
from fx2onnx.verify.rounded_weights import widened
from fx2onnx.verify.testcase import Case

MOST_NODES = 4000
"""The largest number of nodes of one part of the file, which one session of an engine runs."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A value that is wrong, or cannot be computed, though PyTorch's values were fed to the nodes that make it."""

    name: str
    difference: NodeDifference


def run_cut(file: OnnxFile, cut: Cut, values: Mapping[str, Array], engine: str) -> dict[str, Array]:
    """The outputs of the cut in an engine. Raises what the engine raises."""
    feeds = {name: values[name] for name in cut.feeds} | {name: file.weight(name) for name in cut.weights}
    run = ENGINES[engine](cut.proto.SerializeToString())
    feeds = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in feeds.items()}
    return dict(zip(cut.outputs, run(feeds), strict=True))


class SideBySide:
    """One file in one engine beside PyTorch's values."""

    def __init__(self, file: OnnxFile, engine: str, aten: AtenValues, feeds: Mapping[str, Array]) -> None:
        self.file = file
        self.engine = engine
        self.aten = aten
        self.known = [name for name in file.producer if name in aten.mapped and name in aten.store]
        """Values that both have, in the order of the file."""
        self.deviating: dict[str, NodeDifference] = {}
        """Values that are wrong in the file's own run."""
        self.other_choices: dict[str, NodeDifference] = {}
        """Values that are places of other numbers than PyTorch's, which are as large."""
        self.failed = ""
        """The reason why the file's own run ended; empty if it did not."""
        self.feeds = feeds
        self._is_known = set(self.known)
        needed = file.segment(file.outputs, ())
        self._last_reader = {name: index for index in needed for name in reads_of(file.nodes[index])}
        self._needed = needed

    def suspects(self) -> Iterator[Suspect]:
        """The values that are wrong by themselves, in the order of the file; the outputs of the file's own run up to there are in
        ``deviating``.
        """
        own: dict[str, Array] = dict(self.feeds)
        fed: dict[str, Array] = dict(self.feeds)
        for part in self._parts():
            made = [name for index in part for name in self.file.nodes[index].output if name]
            judged = [name for name in made if name in self._is_known]
            later = [name for name in made if self._last_reader.get(name, -1) > part[-1]]
            self._run_own(part, judged, later, own)
            yield from self._run_fed(part, judged, [name for name in later if name not in self._is_known], fed)
            for carried in (own, fed):
                for name in [name for name in carried if self._last_reader.get(name, -1) <= part[-1]]:
                    del carried[name]

    def is_deviating(self, name: str) -> bool:
        """Return whether the value is wrong in the file's own run; where that ended early or drew random numbers, it may be."""
        return name in self.deviating or bool(self.failed) or name in self.file.random

    def given(self, name: str) -> tuple[list[int], dict[str, Array]]:
        """The nodes that make a value from PyTorch's values, and these."""
        nodes = self.file.segment([name], {*self._is_known, *self.feeds})
        names = {read for index in nodes for read in reads_of(self.file.nodes[index])} | {name}
        values = {read: self._value(read) for read in names if read in self._is_known}
        return nodes, values | {read: self.feeds[read] for read in names if read in self.feeds}

    def judged(self, name: str, got: Array, exact: Exact | None = None) -> NodeDifference:
        """A value beside PyTorch's."""
        want = self.aten.store[name]
        if self.aten.narrow is None:
            return difference(got, want, exact)
        return difference(widened(np.asarray(got), want), want, exact, self.aten.narrow.grain)

    def _value(self, name: str) -> Array:
        """PyTorch's, in the file's dtype: that is another one where a file in 16 bits is asked about, and this one is not."""
        array, dtype = self.aten.store[name], self.file.float_dtypes.get(name)
        if self.aten.narrow is None or dtype is None:
            return array
        with np.errstate(over="ignore"):  # what has no room is infinite in the file, too
            return array.astype(dtype, copy=False)

    def _parts(self) -> Iterator[list[int]]:
        """Runs of nodes whose values take at most a quarter of what all values may."""
        part: list[int] = []
        held_bytes = 0
        for index in self._needed:
            names = [name for name in self.file.nodes[index].output if name in self._is_known]
            size_bytes = sum(self.aten.store.nbytes(name) for name in names)
            if part and (held_bytes + size_bytes > self.aten.store.budget_bytes / 4 or len(part) >= MOST_NODES):
                yield part
                part, held_bytes = [], 0
            part.append(index)
            held_bytes += size_bytes
        if part:
            yield part

    def _run_own(self, part: Sequence[int], judged: Sequence[str], later: Sequence[str], own: dict[str, Array]) -> None:
        if self.failed:
            return
        cut = self.file.cut(part, own, list(dict.fromkeys([*judged, *later])))
        try:
            results = run_cut(self.file, cut, own, self.engine)
        except Exception as cause:  # each engine has classes of its own
            self.failed = first_line(cause)
            return
        for name in judged:
            found = self.judged(name, results[name])
            if found.is_wrong and name not in self.file.random:
                self.deviating[name] = found
        own.update({name: results[name] for name in later})

    def _run_fed(
        self, part: Sequence[int], judged: Sequence[str], later: Sequence[str], fed: dict[str, Array]
    ) -> Iterator[Suspect]:
        """All nodes of the part at once; where the engine fails, its halves by themselves, down to a value that fails."""
        pending = [[*later, *judged]]
        while pending:
            names = pending.pop()
            nodes = self.file.segment(names, {*self._is_known, *fed})
            read = {
                name for index in nodes for name in (*reads_of(self.file.nodes[index]), *self.file.nodes[index].output)
            }
            given = {name: self._value(name) for name in read if name in self._is_known}
            given |= {name: fed[name] for name in read if name in fed}
            try:
                results = run_cut(self.file, self.file.cut(nodes, given, names), given, self.engine)
            except Exception as cause:  # each engine has classes of its own
                if len(names) > 1:
                    middle = len(names) // 2
                    pending += [names[middle:], names[:middle]]
                elif names and names[0] in self._is_known:
                    problem = f"{self.engine} fails: {first_line(cause)[:300]}"
                    yield Suspect(names[0], NodeDifference(float("inf"), 0.0, 0, 0, problem=problem))
                continue
            fed.update({name: results.pop(name) for name in names if name not in self._is_known})
            for name in names:
                if name in results:
                    got = results.pop(name)
                    found = self.judged(name, got, partial(self.aten.exact, name))
                    if not found.is_wrong:
                        continue
                    if self.aten.is_other_choice(name, got):
                        self.other_choices[name] = found
                    else:
                        yield Suspect(name, found)


def missing(file: OnnxFile, count: int) -> FirstWrong:
    """Forward has ``count`` outputs, and the file another number of them."""
    problem = f"the file has {len(file.outputs)} outputs, eager PyTorch {count}"
    return _reported(problem, file.outputs, (), "no node was looked at")


def reordered(file: OnnxFile, results: Sequence[Array], wants: Sequence[Array]) -> FirstWrong | None:
    """Every one of forward's outputs is in the file, in another order; None where that is not so."""
    order: list[int] = []
    for got in results:
        places = (place for place in range(len(wants)) if place not in order)
        found = next((place for place in places if not difference(got, wants[place]).is_wrong), None)
        if found is None:
            return None
        order.append(found)
    moved = [name for place, name in enumerate(file.outputs) if order[place] != place]
    text = ", ".join(str(place + 1) for place in order)
    nodes = [file.nodes[file.producer[name]] for name in moved if name in file.producer]
    problem = f"the file has forward's outputs 1 to {len(order)} in the order {text}"
    return _reported(
        problem, moved, [node.name or node.output[0] for node in nodes], "the outputs themselves are right"
    )


def _reported(problem: str, outputs: Sequence[str], nodes: Sequence[str], why: str) -> FirstWrong:
    found = NodeDifference(float("inf"), 0.0, 0, 0, problem=problem)
    return FirstWrong("translation", tuple(nodes), ", ".join(outputs), None, "", (), found, "", why)


def case_of(file: OnnxFile, nodes: Sequence[int], given: Mapping[str, Array], name: str, want: Array) -> Case:
    """The nodes as a model with its weights inside, its output of the type that the nodes give."""
    cut = file.cut(nodes, given, [name])
    proto = onnx.shape_inference.infer_shapes(cut.proto)
    (output,) = proto.graph.output
    if not output.type.HasField("tensor_type"):
        output.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(want.dtype)
    model = ir.from_proto(proto)
    inputs = {value.name: value for value in model.graph.inputs}
    for weight in cut.weights:
        value = inputs[weight]
        model.graph.inputs.remove(value)
        value.const_value = ir.Tensor(np.array(file.weight(weight)), dtype=value.dtype, name=weight)
        model.graph.register_initializer(value)
    feeds = {each: np.array(given[each]) for each in cut.feeds}
    return Case(model, feeds, {model.graph.outputs[0].name or "": np.array(want)})


PARTS = 16
"""Sums are of so many parts of a tensor, which makes it seldom that those of others are close."""

Sketch = tuple[float, ...]
"""Weighted sums of parts of a tensor's numbers; last the sum of their magnitudes."""


class Sketches:
    """Keys by tensors; ``close`` is how far the sums of two may be apart, as a share of that of the magnitudes."""

    def __init__(self, close: float = SKETCH_ROUNDED) -> None:
        self._close = close
        self._known: dict[tuple[torch.dtype, tuple[int, ...]], dict[Sketch, list[Any]]] = {}
        self._tables: dict[int, Array] = {}
        self._weights = torch.empty(0, dtype=torch.float64)

    def add(self, tensor: torch.Tensor, key: Any) -> None:
        """Remember a tensor."""
        known = self._known.setdefault((tensor.dtype, tuple(tensor.shape)), {})
        known.setdefault(self._sketch(tensor), []).append(key)

    def find(self, tensor: torch.Tensor) -> list[Any] | None:
        """The keys of the tensor of the nearest numbers, where they are near at all; of integers and bools, of the same."""
        known = self._known.get((tensor.dtype, tuple(tensor.shape)))
        if known is None:
            return None
        one = self._sketch(tensor)
        if one in known or not (tensor.is_floating_point() or tensor.is_complex()):
            return known.get(one)
        distances = np.abs(self._table(known) - one).max(axis=1)
        nearest = int(distances.argmin())
        return list(known.values())[nearest] if distances[nearest] <= self._close * one[-1] else None

    def _table(self, known: dict[Sketch, list[Any]]) -> Array:
        """The sketches as rows."""
        table = self._tables.get(id(known))
        if table is None or len(table) != len(known):
            table = self._tables[id(known)] = np.array(list(known))
        return table

    def _sketch(self, tensor: torch.Tensor) -> Sketch:
        """Weighted by numbers that differ at every place, so that a permutation shows."""
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        flat = torch.nan_to_num(
            tensor.detach().reshape(-1).to("cpu", torch.float64), nan=3.0, posinf=1e30, neginf=-1e30
        )
        if len(self._weights) < len(flat):
            generator = torch.Generator().manual_seed(0)
            self._weights = torch.rand(2 * len(flat), dtype=torch.float64, generator=generator) + 0.5
        weighted = flat * self._weights[: len(flat)]
        whole = len(flat) // PARTS * PARTS
        parts = weighted[:whole].view(PARTS, -1).sum(1)
        return (*parts.tolist(), float(weighted[whole:].sum()), float(flat.abs().sum()))
