"""Control-flow operators: nested ATen graphs as the subgraphs of If, Loop and Scan, and ``fx2onnx::checked``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import torch.fx

from fx2onnx.aten_map.comparison import COMPARISONS, compare
from fx2onnx.aten_map.table.registry import TABLE, Table, translates
from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import CHECK
from fx2onnx.capture.captured import where_of
from fx2onnx.capture.recording.control_flow import Nested
from fx2onnx.capture.recording.size_checks import CHECKED, composed
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import OutputType, dims_of, dtype_of, rank_of
from fx2onnx.sizes.assumptions import MOST_CHARS, put_shortly
from fx2onnx.sizes.expr import Dim, Scalar, is_real_number
from fx2onnx.sizes.relation import Relation
from fx2onnx.torchcompat.operators import HIGHER_ORDER

BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64


class GraphEmitter(Protocol):
    """The interface of the conversion that the operators here need; its loop lies above this file."""

    op: Emit
    values: dict[torch.fx.Node, Any]

    def nested(self, graph: Nested, operands: Sequence[ir.Value]) -> list[ir.Value]: ...


BFLOAT16_SINCE = 16
"""The opset from which results of If, Loop and Scan may be bfloat16. Source: the schemas of their versions."""


def check_dtypes(node: torch.fx.Node, results: Sequence[OutputType], opset: int) -> None:
    """Raise UserError E202 where the results are none that the opset's control flow may have."""
    if opset < BFLOAT16_SINCE and any(dtype == ir.DataType.BFLOAT16 for dtype, _ in results):
        raise UserError(
            "E202",
            f"{node.target} gives bfloat16",
            where=where_of(node),
            why=f"ONNX's branches and loops give bfloat16 from opset {BFLOAT16_SINCE} on, this one is {opset}",
            next=f"export with opset_version={BFLOAT16_SINCE} or newer",
        )


def _cond(lowering: GraphEmitter, node: torch.fx.Node) -> Sequence[ir.Value]:
    """If-1 and newer; values of the outer graph are read from inside the branches."""
    pred, then, otherwise, operands = _arguments(node)
    op = lowering.op
    result = list(op.result)
    values = [lowering.values[operand] for operand in operands]
    test = _truth(op, pred) if isinstance(pred, Relation | bool) else lowering.values[pred]
    return _several(
        op.If(
            _as_scalar_bool(op, test),
            then_branch=_branch(lowering, "then", then, values),
            else_branch=_branch(lowering, "else", otherwise, values),
            outputs=result,
        )
    )


def _arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    return node.args


def _branch(lowering: GraphEmitter, name: str, nested: Nested, values: Sequence[ir.Value]) -> ir.Graph:
    return lowering.op.subgraph(name, [], lambda op: lowering.nested(nested, values))


def _while_loop(lowering: GraphEmitter, node: torch.fx.Node) -> Sequence[ir.Value]:
    """Loop without trip count; the condition is evaluated once before and at the end of each turn."""
    test, body, carried, extra = _arguments(node)
    op = lowering.op
    result = op.result
    initial = [lowering.values[value] for value in carried]
    others = [lowering.values[value] for value in extra]
    first = _as_scalar_bool(op, lowering.nested(test, [*initial, *others])[0])
    op.result = result
    inputs = [op.subgraph_input("iteration", INT64, ()), op.subgraph_input("condition", BOOL, ())]
    inputs += [op.subgraph_input("carried", dtype_of(value), dims_of(value)) for value in initial]

    def turn(op: Emit) -> Sequence[ir.Value]:
        new = lowering.nested(body, [*inputs[2:], *others])
        return [_as_scalar_bool(op, lowering.nested(test, [*new, *others])[0]), *new]

    graph = op.subgraph("body", inputs, turn)
    op.result = result
    return _several(op.Loop(None, first, *initial, body=graph, outputs=list(result)))


def _scan(lowering: GraphEmitter, node: torch.fx.Node) -> Sequence[ir.Value]:
    """Scan-9 and newer over axis 0; a Loop where the length may be 0, or where a turn changes sizes of what it hands on, which
    onnxruntime's Scan refuses.
    """
    body, carry, xs, extra, *go_on = _arguments(node)
    op = lowering.op
    result = op.result
    initial, sequences, others = ([lowering.values[value] for value in group] for group in (carry, xs, extra))
    inputs = [_carried(op, *pair) for pair in zip(body.inputs, initial, strict=False)]
    length = dims_of(sequences[0])[0] if sequences else 0
    grows = any(dims_of(each) != dims_of(first) for each, first in zip(inputs, initial, strict=True))
    if length == 0 or isinstance(length, Dim) or grows or go_on:
        begins = lowering.values[go_on[0]] if go_on and go_on[0] is not True else None
        return _scan_as_loop(lowering, body, inputs, initial, sequences, others, bool(go_on), begins)
    inputs += [op.subgraph_input("slice", dtype_of(value), dims_of(value)[1:]) for value in sequences]
    graph = op.subgraph("body", inputs, lambda op: lowering.nested(body, [*inputs, *others]))
    op.result = result
    return _several(op.Scan(*initial, *sequences, body=graph, num_scan_inputs=len(sequences), outputs=list(result)))


def _carried(op: Emit, node: torch.fx.Node, first: ir.Value) -> ir.Value:
    """The value that an iteration gets from the one before, whose sizes may differ from those of the ``first``."""
    dims = node.meta["val"].dims
    return op.subgraph_input("carried", dtype_of(first), (*dims, *dims_of(first)[len(dims) :]))


