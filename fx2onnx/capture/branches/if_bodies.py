"""Statements that run where a test by data holds become a branch of the file as the module runs, ``if idx.numel(): out[idx] = ...``.

The body is recorded into a graph of its own, and joined behind it with what there is without it: n such statements are n branches
of one run, where decisions would make 2**n paths. What makes it exact: Python goes on in the same way whether the body ran or not.
It only wrote into tensors, gave variables other tensors of the same type, or variables that nobody else reads; and nothing was
learnt of sizes in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import NamedTuple

import torch
import torch.fx

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.base.source import SourceLocation
from fx2onnx.capture.branches import both_ways
from fx2onnx.capture.branches.statements import Conditional, conditional_at, read_later
from fx2onnx.capture.branches.watch import SideEffectWatch, more_than_computing
from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.python.held import MISSING, is_equal_number
from fx2onnx.capture.rare_roads import RunPlugin
from fx2onnx.capture.reasons import is_about_number
from fx2onnx.capture.recording.control_flow import record_cond
from fx2onnx.capture.recording.decisions import IsNoBranch
from fx2onnx.capture.recording.nested import ValuesBefore
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import Memory, View, dims_of
from fx2onnx.capture.registry import load_family
from fx2onnx.sizes.assumptions import Assumption
from fx2onnx.sizes.expr import Dim
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.frames import user_frame

Node = torch.fx.Node


@dataclass(slots=True)
class _Open:
    """A body that runs now, and what was before it."""

    frame: FrameType
    statement: Conditional
    test: Node | Relation
    returned: torch.Tensor | None
    where: SourceLocation | None
    graph: torch.fx.Graph
    variables: Mapping[str, object]
    before: ValuesBefore
    facts: object
    signed: frozenset[str]
    some: frozenset[Dim]
    first_unbacked: int
    joins: bool
    """True if both ways are run, and their numbers joined, too."""
    ways: list[both_ways.EndedWay] = field(default_factory=list)


class _Replaced(NamedTuple):
    """A tensor that a variable has behind a body, with the one that it has where the body does not run."""

    after: torch.Tensor
    before: torch.Tensor


@answers_for_caller
class IfBodies(RunPlugin):
    """The bodies of one run that are branches of the file."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        for name in (
            "recording.functionalize",
            "recording.aliasing",
        ):  # a hook of imports would be seen to run in a body
            load_family(name)
        self._open: list[_Open] = []
        self._watch = SideEffectWatch(more_than_computing, self._at_line)
        self._inner: set[torch.fx.Graph] = set()
        """Graphs of bodies that are over: what they made is used in them only."""
        self._sizes: set[str] = set()
        """Symbols that are known in such a graph only."""
        self._fixed: dict[int, Memory] = {}
        """Memories, by id, that may be one where the body did not run: what is written into one would be written into
        another."""
        self._refusal = ""

    def end(self) -> None:
        self._watch.end()
        del self._watch
        self._open.clear()

    @property
    def are_open(self) -> bool:
        return bool(self._open)

    def answer(self, test: Node | Relation) -> bool | None:
        """The answer to a test by data with which the statements that it guards run; None where they are none that may be a branch."""
        found = self._begin(test)
        if found is None and self._open:
            raise IsNoBranch("another decision is made in a body")
        return found

    def _begin(self, test: Node | Relation) -> bool | None:
        tracer = self.tracer
        self.check_sizes(test)
        frame = user_frame()
        if frame is None or (isinstance(test, Relation) and not _is_by_data(tracer, test)):
            return None
        statement = conditional_at(frame)
        if statement is None or not statement.changes_tensors_only(frame, frame.f_lineno):
            return None
        returned = statement.returned_in(frame)
        if (statement.returned is not None and returned is None) or statement.goes_on_with_iterator(frame):
            return None
        is_turn = tracer.branching.has_loops and bool(tracer.plugin("loops").open)
        joins = is_turn and tracer.branching.joins_branches and statement.returned is None
        if joins and statement.calls():
            return None
        if not joins and (statement.orelse or (is_turn and not statement.replaces_tensors_only(frame))):
            return None
        if any(memory.late is not None for memory, _, _ in ValuesBefore(tracer.values).memories.values()):
            return None
        tracer.values.mark()
        env = tracer.sizes
        body = _Open(
            frame, statement, test, returned, tracer.values.where, torch.fx.Graph(), dict(frame.f_locals),
            ValuesBefore(tracer.values), _facts(tracer), env.facts.signed, env.some, env.next_unbacked, joins,
        )  # fmt: skip
        self._open.append(body)
        tracer.values.graph = body.graph
        self._watch.begin(frame)
        return statement.runs_where

    def saw_call(self, node: Node) -> None:
        """Raises IsNoBranch where a call uses what was made in a body that is over."""
        if not self._inner:
            return
        if any(operand.graph in self._inner for operand in node.all_input_nodes) or node.graph in self._inner:
            raise IsNoBranch("a tensor that a body made is used behind it")
        if self._sizes:
            self.check_sizes((node.args, node.kwargs, node.meta.get("val")))

    def failed(self, error: Exception) -> None:
        """Raises IsNoBranch where a body is open, except where Python needs a number there."""
        if self._open and not is_about_number(error):
            raise IsNoBranch("a body fails") from error

    def gave(self, values: Sequence[object]) -> None:
        """Raises IsNoBranch where the module gives what was made in a body that is over."""
        if self._refusal or self._open:
            raise IsNoBranch(self._refusal or "a body does not end")
        if any(isinstance(value, Node) and value.graph in self._inner for value in values):
            raise IsNoBranch("a tensor that a body made is given")
        for value in values:
            self.check_sizes(value)

    def check_sizes(self, value: object) -> None:
        if isinstance(value, Dim | Relation):
            if value.symbols() & self._sizes:
                raise IsNoBranch("a size that only a body knows is used behind it")
        elif isinstance(value, TensorInfo):
            self.check_sizes(value.dims)
        elif isinstance(value, Mapping):
            self.check_sizes([*value.values()])
        elif isinstance(value, list | tuple):
            for part in value:
                self.check_sizes(part)

    def before_write(self, memory: Memory) -> None:
        if self.tracer.has_if_bodies and id(memory) in self._fixed:
            raise IsNoBranch("a tensor is written that is another one where a body does not run")

    def _at_line(self, frame: FrameType, line: int | None, value: object) -> None:
        try:
            self._came_to(frame, line, value)
        except IsNoBranch as error:
            self._refusal = str(error)  # a bare ``except:`` of the module does not lose it
            raise

    def _came_to(self, frame: FrameType, line: int | None, value: object) -> None:
        if not self._open:
            return
        if self._watch.seen:
            raise IsNoBranch(self._watch.seen)
        while self._open and self._open[-1].frame is frame:
            body = self._open[-1]
            if line is not None and body.statement.covers(line):
                if not body.statement.changes_tensors_only(frame, line):
                    raise IsNoBranch("something that is no tensor is changed")
                return
            if body.joins and self._goes_other_way(body, line):
                return
            self._open.pop()
            if not body.joins:
                self._close(body, line is not None, value)
        if not self._open:
            self._watch.end()

    def _goes_other_way(self, body: _Open, line: int | None) -> bool:
        """Return whether Python goes on with the other way, behind one; joins both behind the second."""
        tracer, frame = self.tracer, body.frame
        if line is None or tracer.values.graph is not body.graph:
            raise IsNoBranch("a body ends within a function")
        if _facts(tracer) != body.facts:
            raise IsNoBranch("something was learnt of sizes")
        body.ways.append(both_ways.ended(tracer, frame, body.variables, body.graph, body.before))
        self._leave(tracer, body)
        if body.statement.orelse:
            body.graph = tracer.values.graph = torch.fx.Graph()
            body.statement = both_ways.goes_on_at(frame, body.variables, body.statement)
            if not body.statement.changes_tensors_only(frame, body.statement.body[0].lineno):
                raise IsNoBranch("something that is no tensor is changed")
            return True
        one, two = body.ways if len(body.ways) > 1 else (*body.ways, both_ways.EndedWay(torch.fx.Graph(), {}, {}, {}))
        self._inner -= {one.graph, two.graph}
        pairs = both_ways.pairs_of(tracer, body.variables, one, two)
        self._inner |= {one.graph, two.graph}
        written = [*dict.fromkeys([*one.written, *two.written])]
        after, before = (
            [tracer.values.node_of(pair.tensors[side]) for pair in pairs]
            + [way.written[key][1] if key in way.written else body.before.memories[key][1] for key in written]
            for side, way in enumerate((one, two))
        )
        joined = self._joined(tracer, body, after, before, (one.graph, two.graph)) if after else []
        both_ways.write(body.before, (one, two), dict(zip(written, joined[len(pairs) :], strict=True)))
        fixed = both_ways.put(tracer, frame, pairs, joined, body.before)
        self._fixed |= {id(memory): memory for memory in fixed}
        return False

    def _close(self, body: _Open, is_going_on: bool, value: object) -> None:
        tracer = self.tracer
        if tracer.values.graph is not body.graph:
            raise IsNoBranch("a body ends within a function of control flow")
        if _facts(tracer) != body.facts:
            raise IsNoBranch("something was learnt of sizes")
        replaced = _replaced_in(tracer, body) if is_going_on else _returned_in(tracer, body, value)
        after = [tracer.values.node_of(one.after) for one in replaced]
        written = body.before.written()
        after += [memory.node for memory, _ in written]
        self._leave(tracer, body)
        before = [tracer.values.node_of(one.before) for one in replaced] + [node for _, node in written]
        joined = self._joined(tracer, body, after, before) if after else []
        for one, node in zip(replaced, joined, strict=False):
            info = node.meta["val"]
            memory = Memory(node, info)
            for tensor in one:
                self._fixed[id(tracer.values.view_of(tensor).memory)] = tracer.values.view_of(tensor).memory
            tracer.values.views[id(one.after)] = View(memory, (), node, info, 0, one.after)
            self._fixed[id(memory)] = memory
        for (memory, _), node in zip(written, joined[len(replaced) :], strict=True):
            memory.node = node
            memory.version += 1

    def _leave(self, tracer: Tracer, body: _Open) -> None:
        """Record behind the body, where what was known before it is."""
        env = tracer.sizes
        body.before.restore()
        self._inner.add(body.graph)
        self._sizes |= {str(Dim.unbacked(number)) for number in range(body.first_unbacked, env.next_unbacked)}
        env.know(signed=env.facts.signed | body.signed)
        env.some &= body.some

    def _joined(
        self, tracer: Tracer, body: _Open, after: list[Node], before: list[Node], graphs: Sequence[torch.fx.Graph] = ()
    ) -> list[Node]:
        """The value of each pair, of which the first is where the body ran. ``graphs``: those of both ways."""
        infos = tuple(node.meta["val"] for node in after)
        if infos != tuple(node.meta["val"] for node in before):
            raise IsNoBranch("a body changes the type of a tensor")
        graph, other = graphs or (body.graph, torch.fx.Graph())
        sides = [(graph, after), (other, before)]
        with tracer.values.at(body.where):
            parts = record_cond(tracer.values, body.test, sides if body.statement.runs_where else sides[::-1], infos)
        self.notes.append(Assumption("both branches of a decision by data are in the file", body.where))
        return parts


