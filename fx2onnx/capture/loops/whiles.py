"""``while`` loops whose test sizes or data decide, ``while t < n: ...; t += 1``, as loops of the file.

Python asks before each turn whether it goes on. The first time, a turn begins; the next time it is over, and what the test is then
tells the file whether there is another. A test of numbers that grow by the same in each turn tells how many turns there are.
"""

from __future__ import annotations

import ast
import operator
from functools import lru_cache
from types import CodeType, FrameType
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.capture.loops.exits import TRUTH, call, count_of, node_of
from fx2onnx.capture.loops.loop import MOST_TRIES, Loop
from fx2onnx.capture.loops.parts import Unlike
from fx2onnx.capture.loops.plan import Plan
from fx2onnx.capture.loops.state import Held
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from fx2onnx.torchcompat.source_ast import Head, place_of

aten = torch.ops.aten
Truth: TypeAlias = bool | Relation | torch.fx.Node


@answers_for_caller
class While(Loop):
    """A ``while`` that Python is in."""

    def __init__(self, loops: Value, frame: FrameType, head: Head) -> None:
        super().__init__(loops, frame, None)
        self.head, self.place = head, place_of(head.loop)
        self._asked_yet: list[int] = []
        """Parts of the test that Python still asks for before the turn begins."""
        self._operand = 0
        """The part that Python asks for."""
        self._dynamic: list[int] = []
        """Parts that sizes or data decide."""
        self._start: Truth = True
        self._continues: Truth = True
        self._count: Scalar | None = None

    def asked(self, operand: int) -> bool:
        """The answer to a part of the test."""
        stays = self.head.operands[operand][1]
        if operand in self._asked_yet:
            self._asked_yet = [each for each in self._asked_yet if each > operand]
            return stays
        self._operand, self._dynamic = operand, []
        test = self._test()
        if self._plan is None:
            return stays if self._starts(test) else not stays
        if self.loops.open[-1] is not self or self.tracer.values.graph is not self._graph:
            raise self.loops.refused("Python leaves a loop within it before its end")
        try:
            return stays if self._goes_on(self._plan, test) else not stays
        except Unlike as error:
            self._alone(str(error))
            return stays

    def _starts(self, test: Truth) -> bool:
        self._start = test
        if test is not False and self.where in self.tracer.first_turns and self.loops.is_new(self):
            self._first_turn()
        elif test is not False:
            self._begin(Held(self.frame, self.head.operands[self._operand][1]), Plan(self))
        return test is not False

    def _turn(self, plan: Plan) -> Dim:
        index, env = super()._turn(plan), self.tracer.sizes
        self._dynamic = []
        test = self._test()
        self._asked_yet = [each for each in self._dynamic if each > self._operand]
        self._count = None
        if isinstance(test, Relation):
            env.know(supposed={**env.facts.supposed, test: None})
            self._count = count_of(test, index)
        if isinstance(self._count, Dim):
            most = int(env.hint(self._count)) - 1
            env.hints = {**env.hints, str(index): max(0, min(2, most))}
        return index

    def _goes_on(self, plan: Plan, test: Truth) -> bool:
        self._tries += 1
        if self.wants_first:
            raise Unlike("Python decides by whether a turn is the first")
        self._continues = test
        found = self._found(plan)
        if found is plan:
            self._finish(plan)
            return False
        if self._tries > MOST_TRIES:
            raise self.loops.refused("what a turn changes differs from turn to turn")
        self._leave(is_kept=False)
        self._turn(found)
        return True

    def _counted(self) -> Scalar | None:
        return self._count

    def _goes_on_at_end(self) -> torch.fx.Node | None:
        return self._node_of(self._continues)

    def _begins(self) -> torch.fx.Node | None:
        """The node of the first answer; None where the number of turns is known."""
        return self._node_of(self._start) if self.series is None else None

    def _alone(self, why: str) -> None:
        self._leave(is_kept=False)
        if not self.loops.is_new(self):
            raise self.loops.refused(why)
        self._first_turn()

    def _first_turn(self) -> None:
        """The first turn is run by itself, which there is where the test holds."""
        env, test = self.tracer.sizes, self._start
        if not isinstance(test, Relation) or test.op not in COMPARE:
            raise self.loops.refused("the first turn differs from the others, and data tells whether there is one")
        if env.facts.is_settled(test) is None and not env.facts.excludes_zero_only(test):
            env.expect(test.op, *test.args)

    # -- the test ---------------------------------------------------------------------------------------------------------
    def _test(self, first: int = 0) -> Truth:
        """The condition with which Python goes on, for the present values. A part that reads from tensors is computed only where those before it hold."""
        truth: Truth = True
        for place in range(first, len(self.head.operands)):
            if not isinstance(truth, bool) and _may_fail(self.head.operands[place][0]):
                return self._and_then(truth, place)
            one = self._part(place)
            if one is False:
                return False
            if one is not True:
                truth = one if isinstance(truth, bool) else self._both(truth, one)
        return truth

    def _and_then(self, truth: Relation | torch.fx.Node, place: int) -> torch.fx.Node:
        """The test from a part on, where ``truth`` holds; else false."""
        env, values = self.tracer.sizes, self.tracer.values
        before, test = env.facts.supposed, self._node_of(truth)
        with values.nested() as graph:
            if isinstance(truth, Relation):
                env.know(supposed={**before, truth: None})
            found = self._node_of(self._test(place))
        env.know(supposed=before)
        with values.nested() as other:
            sides = [Nested(graph, [], [found], (TRUTH,)), Nested(other, [], [self._node_of(False)], (TRUTH,))]
        node = values.call(HIGHER_ORDER["cond"], (test, *sides, []), {}, (TRUTH,))
        return values.call(operator.getitem, (node, 0), {}, TRUTH)  # type: ignore[no-any-return]

    def _part(self, place: int) -> Truth:
        operand, stays = self.head.operands[place]
        code = _code_of(operand, self.frame.f_code.co_filename)
        with self.loops.evaluating(code) as tests:
            holds = eval(code, {**self.frame.f_globals, **self.frame.f_locals})  # as Python does there
        if not tests:
            return holds is stays
        self._dynamic.append(place)
        test = tests[-1]
        if isinstance(test, Relation):
            return test if stays else test.negated()
        return test if stays else call(self.tracer.values, "logical_not", self._node_of(test))

    def _both(self, one: Relation | torch.fx.Node, other: Relation | torch.fx.Node) -> Relation | torch.fx.Node:
        if isinstance(one, Relation) and isinstance(other, Relation):
            return Relation("and", (one, other))
        return call(self.tracer.values, "logical_and", self._node_of(one), self._node_of(other))

    def _node_of(self, truth: Truth) -> torch.fx.Node:
        return node_of(self.tracer.values, truth)


@lru_cache(maxsize=256)
def _code_of(operand: ast.expr, file: str) -> CodeType:
    """An expression whose value is the truth of another one."""
    truth = ast.IfExp(operand, ast.Constant(True), ast.Constant(False))
    return compile(ast.fix_missing_locations(ast.Expression(ast.copy_location(truth, operand))), file, "eval")


def _may_fail(operand: ast.expr) -> bool:
    return any(isinstance(node, ast.Subscript) for node in ast.walk(operand))
