"""``while`` loops whose test sizes or data decide, ``while t < n: ...; t += 1``, as loops of the file.

Python asks before each turn whether it goes on. The first time, a turn begins; the next time it is over, and what the test is then
tells the file whether there is another. A test of numbers that grow by the same in each turn tells how many turns there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TypeVar, cast

import torch
import torch.fx

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.capture.loops.exits import count_of
from fx2onnx.capture.loops.loop import Loop
from fx2onnx.capture.loops.parts import Unlike
from fx2onnx.capture.loops.plan import LoopPlan
from fx2onnx.capture.loops.state import Held
from fx2onnx.capture.loops.truths import HeadTest, Truth, node_of
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.reasons import Reason, because
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.shapes.shape_env import DATA_DECIDES, KEEP_TENSORS
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.frames import user_frame
from fx2onnx.torchcompat.loop_statements import Exit, Head, exit_at, head_at, is_in_while
from fx2onnx.torchcompat.source_ast import Place, place_of

MOST_TURNS = 3
"""Turns of a ``while`` whose tests are shape-dependent branches, where loops over sizes are loops of the file."""

AnyLoop = TypeVar("AnyLoop", bound=Loop)


@answers_for_caller
class While(Loop):
    """A ``while`` that Python is in."""

    def __init__(self, loops: Value, frame: FrameType, head: Head) -> None:
        super().__init__(loops, [frame], None)
        self.head, self.place = head, place_of(head.loop)
        self._operand = 0
        """The part of the test that Python asks for."""
        self._start: Truth = True
        self._continues: Truth = True
        self._count: Scalar | None = None

    @property
    def may_free(self) -> bool:
        """True: it is not known whether there is a first turn, so none is by itself."""
        return True

    @property
    def may_be_none(self) -> bool:
        """True if the first test may be false, also where no size is 0."""
        return self.tracer.sizes.may_fail(self._start) if isinstance(self._start, Relation) else self._start is not True

    def asked(self, operand: int) -> bool:
        """Return whether Python goes on, where it asks for a part of the test."""
        self._operand = operand
        test = self._test()
        if self.plan is None:
            return self._starts(test)
        if self.loops.open[-1] is not self or self.tracer.values.graph is not self.paths.graphs[-1]:
            raise self.loops.refused("Python leaves a loop within it before its end")
        try:
            return bool(self._goes_on(self.plan, test))
        except Unlike as error:
            self._alone(str(error))
            return True

    def _test(self) -> Truth:
        """The test with which Python goes on, for the present values."""
        self.tested = HeadTest(self.loops, self.frame, self.head)
        return self.tested.truth

    def _starts(self, test: Truth) -> bool:
        self._start = test
        if test is not False and self.where in self.tracer.branching.first_turns and self.loops.tests.is_new(self):
            self._first_turn()
        elif test is not False:
            self._begin(Held([self.frame], self.head.operands[self._operand][1]), LoopPlan(self))
        return test is not False

    def _turn(self, plan: LoopPlan, *, is_again: bool = False) -> Dim:
        index, env = super()._turn(plan, is_again=is_again), self.tracer.sizes
        test = self._test()
        self._count = None
        if isinstance(test, Relation):
            env.know(supposed={**env.facts.supposed, test: None})
            self._count = count_of(test, index)
        if isinstance(self._count, Dim):
            most = int(env.hint(self._count)) - 1
            env.hints = {**env.hints, str(index): max(0, min(2, most))}
        return index

    def _goes_on(self, plan: LoopPlan, test: Truth) -> bool:
        self._continues = test
        return not self._ended(plan) or self._again() is not None

    def _counted(self) -> Scalar | None:
        return self._count

    def _goes_on_at_end(self) -> torch.fx.Node | None:
        return node_of(self.tracer.values, self._continues)

    def _begins(self) -> torch.fx.Node | None:
        """The node of the first answer; None where the number of turns is known."""
        return node_of(self.tracer.values, self._start) if self.series is None else None

    def _alone(self, why: str) -> None:
        self._leave(is_kept=False)
        if not self.loops.tests.is_new(self):
            raise self.loops.refused(why)
        self._first_turn()

    def _first_turn(self) -> None:
        """The first turn is run by itself, which there is where the test holds."""
        env, test = self.tracer.sizes, self._start
        if not isinstance(test, Relation) or test.op not in COMPARE:
            raise self.loops.refused("the first turn differs from the others, and data tells whether there is one")
        if env.facts.is_settled(test) is None and not env.facts.excludes_zero_only(test):
            env.expect(test.op, *test.args)


class LoopTests:
    """The tests that Python is at: those of ``while``, and those that leave a loop."""

    def __init__(self, loops: Value) -> None:
        self._loops = loops
        self._asking: tuple[CodeType, list[Test], bool] | None = None
        """The code of a test that is evaluated, what Python was asked for in doing so, and whether constants are asked, too."""
        self._expected: dict[FrameType, tuple[Head, list[int], bool]] = {}
        """The parts of a test that Python asks for next, and whether the answers are for staying in the loop."""
        self._leaving: list[tuple[FrameType, Place | None, Place]] = []
        """The loops that are over except for a turn that Python runs once more, by frame and place, with the statement
        that leaves it."""
        self._asked: dict[tuple[FrameType, object], set[str]] = {}
        """The questions that the tests of ``while`` asked."""
        self._plain_turns: dict[FrameType, int] = {}
        """The number of data-dependent branches in turns of a ``while`` whose test asked for none."""
        self._first_turns: set[tuple[FrameType, object]] = set()
        """The loops whose first turn was run by itself."""

    @contextlib.contextmanager
    def evaluating(self, code: CodeType, frame: FrameType, head: Head) -> Iterator[list[Test]]:
        """Inside, what that code asks for is noted, and holds."""
        before, self._asking = self._asking, (code, [], self._has_branches(frame, head))
        try:
            yield self._asking[1]
        finally:
            self._asking = before

    def at_head(self, test: Test, *, in_call: bool = False) -> bool | None:
        """The answer to what Python asks of each turn of a ``while``; None to another question. ``in_call``: an operator asks, and
        no others are recorded meanwhile.
        """
        frame = user_frame()
        if self._asking is not None:
            is_asked = frame is not None and frame.f_code is self._asking[0]
            self._asking[1].extend([test] if is_asked else [])
            return is_asked or None
        if frame is None:
            return None
        leaving = self._in_last_turn(frame) if self._leaving else None
        if leaving is not None:
            return leaving
        found = head_at(frame)
        if found is None:
            return None
        head, operand = found
        if not self._loops.tracer.branching.has_exits:
            self._note_turn(frame, head, test)
            return None
        known = self.expected(frame, head, operand)
        if known is not None:
            return known
        is_open = [isinstance(one, While) and one.frame is frame and one.head is head for one in self._loops.open]
        if any(is_open[:-1]):
            raise self._loops.refused("Python leaves a loop within it before its end")
        loop = cast(While, self._loops.open[-1]) if any(is_open) else self.entered(While(self._loops, frame, head))
        with self._loops.tracer.mode if in_call else contextlib.nullcontext():
            goes_on = loop.asked(operand)
        self.expect(frame, head, loop.tested.asked_behind(operand, goes_on), goes_on)
        return head.operands[operand][1] is goes_on

    def asks_constant(self) -> bool:
        """Return whether Python asks a constant for the test of a ``while`` in whose turns data decides: it is one before the first turn only."""
        frame = user_frame()
        if frame is None or self._asking is not None:
            return (
                self._asking is not None and frame is not None and frame.f_code is self._asking[0] and self._asking[2]
            )
        found = head_at(frame)
        return found is not None and self._has_branches(frame, found[0])

    def _has_branches(self, frame: FrameType, head: Head) -> bool:
        lines, loop = self._loops.lines_of_branches(frame), head.loop
        return any(loop.lineno <= line <= (loop.end_lineno or 0) for line in lines)

    def check_has_tensors(self) -> None:
        """Raises where data decides in turn after turn of a ``while`` whose test is about plain numbers."""
        frame = user_frame() if self._loops.tracer.branching.has_exits else None
        if frame is None or not is_in_while(frame):
            return
        self._plain_turns[frame] = self._plain_turns.get(frame, 0) + 1
        if self._plain_turns[frame] > MOST_TURNS:
            raise self._loops.refused(
                "plain numbers decide how often a while loops, in which data decides",
                "make a tensor of each number in the test of the while, before it: t = torch.tensor(0.0)",
            )

    def _note_turn(self, frame: FrameType, head: Head, test: Test) -> None:
        """Python asks for the test of a ``while`` once more, each time by other sizes: these are no branches, but a loop."""
        if isinstance(test, Relation) and self._loops.tracer.sizes.facts.is_settled(test) is None:
            asked = self._asked.setdefault((frame, place_of(head.loop)), set())
            asked.add(str(test))
            if len(asked) > MOST_TURNS:
                raise because(Reason.PATHS, self._loops.refused("sizes decide how often a while loops"))

    def entered(self, loop: AnyLoop) -> AnyLoop:
        """A loop that Python begins with: no turn of it is run once more."""
        self._leaving = [each for each in self._leaving if each[:2] != (loop.frame, loop.place)]
        return loop

    def expect(self, frame: FrameType, head: Head, parts: list[int], stays: bool) -> None:
        """Python asks for these parts of a test next, and all answers are for staying in the loop, or for leaving it."""
        self._expected[frame] = head, parts, stays

    def expected(self, frame: FrameType, head: Head, part: int) -> bool | None:
        """The answer to a part of a test, a part of which was answered before; None where none was."""
        known, parts, stays = self._expected.get(frame, (None, [], False))
        if known is not head or part not in parts:
            return None
        self.expect(frame, head, [each for each in parts if each > part], stays)
        return head.operands[part][1] is stays

    def leaves(self, loop: Loop, by: Exit, test: Relation) -> bool:
        """Return whether Python leaves a loop that is over by a statement that does more than to go on behind it."""
        env, statement = self._loops.tracer.sizes, place_of(by.head.statement)
        known: bool | None = env.facts.is_settled(test)
        outer = self._loops.open[-1] if self._loops.open else None
        if any(each[::2] == (loop.frame, statement) for each in self._leaving):
            known = True
        elif known is None and outer is not None and outer.frame is loop.frame and by.returns:
            outer.leaves_within(test, by)
            known = False
        if known is None:
            known = self._decided(loop, test)
        if known:
            self._leaving.append((loop.frame, loop.place, statement))
        return known

    def _decided(self, loop: Loop, test: Relation) -> bool:
        env, trace = self._loops.tracer.sizes, self._loops.tracer.trace
        if not test.symbols() & env.unbacked:
            return bool(env.decided(test))
        error = UserError(*DATA_DECIDES, where=loop.where, why="Python leaves the loop by data", next=KEEP_TENSORS)
        if trace is None:
            raise error
        holds: bool = trace.choose(self._loops.tracer.values, env, test, error)
        env.equate(test if holds else test.negated())
        return holds

    def _in_last_turn(self, frame: FrameType) -> bool | None:
        """The answer to a test that leaves a loop in the turn of it that Python runs once more."""
        found = exit_at(frame)
        if found is None:
            return None
        (one, part), loop = found, place_of(found[0].loop)
        for its_frame, place, statement in reversed(self._leaving):
            if its_frame is frame and place == loop:
                return one.head.operands[part][1] is not (place_of(one.head.statement) == statement)
        return None

    def is_new(self, loop: While) -> bool:
        """Return whether the first turn of the loop was not run by itself yet, which it now is."""
        before = len(self._first_turns)
        self._first_turns.add((loop.frame, loop.head))
        return len(self._first_turns) > before
