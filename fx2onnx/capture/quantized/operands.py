"""Tensors of quantized dtypes: integers whose scale and zero point are remembered, since fake tensors have no such dtypes; and the packed
weights of eager-quantized layers, unpacked as constants of the program.

What only moves numbers is recorded on the integers. Other operators are recorded as floats between DequantizeLinear and
QuantizeLinear; PyTorch's kernels for quantized tensors may round a result to the next step otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from fx2onnx.capture.op_table import Op
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.modules import PATHS
from fx2onnx.torchcompat.operators import OpOverload, PackedWeight, quantized_decomposed

aten = torch.ops.aten

STORED_AS: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.quint8: (torch.uint8, 0, 255),
    torch.qint8: (torch.int8, -128, 127),
    torch.qint32: (torch.int32, -(2**31), 2**31 - 1),
}
"""Quantized dtype -> the integers it is made of, and their range."""

SMALL_SCALE = 6.1e-5
"""The least scale that is chosen for activations (QuantUtils.h)."""
NO_SCALE = 0.1
"""The scale of activations that are all 0 (QuantUtils.h)."""

Number = float | int | torch.Tensor


@dataclass(frozen=True, eq=False)
class Affine:
    """The numbers that integers stand for: ``(integer - zero) * scale``, with one scale and zero for all or (``axis``)
    for each channel."""

    scale: Number
    zero: Number
    dtype: torch.dtype
    axis: int | None = None

    @property
    def stored(self) -> tuple[torch.dtype, int, int]:
        return STORED_AS[self.dtype]

    def at(self, scale: float, zero: int) -> Affine:
        """The same dtype with one other scale and zero point."""
        return replace(self, scale=scale, zero=zero, axis=None)


def affine_of(tracer: Tracer, tensor: object) -> Affine | None:
    """The scale and zero point of the tensor's integers; None where it is not quantized."""
    found = tracer.quantized.get(id(tensor))
    return found[1] if found is not None and isinstance(found[1], Affine) else None


def mark(tracer: Tracer, integers: torch.Tensor, affine: Affine) -> torch.Tensor:
    """Remember that ``integers`` stand for numbers."""
    tracer.quantized[id(integers)] = (integers, affine)
    return integers


def _call(tracer: Tracer, verb: str, tensor: torch.Tensor, affine: Affine) -> torch.Tensor:
    packet = getattr(quantized_decomposed(), f"{verb}_per_{'tensor' if affine.axis is None else 'channel'}")
    overload = packet.tensor if affine.axis is None and isinstance(affine.scale, torch.Tensor) else packet.default
    stored, low, high = affine.stored
    place = () if affine.axis is None else (affine.axis,)
    with plainly(tracer), tracer.mode:
        found: torch.Tensor = overload(tensor, affine.scale, affine.zero, *place, low, high, stored)
    return found


def quantize(tracer: Tracer, floats: torch.Tensor, affine: Affine) -> torch.Tensor:
    """The integers of ``floats``."""
    return mark(tracer, _call(tracer, "quantize", floats, affine), affine)


