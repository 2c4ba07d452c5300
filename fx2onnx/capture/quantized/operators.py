"""``torch.ops.quantized``: what eager quantization puts in the place of layers and functions.

Each is recorded as the float operator between DequantizeLinear and QuantizeLinear, on the integers of its weight. Source:
ATen/native/quantized/cpu of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fx2onnx.capture.quantized.operands import (
    NO_SCALE,
    SMALL_SCALE,
    Affine,
    dequantize,
    floats_of,
    mark,
    operand,
    plainly,
    quantize,
    table_of,
    unpacked,
)
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.torchcompat.operators import OpOverload, PackedWeight

aten = torch.ops.aten
ops = torch.ops.quantized


_AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": aten.relu.default, "tanh": aten.tanh.default}


def _ended(name: str, value: torch.Tensor, slope: float | None = None) -> torch.Tensor:
    """The function that a layer applies to its product."""
    if slope is not None:
        return aten.leaky_relu.default(value, slope)  # type: ignore[no-any-return]
    for word, function in _AFTER.items():
        if f"_{word}" in name:
            return function(value)
    return value


def _convolution(
    tracer: Tracer, packed: PackedWeight, x: torch.Tensor, bias_for: Affine | None, rank: int
) -> torch.Tensor:
    """The convolution with the weight's numbers; ``rank``: its spatial axes, where PyTorch packs one as two."""
    is_line, is_turned = rank == 1, bool(packed.transpose())
    held = unpacked(tracer, packed, 2 if is_line else None)
    weight = held.numbers(tracer)
    bias = held.bias if bias_for is None else held.bias_numbers(tracer, bias_for)

    def sizes(of: Sequence[int]) -> list[int]:
        return list(of)[-1:] if is_line else list(of)

    spare = sizes(packed.output_padding()) if is_turned else [0] * rank
    with tracer.mode:
        return aten.convolution.default(  # type: ignore[no-any-return]
            x, weight, bias, sizes(packed.stride()), sizes(packed.padding()), sizes(packed.dilation()), is_turned, spare,
            packed.groups(),
        )  # fmt: skip


def _rank(name: str) -> int:
    """The number of spatial axes of a convolution: 2 for ``quantized::conv2d_relu``."""
    return next(rank for rank in (1, 2, 3) if f"{rank}d" in name)


def _of_convolutions(*endings: str) -> list[OpOverload]:
    found = []
    for name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
        for ending in endings:
            packet = getattr(ops, name + ending, None)
            if packet is not None:
                found.append(packet.new if "new" in packet.overloads() else packet.default)
    return found


@register(Kind.RECORD, *_of_convolutions("", "_relu"))
def _conv(
    tracer: Tracer,
    call: Call,
    qx: torch.Tensor,
    output_scale: float,
    output_zero_point: int,
    packed_weight: PackedWeight = None,
) -> torch.Tensor:
    """conv(x, w, b), its ReLU where it has one, quantized."""
    name = call.func._schema.name
    packed = call.args[1] if packed_weight is None else packed_weight
    affine = operand(tracer, call, qx)
    found = _convolution(tracer, packed, dequantize(tracer, qx), affine, _rank(name))
    with tracer.mode:
        found = _ended(name, found)
    return quantize(tracer, found, affine.at(output_scale, output_zero_point))


@register(Kind.RECORD, ops.conv2d_add.default, ops.conv2d_add_relu.default)
def _conv_add(
    tracer: Tracer,
    call: Call,
    qx: torch.Tensor,
    qaccum: torch.Tensor,
    packed_weight: PackedWeight,
    output_scale: float,
    output_zero_point: int,
) -> torch.Tensor:
    """conv(x, w, b) + accum, its ReLU where it has one, quantized."""
    affine = operand(tracer, call, qx)
    found = _convolution(tracer, packed_weight, dequantize(tracer, qx), affine, 2)
    other = dequantize(tracer, qaccum)
    with tracer.mode:
        found = _ended(call.func._schema.name, aten.add.Tensor(found, other))
    return quantize(tracer, found, affine.at(output_scale, output_zero_point))


