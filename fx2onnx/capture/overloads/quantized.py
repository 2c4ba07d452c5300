"""Tensors of quantised dtypes: integers whose scale and zero point are remembered until they are read back.

Fake tensors have no such dtypes. What a module may do with the integers is ``dequantize`` and ``int_repr``.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fx2onnx.capture.overloads.schemas import given
from fx2onnx.capture.overloads.unbacked import Special

if TYPE_CHECKING:
    from fx2onnx.capture.recording.recorder import Recorder

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload

STORED_AS: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.quint8: (torch.uint8, 0, 255),
    torch.qint8: (torch.int8, -128, 127),
    torch.qint32: (torch.int32, -(2**31), 2**31 - 1),
}
"""Quantised dtype -> the integers it is made of, and their range."""


_KEPT: weakref.WeakKeyDictionary[Any, dict[int, tuple[torch.Tensor, Callable[[], torch.Tensor]]]] = (
    weakref.WeakKeyDictionary()
)
"""By recorder: the integers made in its run, by id, and how they are read back."""


def _operators() -> Any:
    """``torch.ops.quantized_decomposed``, which exists once its declarations are imported."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    return torch.ops.quantized_decomposed


def _quantized(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """quantize_per_tensor, quantize_per_channel: the integers; how to read them back is kept beside."""
    filled = given(func, args, kwargs)
    if filled["dtype"] not in STORED_AS:
        raise recorder.refuse(
            "E203", f"{func} to {filled['dtype']}", next=f"use one of {', '.join(map(str, STORED_AS))}"
        )
    dtype, low, high = STORED_AS[filled["dtype"]]
    operators = _operators()
    if "axis" in filled:
        parameters: tuple[Any, ...] = (filled["scales"], filled["zero_points"], filled["axis"])
        write, read = operators.quantize_per_channel.default, operators.dequantize_per_channel.default
    elif isinstance(filled["scale"], torch.Tensor):
        parameters = (filled["scale"], filled["zero_point"])
        write, read = operators.quantize_per_tensor.tensor, operators.dequantize_per_tensor.tensor
    else:
        parameters = (filled["scale"], filled["zero_point"])
        write, read = operators.quantize_per_tensor.default, operators.dequantize_per_tensor.default
    rest = (*parameters, low, high, dtype)
    with recorder.mode:
        integers = write(filled["self"], *rest)
    _KEPT.setdefault(recorder, {})[id(integers)] = (integers, lambda: read(integers, *rest))
    return integers


def _integers(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """dequantize and int_repr of what was quantised here."""
    tensor = args[0]
    found = _KEPT.get(recorder, {}).get(id(tensor))
    if found is None:
        if func is aten.dequantize.self and tensor.dtype.is_floating_point:
            return NotImplemented
        raise recorder.refuse(
            "E203",
            f"{func} of a tensor that is not directly the result of quantize_per_tensor or quantize_per_channel",
            why="the scale and the zero point of other quantised tensors are not followed",
            next="dequantize first, compute in floats, quantize again",
        )
    if func is aten.int_repr.default:
        return tensor
    with recorder.mode:
        return found[1]()


SPECIAL: dict[OpOverload, Special] = {
    aten.quantize_per_tensor.default: _quantized,
    aten.quantize_per_tensor.tensor_qparams: _quantized,
    aten.quantize_per_channel.default: _quantized,
    aten.dequantize.self: _integers,
    aten.int_repr.default: _integers,
}
