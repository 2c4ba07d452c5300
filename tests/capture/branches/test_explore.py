"""Choices for decisions by data: given in order, and the paths of small programs joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded, Request, RunProgram
from fx2onnx.capture.branches import explore
from fx2onnx.capture.branches.explore import joined_paths
from fx2onnx.capture.captured import Captured, GraphInput, GraphOutput
from fx2onnx.capture.options import CaptureOptions, Patches
from fx2onnx.capture.python.inputs import bind
from fx2onnx.capture.recording.decisions import Branching, Choice, DecisionTrace
from fx2onnx.capture.recording.nested import nested
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.torchcompat.capture_modes import capture_modes
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from tests.capture.recorded import info, inputs_of, tracer_of
from tests.support import check

ERROR = UserError("E104", "depends on data")

BAKED = 'bake=["x"] to make the values of the example inputs constants of the file'


def paths_of(function: Callable[[Any], Any]) -> Recorded:
    """The joined program of a function of a float32[4, 3]."""

    def run(attempt: Any, trace: DecisionTrace) -> Outcome:
        tracer = Tracer(ShapeEnv(), {}, lambda overload: True, trace=trace)
        (x,) = inputs_of(tracer, (4, 3))
        try:
            with capture_modes(tracer.values.fake_mode, tracer.mode):
                result = tracer.values.node_of(function(x))
        except UserError as error:
            return Failed(attempt, error)
        except ValueError as cause:
            error = UserError("E101", "the module failed")
            error.__cause__ = cause
            return Failed(attempt, error)
        node = next(iter(tracer.values.graph.nodes))
        inputs = [GraphInput("x0", info(4, 3), node, torch.ones(4, 3), "x0")]
        outputs = [GraphOutput("output", result, "")]
        captured = Captured(
            tracer.values.graph, inputs, outputs, tracer.values.weights, tracer.values.symbols, [], "fake"
        )
        return Recorded(attempt, captured, tracer.sizes)

    module = torch.nn.Identity()
    request = Request(module, ModuleTree(module), CaptureOptions(), lambda _: True, Patches())
    arguments = bind(request.root.forward, (torch.zeros(1),), {}, None)
    attempt = Attempt(request, arguments, RunProgram("given"), branching=Branching(by_counts=False))
    joined = joined_paths(run, attempt)
    if isinstance(joined, Failed):
        raise joined.error
    return joined


def value_of(joined: Recorded) -> Any:
    value = joined.captured.outputs[0].value
    assert isinstance(value, torch.fx.Node)
    return value.meta["val"]


def conds(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.target is HIGHER_ORDER["cond"]]


def test_choices_are_given_in_order_until_one_is_missing() -> None:
    trace = DecisionTrace((Choice(True), Choice(False, first_unbacked=7)))
    tracer = tracer_of()
    (x,) = inputs_of(tracer, (4,))
    node = tracer.values.node_of(x)
    assert trace.choose(tracer.values, tracer.sizes, node, ERROR) is True
    assert tracer.sizes.next_unbacked == 0
    assert trace.choose(tracer.values, tracer.sizes, node, ERROR) is False
    assert tracer.sizes.next_unbacked == 7
    with pytest.raises(UserError) as caught:
        trace.choose(tracer.values, tracer.sizes, node, ERROR)
    assert trace.undecided is caught.value is ERROR
    assert [decision.test for decision in trace.decisions] == [node, node]


def test_within_a_nested_graph_nothing_is_decided() -> None:
    trace = DecisionTrace((Choice(True),))
    tracer = tracer_of()
    (x,) = inputs_of(tracer, (4,))
    with nested(tracer.values), pytest.raises(UserError):
        trace.choose(tracer.values, tracer.sizes, tracer.values.node_of(x), ERROR)
    assert trace.undecided is None


def test_both_branches_are_joined_after_what_they_share() -> None:
    joined = paths_of(lambda x: x.relu().exp() if x.sum() > 0 else x.relu().tanh())
    (cond,) = conds(joined.captured.graph)
    assert [str(node.target) for node in cond.args[1].graph.nodes] == ["aten.relu.default", "aten.exp.default"]  # type: ignore[union-attr]
    assert [str(node.target) for node in cond.args[2].graph.nodes] == ["aten.relu.default", "aten.tanh.default"]  # type: ignore[union-attr]
    assert str(cond.args[0].target) == "aten.gt.Scalar"  # type: ignore[union-attr]
    assert value_of(joined) == info(4, 3)
    assert [note.what for note in joined.captured.assumptions] == [
        "both branches of a decision by data are in the file"
    ]


def test_later_decisions_are_ifs_within_branches() -> None:
    joined = paths_of(lambda x: x.exp() if x.sum() > 0 else (x.tanh() if x.max() > 1 else x.sin()))
    (outer,) = conds(joined.captured.graph)
    assert not conds(outer.args[1].graph)  # type: ignore[union-attr]
    assert len(conds(outer.args[2].graph)) == 1  # type: ignore[union-attr]


def test_sizes_and_integer_types_are_joined() -> None:
    joined = paths_of(lambda x: x[:2].argmax(1) if x.sum() > 0 else x.argmax(1).int())
    found = value_of(joined)
    assert found.dtype == torch.int64
    assert str(found.dims[0]) in joined.captured.symbols


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x if x.sum() > 0 else x.double(), "the branches return different types"),
        (lambda x: x if x.sum() > 0 else x[0], "the branches return different types"),
    ],
    ids=["dtypes", "ranks"],
)
def test_what_cannot_be_joined_says_why(function: Any, why: str) -> None:
    with pytest.raises(UserError, match=why) as caught:
        paths_of(function)
    assert caught.value.code == "E104"


def test_a_branch_that_raises_is_assumed_not_to_be_taken() -> None:
    def checked(x: Any) -> Any:
        if x.sum() > 0:
            raise ValueError("too large")
        return x.exp()

    joined = paths_of(checked)
    assert not conds(joined.captured.graph)
    assert value_of(joined) == info(4, 3)
    assert [note.what for note in joined.shape_env.assertions] == ["%gt_scalar is false"]


def test_paths_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MAX_PATHS", 3)

    def halved(x: Any) -> Any:
        while x.sum() > 0:
            x = x / 2
        return x

    with pytest.raises(UserError, match="more than 3 paths through forward"):
        paths_of(halved)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x.sum() > 0 else x.view(7, -1),
        lambda x: x.view(7, -1) if x.sum() > 0 else x * 2,
        lambda x: x @ x if x.nonzero().shape[0] > 2 else x * 2,
        lambda x: (x.sin() if x.max() > 1 else x.view(7, -1)) if x.sum() > 0 else x * 2,
    ],
    ids=["the way not tried first", "the way tried first", "by a size of data", "nested"],
)
def test_a_way_that_fails_is_named_as_one(function: Any) -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(function, (torch.ones(2, 3),), None)
    error = caught.value
    assert error.code == "E101"
    assert "on one way of a decision by data" in error.what
    assert "has both ways of the decision at" in error.why
    assert [*error.next] == ["check that the module runs in eager PyTorch with inputs that lead to this line", BAKED]


def test_a_failure_before_any_decision_names_none() -> None:
    with pytest.raises(UserError) as caught:
        fx2onnx.export(lambda x: x.view(7, -1) if x.view(7, -1).sum() > 0 else x, (torch.ones(2, 3),), None)
    assert "decision" not in caught.value.what + caught.value.why


def _sum_by_halves(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[0] // 2
    return x[0] if half == 0 else _sum_by_halves(x[:half]) + _sum_by_halves(x[half:])


def _scan_by_halves(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] < 2:
        return x
    odd = _scan_by_halves(x[:-1:2] + x[1::2])
    even = (odd[:-1] if x.shape[0] % 2 == 0 else odd) + x[2::2]
    return torch.cat([x[:1], even, odd])


@pytest.mark.long
@pytest.mark.parametrize("function", [_sum_by_halves, _scan_by_halves])
def test_a_recursion_as_often_as_a_size_says_is_refused_soon(function: Callable[..., Any]) -> None:
    calls = 0

    def forward(x: torch.Tensor) -> Any:
        nonlocal calls
        calls += 1
        return function(x)

    with pytest.raises(UserError, match="calls itself as often as n says") as caught:
        fx2onnx.export(forward, (torch.randn(12, 3),), dynamic_shapes={"x": {0: "n"}})
    assert calls <= 24  # of 64
    assert any("while step < x" in step for step in caught.value.next)


@pytest.mark.long
def test_a_recursion_that_ends_anyway_is_right() -> None:
    def pooled(x: torch.Tensor, left: int) -> torch.Tensor:
        return x if left == 0 or x.shape[0] < 4 else pooled(x[::2] + x[1::2].sum(0), left - 1)

    others = [(torch.randn(rows, 3),) for rows in (1, 4, 9, 40)]
    check(lambda x: pooled(x, 4), (torch.randn(6, 3),), others=others, dynamic_shapes={"x": {0: "n"}})