@register(
    Kind.RECORD, ops.linear.default, ops.linear_relu.default, ops.linear_leaky_relu.default, ops.linear_tanh.default
)
def _linear(
    tracer: Tracer,
    call: Call,
    X: torch.Tensor,
    W_prepack: PackedWeight,
    Y_scale_i: float,
    Y_zero_point_i: int,
    negative_slope: float | None = None,
) -> torch.Tensor:
    """linear(x, w, b), what follows, quantized."""
    affine, held = operand(tracer, call, X), unpacked(tracer, W_prepack)
    weight, bias, x = held.numbers(tracer), held.bias_numbers(tracer, affine), dequantize(tracer, X)
    with tracer.mode:
        found = _ended(call.func._schema.name, aten.linear.default(x, weight, bias), negative_slope)
    return quantize(tracer, found, affine.at(Y_scale_i, Y_zero_point_i))


def rounded(x: torch.Tensor, reduce_range: bool) -> torch.Tensor:
    """``x`` after it was quantized by its own range and dequantized, in 7 bits where ``reduce_range``. Is recorded.

    Numerics: ChooseQuantizationParams of ATen/native/quantized/cpu/QuantUtils.h (range and zero point in float64), and fbgemm's
    Quantize, which multiplies with 1 / scale, rounds to even behind the zero point, and has 8 bits in any case.
    """
    steps = 127 if reduce_range else 255
    low, high = (end.double() for end in (x.amin().clamp(max=0.0), x.amax().clamp(min=0.0)))
    exact = ((high - low) / steps).float()
    exact = torch.where(exact == 0.0, NO_SCALE, exact)
    scale = exact.clamp(min=SMALL_SCALE)
    zero = torch.round(low / -exact.double()).clamp(0.0, steps).float()
    codes = torch.round(x * (1.0 / scale) + zero).clamp(0.0, 255.0)
    return (codes - zero) * scale


@register(Kind.RECORD, ops.linear_dynamic.default, ops.linear_relu_dynamic.default)
def _linear_dynamic(
    tracer: Tracer, call: Call, X: torch.Tensor, W_prepack: PackedWeight, reduce_range: bool
) -> torch.Tensor:
    """linear(x, w, b) of floats, which are rounded by their own range."""
    held = unpacked(tracer, W_prepack)
    weight = held.numbers(tracer)
    with tracer.mode:
        x = rounded(X, reduce_range)
        return _ended(call.func._schema.name, aten.linear.default(x, weight, held.plain_bias(tracer)))


@register(Kind.RECORD, ops.linear_dynamic_fp16.default, ops.linear_relu_dynamic_fp16.default)
def _linear_half(tracer: Tracer, call: Call, X: torch.Tensor, W_prepack: PackedWeight) -> torch.Tensor:
    """linear(x, w, b) with a weight that was rounded to half precision."""
    weight, bias = floats_of(tracer, W_prepack)
    with tracer.mode:
        return _ended(call.func._schema.name, aten.linear.default(X, weight, bias))


@register(Kind.RECORD, *_of_convolutions("_dynamic"))
def _conv_dynamic(
    tracer: Tracer, call: Call, qx: torch.Tensor, packed_weight: PackedWeight, reduce_range: bool
) -> torch.Tensor:
    """conv(x, w, b) of floats, which are rounded by their own range."""
    with tracer.mode:
        x = rounded(qx, reduce_range)
    return _convolution(tracer, packed_weight, x, None, _rank(call.func._schema.name))


@register(Kind.RECORD, ops.embedding_byte.default, ops.embedding_4bit.default)
def _embedding(tracer: Tracer, call: Call, weight: PackedWeight, indices: torch.Tensor) -> torch.Tensor:
    """(codes[i] - zero[i]) * scale[i]."""
    parts = table_of(tracer, weight)
    with tracer.mode:
        codes, scale, zero = (aten.embedding.default(part, indices) for part in parts)
        return (codes.to(torch.float32) - zero) * scale  # type: ignore[no-any-return]


