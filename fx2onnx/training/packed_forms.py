"""ONNX forms of the packed sequences of ``packed.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.recurrent import packing_of, pad_packed_sequence
from fx2onnx.irx.emit import Emit
from fx2onnx.training import packed


def pad_packed(
    op: Emit, data: ir.Value, batch_sizes: ir.Value, batch_first: bool, padding_value: float, total_length: int
) -> tuple[ir.Value, ir.Value]:
    """pad_packed(Tensor data, Tensor batch_sizes, bool batch_first, float padding_value, int total_length) -> (Tensor, Tensor)"""
    return pad_packed_sequence(op, data, batch_sizes, batch_first, padding_value, total_length)


def packed_rows(op: Emit, value: ir.Value, batch_sizes: ir.Value, like: ir.Value) -> ir.Value:
    """packed_rows(Tensor value, Tensor batch_sizes, Tensor like) -> Tensor"""
    packing = packing_of(op, batch_sizes, op.dims(value)[1])
    return packing.collect(op, value, op.result[0])


def padded_rows(op: Emit, data: ir.Value, batch_sizes: ir.Value, like: ir.Value, filler: float) -> ir.Value:
    """padded_rows(Tensor data, Tensor batch_sizes, Tensor like, float filler) -> Tensor"""
    time, batch = op.dims(like)[:2]
    packing = packing_of(op, batch_sizes, batch)
    is_whole = time == op.dims(batch_sizes)[0]
    return packing.spread(op, data, filler, None if is_whole else time)


FORMS = (pad_packed, packed_rows, padded_rows)
assert {form.__name__ for form in FORMS} == set(packed.SCHEMAS)
PACKED: dict[Any, Callable[..., Any]] = {getattr(torch.ops.fx2onnx, form.__name__).default: form for form in FORMS}
"""Translations, by overload."""
