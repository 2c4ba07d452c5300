"""Bounds behind If, Loop and Scan hold: for graphs that are drawn, and for those that show one thing each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from fx2onnx.proof import bodies, turns
from fx2onnx.proof.spans import Interval
from tests.proof.bounds import assert_bounds_hold
from tests.proof.test_equations import node

_CONDITIONS = ("Less", "Greater", "LessOrEqual", "GreaterOrEqual")


class Drawn:
    """A graph of random operators, some of which hold graphs."""

    def __init__(self, seed: int) -> None:
        self.draw, self.count = np.random.default_rng(seed), 0
        self.constants = {"half": np.float32(0.5), "third": np.float32(0.3), "row": np.float32([0.2, -0.7, 1.1])}
        self.constants |= {"yes": np.array(True), "spread": np.arange(12, dtype=np.float32).reshape(4, 3) / 9}
        self.constants |= {"low": np.float32(-0.4), "three": np.array(3), "many": np.array(12), "zero": np.array(0)}

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, items: Any) -> Any:
        return items[int(self.draw.integers(len(items)))]

    def steps(self, known: list[str], depth: int, count: int) -> tuple[list[onnx.NodeProto], str]:
        """Nodes that make one value of three floats from known ones, and its name."""
        nodes: list[onnx.NodeProto] = []
        known = list(known)
        for _ in range(count):
            kind = self.pick(["one", "two", "two", "one"] + ["If", "Loop", "Scan", "Loop"] * (depth > 0))
            if kind == "one":
                made = [node(self.pick(["Tanh", "Neg", "Abs", "Relu", "Sin", "Exp"]), self.pick(known), self.name())]
            elif kind == "two":
                operands = self.pick(known), self.pick([*known, "half", "third", "row"])
                made = [node(self.pick(["Add", "Sub", "Mul", "Max", "Min"]), *operands, self.name())]
            else:
                made = getattr(self, kind)(known, depth)
            nodes += made
            known.append(nodes[-1].output[0])
        return nodes, known[-1]

    def condition(self, known: list[str]) -> list[onnx.NodeProto]:
        total, limit = self.name(), self.pick(["half", "third", "low"])
        return [
            node("ReduceSum", self.pick(known), total, keepdims=0),
            node(self.pick(_CONDITIONS), total, limit, self.name()),
        ]

    def If(self, known: list[str], depth: int) -> list[onnx.NodeProto]:
        nodes, branches = self.condition(known), {}
        for side in ("then_branch", "else_branch"):
            inner, last = self.steps(known, depth - 1, 2)
            branches[side] = onnx.helper.make_graph(inner, side, [], [onnx.ValueInfoProto(name=last)])
        return [*nodes, node("If", nodes[-1].output[0], self.name(), **branches)]

    def Loop(self, known: list[str], depth: int) -> list[onnx.NodeProto]:
        turn, goes, state, value = (self.name() for _ in range(4))
        step = [node("Cast", turn, value, to=1)]
        inner, last = self.steps([*known, state], depth - 1, 2)
        is_open = bool(self.draw.integers(2))
        more = self.condition([last]) if is_open else [node("Identity", goes, self.name())]
        made = onnx.helper.make_tensor_value_info
        formal = [made(turn, 7, []), made(goes, 9, []), made(state, 1, [3])]
        small = node("Sub", last, value, self.name()) if not is_open else node("Neg", last, self.name())
        outputs = [made(more[-1].output[0], 9, []), made(last, 1, [3])]
        scanned = [] if is_open else [made(small.output[0], 1, [3])]
        body = onnx.helper.make_graph([*step, *inner, *more, small], "turn", formal, [*outputs, *scanned])
        count = self.pick(["three", "three", "many", "zero"])
        made_node = node("Loop", count, "yes", self.pick(known), self.name(), body=body)
        if scanned and count == "three":
            made_node.output.append(self.name())
            total = node("ReduceSum", made_node.output[1], self.name(), keepdims=0)
            return [made_node, total, node("Add", made_node.output[0], total.output[0], self.name())]
        if scanned:
            made_node.output.append(self.name())
        return [made_node]

    def Scan(self, known: list[str], depth: int) -> list[onnx.NodeProto]:
        state, piece, row, hat = (self.name() for _ in range(4))
        both = node("Add", "spread", self.pick(known), self.name())
        inner, last = self.steps([*known, state, piece], depth - 1, 2)
        made = onnx.helper.make_tensor_value_info
        twice = node("Add", last, last, row)
        body = onnx.helper.make_graph(
            [*inner, twice], "turn", [made(state, 1, [3]), made(piece, 1, [3])], [made(last, 1, [3]), made(row, 1, [3])]
        )
        ways = {"scan_input_directions": [int(self.draw.integers(2))], "scan_output_axes": [int(self.draw.integers(2))]}
        scan = onnx.helper.make_node(
            "Scan", [self.pick(known), both.output[0]], [self.name(), hat], num_scan_inputs=1, body=body, **ways
        )
        side = node("ReduceMax", hat, self.name(), keepdims=0)
        return [both, scan, side, node("Max", scan.output[0], side.output[0], self.name())]

    def model(self) -> onnx.ModelProto:
        nodes, last = self.steps(["x"], 2, 3)
        tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in self.constants.items()]
        value = onnx.helper.make_tensor_value_info
        nodes.append(node("Identity", last, "y"))
        graph = onnx.helper.make_graph(nodes, "g", [value("x", 1, [3])], [value("y", 1, [3])], tensors)
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


def drawn(seed: int) -> onnx.ModelProto:
    made = Drawn(seed)
    return made.model()


@pytest.fixture(autouse=True)
def few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of all turns are sought behind few that are followed."""
    monkeypatch.setattr(turns, "TURNS", 8)


