"""Connectionist temporal classification: the forward recursion in a Loop over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.linalg.linear_solve import WORK, loop
from fx2onnx.aten_map.losses import MEAN, NONE
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.scans import cumulative_sum
from fx2onnx.aten_map.table.axes import whole
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
D = ir.DataType
Lengths = ir.Value | Sequence[int]


def lengths_of(op: Emit, lengths: Lengths) -> ir.Value:
    """Lengths [N] as int64."""
    if not isinstance(lengths, ir.Value):
        return op.const(np.array(list(lengths), dtype=np.int64))
    value = op.cast(lengths, D.INT64)
    return op.reshape(value, (1,)) if op.rank(value) == 0 else value


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
    """[N, L] moved right by ``steps``, ``filler`` [N, steps] coming in."""
    rows, length = op.dims(value)
    kept = op.Slice(
        value, starts=[0], ends=[-steps], axes=[1], outputs=[(op.dtype(value), (rows, whole(length - steps)))]
    )
    return op.Concat(filler, kept, axis=1)


def log_likelihood(
    op: Emit, logs: ir.Value, labels: ir.Value, input_lengths: ir.Value, target_lengths: ir.Value, blank: int
) -> ir.Value:
    """log p [N]: logs [T, N, C], labels [N, S].

    alpha[s] <- logs[t, z[s]] + log(exp alpha[s] + exp alpha[s - 1] + exp alpha[s - 2] where z[s] is neither blank nor
    z[s - 2]), z = blank, l0, blank, l1, .. blank; it starts from 0 at s = 0 before the first step.
    """
    steps, batch = op.dims(logs)[0], op.dims(logs)[1]
    length = 2 * op.dims(labels)[1] + 1
    blanks = op.expand(op.const(np.int64(blank)), op.dims(labels))
    both = op.Concat(op.Unsqueeze(blanks, axes=[2]), op.Unsqueeze(labels, axes=[2]), axis=2)
    flat = op.reshape(both, (batch, 2 * op.dims(labels)[1]))  # type: ignore[arg-type]
    extended = op.Concat(flat, op.expand(op.const(np.int64(blank)), (batch, 1)), axis=1)
    places = counted(op, length, D.INT64)  # type: ignore[arg-type]
    named = op.And(
        op.Greater(target_lengths_column(op, target_lengths), op.Div(places, 2)), op.Equal(op.Mod(places, 2), 1)
    )
    safe = op.Where(named, extended, op.const(np.int64(blank)))
    low = op.const(-math.inf, WORK)
    gap = op.expand(op.const(np.int64(-1)), (batch, 2))
    may_skip = op.And(named, op.Not(op.Equal(safe, shifted(op, safe, 2, gap))))
    start = op.Where(op.Equal(places, 0), op.const(0.0, WORK), low)
    start = op.expand(start, (batch, length))  # type: ignore[arg-type]

    def body(op: Emit, index: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
        alpha = states[0]
        one = shifted(op, alpha, 1, op.expand(low, (batch, 1)))
        two = op.Where(may_skip, shifted(op, alpha, 2, op.expand(low, (batch, 2))), low)
        most = op.Max(op.Max(alpha, one), two)
        most = op.Where(op.Equal(most, low), op.const(0.0, WORK), most)
        total = op.Add(op.Add(op.Exp(op.Sub(alpha, most)), op.Exp(op.Sub(one, most))), op.Exp(op.Sub(two, most)))
        emitted = op.GatherElements(op.Gather(logs, index, axis=0), safe, axis=1)
        following = op.Add(op.Add(op.Log(total), most), emitted)
        running = op.Less(index, op.Unsqueeze(input_lengths, axes=[1]))
        return [op.Where(running, following, alpha)]

    (alpha,) = loop(op, steps, [start], body)
    last = op.Mul(target_lengths_column(op, target_lengths), 2)
    ends = op.Or(op.Equal(places, last), op.Equal(places, op.Sub(last, 1)))
    return reduce(op, "ReduceLogSumExp", op.Where(ends, alpha, low), 1)


def target_lengths_column(op: Emit, lengths: ir.Value) -> ir.Value:
    return op.Unsqueeze(lengths, axes=[1])


def _ctc_loss(
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
    elif reduction != NONE:
        loss = reduce(op, "ReduceSum", loss)
    elif not batched:
        loss = op.reshape(loss, ())
    return op.cast(loss, op.result_dtype())


register_shared(_ctc_loss, "Loop over time", *overloads_of("ctc_loss.IntList ctc_loss.Tensor"))