def _replaced_in(tracer: Tracer, body: _Open) -> list[_Replaced]:
    """The tensors of variables that another one has replaced. Raises IsNoBranch where another variable differs that may be read
    later.
    """
    replaced: dict[int, _Replaced] = {}
    now = body.frame.f_locals
    for name in sorted({*body.variables, *now} & read_later(body.frame)):
        before, after = body.variables.get(name, MISSING), now.get(name, MISSING)
        if is_equal_number(before, after):
            continue
        if not isinstance(after, torch.Tensor) or not isinstance(before, torch.Tensor):
            raise IsNoBranch(f"the variable {name} is another one")
        if replaced.setdefault(id(after), _Replaced(after, before)).before is not before:
            raise IsNoBranch("a tensor takes the place of two")
        _check_pair(tracer, body, after, before)
    return [*replaced.values()]


def _returned_in(tracer: Tracer, body: _Open, value: object) -> list[_Replaced]:
    """The tensor that the function returns, with the one that it returns where the body does not run."""
    if value is None and body.returned is None:
        return []
    if not isinstance(value, torch.Tensor) or body.returned is None:
        raise IsNoBranch("a function returns something else than a tensor")
    if value is body.returned:
        return []
    _check_pair(tracer, body, value, body.returned)
    return [_Replaced(value, body.returned)]


