"""Tensors of quantised dtypes: integers whose scale and zero point are remembered until they are read back.

Fake tensors have no such dtypes. What a module may do with the integers is ``dequantize`` and ``int_repr``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.torch_private.operators import quantized_decomposed

aten = torch.ops.aten

STORED_AS: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.quint8: (torch.uint8, 0, 255),
    torch.qint8: (torch.int8, -128, 127),
    torch.qint32: (torch.int32, -(2**31), 2**31 - 1),
}
"""Quantised dtype -> the integers it is made of, and their range."""


_KEPT: weakref.WeakKeyDictionary[BaseRecorder, dict[int, tuple[torch.Tensor, Callable[[], torch.Tensor]]]] = (
    weakref.WeakKeyDictionary()
)
"""By recorder: the integers made in its run, by id, and how they are read back."""


@register(
    Kind.RECORD,
    aten.quantize_per_tensor.default,
    aten.quantize_per_tensor.tensor_qparams,
    aten.quantize_per_channel.default,
)
def _quantized(
    recorder: BaseRecorder,
    call: Call,
    self: torch.Tensor,
    dtype: torch.dtype,
    scale: float | torch.Tensor | None = None,
    zero_point: int | torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    zero_points: torch.Tensor | None = None,
    axis: int = 0,
) -> torch.Tensor:
    """The integers; how to read them back is kept beside."""
    if dtype not in STORED_AS:
        raise recorder.refuse("E203", f"{call.func} to {dtype}", next=f"use one of {', '.join(map(str, STORED_AS))}")
    stored, low, high = STORED_AS[dtype]
    kind, parameters = ("tensor", (scale, zero_point)) if scales is None else ("channel", (scales, zero_points, axis))
    form = "tensor" if isinstance(scale, torch.Tensor) else "default"
    packets = (f"quantize_per_{kind}", f"dequantize_per_{kind}")
    write, read = (getattr(getattr(quantized_decomposed(), packet), form) for packet in packets)
    rest = (*parameters, low, high, stored)
    with recorder.mode:
        integers: torch.Tensor = write(self, *rest)
    _KEPT.setdefault(recorder, {})[id(integers)] = (integers, lambda: read(integers, *rest))
    return integers


@register(Kind.RECORD, aten.dequantize.self, aten.int_repr.default)
def _integers(recorder: BaseRecorder, call: Call, self: torch.Tensor) -> object:
    """dequantize and int_repr of what was quantised here."""
    known = _KEPT.get(recorder, {}).get(id(self))
    if known is None:
        if call.func is aten.dequantize.self and self.dtype.is_floating_point:
            return NotImplemented
        raise recorder.refuse(
            "E203",
            f"{call.func} of a tensor that is not directly the result of quantize_per_tensor or quantize_per_channel",
            why="the scale and the zero point of other quantised tensors are not followed",
            next="dequantize first, compute in floats, quantize again",
        )
    if call.func is aten.int_repr.default:
        return self
    with recorder.mode:
        return known[1]()
