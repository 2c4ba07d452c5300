"""The tests at which Python is in a loop, as nodes and relations: ``t < n and not done.all()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.python.held import Value
from fx2onnx.capture.recording.control_flow import record_cond
from fx2onnx.capture.recording.decisions import Test
from fx2onnx.capture.recording.nested import nested
from fx2onnx.sizes.expr import Dim, Scalar
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.torchcompat.loop_statements import Head, Tree

aten = torch.ops.aten
TRUTH = TensorInfo(torch.bool, ())
Truth: TypeAlias = bool | Relation | torch.fx.Node


def call(values: Value, name: str, *nodes: torch.fx.Node) -> torch.fx.Node:
    """The node of an operator that gives a truth."""
    packet, _, overload = name.partition(".")
    made: torch.fx.Node = values.call(getattr(getattr(aten, packet), overload or "default"), nodes, {}, TRUTH)
    return made


def number(values: Value, value: Scalar, dtype: torch.dtype) -> torch.fx.Node:
    """The node of a number as a tensor."""
    info = TensorInfo(dtype, ())
    made: torch.fx.Node = values.call(aten.scalar_tensor.default, (value,), {"dtype": dtype}, info)
    return made


def node_of(values: Value, truth: bool | Test) -> torch.fx.Node:
    """A truth as the node of a bool tensor of one number."""
    if isinstance(truth, torch.fx.Node):
        return _as_truth(values, truth)
    if not isinstance(truth, Relation):
        return number(values, bool(truth), torch.bool)
    if truth.op in COMPARE:
        return call(values, f"{truth.op}.Tensor", *(number(values, arg, torch.int64) for arg in truth.args))
    first, *others = (node_of(values, arg) for arg in truth.args)
    if truth.op == "not":
        return call(values, "logical_not", first)
    for other in others:
        first = call(values, f"logical_{truth.op}", first, other)
    return first


def _as_truth(values: Value, node: torch.fx.Node) -> torch.fx.Node:
    info = node.meta["val"]
    if info.dims:
        node = values.call(aten.reshape.default, (node, ()), {}, TensorInfo(info.dtype, ()))
    is_bool = info.dtype == torch.bool
    return node if is_bool else values.call(aten.ne.Scalar, (node, 0), {}, TRUTH)


def negated(values: Value, truth: Truth) -> Truth:
    """The test that holds where another one does not."""
    if isinstance(truth, bool):
        return not truth
    return truth.negated() if isinstance(truth, Relation) else call(values, "logical_not", _as_truth(values, truth))


class HeadTest:
    """The test at which Python stands, for the present values; and what it asks for in it."""

    def __init__(self, loops: Value, frame: FrameType, head: Head) -> None:
        self._loops, self._frame, self._head, self._tracer = loops, frame, head, loops.tracer
        self._truths: dict[int, bool | None] = {}
        """The answers of the parts asked for: True for staying, None where sizes or data decide."""
        self.truth = self._of(head.tree)
        """True if Python stays in the loop."""

    def asked_behind(self, part: int, stays: bool) -> list[int]:
        """The parts that Python asks for behind one, where all answers are for staying, or for leaving."""
        found: list[int] = []

        def holds(tree: Tree) -> bool:
            if not isinstance(tree, int):
                return all(map(holds, tree[1])) if tree[0] == "and" else any(map(holds, tree[1]))
            truth = self._truths.get(tree, stays)
            found.extend([tree] if truth is None and tree > part else [])
            return stays if truth is None else truth

        holds(self._head.tree)
        return found

    def _of(self, tree: Tree) -> Truth:
        return self._part(tree) if isinstance(tree, int) else self._joined(*tree)

    def _joined(self, op: str, parts: Sequence[Tree]) -> Truth:
        """Several parts, ``and`` or ``or``. One that reads from tensors is computed only where those before it do not decide."""
        truth: Truth = op == "and"
        for place, part in enumerate(parts):
            if not isinstance(truth, bool) and self._may_fail(part):
                return self._behind(truth, op, parts[place:])
            one = self._of(part)
            if one is (op == "or"):
                return one
            if not isinstance(one, bool):
                truth = one if isinstance(truth, bool) else self._both(op, truth, one)
        return truth

    def _behind(self, truth: Relation | torch.fx.Node, op: str, parts: Sequence[Tree]) -> torch.fx.Node:
        """The test of further parts, where ``truth`` does not decide."""
        env, values = self._tracer.sizes, self._tracer.values
        before, types, test = env.facts.supposed, self._tracer.types.kept(), node_of(values, truth)
        with nested(values) as graph:
            if isinstance(truth, Relation):
                env.know(supposed={**before, (truth if op == "and" else truth.negated()): None})
            found = node_of(values, self._joined(op, parts))
        env.know(supposed=before)
        self._tracer.types.go_back(types)
        with nested(values) as other:
            sides = [(graph, [found]), (other, [node_of(values, op == "or")])]
        return record_cond(values, test, sides if op == "and" else sides[::-1], [TRUTH])[0]

    def _part(self, place: int) -> Truth:
        operand, stays = self._head.operands[place]
        code = _code_of(operand, self._frame.f_code.co_filename)
        with self._loops.tests.evaluating(code, self._frame, self._head) as tests:
            holds = eval(code, {**self._frame.f_globals, **self._frame.f_locals})  # as Python does there
        self._truths[place] = None if tests else holds is stays
        if not tests:
            return holds is stays
        return tests[-1] if stays else negated(self._tracer.values, tests[-1])

    def _both(
        self, op: str, one: Relation | torch.fx.Node, other: Relation | torch.fx.Node
    ) -> Relation | torch.fx.Node:
        if isinstance(one, Relation) and isinstance(other, Relation):
            return Relation(op, (one, other))
        values = self._tracer.values
        return call(values, f"logical_{op}", node_of(values, one), node_of(values, other))

    def _may_fail(self, tree: Tree) -> bool:
        if not isinstance(tree, int):
            return any(map(self._may_fail, tree[1]))
        return any(isinstance(node, ast.Subscript) for node in ast.walk(self._head.operands[tree][0]))


@lru_cache(maxsize=256)
def _code_of(operand: ast.expr, file: str) -> CodeType:
    """An expression whose value is the truth of another one."""
    truth = ast.IfExp(operand, ast.Constant(True), ast.Constant(False))
    return compile(ast.fix_missing_locations(ast.Expression(ast.copy_location(truth, operand))), file, "eval")


def below(index: Scalar, length: Scalar) -> Iterator[Relation]:
    """The relations that hold for the number of an element of a list of that length: also ``index < n`` for a length of ``max(n, 0)``."""
    yield Relation("lt", (index, length))
    atom = length.only_atom() if isinstance(length, Dim) else None
    if atom is not None and (atom.op == "min" or (atom.op == "max" and 0 in atom.args)):
        for part in atom.args:
            if isinstance(part, Dim) or (atom.op == "min" and isinstance(part, int)):
                yield from below(index, part)