def dequantize(tracer: Tracer, tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that a quantized tensor's integers stand for; other tensors as they are."""
    affine = affine_of(tracer, tensor)
    return tensor if affine is None else _call(tracer, "dequantize", tensor, affine)


@contextlib.contextmanager
def plainly(tracer: Tracer) -> Iterator[None]:
    """Calls inside take integers for integers."""
    known, tracer.quantized = tracer.quantized, {}
    try:
        yield
    finally:
        tracer.quantized = known


def number(tracer: Tracer, value: Number) -> Number:
    """``value`` as a Python number where it is known."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        return value
    known = tracer.values.value_of(tracer.values.node_of(value))
    return value if known is None or known.device.type == "meta" else known.item()


@register(
    Kind.RECORD,
    aten.quantize_per_tensor.default,
    aten.quantize_per_tensor.tensor_qparams,
    aten.quantize_per_channel.default,
)
def _quantized(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    dtype: torch.dtype,
    scale: float | torch.Tensor | None = None,
    zero_point: int | torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    zero_points: torch.Tensor | None = None,
    axis: int = 0,
) -> torch.Tensor:
    """The integers; how they stand for numbers is kept beside."""
    if dtype not in STORED_AS:
        raise tracer.values.refuse(
            "E203", f"{call.func} to {dtype}", next=f"use one of {', '.join(map(str, STORED_AS))}"
        )
    if scales is not None and zero_points is not None:
        return quantize(tracer, self, Affine(scales, zero_points, dtype, axis))
    assert scale is not None
    assert zero_point is not None
    factor, zero = number(tracer, scale), number(tracer, zero_point)
    if isinstance(factor, torch.Tensor) or isinstance(zero, torch.Tensor):
        factor, zero = scale, zero_point
    return quantize(tracer, self, Affine(factor, zero, dtype))


@register(Kind.RECORD, aten._make_per_tensor_quantized_tensor.default, aten._make_per_channel_quantized_tensor.default)
def _made_of_integers(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    scale: torch.Tensor | float,
    zero_point: torch.Tensor | int,
    axis: int | None = None,
) -> torch.Tensor:
    """The integers themselves, which stand for numbers from here on."""
    dtype = next((dtype for dtype, (stored, _, _) in STORED_AS.items() if stored == self.dtype), None)
    if dtype is None:
        raise tracer.values.refuse("E203", f"{call.func} of {self.dtype}", next="use uint8, int8 or int32")
    with tracer.mode:
        return mark(tracer, self.clone(), Affine(scale, zero_point, dtype, axis))


def operand(tracer: Tracer, call: Call, self: torch.Tensor) -> Affine:
    """The scale and zero point of a tensor that has to be quantized. Raises UserError E203 for another."""
    affine = affine_of(tracer, self)
    if affine is None:
        raise tracer.values.refuse(
            "E203",
            f"{call.func} of a tensor that is not known to be quantized",
            why="scale and zero point are followed from quantize_per_tensor and quantize_per_channel on, in one graph",
            next="quantize inside forward (torch.ao.quantization.QuantWrapper), outside branches and loops",
        )
    return affine


@register(Kind.RECORD, aten.dequantize.self, aten.int_repr.default)
def _integers(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """dequantize and int_repr of what was quantized here."""
    if call.func is aten.dequantize.self and affine_of(tracer, self) is None and self.dtype.is_floating_point:
        return NotImplemented
    affine = operand(tracer, call, self)
    if call.func is aten.dequantize.self:
        return _call(tracer, "dequantize", self, affine)
    with plainly(tracer), tracer.mode:
        return aten.clone.default(self)


@register(Kind.RECORD, aten.q_scale.default, aten.q_zero_point.default, aten.q_per_channel_axis.default)
def _parameters(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """A number of the tensor's scheme."""
    affine = operand(tracer, call, self)
    name = call.func._schema.name.rpartition("_")[2]
    return {"scale": affine.scale, "point": affine.zero, "axis": affine.axis}[name]


FIXED = {"sigmoid": (1 / 256, 0), "hardsigmoid": (1 / 256, 0), "tanh": (2 / 256, 128)}
"""Scale and zero point of the unsigned results of operators that choose them by themselves. Source: qsigmoid.cpp, qhardsigmoid.cpp,
qtanh.cpp in PyTorch's ATen/native/quantized."""


def seen(tracer: Tracer, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """A call with quantized operands; NotImplemented for one without, or which has a function of its own."""
    name = func._schema.name
    if name in Op.IS_QUANTIZED.names or func.namespace in ("quantized", "quantized_decomposed"):
        return NotImplemented
    first = next((affine for arg in _leaves(args) if (affine := affine_of(tracer, arg)) is not None), None)
    if first is None:
        return NotImplemented
    word = name.rpartition("::")[2]
    if name in Op.MOVES.names and first.axis is None:
        with plainly(tracer), tracer.mode:
            moved = func(*args, **kwargs)
        return _each(moved, lambda integers: mark(tracer, integers, first))
    if func._schema.is_mutable:
        return _written(tracer, func, args, kwargs, first)
    return as_floats(tracer, func, args, kwargs, _result_affine(word, first))


def _result_affine(word: str, first: Affine) -> Affine:
    if word not in FIXED or first.axis is not None:
        return first
    scale, zero = FIXED[word]
    return first.at(scale, zero - 128 if first.dtype == torch.qint8 else zero)


def as_floats(
    tracer: Tracer, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], affine: Affine
) -> object:
    """The call on what the operands stand for, its results quantized."""
    wide = tuple(_floats(tracer, arg) for arg in args)
    with tracer.mode:
        result = func(*wide, **{name: _floats(tracer, arg) for name, arg in kwargs.items()})
    return _each(result, lambda value: quantize(tracer, value, affine) if value.is_floating_point() else value)


def _written(
    tracer: Tracer, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], affine: Affine
) -> torch.Tensor:
    """A call that writes into its first argument, as the call that does not, and a copy of the integers."""
    packet = getattr(torch.ops.aten, func._schema.name.partition("::")[2].removesuffix("_"), None)
    overload = getattr(packet, func._overloadname, None)
    target = args[0]
    if overload is None or not isinstance(target, torch.Tensor) or affine_of(tracer, target) is None:
        raise tracer.values.refuse(
            "E203", f"{func} writes into a quantized tensor", next="use the form that gives a new tensor"
        )
    made = as_floats(tracer, overload, args, kwargs, affine)
    with plainly(tracer), tracer.mode:
        aten.copy_.default(target, made)
    return target


def _floats(tracer: Tracer, arg: object) -> object:
    if isinstance(arg, torch.Tensor):
        return dequantize(tracer, arg)
    return type(arg)(_floats(tracer, item) for item in arg) if isinstance(arg, list | tuple) else arg


def _leaves(args: Iterable[object]) -> Iterator[object]:
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from _leaves(arg)
        else:
            yield arg


