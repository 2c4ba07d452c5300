"""The gradient of connectionist temporal classification: the recursion forward and the one backward, a Scan each."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.ctc import (
    CtcPath,
    Lengths,
    advanced,
    at_end,
    at_start,
    following,
    lengths_of,
    padded_targets,
    path_of,
)
from fx2onnx.aten_map.linalg.linear_solve import WORK
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.table.axes import transpose
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike

aten = torch.ops.aten
D = ir.DataType
Step = Callable[[Emit, ir.Value, ir.Value], ir.Value]


def _aligned(
    op: Emit, targets: ir.Value, target_lengths: Lengths, blank: int, length: DimLike | None = None
) -> CtcPath:
    """The path of a batch of targets, as long as the longest where the lengths are known, or as ``length`` (2 S + 1) says."""
    wanted = lengths_of(op, target_lengths)
    labels = padded_targets(op, targets, wanted, batched=True)
    if not isinstance(target_lengths, ir.Value) or isinstance(length, int):
        known = length // 2 if isinstance(length, int) else max([*target_lengths, 1])  # type: ignore[misc]
        rows, longest = op.dims(labels)[0], known
        sizes = [(op.dtype(labels), (rows, longest))]
        labels = op.Slice(labels, starts=[0], ends=[longest], axes=[1], outputs=sizes)
    return path_of(op, labels, wanted, blank)


def _along(op: Emit, values: ir.Value, path: CtcPath) -> ir.Value:
    """values [T, N, C] at the classes of the path: [T, N, 2 S + 1]."""
    steps, batch = op.dims(values)[:2]
    classes = op.expand(op.Unsqueeze(path.classes, axes=[0]), (steps, batch, path.length))
    return op.GatherElements(values, classes, axis=2)


def _running(op: Emit, steps: DimLike, lengths: Lengths) -> ir.Value:
    """[T, N, 1]: whether the step is one of the sequence."""
    within = op.Unsqueeze(lengths_of(op, lengths), axes=[0, 2])
    return op.Less(op.Unsqueeze(counted(op, steps, D.INT64), axes=[1, 2]), within)


def _states(
    op: Emit, start: ir.Value, emitted: ir.Value, running: ir.Value, step: Step, *, reverse: bool = False
) -> tuple[ir.Value, ir.Value]:
    """The state after the last step, and those after each: [T, N, 2 S + 1]. Where a sequence does not run it stays."""
    state = op.subgraph_input("state", WORK, op.dims(start))
    row = op.subgraph_input("row", WORK, op.dims(emitted)[1:])
    runs = op.subgraph_input("runs", D.BOOL, op.dims(running)[1:])

    def body(op: Emit) -> list[ir.Value]:
        new = op.Where(runs, step(op, state, row), state)
        return [new, op.Identity(new)]

    graph = op.subgraph("alignment_step", [state, row, runs], body)
    typed = [(WORK, op.dims(start)), (WORK, op.dims(emitted))]
    directions = {"scan_input_directions": [1, 1], "scan_output_directions": [1]} if reverse else {}
    last, every = op.Scan(start, emitted, running, body=graph, num_scan_inputs=2, outputs=typed, **directions)
    return last, every


def _ctc_loss(
    op: Emit,
    log_probs: ir.Value,
    targets: ir.Value,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    zero_infinity: bool,
) -> tuple[ir.Value, ir.Value]:
    """The loss [N] and alpha [N, T, 2 S + 1]. Numerics: in float64."""
    path = _aligned(op, targets, target_lengths, blank)
    logs = op.cast(log_probs, WORK)
    running = _running(op, op.dims(logs)[0], input_lengths)
    start = at_start(op, path, op.const(np.int64(0)))
    last, every = _states(
        op, start, _along(op, logs, path), running, lambda op, alpha, emitted: following(op, alpha, path, emitted)
    )
    loss = op.Neg(at_end(op, last, path))
    return op.cast(loss, op.result_dtype(0)), op.cast(transpose(op, every, (1, 0, 2)), op.result_dtype(1))


def _before(op: Emit, value: ir.Value, steps: int, filler: ir.Value) -> ir.Value:
    """[N, L] moved left by ``steps``, which may be more than L."""
    rows, length = op.dims(value)
    longer = op.Concat(value, op.expand(filler, (rows, steps)), axis=1)
    sizes = [(op.dtype(value), (rows, length))]
    return op.Slice(longer, starts=[steps], ends=[np.iinfo(np.int64).max], axes=[1], outputs=sizes)


def _preceding(op: Emit, beta: ir.Value, path: CtcPath, emitted: ir.Value) -> ir.Value:
    """beta[s] <- emitted[s] + log(exp beta[s] + exp beta[s + 1] + exp beta[s + 2] where z[s + 2] may follow z[s])."""
    low = op.const(-math.inf, WORK)
    two = _before(op, op.Where(path.may_skip, beta, low), 2, low)
    return advanced(op, [beta, _before(op, beta, 1, low), two], emitted)


def _ctc_loss_backward(
    op: Emit,
    grad: ir.Value,
    log_probs: ir.Value,
    targets: ir.Value,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: ir.Value,
    log_alpha: ir.Value,
    blank: int,
    zero_infinity: bool,
) -> ir.Value:
    """``grad * (exp(lp) - exp(loss - lp) * sum of exp(alpha + beta) over the places of the class)``, 0 beyond the sequence,
    not a number where the probability is 0.

    Numerics: in float64. Where no path fits, the loss is infinite and the gradient not a number, or 0 on demand.
    Source:   ctc_loss_backward_cpu_template in ATen/native/LossCTC.cpp.
    """
    path = _aligned(op, targets, target_lengths, blank, op.dims(log_alpha)[2])
    logs, loss = op.cast(log_probs, WORK), op.cast(neg_log_likelihood, WORK)
    steps, classes = op.dims(logs)[0], op.dims(logs)[2]
    running = _running(op, steps, input_lengths)
    _, beta = _states(
        op,
        at_start(op, path, path.last),
        _along(op, logs, path),
        running,
        lambda op, beta, emitted: _preceding(op, beta, path, emitted),
        reverse=True,
    )
    both = op.Add(transpose(op, op.cast(log_alpha, WORK), (1, 0, 2)), beta)
    low, nothing = op.const(-math.inf, WORK), op.const(0.0, WORK)
    most = reduce(op, "ReduceMax", both, 2, keepdim=True)
    most = op.Where(op.Equal(most, low), nothing, most)
    is_class = op.Equal(op.Unsqueeze(path.classes, axes=[2]), counted(op, classes, D.INT64))
    shares = op.MatMul(transpose(op, op.Exp(op.Sub(both, most)), (1, 0, 2)), op.cast(is_class, WORK))
    total = transpose(op, shares, (1, 0, 2))
    column = op.Unsqueeze(loss, axes=[0, 2])
    fits = op.Less(column, math.inf)
    scale = op.Exp(op.Sub(op.Add(most, op.Where(fits, column, nothing)), logs))
    unlikely = op.Where(op.Equal(logs, low), op.const(math.nan, WORK), nothing)  # exp(-inf + loss + inf)
    found = op.Sub(op.Exp(logs), op.Where(op.Greater(total, 0.0), op.Mul(total, scale), unlikely))
    found = op.Mul(found, op.Unsqueeze(op.cast(grad, WORK), axes=[0, 2]))
    if zero_infinity:
        spoilt = op.Where(op.IsNaN(column), op.const(math.nan, WORK), nothing)
    else:
        spoilt = op.const(math.nan, WORK)
    found = op.Where(fits, found, spoilt)
    return op.cast(op.Where(running, found, nothing), op.result_dtype())


register_shared(_ctc_loss, "Scan over time", *overloads_of("_ctc_loss.default _ctc_loss.Tensor"))
register_shared(
    _ctc_loss_backward, "Scan backward over time", *overloads_of("_ctc_loss_backward.default _ctc_loss_backward.Tensor")
)
