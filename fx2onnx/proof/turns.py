"""Loop and Scan on spans: they are followed turn by turn, up to ``TURNS``.

From there on the bounds of what turns hand on grow until one more turn stays inside: then they hold for all turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from fx2onnx.proof.bodies import GraphPass, Spans, Turn, run_body, value_at
from fx2onnx.proof.domains import ValueRanges, join_of
from fx2onnx.proof.nodes import Array
from fx2onnx.proof.spans import Interval, Unbounded, limits_of, unit_of

TURNS = 64
"""Turns that are followed one by one; a quarter of them in a loop within a loop."""
_ROUNDS = 12
"""Turns until all of a value that still grows has the bounds of its dtype; from the third on each element that grows does."""
_MOST_ELEMENTS = 1 << 24


def _joined(spans: Sequence[Interval | None]) -> Interval | None:
    """The span of a value that is one of several; None where one of them has no bounds or another shape."""
    known = [span for span in spans if span is not None]
    if len(known) < len(spans) or len({span.low.shape for span in known}) != 1:
        return None
    if len(known) == 1:
        return known[0]
    return Interval(
        np.minimum.reduce([span.low for span in known]),
        np.maximum.reduce([span.high for span in known]),
        np.maximum.reduce([span.error for span in known]),
        None,
        np.minimum.reduce([span.lowest for span in known]),
    )


def _holds(outer: Interval | None, inner: Interval | None) -> bool:
    """Return whether all of a span is within another."""
    if outer is None or inner is None:
        return outer is None
    if outer.low.shape != inner.low.shape:
        return False
    ends = (inner.low >= outer.low) & (inner.high <= outer.high)
    return bool((ends & (inner.error <= outer.error) & (inner.lowest >= outer.lowest)).all())


def _widened(old: Interval | None, new: Interval | None, dtype: np.dtype[Any], *, whole: bool) -> Interval | None:
    """A span whose bounds end where its dtype does, in each element that grows; of all elements with ``whole``."""
    if old is None or new is None or old.low.shape != new.low.shape or dtype.kind in "OUS":
        return None
    least, most = (-math.inf, math.inf) if unit_of(dtype) else limits_of(dtype)
    falls, rises, drifts = new.low < old.low, new.high > old.high, new.error > old.error
    sinks = new.lowest < old.lowest
    if whole:
        falls, rises, drifts, sinks = (np.full(old.low.shape, each.any()) for each in (falls, rises, drifts, sinks))
    return Interval(
        np.where(falls, least, old.low),
        np.where(rises, most, old.high),
        np.where(drifts, most - least, old.error),
        None,
        np.where(falls | drifts | sinks, -math.inf, old.lowest),
    )


class LoopTurns:
    """The turns of a Loop or a Scan: what is handed from one to the next, as spans and on the sampled inputs."""

    def __init__(self, walk: GraphPass, node: onnx.NodeProto, states: Sequence[str]) -> None:
        self.walk, self.node = walk, node
        self.is_loop = node.op_type == "Loop"
        self.states: Spans = [walk.spans.get(name) for name in states]
        places = range(1, len(walk.samples))
        self.base = [value_at(walk, name, 0) for name in states]
        self.live = {index: [value_at(walk, name, index) for name in states] for index in places}
        self.wide: dict[int, list[Any] | None] = {
            index: [walk.wide_of(name, index) for name in states] for index in places
        }
        self.scanned: dict[int, list[list[Any]]] = {index: [] for index in places}
        self.scans: list[Spans] = []
        """The scan outputs of each turn."""
        self.hulls: list[Spans] = []

    def lead(self, turn: int) -> Spans:
        """The formal inputs that are no states, at one turn."""
        return [Interval.of(np.array(turn)), Interval.of(np.array(True))]

    def rest(self, turn: int, most: float) -> Spans:
        """The same for all turns from one on."""
        last = np.array(min(most - 1, float(np.iinfo(np.int64).max)))
        return [Interval(np.array(float(turn)), last, np.array(0.0)), Interval.of(np.array(True))]

    def fed(self, index: int, turn: int, *, is_wide: bool = False) -> list[Any]:
        """The same as arrays on a sampled input."""
        return [np.array(turn), np.array(True)]

    def stacked(self, parts: list[Any], output: int) -> Array:
        """A scan output of what the turns give."""
        return np.stack(parts)

    def ends(self, index: int, turn: int) -> bool:
        """Return whether a sampled input has no further turn, whatever the condition says."""
        count = self.node.input[0]
        return bool(count) and turn >= int(value_at(self.walk, count, index))

    def once(self, lead: Spans, turn: int, states: Spans, found: ValueRanges | None = None) -> Turn:
        """One turn, whose first output is the condition that there is another."""

        def put(first: list[Any], other: list[Any]) -> list[Any]:
            return [*first, *other] if self.is_loop else [*other, *first]

        given = Turn(
            put(lead, states),
            {index: put(self.fed(index, turn), arrays) for index, arrays in self.live.items()},
            {
                index: put(self.fed(index, turn, is_wide=True), far)
                for index in self.live
                if (far := self.wide[index]) is not None
            },
            put(self.fed(0, turn), self.base),
        )
        made = run_body(self.walk, self.node, "body", given, found)
        if self.is_loop:
            return made
        goes = np.array(True)
        return Turn(
            [Interval.of(goes), *made.spans],
            {index: [goes, *arrays] for index, arrays in made.results.items()},
            {index: [goes, *arrays] for index, arrays in made.wide.items()},
            [goes, *made.base],
            [None, *made.hulls],
        )

    def hand_on(self, made: Turn, turn: int) -> None:
        """Keep what a turn gave: sampled inputs that have no further one are done."""
        last = 1 + len(self.states)
        self.states, self.base = made.spans[1:last], made.base[1:last]
        self.scans.append(made.spans[last:])
        self.hulls.append(made.hulls[last:])
        for index in list(self.live):
            if index not in made.results:
                del self.live[index]
                continue
            goes, far = bool(made.results[index][0]), made.wide[index]
            is_same = self.wide[index] is not None and far[0] is not None and bool(far[0]) == goes
            self.live[index], self.wide[index] = made.results[index][1:last], far[1:last] if is_same else None
            self.scanned[index].append(far[last:])
            if not goes or self.ends(index, turn + 1):
                self.finish(index)

    def finish(self, index: int) -> None:
        """Note the outputs of a sampled input in float64."""
        del self.live[index]
        states = self.wide[index]
        if states is None:
            return
        columns = list(zip(*self.scanned[index], strict=True))
        known = [
            None if any(part is None for part in parts) else self.stacked(list(parts), output)
            for output, parts in enumerate(columns)
        ]
        self.walk.note_wide(index, self.node.output, [*states, *known])

    def follow(self, least: float, most: float, go: Interval, *, is_off: bool) -> Spans:
        """The outputs. ``is_off``: rounding may change the number of turns that is given."""
        exits: list[Spans] = []
        turn, may_flip, repeats = 0, False, 0.0
        limit = max(4, TURNS >> 2 * self.walk.place.count("/body/"))
        while True:
            is_open = bool(go.error.any())
            is_sure, is_never = not is_open and go.low.min() >= 1, not is_open and go.high.max() <= 0
            is_last = turn >= most or is_never
            if turn >= least or not is_sure:
                exits.append(self.states)
                may_flip |= not is_last and (is_open or is_off)
            if is_last:
                break
            if turn == limit:
                go, is_exact = self.settle(turn, most)
                may_flip |= bool(go.error.any()) or is_off
                exits.append(self.states)
                repeats = most - turn if is_exact and least == most < math.inf else math.inf
                break
            made = self.once(self.lead(turn), turn, self.states)
            go = made.spans[0] or Interval(np.zeros(()), np.ones(()), np.ones(()))
            self.hand_on(made, turn)
            turn += 1
        count = len(self.scans) - bool(repeats) + repeats if len(exits) == 1 else math.inf
        return [*self._final(exits, may_flip=may_flip), *self._scans(count)][: len(self.node.output)]

    def _final(self, exits: list[Spans], *, may_flip: bool) -> Spans:
        found = []
        for name, spans in zip(self.node.output, zip(*exits, strict=True), strict=False):
            span = _joined(spans)
            known = [each for each in spans if each is not None]
            if span is None and len(known) == len(spans):  # of different shapes
                self.walk.hulls[name] = join_of(known, mixed=may_flip)
            elif span is None:
                self.walk.note_unknown(self.node, "it hands on a sequence, or a value whose shape depends on data")
            if span is not None and may_flip and len(exits) > 1:
                apart = np.nan_to_num(span.high - span.low, nan=np.inf, posinf=np.inf) + span.error
                span = Interval(span.low, span.high, apart, None, span.lowest)
            found.append(span)
        return found

    def _scans(self, count: float) -> Spans:
        """Scan outputs of so many turns; the last that was followed stands for all behind it."""
        states = len(self.states)
        names = list(self.node.output)[states:]
        found: Spans = []
        for output, name in enumerate(names):
            like = value_at(self.walk, name, 0)
            parts = [turn[output] for turn in self.scans]
            if count == 0 and isinstance(like, np.ndarray) and not like.size and like.dtype.kind not in "OUS":
                found.append(Interval.of(like))
                continue
            if count == math.inf or not parts or any(part is None for part in parts):
                hulls = [turn[output] for turn in self.hulls]
                if any(hull is None for hull in hulls):
                    self.walk.note_unknown(self.node, "its turns give a value of which nothing is known")
                else:  # as many turns as data says
                    self.walk.hulls[name] = join_of([hull for hull in hulls if hull is not None])
                found.append(None)
                continue
            known = [part for part in parts if part is not None]
            if count * known[0].low.size > _MOST_ELEMENTS or len({part.low.shape for part in known}) > 1:
                self.walk.note_unknown(self.node, "what its turns give is too large or of different shapes")
                found.append(None)
                continue
            known += [known[-1]] * (int(count) - len(known))
            fields = ([part.low for part in known], [part.high for part in known], [part.error for part in known])
            low, high, error = (self.stacked(list(arrays), output) for arrays in fields)
            found.append(Interval(low, high, error, None, self.stacked([part.lowest for part in known], output)))
        return found

    def settle(self, turn: int, most: float) -> tuple[Interval, bool]:
        """Bounds of the states that hold from a turn on; the condition, and whether it always says that there is another turn."""
        start, inside = self.states, self.states
        lead, quiet, last = self.rest(turn, most), ValueRanges({}), 1 + len(self.states)
        for attempt in range(_ROUNDS + 4 * last):
            made = self.once(lead, turn, inside, quiet)
            after = made.spans[1:last]
            if all(map(_holds, inside, after)):
                break
            grown = [_joined(pair) for pair in zip(inside, after, strict=True)]
            if attempt >= 2:
                dtypes = [np.asarray(array).dtype for array in made.base[1:last]]
                given = zip(inside, grown, dtypes, strict=True)
                grown = [_widened(old, new, dtype, whole=attempt >= _ROUNDS) for old, new, dtype in given]
            inside = grown
        else:
            raise Unbounded("no bounds hold for all of its turns")
        for _ in range(2):  # all that is reached is at the start, or behind a turn from what is reached
            inside = [_joined(pair) for pair in zip(start, after, strict=True)]
            after = self.once(lead, turn, inside, quiet).spans[1:last]
        made = self.once(lead, turn, inside)
        self.states = made.spans[1:last]
        self.scans.append(made.spans[last:])
        self.hulls.append(made.hulls[last:])
        if any(span is not None and np.isinf(span.error).any() for span in self.states):
            self.walk.note_unknown(self.node, "rounding may grow with each turn")
        self.live.clear()
        go = made.spans[0] or Interval(np.zeros(()), np.ones(()), np.ones(()))
        return go, bool(go.low.min() >= 1 and not go.error.any())


class ScanTurns(LoopTurns):
    """The turns of a Scan: one for each place of its scan inputs on their axes."""

    def __init__(self, walk: GraphPass, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> None:
        count = int(attrs["num_scan_inputs"])
        states, self.inputs = list(node.input)[: len(node.input) - count], list(node.input)[-count:]
        super().__init__(walk, node, states)
        outputs = len(node.output) - len(states)
        self.axes = [int(each) for each in attrs.get("scan_input_axes") or [0] * count]
        self.backward = [bool(each) for each in attrs.get("scan_input_directions") or [0] * count]
        self.output_axes = [int(each) for each in attrs.get("scan_output_axes") or [0] * outputs]
        self.output_backward = [bool(each) for each in attrs.get("scan_output_directions") or [0] * outputs]
        self.length = walk.spans[self.inputs[0]].low.shape[self.axes[0]]

    def _at(self, array: Array, place: int, turn: int) -> Array:
        return np.asarray(np.take(array, self.length - 1 - turn if self.backward[place] else turn, self.axes[place]))

    def lead(self, turn: int) -> Spans:
        found: Spans = []
        for place, name in enumerate(self.inputs):
            span = self.walk.spans[name]
            if span.value is not None:
                found.append(Interval.of(self._at(span.value, place, turn)))
                continue
            parts = (self._at(each, place, turn) for each in (span.low, span.high, span.error, span.lowest))
            low, high, error, lowest = parts
            found.append(Interval(low, high, error, None, lowest))
        return found

    def rest(self, turn: int, most: float) -> Spans:
        found: Spans = []
        for name, axis in zip(self.inputs, self.axes, strict=True):
            span = self.walk.spans[name]
            low, high, error = span.low.min(axis), span.high.max(axis), span.error.max(axis)
            found.append(Interval(low, high, error, None, span.lowest.min(axis)))
        return found

    def fed(self, index: int, turn: int, *, is_wide: bool = False) -> list[Any]:
        arrays = [
            self.walk.wide_of(name, index) if is_wide else value_at(self.walk, name, index) for name in self.inputs
        ]
        return [None if array is None else self._at(array, place, turn) for place, array in enumerate(arrays)]

    def stacked(self, parts: list[Any], output: int) -> Array:
        return np.stack(parts[::-1] if self.output_backward[output] else parts, self.output_axes[output])

    def ends(self, index: int, turn: int) -> bool:
        return bool(turn >= self.length)


def loop_spans(walk: GraphPass, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> Spans:
    """The outputs of a Loop: as many turns as its count says, and as long as its condition is true."""
    count = walk.known(node.input[0])
    condition = node.input[1] if len(node.input) > 1 else ""
    go = walk.known(condition) if condition else Interval.of(np.array(True))
    if go is None or (node.input[0] and count is None):
        raise Unbounded("nothing is known of its number of turns")
    turns = LoopTurns(walk, node, list(node.input)[2:])
    for index in list(turns.live):
        if condition:
            far, goes = walk.wide_of(condition, index), bool(value_at(walk, condition, index))
            if far is None or bool(far) != goes:
                turns.wide[index] = None
        if turns.ends(index, 0) or (condition and not goes):
            turns.finish(index)
    if count is None:
        return turns.follow(math.inf, math.inf, go, is_off=False)
    off = float(count.error.max())
    least, most = float(count.low.min()) - off, float(count.high.max()) + off
    return turns.follow(least, most, go, is_off=off > 0)


def scan_spans(walk: GraphPass, node: onnx.NodeProto, attrs: Mapping[str, Any]) -> Spans:
    """The outputs of a Scan, whose number of turns its shapes tell."""
    if walk.file.opsets.get("", 0) < 9:
        raise Unbounded("a Scan of opset 8 has batches")
    turns = ScanTurns(walk, node, attrs)
    for index in list(turns.live):
        if turns.ends(index, 0):
            turns.finish(index)
    return turns.follow(turns.length, turns.length, Interval.of(np.array(True)), is_off=False)
