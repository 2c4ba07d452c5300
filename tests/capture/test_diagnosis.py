"""Each diagnosis by itself: what follows from an outcome, without a module that is run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.attempt import Attempt, Failed, Outcome, Recorded, Request
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.driver import diagnosed
from fx2onnx.capture.options import CaptureOptions, Patches
from fx2onnx.capture.python.inputs import bind
from fx2onnx.capture.reasons import Reason
from fx2onnx.capture.shapes.dynamic import set_dynamic_axes
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.sizes.assumptions import Guard, Specialization
from fx2onnx.sizes.expr import Dim, apply
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.modules import ModuleTree

N, M = Dim.symbol("n"), Dim.symbol("m")
LINE = SourceLocation("model.py", 3, "forward")


def attempt(**changes: Any) -> Attempt:
    """A first attempt; ``changes`` are fields of its request, of its sizes or of its operators."""
    module = torch.nn.Linear(4, 2)
    arguments = bind(module.forward, (torch.zeros(6, 4),), {}, None)
    set_dynamic_axes(arguments, ({0: "n"},), None)
    request = Request(module, ModuleTree(module), CaptureOptions(), lambda _: True, Patches())
    return changed(Attempt(request, arguments).at_sample(), **changes)


def changed(tried: Attempt, **changes: Any) -> Attempt:
    for name, value in changes.items():
        group = next(each for each in ("request", "sizes", "operators") if hasattr(getattr(tried, each), name))
        tried = replace(tried, **{group: replace(getattr(tried, group), **{name: value})})
    return tried


def ran(tried: Attempt, *guards: Guard, specialized: Specialization | None = None) -> Recorded:
    env = ShapeEnv(hints={**tried.sizes.hints, **tried.enlarged.hints})
    env.guards = {(guard.relation, True): guard for guard in guards}
    if specialized is not None:
        env.specializations = {specialized.size: specialized}
    graph = torch.fx.Graph()
    return Recorded(tried, Captured(graph, [], [], {}, {}, [], tried.program.strategy), env)


def equal(left: Any, right: Any, by_user: bool = False) -> Guard:
    return Guard(Relation("eq", (left, right)), LINE, by_user, "aten::add")


def following(outcome: Recorded | Failed, start: Attempt | None = None) -> Attempt:
    step = diagnosed(outcome, start or outcome.attempt)
    assert isinstance(step, Attempt)
    return step


def error_of(outcome: Recorded | Failed, start: Attempt | None = None) -> UserError:
    step = diagnosed(outcome, start or outcome.attempt)
    assert isinstance(step, Failed)
    assert isinstance(step.error, UserError)
    return step.error


def test_a_run_without_remarks_is_the_last() -> None:
    done = ran(attempt())
    assert diagnosed(done, done.attempt) is done


def test_what_the_user_compared_is_assumed_and_what_always_holds_is_not() -> None:
    by_user = Guard(Relation("lt", (N, 100)), LINE, True, "")
    by_kernel = Guard(Relation("ge", (N + 1, 1)), LINE, False, "aten::add")
    done = ran(attempt(), by_user, by_kernel)
    assert diagnosed(done, done.attempt) is done
    assert done.captured.assumptions == [by_user]


def test_composite_operators_are_split_once() -> None:
    first = attempt()
    again = following(Failed(first, ValueError(), Reason.COMPOSITE))
    assert (again.operators.pre_dispatch, again.sizes, again.program) == (False, first.sizes, first.program)


def test_library_code_takes_its_traced_branch_beside_those_that_do() -> None:
    one, two = (function.__code__ for function in (ran, equal))
    first = attempt(traced=frozenset({one}))
    again = following(Failed(first, UserError("E104", "decided by data"), library_code=two))
    assert again.operators.traced == {one, two}
    assert "equal takes its branch" in again.change


def test_a_size_that_must_stay_dynamic_is_refused_with_its_line() -> None:
    error = error_of(ran(attempt(), specialized=Specialization(N, 6, LINE)))
    assert (error.code, error.where) == ("E105", LINE)


def test_a_size_that_nobody_named_becomes_a_number_and_is_assumed() -> None:
    first = attempt(optional=frozenset({"n"}), pre_dispatch=False)
    again = following(ran(first, specialized=Specialization(N, 6, LINE)))
    assert not again.sizes.hints
    assert again.operators.pre_dispatch
    assert again.arguments.leaves[0].axes[0] == 6
    done = ran(again)
    assert diagnosed(done, first) is done
    assert done.captured.assumptions == [Specialization(N, 6, LINE)]


def test_an_equality_is_solved_for_one_size() -> None:
    first = attempt(hints={"n": 6, "m": 3})
    again = following(ran(first, equal(N, 2 * M)))
    assert again.sizes.specializations == (Specialization(N, 2 * M, LINE),)


@pytest.mark.parametrize(
    ("size", "other", "condition"),
    [
        (apply("min", N, 512), N, "n <= 512"),
        (2 * (N // 2), N, "n % 2 == 0"),
        (N // 4, 1, "n >= 4 and n <= 7"),
        ((N + 1) // 2 + N // 2, N, None),
    ],
)
def test_an_equality_of_several_sizes_is_a_condition(size: Any, other: Any, condition: str | None) -> None:
    done = ran(attempt(), equal(size, other))
    outcome = diagnosed(done, done.attempt)
    if isinstance(outcome, Attempt):  # a size of 1 is looked at where it is more
        outcome = diagnosed(Failed(outcome, UserError("E101", "no")), done.attempt)
    assert outcome is done
    assert [str(found) for found in done.captured.assumptions] == ([f"{condition}   ({LINE})"] if condition else [])


def test_a_plain_number_that_several_sizes_give_is_a_condition() -> None:
    done = ran(attempt(), specialized=Specialization(N // 4, 1, LINE))  # type: ignore[arg-type]
    assert diagnosed(done, done.attempt) is done
    assert [str(found) for found in done.captured.assumptions] == [f"n >= 4 and n <= 7   ({LINE})"]


def test_equal_answers_of_two_comparisons_are_no_equation_of_sizes() -> None:
    both = equal(Relation("gt", (N, 3)), True, by_user=True)
    done = ran(attempt(), both)
    assert diagnosed(done, done.attempt) is done
    assert done.captured.assumptions == [both]


class TestASizeThatIsOneAtTheSample:
    """``n // 6`` is 1 at 6: a kernel found that it broadcasts."""

    def setup_method(self) -> None:
        self.first = attempt(optional=frozenset({"n"}))
        self.at_sample = ran(self.first, equal(N // 6, 1))
        self.larger = following(self.at_sample)

    def test_a_larger_size_is_tried(self) -> None:
        assert self.larger.enlarged.hints["n"] >= 12
        assert self.larger.enlarged.baseline is self.at_sample

    def test_and_taken_where_nothing_is_specialized_there(self) -> None:
        done = ran(self.larger)
        assert diagnosed(done, self.first) is done

    def is_for_sizes_of_one_window(self, outcome: Outcome) -> bool:
        lines = [str(found) for found in self.at_sample.captured.assumptions]
        return outcome is self.at_sample and lines == [f"n >= 6 and n <= 11   ({LINE})"]

    def test_not_where_the_users_code_decided_otherwise_there(self) -> None:
        long = Guard(Relation("gt", (N, 7)), LINE, True, "")
        assert self.is_for_sizes_of_one_window(diagnosed(ran(self.larger, long), self.first))

    def test_not_where_the_size_is_specialized_there_too(self) -> None:
        done = ran(self.larger, specialized=Specialization(N, self.larger.enlarged.hints["n"], LINE))
        assert self.is_for_sizes_of_one_window(diagnosed(done, self.first))

    def test_not_where_it_fails(self) -> None:
        failed = Failed(self.larger, UserError("E101", "shapes"))
        assert self.is_for_sizes_of_one_window(diagnosed(failed, self.first))


class TestTorchExport:
    first = attempt()
    failure = UserError("E107", "an unknown operator", where=LINE)

    def test_takes_the_place_of_the_own_run_as_it_was_asked_for(self) -> None:
        late = changed(self.first, pre_dispatch=False, specializations=(Specialization(M, 1, LINE),))
        again = following(Failed(late, self.failure), self.first)
        assert (again.program.strategy, again.operators, again.sizes) == (
            "export",
            self.first.operators,
            self.first.sizes,
        )
        assert again.reason().startswith("the module's own run on fake tensors failed: [E107] an unknown operator")

    def test_a_plain_number_from_data_is_a_reason(self) -> None:
        failure = UserError("E104", "a number")
        assert following(Failed(self.first, failure, Reason.PLAIN_NUMBER)).program.strategy == "export"
        assert error_of(Failed(self.first, failure)) is failure

    def test_the_first_failure_is_raised_where_it_fails_too(self) -> None:
        again = following(Failed(self.first, self.failure))
        assert error_of(Failed(again, UserError("E107", "another"))) is self.failure
        refused = ran(again, specialized=Specialization(N, 6, LINE))
        assert error_of(refused) is self.failure

    @pytest.mark.parametrize("strategy", ["fake", "symbolic", "export"])
    def test_is_not_tried_where_a_strategy_was_asked_for(self, strategy: str) -> None:
        asked = changed(self.first, options=CaptureOptions(strategy=strategy))
        assert error_of(Failed(asked, self.failure)) is self.failure
