"""Products of float32 by constant matrices: the weights lie in memory in the order in which vector registers take them.

A tile is some rows of the output by ``COLUMNS`` columns, whose sums stay in registers from the first number of the rows to the
last. Each number of the output is summed in the order of the inner axis, so its bits depend on no other row or column.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fx2onnx.runner.fast.compiled import compiled, f32, is_plain, operand
from fx2onnx.runner.fast.halves import prepare_halves
from fx2onnx.runner.fast.taps import (
    AT,
    FEATURES,
    LANES,
    REAL,
    WORD,
    activated,
    constant,
    filled,
    load,
    mask_of,
    masked,
    multiply_add,
)
from fx2onnx.semantics.kernels.conv_plan import nhwc
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.threads import MAX_PARTS, PART_MULTIPLIES, are_several, spread
from fx2onnx.semantics.kernels.windows import Window
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array

VECTORS, ROWS = 2, 12
COLUMNS = LANES * VECTORS
"""Columns of a block of weights: with ``ROWS`` rows, the sums take 24 of the 32 vector registers."""
IS_THERE = bool(FEATURES.get("avx512f"))
CHUNK = 20 * ROWS
"""Rows that all blocks of weights are multiplied with before the next rows: they stay in the cache."""
LEAST_MULTIPLIES = 1 << 15
LINE = 64


def aligned(count: int) -> Array:
    """Room for float32 numbers that begins with a line of the cache."""
    raw = np.empty(count + LINE // 4, FLOAT32)
    start = -raw.ctypes.data % LINE // 4
    return raw[start : start + count]


def pack(weights: Array) -> Array:
    """[K, N] as [blocks of N, K, ``COLUMNS``], zeros at the end."""
    inner, outs = weights.shape
    whole, blocks = outs // COLUMNS, -(-outs // COLUMNS)
    check_shape((blocks, inner, COLUMNS), FLOAT32, "a copy of weights")
    packed = aligned(blocks * inner * COLUMNS).reshape(blocks, inner, COLUMNS)
    packed[:whole] = weights[:, : whole * COLUMNS].reshape(inner, whole, COLUMNS).transpose(1, 0, 2)
    if whole < blocks:
        packed[whole, :, outs - whole * COLUMNS :] = 0
        packed[whole, :, : outs - whole * COLUMNS] = weights[:, whole * COLUMNS :]
    return packed


def pack_bias(bias: Array | None, blocks: int) -> Array:
    """One number a column, zeros at the end."""
    full = np.zeros(blocks * COLUMNS, FLOAT32)
    if bias is not None:
        full[: bias.size] = bias.reshape(-1)
    return full


def _tile(rows: int) -> Any:
    """The intrinsic that computes ``rows`` rows of one block: y = the activation of bias and the sums of x times weights.

    x, reads, pieces, weights, bias, y and ahead are addresses. A row of x begins ``reads`` numbers after x, and has ``count`` pieces of
    ``length`` numbers, ``pieces`` numbers after that. The lines of memory from ``ahead`` on are fetched for later.
    """

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def tile(
        typing: Any, is_hard_swish: Any, x: Any, reads: Any, pieces: Any, count: Any, length: Any, weights: Any, bias: Any,
        low: Any, high: Any, y: Any, step: Any, columns: Any, ahead: Any,
    ) -> Any:  # fmt: skip
        vector = ir.VectorType(REAL, LANES)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, x, reads, pieces, count, length, weights, bias, low, high, y, step, columns, ahead = arguments
            left, right, shift, out = (builder.inttoptr(one, REAL.as_pointer()) for one in (x, weights, bias, y))
            starts, parts = (builder.inttoptr(one, AT.as_pointer()) for one in (reads, pieces))
            begins = [
                builder.gep(left, [builder.load(builder.gep(starts, [constant(AT, row)]))]) for row in range(rows)
            ]
            firsts = [load(builder, shift, constant(AT, number * LANES), vector) for number in range(VECTORS)]
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(VECTORS)] for _ in range(rows)]
            for line in sums:
                for first, place in zip(firsts, line, strict=True):
                    builder.store(first, place)
            with cgutils.for_range(builder, count) as piece:
                part = builder.load(builder.gep(parts, [piece.index]))
                sources = [builder.gep(begin, [part]) for begin in begins]
                before = builder.mul(piece.index, length)
                with cgutils.for_range(builder, length) as loop:
                    number = builder.add(before, loop.index)
                    _fetch(builder, ahead, number)
                    _add_products(builder, vector, right, number, sources, loop.index, sums)
            _finish(builder, vector, (low, high, bool(is_hard_swish.literal_value)), sums, out, step, columns)
            return context.get_dummy_value()

        at, real = types.int64, types.float32
        return types.void(is_hard_swish, at, at, at, at, at, at, at, real, real, at, at, at, at), generate

    return tile


def _add_products(
    builder: Any, vector: Any, weights: Any, number: Any, sources: list[Any], at: Any, sums: Any, in_order: bool = False
) -> None:
    """Add to the sums of each row its number at ``at`` times row ``number`` of the weights. ``in_order`` keeps LLVM from reading all
    rows first: their numbers would take the registers of the sums.
    """
    start = builder.mul(number, constant(AT, COLUMNS))
    taken = [
        load(builder, weights, builder.add(start, constant(AT, place * LANES)), vector) for place in range(VECTORS)
    ]
    for source, line in zip(sources, sums, strict=True):
        value = filled(builder, builder.load(builder.gep(source, [at])), vector)
        for weight, place in zip(taken, line, strict=True):
            builder.store(multiply_add(builder, value, weight, builder.load(place)), place)
        if in_order:
            builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)


def _finish(builder: Any, vector: Any, activation: Any, sums: Any, out: Any, step: Any, columns: Any) -> None:
    """Store the sums behind their activation: the least and the largest number, and whether it is HardSwish."""
    low, high, is_gated = activation
    least, most = (filled(builder, one, vector) for one in (low, high))
    done = [[activated(builder, builder.load(place), least, most, is_gated) for place in line] for line in sums]
    _store(builder, done, out, step, columns)


def _store(builder: Any, done: list[list[Any]], out: Any, step: Any, columns: Any) -> None:
    """Write the rows, ``step`` numbers apart, as far as there are columns."""
    mask = [mask_of(builder, constant(AT, number * LANES), columns) for number in range(VECTORS)]
    is_whole = builder.icmp_signed(">=", columns, constant(AT, COLUMNS))
    with builder.if_else(is_whole) as (then, otherwise):
        for branch, is_masked in ((then, False), (otherwise, True)):
            with branch:
                for row, line in enumerate(done):
                    for number, value in enumerate(line):
                        at = builder.add(builder.mul(step, constant(AT, row)), constant(AT, number * LANES))
                        target = builder.gep(out, [at])
                        if is_masked:
                            masked(builder, REAL, target, mask[number], value)
                        else:
                            builder.store(value, builder.bitcast(target, value.type.as_pointer()), align=4)


def _planes_tile(rows: int) -> Any:
    """The intrinsic that computes ``rows`` outputs of a convolution at ``COLUMNS`` positions: y = the activation of bias and the sums
    of w[t] * x[offsets[t]]. The outputs are ``step`` numbers apart in y.
    """

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def tile(
        typing: Any, is_hard_swish: Any, x: Any, offsets: Any, taps: Any, weights: Any, bias: Any, low: Any, high: Any,
        y: Any, step: Any, left: Any,
    ) -> Any:  # fmt: skip
        vector = ir.VectorType(REAL, LANES)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, x, offsets, taps, weights, bias, low, high, y, step, left = arguments
            source, by, shift, out = (builder.inttoptr(one, REAL.as_pointer()) for one in (x, weights, bias, y))
            places = builder.inttoptr(offsets, AT.as_pointer())
            begins = [builder.gep(by, [builder.mul(taps, constant(AT, row))]) for row in range(rows)]
            sums = [[cgutils.alloca_once(builder, vector) for _ in range(VECTORS)] for _ in range(rows)]
            for row, line in enumerate(sums):
                first = filled(builder, builder.load(builder.gep(shift, [constant(AT, row)])), vector)
                for place in line:
                    builder.store(first, place)
            with cgutils.for_range(builder, taps) as loop:
                start = builder.gep(source, [builder.load(builder.gep(places, [loop.index]))])
                _add_products(builder, vector, start, constant(AT, 0), begins, loop.index, sums, True)
            _finish(builder, vector, (low, high, bool(is_hard_swish.literal_value)), sums, out, step, left)
            return context.get_dummy_value()

        at, real = types.int64, types.float32
        return types.void(is_hard_swish, at, at, at, at, at, real, real, at, at, at), generate

    return tile


def _fetch(builder: Any, start: Any, number: Any) -> None:
    """Ask for the line of memory ``number`` lines after ``start``."""
    place = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [place, WORD, WORD, WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    address = builder.gep(builder.inttoptr(start, place), [builder.mul(number, constant(AT, LINE))])
    builder.call(function, [address, constant(WORD, 0), constant(WORD, 2), constant(WORD, 1)])


_twelve, _six, _three, _one = (_tile(rows) for rows in (ROWS, 6, 3, 1))


@functools.cache
def _loop(is_hard_swish: int) -> Callable[..., None]:
    """The loop over the tiles of some rows and blocks."""

    @compiled
    def loop(
        x: Array, reads: Array, pieces: Array, length: int, packed: Array, bias: Array, low: Any, high: Any,
        rows: tuple[int, int], blocks: tuple[int, int], y: Array,
    ) -> None:  # fmt: skip
        count, step, columns = pieces.size, y.shape[1], y.shape[1]
        inner, source, places, parts = packed.shape[1], x.ctypes.data, reads.ctypes.data, pieces.ctypes.data
        for start in range(rows[0], rows[1], CHUNK):
            end = min(start + CHUNK, rows[1])
            for block in range(blocks[0], blocks[1]):
                weights = packed.ctypes.data + block * inner * COLUMNS * 4
                shift, left = bias.ctypes.data + block * COLUMNS * 4, columns - block * COLUMNS
                target, row, number = y.ctypes.data + block * COLUMNS * 4, start, 0
                is_last = block + 1 >= blocks[1]
                while row < end:
                    ahead = weights if is_last or number > 1 else weights + inner * (COLUMNS * 4 + number * LINE)
                    read, out = places + row * 8, target + row * step * 4
                    if row + ROWS <= end:
                        _twelve(is_hard_swish, source, read, parts, count, length, weights, shift, low, high, out, step, left, ahead)  # fmt: skip
                        row += ROWS
                    elif row + 6 <= end:
                        _six(is_hard_swish, source, read, parts, count, length, weights, shift, low, high, out, step, left, ahead)  # fmt: skip
                        row += 6
                    elif row + 3 <= end:
                        _three(is_hard_swish, source, read, parts, count, length, weights, shift, low, high, out, step, left, ahead)  # fmt: skip
                        row += 3
                    else:
                        _one(is_hard_swish, source, read, parts, count, length, weights, shift, low, high, out, step, left, ahead)  # fmt: skip
                        row += 1
                    number += 1

    made: Callable[..., None] = loop
    return made


_twelve_outputs, _four_outputs, _one_output = (_planes_tile(rows) for rows in (ROWS, 4, 1))


@functools.cache
def across_planes(is_hard_swish: int) -> Callable[..., None]:
    """The loop over the tiles of a convolution of planes [channels, sh, sw, *]."""

    @compiled
    def loop(x: Array, offsets: Array, weights: Array, bias: Array, low: Any, high: Any, y: Array) -> None:
        outs, oh, ow = y.shape
        full, taps, step, places = x.shape[4], offsets.size, oh * ow, offsets.ctypes.data
        for i in range(oh):
            for j in range(0, ow, COLUMNS):
                source, left, o = x.ctypes.data + (i * full + j) * 4, ow - j, 0
                target = y.ctypes.data + (i * ow + j) * 4
                while o < outs:
                    by, shift, out = weights.ctypes.data + o * taps * 4, bias.ctypes.data + o * 4, target + o * step * 4
                    if o + ROWS <= outs:
                        _twelve_outputs(is_hard_swish, source, places, taps, by, shift, low, high, out, step, left)
                        o += ROWS
                    elif o + 4 <= outs:
                        _four_outputs(is_hard_swish, source, places, taps, by, shift, low, high, out, step, left)
                        o += 4
                    else:
                        _one_output(is_hard_swish, source, places, taps, by, shift, low, high, out, step, left)
                        o += 1

    made: Callable[..., None] = loop
    return made


@compiled
def pad_last(x: Array, top: int, left: int, out: Array) -> None:
    """x [H, W, C] with zeros around it."""
    high, wide, channels = x.shape
    for i in range(out.shape[0]):
        is_row = top <= i < top + high
        for j in range(out.shape[1]):
            if is_row and left <= j < left + wide:
                for c in range(channels):
                    out[i, j, c] = x[i - top, j - left, c]
            else:
                for c in range(channels):
                    out[i, j, c] = f32(0)


def _calls(packed: Array, bias: Array, pieces: Array, length: int, is_hard_swish: int, low: Any, high: Any) -> Any:
    """The function ``(x, reads, y)`` that gives the call of one product, cut into parts where several threads are there."""
    loop, blocks = _loop(is_hard_swish), packed.shape[0]

    def call(x: Array, reads: Array, y: Array) -> Call:
        rows = len(y)
        given = x, reads, pieces, length, packed, bias, low, high
        parts = min(MAX_PARTS, y.size * packed.shape[1] // PART_MULTIPLIES)
        if parts < 2 or not are_several():
            return partial(loop, *given, (0, rows), (0, blocks), y)
        if blocks >= parts:
            step = -(-blocks // parts)
            cuts = [((0, rows), (start, min(start + step, blocks))) for start in range(0, blocks, step)]
        else:
            step = -(-rows // parts // ROWS) * ROWS
            cuts = [((start, min(start + step, rows)), (0, blocks)) for start in range(0, rows, step)]
        return partial(spread, [partial(loop, *given, *cut, y) for cut in cuts])

    return call


def _product(facts: Facts, weights: Array | None, bias: Array | None, is_turned: bool = False) -> Prepared | None:
    """Rows of the first operand times constant weights [K, N], or [N, K] where ``is_turned``."""
    spec = facts.inputs[0]
    if weights is not None and weights.dtype == np.float16:
        return prepare_halves(facts, weights, bias, is_turned)
    if not IS_THERE or spec is None or not is_plain(spec) or any(facts.channels_last):
        return None
    if weights is None or weights.ndim != 2 or weights.dtype != FLOAT32 or 0 in weights.shape or not spec[0]:
        return None
    inner, outs = weights.shape[::-1] if is_turned else weights.shape
    rows = math.prod(spec[0][:-1])
    if rows < 2 or rows * inner * outs < LEAST_MULTIPLIES or outs < LANES:
        return None
    packed, shift = facts.once("packed", (weights, bias), lambda: _packed(weights.T if is_turned else weights, bias))
    reads, pieces = np.arange(rows, dtype=np.int64) * inner, np.zeros(1, np.int64)
    product = _calls(packed, shift, pieces, inner, 0, f32(-math.inf), f32(math.inf))

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        source, made = operand(x, (x.size,))
        return [*made, product(source, reads, out[0].reshape(rows, outs))]

    return Prepared(Calls(calls), inplace=())


def _packed(weights: Array, bias: Array | None) -> tuple[Array, Array]:
    packed = pack(weights)
    return packed, pack_bias(bias, len(packed))


def prepare_MatMul(facts: Facts) -> Prepared | None:
    return _product(facts, facts.consts[1], None)


def prepare_Gemm(facts: Facts) -> Prepared | None:
    attrs, weights = facts.attrs, facts.consts[1]
    bias = facts.consts[2] if len(facts.consts) > 2 else None
    if attrs.get("transA", 0) or attrs.get("alpha", 1.0) != 1.0 or attrs.get("beta", 1.0) != 1.0 or weights is None:
        return None
    columns, given = facts.outputs[0][0][-1], facts.inputs[2] if len(facts.inputs) > 2 else None
    if given is not None and (bias is None or bias.shape not in ((columns,), (1, columns))):
        return None
    return _product(facts, weights, bias, bool(attrs.get("transB", 0)))


def prepare_image(
    facts: Facts, window: Window, folded: Callable[[], tuple[Array, Array]], bounds: tuple[int, Any, Any]
) -> Prepared | None:
    """A convolution of images in channels-last memory, which reads the rows of its windows where they are.

    Shapes: ``folded`` gives weights [outs, ins * kh * kw] and their bias, with the BatchNormalization that follows.
    """
    (batch, ins, *dims), w, bias = facts.inputs[0][0], facts.consts[1], facts.consts[2:7]  # type: ignore[index]
    assert w is not None
    (outs, (oh, ow)), points = (len(w), window.out), batch * math.prod(window.out)
    if not IS_THERE or outs < LANES or points < 2 or points * outs * math.prod(w.shape[1:]) < LEAST_MULTIPLIES:
        return None

    def arranged() -> tuple[Array, Array]:
        weights, shift = folded()
        return _packed(weights.reshape(w.shape).transpose(2, 3, 1, 0).reshape(-1, outs), shift)

    packed, shift = facts.once("packed", (w, *bias), arranged)
    padded = [dim + low + high for dim, low, high in zip(dims, window.before, window.after, strict=True)]
    (sh, sw), (dh, dw), (kh, kw) = window.strides, window.dilations, window.kernel
    across = 1 if dw == 1 else kw
    lines = np.arange(batch)[:, None, None] * padded[0] + np.arange(oh)[:, None] * sh
    reads = ((lines * padded[1] + np.arange(ow) * sw) * ins).reshape(-1)
    pieces = (np.arange(kh)[:, None] * dh * padded[1] + np.arange(across) * dw).reshape(-1) * ins
    product = _calls(packed, shift, pieces, kw * ins // across, *bounds)

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        source, made = operand(nhwc(x), (batch, *dims, ins))
        for sample in range(batch if window.is_padded else 0):
            made.append(partial(pad_last, source[sample], window.before[0], window.before[1], room[0][sample]))
        flat = (room[0] if window.is_padded else source).reshape(-1)
        return [*made, product(flat, reads, nhwc(out[0]).reshape(points, outs))]

    scratch = (((batch, *padded, ins), FLOAT32),) if window.is_padded else ()
    return Prepared(Calls(calls), scratch, channels_last=True, inplace=())