def _each(result: object, function: Callable[[torch.Tensor], object]) -> object:
    if isinstance(result, torch.Tensor):
        return function(result)
    if isinstance(result, list | tuple):
        return type(result)(_each(item, function) for item in result)
    return result


INT32 = 2**31


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight's integers with their scales, and the bias."""

    codes: torch.Tensor
    scale: torch.Tensor
    """One number, or one a channel."""
    zero: torch.Tensor
    axis: int | None
    bias: torch.Tensor | None
    name: str

    def numbers(self, tracer: Tracer) -> torch.Tensor:
        """The numbers that the weight's integers stand for."""
        low, high = torch.iinfo(self.codes.dtype).min, torch.iinfo(self.codes.dtype).max
        ops = quantized_decomposed()
        rest = (low, high, self.codes.dtype)
        with tracer.mode:
            if self.axis is None:
                found = ops.dequantize_per_tensor.default(self.codes, float(self.scale), int(self.zero), *rest)
            else:
                found = ops.dequantize_per_channel.default(self.codes, self.scale, self.zero, self.axis, *rest)
        return found  # type: ignore[no-any-return]

    def bias_numbers(self, tracer: Tracer, x: Affine) -> torch.Tensor | None:
        """The bias as PyTorch's kernels add it: in steps of the product's scale, as int32."""
        if self.bias is None or not isinstance(x.scale, float) or self.scale.numel() not in (1, self.bias.numel()):
            return self.plain_bias(tracer)
        with no_dispatch():
            scale = (self.scale.double() * x.scale).float().expand(self.bias.numel()).contiguous()
            steps = torch.round(self.bias.detach().double() / scale.double())
            codes = steps.clamp(-INT32, INT32 - 1).to(torch.int32)
            codes = tracer.values.name_constant(codes, f"{self.name}.bias")
            scale = tracer.values.name_constant(scale, f"{self.name}.bias_scale")
        with tracer.mode:
            return quantized_decomposed().dequantize_per_channel.default(  # type: ignore[no-any-return]
                codes, scale, None, 0, -INT32, INT32 - 1, torch.int32
            )

    def plain_bias(self, tracer: Tracer) -> torch.Tensor | None:
        with no_dispatch():
            return None if self.bias is None else tracer.values.name_constant(self.bias, f"{self.name}.bias")


def unpacked(tracer: Tracer, packed: PackedWeight, squeezed: int | None = None) -> Packed:
    """The weight of a packed layer. ``squeezed``: an axis of one that the packing added."""
    with no_dispatch():
        weight, bias = packed.unpack()
        return _packed(tracer, weight if squeezed is None else weight.squeeze(squeezed), bias, PATHS.current)


def floats_of(tracer: Tracer, packed: PackedWeight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a layer that was rounded to half precision."""
    with no_dispatch():
        weight, bias = packed.unpack()
        weight = tracer.values.name_constant(weight.float(), f"{PATHS.current}.weight")
        return weight, None if bias is None else tracer.values.name_constant(bias, f"{PATHS.current}.bias")


def state_of(cell: PackedWeight) -> tuple[str, list[torch.Tensor], object, list[int], list[PackedWeight]]:
    """The state of a recurrent layer's packed weights: kind, tensors, numbers, whole numbers, packed products."""
    with no_dispatch():
        state, _ = cell.__getstate__()  # and the name of its class
    return state  # type: ignore[no-any-return]


def table_of(tracer: Tracer, packed: PackedWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The table of a quantized embedding: its integers, and a scale and a zero point for each row, [rows, 1] of float32."""
    with no_dispatch():
        weight = packed.unpack()
        codes = weight.int_repr()
        if weight.dtype == torch.quint4x2:
            pairs = codes.reshape(len(weight), -1)
            codes = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1)[:, : weight.shape[1]].contiguous()
        scale = weight.q_per_channel_scales().float().unsqueeze(1)
        zero = weight.q_per_channel_zero_points().float().unsqueeze(1)
        parts = ((codes, "weight"), (scale, "scale"), (zero, "zero_point"))
        codes, scale, zero = (tracer.values.name_constant(tensor, f"{PATHS.current}.{part}") for tensor, part in parts)
    return codes, scale, zero


def _packed(tracer: Tracer, weight: torch.Tensor, bias: torch.Tensor | None, name: str) -> Packed:
    codes, axis = weight.int_repr().contiguous(), None
    if weight.qscheme() == torch.per_tensor_affine:
        scale, zero = torch.tensor(weight.q_scale()), torch.tensor(weight.q_zero_point())
    else:
        axis = weight.q_per_channel_axis()
        scale, zero = weight.q_per_channel_scales().float(), weight.q_per_channel_zero_points().to(codes.dtype)
    codes = tracer.values.name_constant(codes, f"{name}.weight")
    if axis is not None:
        scale = tracer.values.name_constant(scale, f"{name}.scale")
        zero = tracer.values.name_constant(zero, f"{name}.zero_point")
    return Packed(codes, scale, zero, axis, None if bias is None else bias.detach(), name)
