"""Connectionist temporal classification: the forward recursion in a Loop over time."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.linalg.linear_solve import WORK, loop
from fx2onnx.aten_map.losses import MEAN, NONE, SUM, no_reduction
from fx2onnx.aten_map.reductions import log_sum_exp, reduce
from fx2onnx.aten_map.scans import cumulative_sum
from fx2onnx.aten_map.table.axes import flat, whole
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
    """What a sequence is aligned with: z = blank, l0, blank, l1, .. blank, of length 2 S + 1."""

    places: ir.Value
    """0, 1, .. 2 S, as int64."""
    classes: ir.Value
    """z [N, 2 S + 1], blank beyond the last label."""
    may_skip: ir.Value
    """Whether z[s] may follow z[s - 2]: it is neither that nor blank."""
    last: ir.Value
    """[N, 1]: the place of the last blank."""
    length: DimLike


def path_of(op: Emit, labels: ir.Value, target_lengths: ir.Value, blank: int) -> CtcPath:
    """Of labels [N, S]."""
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
    elif reduction == SUM:
        loss = reduce(op, "ReduceSum", loss)
    elif reduction != NONE:
        raise no_reduction(reduction)
    elif not batched:
        loss = op.reshape(loss, ())
    return op.cast(loss, op.result_dtype())


register_shared(_ctc_loss, "Loop over time", *overloads_of("ctc_loss.IntList ctc_loss.Tensor"))