QUICK = (2, 3, 4, 5, 6)
SPAN = [(-1.0, 1.0), (0.1, 0.4), (0.0, 0.0), (-3.0, 2.0)]


@pytest.mark.parametrize(
    "seed", [each if each in QUICK else pytest.param(each, marks=pytest.mark.long) for each in range(120)]
)
def test_bounds_of_drawn_graphs_hold(seed: int) -> None:
    found = assert_bounds_hold(drawn(seed), {"x": SPAN[seed % len(SPAN)]}, draws=6)
    assert {text.partition(":")[0] for text in found.unknown.values()} <= {"If", "Loop", "Scan"}


_PICK = "c = Greater(s, limit) y = If (c) <then_branch = t () => (float[3] a) {{ {} }}, else_branch = e () => (float[3] b) {{ {} }}>"
_LOOP = "y = Loop ({}, yes, x) <body = t (int64 i, bool c, float[3] a) => (bool c2, float[3] b) {{ {} }}>"
_NEAR = "p = Mul(s0, tenth) q = Exp(p) r = Log(q) n = Div(r, tenth) "
_SCANNED = (
    "w = Unsqueeze(x, axis) r = Add(w, tall) _h, h = Scan <num_scan_inputs=1, scan_input_directions=[1], body = "
    "t (float a, float[3] e) => (float b, float[3] g) { m = ReduceMax<keepdims=0>(e) b = Mul(m, half) g = Mul(e, b) }>(none, r) "
    "y = Gather(h, nothing)"
)
TEXTS = {
    "branch that is not taken": "c = Less(none, limit) y = If (c) <then_branch = t () => (float[3] a) { a = Neg(x) }, "
    "else_branch = e () => (float[3] b) { b = Log(none) }>",
    "rounding turns the condition": _NEAR + _PICK.replace("Greater(s, limit)", "Equal(n, s0)").format("a = Neg(x)", "b = Add(x, row)"),
    "exact condition": "s = ReduceMax<keepdims=0>(x) " + _PICK.format("a = Neg(x)", "b = Add(x, row)"),
    "turns that are known": _LOOP.format("three", "c2 = Identity(c) f = Cast<to=1>(i) g = Add(a, f) b = Mul(g, half)"),
    "many turns": _LOOP.format("many", "c2 = Identity(c) f = Cast<to=1>(i) b = Add(a, f)"),
    "many turns of a bounded value": _LOOP.format("many", "c2 = Identity(c) g = Add(a, half) b = Sin(g)"),
    "no turn": _LOOP.format("nothing", "c2 = Identity(c) b = Log(a)"),
    "turns by data": "l = Mul(s0, tenth) k = Cast<to=7>(l) " + _LOOP.format("k", "c2 = Identity(c) g = Add(a, half) b = Tanh(g)"),
    "turns by a condition": _LOOP.format("many", "b = Add(a, half) m = ReduceMax<keepdims=0>(b) c2 = Less(m, most)"),
    "turns that rounding adds": _NEAR + _LOOP.format("three", "b = Add(a, half) c2 = Less(n, s0)"),
    "rows from the last": _SCANNED,
    "a loop in a branch": "s = ReduceMax<keepdims=0>(x) "
    + _PICK.format("z = Neg(x) " + _LOOP.format("three", "c2 = Identity(c) b = Add(z, a)").replace("y =", "a0 =", 1) + " a = Neg(a0)", "b = Neg(x)"),
}  # fmt: skip


