"""Connectionist temporal classification and its gradient: recursions over time, a Loop or Scan each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.linalg.linear_solve import WORK, loop
from fx2onnx.aten_map.losses import MEAN, NONE, SUM, no_reduction
from fx2onnx.aten_map.reductions import log_sum_exp, reduce
from fx2onnx.aten_map.scans import cumulative_sum
from fx2onnx.aten_map.table.axes import flat, transpose, whole
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike

aten = torch.ops.aten
D = ir.DataType
Lengths = ir.Value | Sequence[int]


def lengths_of(op: Emit, lengths: Lengths) -> ir.Value:
    """Lengths [N] as int64."""
    if not isinstance(lengths, ir.Value):
        return op.const(np.array(list(lengths), dtype=np.int64))
    value = op.cast(lengths, D.INT64)
    return flat(op, value) if op.rank(value) != 1 else value


def padded_targets(op: Emit, targets: ir.Value, lengths: ir.Value, batched: bool) -> ir.Value:
    """Targets as [N, S]; concatenated ones (1-D) are read from the offsets that the lengths give."""
    labels = op.cast(targets, D.INT64)
    if op.rank(labels) == 2:
        return labels
    if not batched:
        return op.Unsqueeze(labels, axes=[0])
    total = op.dims(labels)[0]
    offsets = op.Sub(cumulative_sum(op, lengths, 0), lengths)
    places = op.Add(op.Unsqueeze(offsets, axes=[1]), counted(op, total, D.INT64))
    limit = op.size(total - 1)
    return op.Gather(labels, op.Where(op.Greater(places, limit), limit, places), axis=0)


def shifted(op: Emit, value: ir.Value, steps: int, filler: ir.Value) -> ir.Value:
    """[N, L] moved right by ``steps``, which may be more than L, ``filler`` [N, steps] coming in."""
    longer = op.Concat(filler, value, axis=1)
    return op.Slice(longer, starts=[0], ends=[-steps], axes=[1], outputs=[(op.dtype(value), op.dims(value))])


class CtcPath(NamedTuple):
    """The path that a sequence is aligned with: z = blank, l0, blank, l1, .. blank, of length 2 S + 1."""

    places: ir.Value
    """0, 1, .. 2 S, as int64."""
    classes: ir.Value
    """z [N, 2 S + 1], blank beyond the last label."""
    may_skip: ir.Value
    """True where z[s] may follow z[s - 2]: z[s] is neither z[s - 2] nor blank."""
    last: ir.Value
    """[N, 1]: the place of the last blank."""
    length: DimLike


def path_of(op: Emit, labels: ir.Value, target_lengths: ir.Value, blank: int) -> CtcPath:
    """The path of labels [N, S]."""
    batch, longest = op.dims(labels)
    length = whole(2 * longest + 1)
    blanks = op.expand(op.const(np.int64(blank)), op.dims(labels))
    both = op.Concat(op.Unsqueeze(blanks, axes=[2]), op.Unsqueeze(labels, axes=[2]), axis=2)
    flat = op.reshape(both, (batch, whole(2 * longest)))
    extended = op.Concat(flat, op.expand(op.const(np.int64(blank)), (batch, 1)), axis=1)
    places = counted(op, length, D.INT64)
    column = op.Unsqueeze(target_lengths, axes=[1])
    named = op.And(op.Greater(column, op.Div(places, 2)), op.Equal(op.Mod(places, 2), 1))
    classes = op.Where(named, extended, op.const(np.int64(blank)))
    gap = op.expand(op.const(np.int64(-1)), (batch, 2))
    may_skip = op.And(named, op.Not(op.Equal(classes, shifted(op, classes, 2, gap))))
    return CtcPath(places, classes, may_skip, op.Mul(column, 2), length)


def advanced(op: Emit, states: Sequence[ir.Value], emitted: ir.Value) -> ir.Value:
    """``log(sum of exp(state))`` plus what is emitted; -inf where all are."""
    low = op.const(-math.inf, WORK)
    most = functools.reduce(op.Max, states)
    most = op.Where(op.Equal(most, low), op.const(0.0, WORK), most)
    total = functools.reduce(op.Add, [op.Exp(op.Sub(state, most)) for state in states])
    return op.Add(op.Add(op.Log(total), most), emitted)


def at_start(op: Emit, path: CtcPath, place: ir.Value) -> ir.Value:
    """log 1 at that place, log 0 elsewhere: [N, 2 S + 1]."""
    found = op.Where(op.Equal(path.places, place), op.const(0.0, WORK), op.const(-math.inf, WORK))
    return op.expand(found, op.dims(path.classes))


def following(op: Emit, alpha: ir.Value, path: CtcPath, emitted: ir.Value) -> ir.Value:
    """alpha[s] <- emitted[s] + log(exp alpha[s] + exp alpha[s - 1] + exp alpha[s - 2] where z[s] may follow z[s - 2])."""
    low, batch = op.const(-math.inf, WORK), op.dims(alpha)[0]
    one = shifted(op, alpha, 1, op.expand(low, (batch, 1)))
    two = op.Where(path.may_skip, shifted(op, alpha, 2, op.expand(low, (batch, 2))), low)
    return advanced(op, [alpha, one, two], emitted)


def at_end(op: Emit, alpha: ir.Value, path: CtcPath) -> ir.Value:
    """log p [N] from the last alpha."""
    ends = op.Or(op.Equal(path.places, path.last), op.Equal(path.places, op.Sub(path.last, 1)))
    return log_sum_exp(op, op.Where(ends, alpha, op.const(-math.inf, WORK)), 1, False)


def log_likelihood(
    op: Emit, logs: ir.Value, labels: ir.Value, input_lengths: ir.Value, target_lengths: ir.Value, blank: int
) -> ir.Value:
    """log p [N]: logs [T, N, C], labels [N, S]. alpha starts from 0 at s = 0 before the first step."""
    path = path_of(op, labels, target_lengths, blank)
    start = at_start(op, path, op.const(np.int64(0)))

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        emitted = op.GatherElements(op.Gather(logs, index, axis=0), path.classes, axis=1)
        running = op.Less(index, op.Unsqueeze(input_lengths, axes=[1]))
        return [op.Where(running, following(op, states[0], path, emitted), states[0])]

    (alpha,) = loop(op, op.dims(logs)[0], [start], body)
    return at_end(op, alpha, path)


def ctc_loss(
    op: Emit,
    log_probs: ir.Value,
    targets: ir.Value,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    reduction: int,
    zero_infinity: bool,
) -> ir.Value:
    batched = op.rank(log_probs) == 3
    logs = op.cast(log_probs if batched else op.Unsqueeze(log_probs, axes=[1]), WORK)
    inputs, wanted = lengths_of(op, input_lengths), lengths_of(op, target_lengths)
    labels = padded_targets(op, targets, wanted, batched)
    loss = op.Neg(log_likelihood(op, logs, labels, inputs, wanted, blank))
    if zero_infinity:
        loss = op.Where(op.Equal(loss, math.inf), op.const(0.0, WORK), loss)
    if reduction == MEAN:
        sizes = op.cast(wanted, WORK)
        loss = reduce(op, "ReduceMean", op.Div(loss, op.Max(sizes, 1.0)))
    elif reduction == SUM:
        loss = reduce(op, "ReduceSum", loss)
    elif reduction != NONE:
        raise no_reduction(reduction)
    elif not batched:
        loss = op.reshape(loss, ())
    return op.cast(loss, op.result_dtype())


register_shared(ctc_loss, "Loop over time", *overloads_of("ctc_loss.IntList ctc_loss.Tensor"))


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
    low, nothing = op.const(-math.inf, WORK), op.const(0.0, WORK)
    both = op.Add(transpose(op, op.cast(log_alpha, WORK), (1, 0, 2)), beta)
    both = op.Where(op.Equal(beta, low), low, both)  # beyond a path nothing has written alpha's memory
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