@register(Kind.RECORD, ops.embedding_bag_byte.default, ops.embedding_bag_4bit.default)
def _embedding_bag(
    tracer: Tracer,
    call: Call,
    weight: PackedWeight,
    indices: torch.Tensor,
    offsets: torch.Tensor | None,
    pruned_weights: bool,
    per_sample_weights: torch.Tensor | None,
    include_last_offset: bool,
) -> torch.Tensor:
    """The sum of rows; the table is made of its integers."""
    if pruned_weights:
        raise tracer.values.refuse("E203", f"{call.func} with pruned_weights", next="keep all rows of the table")
    codes, scale, zero = table_of(tracer, weight)
    with tracer.mode:
        table = (codes.to(torch.float32) - zero) * scale
        if offsets is None and indices.dim() == 2:  # a row of indices is a bag
            rows = aten.embedding.default(table, indices)
            rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)
            return aten.sum.dim_IntList(rows, [1])  # type: ignore[no-any-return]
        return aten.embedding_bag.default(  # type: ignore[no-any-return]
            table, indices, offsets, False, 0, False, per_sample_weights, include_last_offset
        )[0]


_ARITHMETIC = {"add": aten.add.Tensor, "mul": aten.mul.Tensor, "matmul": aten.matmul.default}


@register(Kind.RECORD, ops.add.default, ops.add_relu.default, ops.mul.default, ops.mul_relu.default, ops.matmul.default)
def _arithmetic(
    tracer: Tracer, call: Call, qa: torch.Tensor, qb: torch.Tensor, scale: float, zero_point: int
) -> torch.Tensor:
    """a + b, a * b, a @ b, quantized."""
    name, affine = call.func._schema.name.partition("::")[2], operand(tracer, call, qa)
    left, right = dequantize(tracer, qa), dequantize(tracer, qb)
    with tracer.mode:
        found = _ended(name, _ARITHMETIC[name.removesuffix("_relu")](left, right))
    return quantize(tracer, found, affine.at(scale, zero_point))


_WITH_NUMBER = [
    getattr(getattr(ops, name), form)
    for name in ("add", "add_relu", "mul", "mul_relu")
    for form in ("Scalar", "Scalar2")
] + [getattr(ops, name).default for name in ("add_scalar", "add_scalar_relu", "mul_scalar", "mul_scalar_relu")]


@register(Kind.RECORD, *_WITH_NUMBER)
def _with_number(tracer: Tracer, call: Call, qa: torch.Tensor, b: float) -> torch.Tensor:
    """a + b, a * b with a Python number, on scales that follow from it (qadd.cpp, qmul.cpp)."""
    name, affine = call.func._schema.name.partition("::")[2], operand(tracer, call, qa)
    if isinstance(affine.scale, torch.Tensor) or isinstance(affine.zero, torch.Tensor):
        raise tracer.values.refuse("E203", f"{call.func} of a scale that is computed", next="quantize with numbers")
    _, low, high = affine.stored
    scale, zero = float(affine.scale), int(affine.zero)
    if name.startswith("add"):
        moved = zero - round(b / scale)
        if moved < low:
            after = affine.at((high - moved) / (high - low) * scale, low)
        elif moved > high:
            after = affine.at((moved - low) / (high - low) * scale, high)
        else:
            after = affine.at(scale, moved)
    elif b == 0:
        after = affine.at(1.0, 0)
    else:
        after = affine.at(abs(b) * scale, zero if b > 0 else high + low - zero)
    x = dequantize(tracer, qa)
    with tracer.mode:
        found = aten.add.Scalar(x, b) if name.startswith("add") else aten.mul.Scalar(x, b)
        found = _ended(name, found)
    return quantize(tracer, found, after)