def _scan_as_loop(
    lowering: GraphEmitter,
    body: Nested,
    carried: list[ir.Value],
    initial: list[ir.Value],
    sequences: list[ir.Value],
    others: list[ir.Value],
    is_left: bool,
    begins: ir.Value | None,
) -> Sequence[ir.Value]:
    """Loop-1 and newer of as many turns as the sequences are long; each turn gathers its slices. ``is_left``: the last output of
    ``body`` says whether there is another turn, and ``begins`` whether there is a first. Without sequences a turn gets its number.
    """
    op = lowering.op
    result = op.result
    index, go_on = op.subgraph_input("iteration", INT64, ()), op.subgraph_input("condition", BOOL, ())

    def turn(op: Emit) -> Sequence[ir.Value]:
        slices = [op.Gather(sequence, index, axis=0) for sequence in sequences] or [index]
        results = lowering.nested(body, [*carried, *slices, *others])
        return [_as_scalar_bool(op, results.pop()) if is_left else op.Identity(go_on), *results]

    graph = op.subgraph("body", [index, go_on, *carried], turn)
    op.result = result
    length = op.size(dims_of(sequences[0])[0]) if sequences else None
    first = op.const(True, BOOL) if begins is None else _as_scalar_bool(op, begins)
    return _several(op.Loop(length, first, *initial, body=graph, outputs=list(result)))


def _several(result: Any) -> Sequence[ir.Value]:
    return [result] if isinstance(result, ir.Value) else list(result)


def _as_scalar_bool(op: Emit, value: ir.Value) -> ir.Value:
    value = op.cast(value, BOOL)
    return value if rank_of(value) == 0 else op.reshape(value, ())


_COMPARISONS = {names.split()[0]: op_type for names, op_type in COMPARISONS.items()}


def _truth(op: Emit, relation: Any) -> ir.Value:
    """A comparison of sizes as a bool scalar."""
    if not isinstance(relation, Relation):
        return op.const(bool(relation), BOOL)
    made: ir.Value
    if relation.op == "not":
        made = op.Not(_truth(op, relation.args[0]))
    elif relation.op in ("and", "or"):
        made = op.node(relation.op.capitalize(), *(_truth(op, arg) for arg in relation.args))
    else:
        is_of_truths = any(isinstance(arg, Relation) for arg in relation.args)
        lhs, rhs = (_truth(op, arg) for arg in relation.args) if is_of_truths else _numbers(op, *relation.args)
        made = compare(op, _COMPARISONS[relation.op], lhs, rhs)
    return made


EMITTERS: dict[Any, Callable[[GraphEmitter, torch.fx.Node], Sequence[ir.Value]]] = {
    HIGHER_ORDER["cond"]: _cond,
    HIGHER_ORDER["while_loop"]: _while_loop,
    HIGHER_ORDER["scan"]: _scan,
}


_COMPARED = {"eq": "Equal", "ne": "Equal", "lt": "Less", "ge": "Less", "gt": "Greater", "le": "Greater"}
_WHERE_FALSE = frozenset({"ne", "ge", "le"})


@translates(CHECKED)
def checked(
    op: Emit, self: ir.Value, signs: Sequence[str], lefts: Sequence[Scalar], rights: Sequence[Scalar], line: str
) -> ir.Value:
    """checked(Tensor self, str[] signs, Scalar[] lefts, Scalar[] rights, str line) -> Tensor

    Shapes:  self as it is.
    ONNX:    Slice from a start that a Gather takes from [0], at 0 where the comparisons, as they are joined, are true; at 1, which
             is beyond the end, where they are not. The Gather is named after them and the line, since engines name the node that fails.
    """
    places: list[ir.Value] = []
    for sign, left, right in zip(signs, lefts, rights, strict=True):
        if sign in _COMPARED:
            places.append(_place(op, sign, left, right))
        else:
            join = op.Mul if sign == "or" else op.Max
            assert isinstance(left, int)
            joined = [places.pop() for _ in range(left)]
            places.append(functools.reduce(join, reversed(joined)))
    start = op.Gather(np.zeros(1, np.int64), op.reshape(places[0], [1]), axis=0)
    named = start.producer()
    assert named is not None
    text = f"{put_shortly(composed(signs, lefts, rights), MOST_CHARS)} has to be true"
    named.name = op.builder.unique(f"{text} ({line})" if line else text)
    named.metadata_props[CHECK] = text
    dims = dims_of(self)
    whole = self if dims else op.reshape(self, [1])
    end = np.array([np.iinfo(np.int64).max])
    outputs = ((dtype_of(self), dims or (1,)),)
    passed = op.Slice(whole, start, end, np.zeros(1, np.int64), outputs=outputs)
    return passed if dims else op.reshape(passed, [])


def _place(op: Emit, sign: str, left: Scalar, right: Scalar) -> ir.Value:
    """0 where the comparison is true, else 1."""
    holds, fails = (1, 0) if sign in _WHERE_FALSE else (0, 1)
    return op.Where(op.node(_COMPARED[sign], *_numbers(op, left, right)), op.const(holds), op.const(fails))


def _numbers(op: Emit, left: Scalar, right: Scalar) -> tuple[ir.Value, ir.Value]:
    """Two sizes to compare, as doubles where one of them is a real number."""
    dtype = ir.DataType.DOUBLE if is_real_number(left) or is_real_number(right) else INT64
    return op.size(left, dtype), op.size(right, dtype)


def without_checks(table: Table) -> Table:
    """``table``, with tensors as they are in the place of checks."""
    return table.extended({CHECKED: lambda op, self, signs, lefts, rights, line: self})


TABLE.add(CHECKED, 0, checked, is_complex=True)