def _check_pair(tracer: Tracer, body: _Open, after: torch.Tensor, before: torch.Tensor) -> None:
    """Raises IsNoBranch where the tensor that a variable has may not stand for the one that it had, too."""
    memories = body.before.memories
    was, is_now = tracer.values.views.get(id(before)), tracer.values.views.get(id(after))
    if was is None or is_now is None or id(was.memory) not in memories or id(is_now.memory) in memories:
        raise IsNoBranch("a variable has a tensor that was there before")
    if type(after) is not type(before) or after.device != before.device or _layout(after) != _layout(before):
        raise IsNoBranch("a variable has a tensor of another type")
    if was.memory.version != memories[id(was.memory)][2]:
        raise IsNoBranch("a tensor is written and replaced")


def _layout(tensor: torch.Tensor) -> object:
    return tensor.dtype, dims_of(tensor), [size if type(size) is int else str(size) for size in tensor.stride()]


def _is_by_data(tracer: Tracer, test: Relation) -> bool:
    return bool(test.symbols() & tracer.sizes.unbacked)


def _facts(tracer: Tracer) -> object:
    """The known facts and notes on sizes, and the questions that Python asked."""
    env = tracer.sizes
    asked = [guard for guard in env.guards.values() if guard.by_user or guard.ends_run]
    return (
        replace(env.facts, unbacked=frozenset(), signed=frozenset()), list(env.specializations),
        [each for each, is_learnt in env.assertions.items() if is_learnt], asked, env.asked_few, env.numbers_in,
    )  # fmt: skip


PLUGIN = IfBodies
