"""Translations under which dropout keeps everything, in training mode, too: for graphs that draw nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import filled
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten


def _kept(op: Emit, input: ir.Value, p: float, train: bool | None) -> tuple[ir.Value, ir.Value]:
    return input, filled(op, op.dims(input), 1, ir.DataType.BOOL)


def _gradient(op: Emit, grad_output: ir.Value, mask: ir.Value, scale: float) -> ir.Value:
    return grad_output


DROPOUT_OFF: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _kept,
    aten.native_dropout_backward.default: _gradient,
}