def parsed(text: str) -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[3] x) => (float[3] y) <int64 three = {3}, int64 many = {12}, int64 nothing = {0}, '
    head += "bool yes = {1}, float half = {0.5}, float limit = {1.2}, float most = {1.6}, float none = {0}, float tenth = {7.3}, float[3] row = {0.2, -0.7, 1.1}, "
    head += "int64[1] axis = {0}, float[4, 1] tall = {0, 1, 2, 3}> { s0 = ReduceMax<keepdims=0>(x) "
    return onnx.parser.parse_model(head + text + " }")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_bounds_behind_a_body_hold(text: str) -> None:
    assert_bounds_hold(parsed(text), {"x": (0.3, 0.9)})


def _first(turns_: Any, exits: Any, *, may_flip: bool) -> Any:
    return exits[0]


def _unflipped(self: Any, exits: Any, *, may_flip: bool) -> Any:
    return _final(self, exits, may_flip=False)


_final = turns.LoopTurns._final
MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "the first exit alone": ("turns by data", turns.LoopTurns, "_final", _first),
    "no flipped turns": ("turns that rounding adds", turns.LoopTurns, "_final", _unflipped),
    "bounds that are taken to hold": ("many turns", turns, "_holds", lambda outer, inner: True),
    "the first turn for all": ("turns that are known", turns.LoopTurns, "lead", lambda self, turn: [Interval.of(np.array(0)), Interval.of(np.array(True))]),
    "rows from the first": ("rows from the last", turns.ScanTurns, "_at", lambda self, array, place, turn: np.take(array, turn, 0)),
    "exact conditions": ("rounding turns the condition", bodies, "SpanCall", lambda *args: bodies_call(*args)),
}  # fmt: skip
_call = bodies.SpanCall


def bodies_call(*args: Any) -> Any:
    """The join of two branches that forgets that rounding may turn its condition."""
    made = _call(*args)
    condition = made.span(0)
    exact = Interval(condition.low, condition.high, np.zeros_like(condition.error))
    return dataclasses.replace(made, args=[exact, *made.args[1:]])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, attribute, wrong = MUTANTS[mutant]
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises(AssertionError):
        assert_bounds_hold(parsed(TEXTS[name]), {"x": (0.3, 0.9)}, draws=40)


@pytest.mark.parametrize(
    ("text", "findings", "unknown"),
    [
        (_PICK.replace("Greater", "Equal").format("d = Mul(x, none) a = Log(d)", "b = Log(x)"), [("y/then_branch/a", False)], {}),
        (_PICK.format("l = Sub(x, limit) a = Log(l)", "b = Neg(x)"), [("y/then_branch/a", True)], {}),
        (_LOOP.format("many", "c2 = Identity(c) b = Div(x, a)"), [("y/body/b", False)], {"y": "Loop: rounding may grow with each turn"}),
        (
            _PICK.format("a = RandomNormal<shape=[3]>()", "b = Identity(x)"),
            [],
            {"y/then_branch/a": "RandomNormal: a normal distribution has no bounds"},
        ),
        (_PICK.format("a = Identity(x)", "b = Unsqueeze(s, axis)"), [], {}),
    ],
)  # fmt: skip
def test_nodes_of_a_body_are_named(text: str, findings: Any, unknown: dict[str, str]) -> None:
    found = assert_bounds_hold(parsed("s = ReduceMax<keepdims=0>(x) " + text), {"x": (0.3, 1.3)})
    assert [(each.node, each.is_shown) for each in found.findings] == findings
    assert found.unknown == unknown