@register(Kind.RECORD, ops.cat.default, ops.cat_relu.default)
def _cat(
    tracer: Tracer, call: Call, qx: Sequence[torch.Tensor], dim: int, scale: float | None, zero_point: int | None
) -> torch.Tensor:
    """cat(xs), quantized; as the first of them where no scale is given."""
    affine = operand(tracer, call, qx[0])
    after = affine if scale is None or zero_point is None else affine.at(scale, zero_point)
    wide = [dequantize(tracer, each) for each in qx]
    with tracer.mode:
        found = _ended(call.func._schema.name, aten.cat.default(wide, dim))
    return quantize(tracer, found, after)


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "hardswish": lambda x: aten.hardswish.default(x),
    "sigmoid": lambda x: aten.sigmoid.default(x),
    "leaky_relu": lambda x, negative_slope, inplace: aten.leaky_relu.default(x, negative_slope),
    "elu": lambda x, alpha=1, scale=1, input_scale=1: aten.elu.default(x, alpha, scale, input_scale),
    "celu": lambda x, alpha=1: aten.celu.default(x, alpha),
    "prelu": lambda x, weight: torch.prelu(x, weight),
    "softmax": lambda x, dim: torch.softmax(x, dim),
    "dropout": lambda x, p=0.5, training=False: x,
    "layer_norm": lambda x, shape, weight, bias, eps: aten.layer_norm.default(x, shape, weight, bias, eps),
    "instance_norm": lambda x, weight, bias, eps: torch.instance_norm(
        x, weight, bias, None, None, True, 0.0, eps, False
    ),
    "group_norm": lambda x, groups, weight, bias, eps: aten.group_norm.default(x, groups, weight, bias, eps),
    **{
        f"batch_norm{rank}{ending}": (
            lambda x, weight, bias, mean, var, eps: torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, False)
        )
        for rank in ("", "1d", "2d", "3d")
        for ending in ("", "_relu")
    },
}
"""Elementwise functions by name: of what the operand stands for and of the other arguments but the result's scale and zero point."""

_SCALED = [getattr(ops, name).default for name in _FUNCTIONS]


@register(Kind.RECORD, *_SCALED)
def _function(tracer: Tracer, call: Call, output_scale: float, output_zero_point: int) -> torch.Tensor:
    """A function of one operand, quantized with the given scale and zero point."""
    name = call.func._schema.name.partition("::")[2]
    affine = operand(tracer, call, call.args[0])
    own = ("output_scale", "output_zero_point")
    schema = call.func._schema.arguments
    rest = [
        dequantize(tracer, value) if isinstance(value, torch.Tensor) else value
        for argument, value in zip(schema, call.args, strict=False)
        if argument.name not in own
    ][1:]
    more = {key: value for key, value in call.kwargs.items() if key not in own}
    x = dequantize(tracer, call.args[0])
    with tracer.mode:
        found = _ended(
            name if name.endswith("_relu") and name != "leaky_relu" else "", _FUNCTIONS[name](x, *rest, **more)
        )
    return quantize(tracer, found, affine.at(output_scale, output_zero_point))


_SAME: dict[str, Callable[..., torch.Tensor]] = {
    "relu6": lambda x, inplace=False: aten.hardtanh.default(x, 0.0, 6.0),
    "clamp": lambda x, low=None, high=None: aten.clamp.default(x, low, high),
    "threshold": lambda x, threshold, value: aten.threshold.default(x, threshold, value),
    "max_pool1d": lambda x, *sizes: torch.max_pool1d(x, *sizes),
    "max_pool2d": lambda x, *sizes: torch.max_pool2d(x, *sizes),
}
"""Functions whose result has the operand's scale."""


@register(Kind.RECORD, *(getattr(ops, name).default for name in _SAME))
def _same(tracer: Tracer, call: Call) -> torch.Tensor:
    """A function of one operand on the operand's own scale."""
    affine, x = operand(tracer, call, call.args[0]), dequantize(tracer, call.args[0])
    function = _SAME[call.func._schema.name.partition("::")[2]]
    with tracer.mode:
        found = function(x, *call.args[1:], **call.kwargs)
    made = quantize(tracer, found, affine)
    if call.func is ops.relu6.default and len(call.args) > 1 and call.args[1]:  # in place
        with plainly(tracer), tracer.mode:
            aten.copy_.default(call.args[0], made)
        return mark(tracer, call.args[0], affine)
    return made
