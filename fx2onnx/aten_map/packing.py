"""Packed sequences: [steps in time order] with how many sequences are still running at each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.gathering import nonzero_rows
from fx2onnx.aten_map.table.axes import INT64, steps, transpose, unsqueeze
from fx2onnx.aten_map.table.dtypes import as_dtype
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import OutputType
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten


@dataclass(slots=True)
class Packing:
    """Which cells of [time, batch] hold a step, and their coordinates in packed order."""

    mask: ir.Value
    coordinates: ir.Value

    def spread(self, op: Emit, data: ir.Value, filler: Any, time: DimLike | None = None) -> ir.Value:
        """Packed steps over [time, batch, features], ``filler`` elsewhere."""
        dtype, features = op.dtype(data), op.dims(data)[1:]
        rows, batch = op.dims(self.mask)
        rows = rows if time is None else time
        if isinstance(rows, Dim) or isinstance(batch, Dim):
            sizes = op.Shape(self.mask)
            if time is not None:
                sizes = op.Concat(op.sizes([time]), op.Gather(sizes, np.array([1]), axis=0), axis=0)
            shape = op.Concat(sizes, op.sizes(features), axis=0)
            empty = op.Expand(as_dtype(op, filler, dtype), shape, outputs=[(dtype, (rows, batch, *features))])
        else:
            empty = op.expand(as_dtype(op, filler, dtype), (rows, batch, *features))
        return op.ScatterND(empty, self.coordinates, data)

    def collect(self, op: Emit, value: ir.Value, typed: OutputType) -> ir.Value:
        """The steps of [time, batch, features] in packed order."""
        return op.GatherND(value, self.coordinates, outputs=[typed])

    def lengths(self, op: Emit) -> ir.Value:
        """[batch]: how long each sequence is."""
        return op.ReduceSum(op.Cast(self.mask, to=INT64), axes=[0], keepdims=0)


def _of_mask(op: Emit, mask: ir.Value) -> Packing:
    return Packing(mask, transpose(op, nonzero_rows(op, mask), (1, 0)))


def packing_of(op: Emit, batch_sizes: ir.Value, batch: DimLike) -> Packing:
    """From how many sequences run at each time; all ``batch`` of them do at the first."""
    if isinstance(batch, Dim):
        most = op.Gather(batch_sizes, op.const(0), axis=0)
        columns = op.Range(op.const(0), most, op.const(1), outputs=[(INT64, (batch,))])
    else:
        columns = steps(op, batch)
    return _of_mask(op, op.Less(columns, unsqueeze(op, batch_sizes, 1)))


@translates(aten._pack_padded_sequence.default)
def _pack_padded_sequence(op: Emit, input: ir.Value, lengths: ir.Value, batch_first: bool) -> tuple[ir.Value, ir.Value]:
    """_pack_padded_sequence(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)

    Lengths fall from the first sequence on, so the first one is the longest.
    """
    value = transpose(op, input, (1, 0, *range(2, len(op.dims(input))))) if batch_first else input
    longest = op.Gather(op.cast(lengths, INT64), op.const(0), axis=0)
    time = op.Range(op.const(0), longest, op.const(1), outputs=[(INT64, op.result_dims(1))])
    packing = _of_mask(op, op.Less(unsqueeze(op, time, 1), op.cast(lengths, INT64)))
    sizes = op.ReduceSum(op.Cast(packing.mask, to=INT64), axes=[1], keepdims=0)
    return packing.collect(op, value, op.result[0]), sizes


@translates(aten._pad_packed_sequence.default)
def pad_packed_sequence(
    op: Emit, data: ir.Value, batch_sizes: ir.Value, batch_first: bool, padding_value: Any, total_length: int
) -> tuple[ir.Value, ir.Value]:
    """_pad_packed_sequence(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding_value, int total_length) -> (Tensor, Tensor)"""
    batch = op.result_dims(1)[0]
    packing = packing_of(op, batch_sizes, batch)
    padded = packing.spread(op, data, padding_value, total_length if total_length > 0 else None)
    output = transpose(op, padded, (1, 0, *range(2, len(op.dims(padded))))) if batch_first else padded
    return output, packing.lengths(op)
