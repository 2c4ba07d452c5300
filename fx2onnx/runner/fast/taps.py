"""Sums of products at fixed distances, written as vector instructions: the loops of depthwise convolutions."""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
STEP = 2 * LANES
"""Numbers that ``along_line`` computes at a time: it reads and writes up to ``STEP`` - 1 more than are asked for."""
PIXELS = 4
"""Positions that ``along_channels`` computes at a time."""

FEATURES = llvmlite.binding.get_host_cpu_features()
HAS_HALVES = bool(FEATURES.get("f16c"))
"""True if an instruction makes float16 of float32."""
WORD, AT, REAL = ir.IntType(32), ir.IntType(64), ir.FloatType()


def constant(value: Any, index: Any) -> Any:
    return ir.Constant(value, index)


def filled(builder: Any, number: Any, vector: Any) -> Any:
    nothing = constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, constant(WORD, 0))
    return builder.shuffle_vector(first, nothing, constant(ir.VectorType(WORD, LANES), [0] * LANES))


def load(builder: Any, start: Any, index: Any, vector: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(start, [index]), vector.as_pointer()), align=4)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    if a.type.element != REAL:
        return builder.add(builder.mul(a, b), c)
    kind = ir.FunctionType(a.type, [a.type] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    return builder.call(function, [a, b, c])


CODES, SUMS, MAXIMA = range(3)
"""Kinds of ``along_line``: sums of int32, sums of float32, maxima of float32."""


def _greater(builder: Any, a: Any, b: Any) -> Any:
    """The greater of two; NaN where one of them is."""
    takes_a = builder.or_(builder.fcmp_ordered(">", a, b), builder.fcmp_unordered("uno", a, a))
    return builder.select(takes_a, a, b)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def along_line(typing: Any, taps: Any, kind: Any, x: Any, offsets: Any, w: Any, out: Any, count: Any) -> Any:
    """out[n] = the sum of w[t] * x[offsets[t] + n] over the taps, for n < count, or the maximum of x[offsets[t] + n]; x, offsets, w and
    out are addresses.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = WORD if kind.literal_value == CODES else REAL
        vector, number = ir.VectorType(element, LANES), taps.literal_value
        _, _, x, offsets, w, out, count = arguments
        source, target, weights = (builder.inttoptr(one, element.as_pointer()) for one in (x, out, w))
        distances = builder.inttoptr(offsets, AT.as_pointer())
        places = [builder.load(builder.gep(distances, [constant(AT, t)])) for t in range(number)]
        is_maximum = kind.literal_value == MAXIMA
        by = [filled(builder, builder.load(builder.gep(weights, [constant(AT, t)])), vector) for t in range(number)]
        start_value = constant(vector, [float("-inf")] * LANES if is_maximum else None)
        steps = builder.sdiv(builder.add(count, constant(AT, STEP - 1)), constant(AT, STEP))
        with cgutils.for_range(builder, steps) as loop:
            start = builder.mul(loop.index, constant(AT, STEP))
            for part in range(STEP // LANES):
                at = builder.add(start, constant(AT, part * LANES))
                total = start_value
                for place, weight in zip(places, by, strict=True):
                    value = load(builder, source, builder.add(at, place), vector)
                    if is_maximum:
                        total = _greater(builder, value, total)
                    else:
                        total = multiply_add(builder, weight, value, total)
                builder.store(total, builder.bitcast(builder.gep(target, [at]), vector.as_pointer()), align=4)
        return context.get_dummy_value()

    at = types.int64
    return types.void(taps, kind, at, at, at, at, at), generate


def _bounded(builder: Any, y: Any, low: Any, high: Any) -> Any:
    """min(max(y, low), high); NaN stays NaN."""
    y = builder.select(builder.fcmp_ordered("<", y, low), low, y)
    return builder.select(builder.fcmp_ordered(">", y, high), high, y)


def activated(builder: Any, y: Any, low: Any, high: Any, is_hard_swish: bool) -> Any:
    if not is_hard_swish:
        return _bounded(builder, y, low, high)
    zero, half, one, sixth = (constant(y.type, [value] * LANES) for value in (0.0, 0.5, 1.0, 1 / 6))
    gate = _bounded(builder, builder.fadd(builder.fmul(y, sixth), half), zero, one)
    return builder.fmul(y, gate)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def along_channels(
    typing: Any, taps: Any, is_hard_swish: Any, pixels: Any, x: Any, offsets: Any, w: Any, bias: Any, out: Any,
    step: Any, channels: Any, low: Any, high: Any,
) -> Any:  # fmt: skip
    """For each of ``pixels`` positions, ``step`` numbers apart in x: out[c] = the activation of bias[c] and the sum of
    w[t, c] * x[offsets[t] + c] over the taps. There are ``LANES`` channels or more; the last vector reaches back.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(REAL, LANES)
        *_, x, offsets, w, bias, out, step, channels, low, high = arguments
        source, target, weights, shift = (builder.inttoptr(one, REAL.as_pointer()) for one in (x, out, w, bias))
        distances = builder.inttoptr(offsets, AT.as_pointer())
        places = [builder.load(builder.gep(distances, [constant(AT, t)])) for t in range(taps.literal_value)]
        least, most = (filled(builder, one, vector) for one in (low, high))
        last = builder.sub(channels, constant(AT, LANES))
        steps = builder.sdiv(builder.add(channels, constant(AT, LANES - 1)), constant(AT, LANES))
        with cgutils.for_range(builder, steps) as loop:
            at = builder.mul(loop.index, constant(AT, LANES))
            at = builder.select(builder.icmp_signed(">", at, last), last, at)
            totals = [load(builder, shift, at, vector)] * pixels.literal_value
            row = at
            for place in places:
                weight = load(builder, weights, row, vector)
                row = builder.add(row, channels)
                start = builder.add(at, place)
                for number in range(pixels.literal_value):
                    totals[number] = multiply_add(builder, weight, load(builder, source, start, vector), totals[number])
                    start = builder.add(start, step)
            for number, total in enumerate(totals):
                y = activated(builder, total, least, most, bool(is_hard_swish.literal_value))
                place = builder.gep(target, [builder.add(at, builder.mul(channels, constant(AT, number)))])
                builder.store(y, builder.bitcast(place, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    at, real = types.int64, types.float32
    return types.void(taps, is_hard_swish, pixels, at, at, at, at, at, at, at, real, real), generate


def mask_of(builder: Any, at: Any, count: Any) -> Any:
    """The lanes from ``at`` on that are below ``count``."""
    vector = ir.VectorType(AT, LANES)
    left = filled(builder, builder.sub(count, at), vector)
    return builder.icmp_signed("<", constant(vector, list(range(LANES))), left)


def masked(builder: Any, element: Any, place: Any, mask: Any, value: Any = None) -> Any:
    """The lanes at an address that the mask has, or ``value`` stored in them."""
    vector, bits = ir.VectorType(element, LANES), ir.VectorType(ir.IntType(1), LANES)
    pointer, one = vector.as_pointer(), constant(WORD, 1)
    name, place = (
        f"v{LANES}{'f' if element == REAL else 'i'}{32 if element == REAL else element.width}.p0",
        builder.bitcast(place, pointer),
    )
    if value is None:
        kind = ir.FunctionType(vector, [pointer, WORD, bits, vector])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.{name}")
        return builder.call(function, [place, one, mask, constant(vector, None)])
    kind = ir.FunctionType(ir.VoidType(), [vector, pointer, WORD, bits])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.store.{name}")
    return builder.call(function, [value, place, one, mask])


_ELEMENTS = {types.float32: REAL, types.int32: WORD, types.uint8: ir.IntType(8), types.int8: ir.IntType(8)}


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def shifted_row(typing: Any, step: Any, x: Any, source: Any, zero: Any, target: Any, count: Any) -> Any:
    """target[n] = source[step * n] - zero for n < count, in the type of ``zero``; ``x`` is an array of the source's type, and the
    step 1 or 2.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        read, write = _ELEMENTS[x.dtype], _ELEMENTS[zero]
        wide = ir.VectorType(write, LANES)
        _, _, source, number, target, count = arguments
        first, last = builder.inttoptr(source, read.as_pointer()), builder.inttoptr(target, write.as_pointer())
        shift = filled(builder, number, wide)
        with cgutils.for_range(
            builder, builder.sdiv(builder.add(count, constant(AT, LANES - 1)), constant(AT, LANES))
        ) as loop:
            at = builder.mul(loop.index, constant(AT, LANES))
            mask = mask_of(builder, at, count)
            if step.literal_value == 1:
                y = masked(builder, read, builder.gep(first, [at]), mask)
            else:
                twice, end = (
                    builder.mul(at, constant(AT, 2)),
                    builder.sub(builder.mul(count, constant(AT, 2)), constant(AT, 1)),
                )
                starts = [twice, builder.add(twice, constant(AT, LANES))]
                halves = [
                    masked(builder, read, builder.gep(first, [one]), mask_of(builder, one, end)) for one in starts
                ]
                y = builder.shuffle_vector(*halves, constant(ir.VectorType(WORD, LANES), list(range(0, STEP, 2))))
            if read == write == REAL:
                y = builder.fsub(y, shift)
            else:
                y = y if read == write else (builder.zext if x.dtype == types.uint8 else builder.sext)(y, wide)
                y = builder.sub(y, shift)
            masked(builder, write, builder.gep(last, [at]), mask, y)
        return context.get_dummy_value()

    return types.void(step, x, types.int64, zero, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def activated_row(
    typing: Any, is_hard_swish: Any, source: Any, bias: Any, low: Any, high: Any, target: Any, count: Any
) -> Any:
    """target[n] = the activation of source[n] + bias for n < count."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(REAL, LANES)
        _, source, bias, low, high, target, count = arguments
        first, last = builder.inttoptr(source, REAL.as_pointer()), builder.inttoptr(target, REAL.as_pointer())
        shift, least, most = (filled(builder, one, vector) for one in (bias, low, high))
        with cgutils.for_range(
            builder, builder.sdiv(builder.add(count, constant(AT, LANES - 1)), constant(AT, LANES))
        ) as loop:
            at = builder.mul(loop.index, constant(AT, LANES))
            mask = mask_of(builder, at, count)
            y = builder.fadd(masked(builder, REAL, builder.gep(first, [at]), mask), shift)
            y = activated(builder, y, least, most, bool(is_hard_swish.literal_value))
            masked(builder, REAL, builder.gep(last, [at]), mask, y)
        return context.get_dummy_value()

    at, real = types.int64, types.float32
    return types.void(is_hard_swish, at, real, real, real, at, at), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def halves(typing: Any, source: Any, target: Any, count: Any, lanes: Any, widens: Any) -> Any:
    """``count`` float32 at one address as float16 at another, ``lanes`` at a time; float32 from float16 where ``widens``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, is_wider = lanes.literal_value, bool(widens.literal_value)
        read, write = (ir.HalfType(), REAL) if is_wider else (REAL, ir.HalfType())
        convert = builder.fpext if is_wider else builder.fptrunc
        first, last = (
            builder.inttoptr(arguments[0], read.as_pointer()),
            builder.inttoptr(arguments[1], write.as_pointer()),
        )
        before, after = ir.VectorType(read, number), ir.VectorType(write, number)
        with cgutils.for_range(builder, builder.sdiv(arguments[2], constant(AT, number))) as loop:
            at = builder.mul(loop.index, constant(AT, number))
            x = builder.load(builder.bitcast(builder.gep(first, [at]), before.as_pointer()), align=2)
            builder.store(convert(x, after), builder.bitcast(builder.gep(last, [at]), after.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, lanes, widens), generate
