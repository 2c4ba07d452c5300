"""Products and convolutions of bytes, whose sums are exact in int32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast import depthwise, dot4
from fx2onnx.runner.fast.compiled import compiled, f32, i32, into_code, operand
from fx2onnx.runner.fast.dot4 import INT8, INT32, UINT8, Finish, flip_of, is_byte
from fx2onnx.semantics.kernels.contrib.quantized import with_weights_as_columns
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.kernels.integer_products import integer_range
from fx2onnx.semantics.kernels.windows import Window, conv_window
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array, Spec

CHUNK_BYTES = 1 << 19
"""Columns of a convolution are made and multiplied in chunks of about this size."""


@compiled
def _scaled(sums: Array, factor: Array, bias: Array, out: Array) -> None:
    """Shapes: sums, out [rows, columns]; factor, bias one or [columns]."""
    one = factor.size == 1
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = f32(sums[r, j]) * (factor[0] if one else factor[j])
        for j in range(bias.size):
            out[r, j] += bias[j]


@compiled
def _requantized(sums: Array, factor: Array, zero: Any, low: Any, high: Any, out: Array) -> None:
    """Shapes: sums, out [rows, columns]; factor [columns]."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = into_code(f32(sums[r, j]) * factor[j], zero, low, high)


def _products(facts: Facts, place: int, zeros: tuple[int, int], finish: Finish) -> Prepared | None:
    """A product with constant weights at input ``place``."""
    spec, weights = facts.inputs[0], facts.consts[place]
    if not dot4.IS_THERE or spec is None or not is_byte(spec):
        return None
    if weights is None or weights.ndim != 2:
        return dot4.prepare_fed(facts, place, zeros, finish)
    given = [facts.inputs[zero] if len(facts.inputs) > zero else None for zero in zeros]
    b_zero = facts.consts[zeros[1]] if given[1] is not None else np.zeros(1, weights.dtype)
    inner, outs = weights.shape
    if b_zero is None or weights.dtype not in (UINT8, INT8) or b_zero.size not in (1, outs) or b_zero.ndim > 1:
        return None
    if 0 in spec[0] or 0 in weights.shape or (given[0] is not None and math.prod(given[0][0]) != 1):
        return None
    flip, lift = flip_of(spec[1]), 128 if weights.dtype == UINT8 else 0
    rows, quads = math.prod(spec[0][:-1]), -(-inner // 4)

    def arranged() -> tuple[Array, Array, Array]:
        stored = (weights.astype(np.int16) - lift).astype(np.int8)
        shifts = np.broadcast_to(b_zero.astype(np.int32).reshape(-1) - lift, (outs,)).copy()
        return dot4.pack(stored), inner * shifts - stored.sum(0, dtype=np.int32), shifts

    packed, of_column, of_row = facts.once("packed", (weights, b_zero), arranged)
    has_sums = bool(of_row.any())
    width = packed.shape[0] * dot4.COLUMNS
    scratch: tuple[Spec, ...] = (((rows, width), INT32), ((rows, outs), INT32), ((rows,), INT32))
    scratch = (*scratch, ((rows, quads * 4), UINT8))
    none = np.zeros(1, np.uint8)

    def calls(out: Outs, room: list[Array], *operands: Any) -> list[Call]:
        c, sums, totals, copy = room
        left, made = operand(operands[0], (rows, inner))
        a_zero = operands[zeros[0]] if len(operands) > zeros[0] else None
        shift, first = (none, []) if a_zero is None else operand(a_zero, (1,))
        made += first
        if flip or inner % 4:
            made.append(partial(dot4.bytes_of, left, np.uint8(flip), copy))
            left = copy
        made.append(partial(dot4.products, left, packed, c))
        made.append(partial(dot4.row_sums, left, totals) if has_sums else partial(totals.fill, 0))
        made.append(partial(dot4.corrected, c, totals, shift, i32(flip), of_column, of_row, sums))
        made.append(finish(sums, out[0].reshape(rows, outs), made, operands))
        return made

    return Prepared(Calls(calls), scratch, inplace=())


def prepare_MatMulInteger(facts: Facts) -> Prepared | None:
    return _products(facts, 1, (2, 3), lambda sums, y, made, given: partial(np.copyto, y, sums))


def prepare_ScaledMatMulInteger(facts: Facts) -> Prepared | None:
    weights, factor, bias = facts.inputs[1], facts.inputs[4], facts.inputs[5] if len(facts.inputs) > 5 else None
    if weights is None or factor is None or len(weights[0]) != 2:
        return None
    columns = weights[0][1]
    if factor[0] not in ((), (1,), (columns,)) or (bias is not None and bias[0] != (columns,)):
        return None
    if facts.outputs[0][0][:-1] != (facts.inputs[0] or ((),))[0][:-1]:
        return None
    nothing = np.zeros(0, FLOAT32)

    def finish(sums: Array, y: Array, made: list[Call], given: Sequence[Any]) -> Call:
        by, first = operand(given[4], (given[4].size,))
        shift, second = (nothing, []) if bias is None else operand(given[5], (columns,))
        made += [*first, *second]
        return partial(_scaled, sums, by, shift, y)

    return _products(facts, 1, (2, 3), finish)


def _requantizing(scales: Sequence[Array | None], zero: Array | None, columns: int) -> tuple[Array, Any] | None:
    """The factor of each column, and the zero point, of constants; None where they are not."""
    if zero is None or zero.size != 1 or zero.dtype not in (UINT8, INT8):
        return None
    x, w, y = scales
    if x is None or w is None or y is None or any(one.dtype != FLOAT32 for one in (x, w, y)):
        return None
    if x.size != 1 or y.size != 1 or w.size not in (1, columns):
        return None
    factor = np.asarray(x.reshape(()) * w.reshape(-1) / y.reshape(()), FLOAT32)
    return np.broadcast_to(factor, (columns,)).copy(), f32(zero.item())


def prepare_QLinearMatMul(facts: Facts) -> Prepared | None:
    columns, zero = facts.outputs[0][0][-1] if facts.outputs[0][0] else 0, facts.consts[7]
    found = _requantizing((facts.consts[1], facts.consts[4], facts.consts[6]), zero, columns)
    if found is None or zero is None:
        return None
    (factor, shift), (low, high) = found, map(f32, integer_range(zero.dtype))
    return _products(
        facts, 3, (2, 5), lambda sums, y, made, given: partial(_requantized, sums, factor, shift, low, high, y)
    )


def prepare_QGemm(facts: Facts) -> Prepared | None:
    turned = with_weights_as_columns(facts)
    if turned is None or turned.consts[3] is None:
        return None
    consts, columns = (*turned.consts, None, None, None)[:9], turned.consts[3].shape[1]
    x, scale, c, y = consts[1], consts[4], consts[6], consts[7]
    if x is None or (c is not None and c.dtype != INT32):
        return None
    alpha, is_float = f32(facts.attrs.get("alpha", 1.0)), facts.outputs[0][1] == FLOAT32
    zero = consts[8] if not is_float else np.zeros(1, np.uint8)
    found = _requantizing((alpha * x, scale, np.ones(1, FLOAT32) if is_float else y), zero, columns)
    if found is None or zero is None:
        return None
    (factor, shift), (low, high) = found, map(f32, integer_range(zero.dtype))

    def finish(sums: Array, out: Array, made: list[Call], given: Sequence[Any]) -> Call:
        if c is not None:
            made.append(partial(np.add, sums, c, sums))
        if is_float:
            return partial(_scaled, sums, factor, np.zeros(0, FLOAT32), out)
        return partial(_requantized, sums, factor, shift, low, high, out)

    return _products(turned, 3, (2, 5), finish)


@compiled
def _words(x: Array, zero: Array, flip: Any, top: int, left: int, out: Array) -> None:
    """Four channels of an image [C, H, W] as the bytes of one int32 [C / 4, H + pads, W + pads], less 128; around it lies the zero
    point.
    """
    channels, high, wide = x.shape
    shift = (i32(zero[0]) + flip) ^ i32(128)
    around = shift | (shift << i32(8)) | (shift << i32(16)) | (shift << i32(24))
    for q in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                out[q, i, j] = around
        few = min(4, channels - 4 * q)
        second, third, fourth = i32(255 if few > 1 else 0), i32(255 if few > 2 else 0), i32(255 if few > 3 else 0)
        for i in range(high):
            a, b = x[4 * q, i], x[4 * q + min(1, few - 1), i]
            c, d = x[4 * q + min(2, few - 1), i], x[4 * q + min(3, few - 1), i]
            target = out[q, i + top, left : left + wide]
            for j in range(wide):
                low = ((i32(a[j]) + flip) ^ i32(128)) | ((((i32(b[j]) + flip) ^ i32(128)) & second) << i32(8))
                upper = (((i32(c[j]) + flip) ^ i32(128)) & third) | (
                    (((i32(d[j]) + flip) ^ i32(128)) & fourth) << i32(8)
                )
                target[j] = low | (upper << i32(16))


@compiled
def _columns(words: Array, first: int, last: int, ow: int, geometry: tuple[int, ...], out: Array) -> None:
    """The words under the window at positions first..last, as weights are packed."""
    kh, kw, sh, sw, dh, dw = geometry
    p = first
    while p < last:  # outside, because a division takes as long as a line of a small image
        y = p // ow
        x = p - y * ow
        block, lane = (p - first) // 64, (p - first) % 64
        count, number = min(ow - x, last - p, 64 - lane), 0
        for q in range(words.shape[0]):
            for i in range(kh):
                line = words[q, y * sh + i * dh]
                for j in range(kw):
                    target = out[block, number]
                    for n in range(count):
                        target[lane + n] = line[(x + n) * sw + j * dw]
                    number += 1
        p += count


@compiled
def _from_chunk(c: Array, start: int, of_row: Array, zeros: Array, out: Array) -> None:
    """The sums of channels and positions from those of the bytes: the last row of c has the sums of the words alone."""
    outs, count = out.shape[0], min(c.shape[1], out.shape[1] - start)
    for o in range(outs):
        for p in range(count):
            out[o, start + p] = c[o, p] - zeros[o] * c[outs, p] + of_row[o]


@compiled
def _codes_from_chunk(c: Array, start: int, of_row: Array, zeros: Array, factor: Array, bias: Array, zero: Any, low: Any, high: Any, out: Array) -> None:  # fmt: skip
    """``_from_chunk``, then ``_requantized_channels``."""
    outs, count = out.shape[0], min(c.shape[1], out.shape[1] - start)
    for o in range(outs):
        add, by, times, total = of_row[o] + bias[o], factor[o], zeros[o], c[outs]
        line, target = c[o], out[o, start : start + count]
        for p in range(count):
            target[p] = into_code(f32(line[p] - times * total[p] + add) * by, zero, low, high)


@compiled
def _requantized_channels(sums: Array, factor: Array, bias: Array, zero: Any, low: Any, high: Any, out: Array) -> None:
    """Shapes: sums, out [channels, positions]."""
    for o in range(out.shape[0]):
        for p in range(out.shape[1]):
            out[o, p] = into_code(f32(sums[o, p] + bias[o]) * factor[o], zero, low, high)


@compiled
def _row_terms(weight_sums: Array, zeros: Array, inner: Any, zero: Array, flip: Any, out: Array) -> None:
    shift = i32(zero[0]) + flip - i32(128)
    for o in range(out.size):
        out[o] = shift * (inner * zeros[o] - weight_sums[o])


Chunk = Callable[[Array, int, Array, Array, Array], Call]
"""From the sums of words at positions from ``start`` on, what is added to and taken from each row, and the output: the call that makes it."""


def _sums_of_chunk(c: Array, start: int, of_row: Array, zeros: Array, y: Array) -> Call:
    return partial(_from_chunk, c, start, of_row, zeros, y)


def _rows_of_words(weights: Array) -> Array:
    """uint8 weights [O, C, kh, kw] as rows of words (C / 4, kh, kw), with a last row of ones."""
    outs, ins, kh, kw = weights.shape
    full = np.zeros((outs + 1, -(-ins // 4) * 4, kh, kw), np.uint8)
    full[:outs, :ins] = weights
    full[outs, :ins] = 1
    return np.ascontiguousarray(full.reshape(outs + 1, -1, 4, kh, kw).transpose(0, 1, 3, 4, 2)).reshape(outs + 1, -1)


def _convolution(
    facts: Facts, place: int, zeros: tuple[int, int], finish: Finish, chunk: Chunk = _sums_of_chunk
) -> Prepared | None:
    """A convolution of images or lines with constant weights, its groups one or as many as channels."""
    spec, weights = facts.inputs[0], facts.consts[place]
    if spec is None or not is_byte(spec) or weights is None or weights.ndim not in (3, 4) or any(facts.channels_last):
        return None
    given = [facts.inputs[zero] if len(facts.inputs) > zero else None for zero in zeros]
    w_zero = facts.consts[zeros[1]] if given[1] is not None else np.zeros(1, weights.dtype)
    outs, group = weights.shape[0], facts.attrs.get("group", 1)
    if w_zero is None or weights.dtype not in (UINT8, INT8) or w_zero.size not in (1, outs):
        return None
    window = conv_window(spec[0], weights.shape, facts.attrs)
    is_depthwise = group == spec[0][1] == outs and group > 1
    if 0 in (*spec[0], *weights.shape, *window.out) or (group > 1 and not is_depthwise):
        return None
    if given[0] is not None and math.prod(given[0][0]) != 1:
        return None
    window = depthwise.as_image(window)
    if is_depthwise:
        return depthwise.prepare_codes(facts, weights, w_zero, window, zeros[0], finish)
    return _by_columns(facts, weights, w_zero, window, zeros[0], chunk) if dot4.IS_THERE else None


def _by_columns(
    facts: Facts, weights: Array, w_zero: Array, window: Window, zero: int, chunk: Chunk
) -> Prepared | None:
    spec = facts.inputs[0]
    assert spec is not None
    shape = batch, ins, high, wide = spec[0] if len(spec[0]) == 4 else (*spec[0][:2], 1, spec[0][2])
    outs, lift, flip = len(weights), flip_of(weights.dtype), i32(flip_of(spec[1]))

    def arranged() -> tuple[Array, Array, Array]:
        codes = (weights.astype(np.int16) + lift).astype(np.uint8).reshape(*weights.shape[:2], *window.kernel)
        shifts = np.broadcast_to(w_zero.astype(np.int32).reshape(-1) + lift, (outs,)).copy()
        return _rows_of_words(codes), codes.sum((1, 2, 3), dtype=np.int32), shifts

    rows, totals, shifts = facts.once("rows", (weights, w_zero), arranged)
    inner, quads = i32(math.prod(weights.shape[1:])), rows.shape[1] // 4
    positions, ow = math.prod(window.out), window.out[1]
    blocks = min(-(-positions // 64), max(1, CHUNK_BYTES // (max(quads, outs) * 256)))
    padded = (-(-ins // 4), high + window.before[0] + window.after[0], wide + window.before[1] + window.after[1])
    scratch: tuple[Spec, ...] = (
        (padded, INT32),
        ((blocks, quads, 64), INT32),
        ((outs + 1, blocks * 64), INT32),
        ((outs,), INT32),
    )
    (top, left), geometry, none = (
        window.before,
        (*window.kernel, *window.strides, *window.dilations),
        np.zeros(1, spec[1]),
    )

    def calls(out: Outs, room: list[Array], *operands: Any) -> list[Call]:
        words, columns, c, of_row = room
        x, made = operand(operands[0], shape)
        given = operands[zero] if len(operands) > zero else None
        shift, first = (none, []) if given is None else operand(given, (1,))
        made += [*first, partial(_row_terms, totals, shifts, inner, shift, flip, of_row)]
        packed = columns.view(np.int8).reshape(blocks, quads, 64, 4)
        for sample in range(batch):
            made.append(partial(_words, x[sample], shift, flip, top, left, words))
            for start in range(0, positions, blocks * 64):
                stop = min(start + blocks * 64, positions)
                made.append(partial(_columns, words, start, stop, ow, geometry, columns))
                made.append(partial(dot4.products, rows, packed, c))
                made.append(chunk(c, start, of_row, shifts, out[0][sample].reshape(outs, positions)))
        return made

    return Prepared(Calls(calls), scratch, inplace=())


def prepare_ConvInteger(facts: Facts) -> Prepared | None:
    return _convolution(facts, 1, (2, 3), lambda sums, y, made, given: partial(np.copyto, y, sums))


def prepare_QLinearConv(facts: Facts) -> Prepared | None:
    weights, zero = facts.consts[3], facts.consts[7]
    if weights is None or (len(facts.inputs) > 8 and facts.inputs[8] is not None and facts.consts[8] is None):
        return None
    found = _requantizing((facts.consts[1], facts.consts[4], facts.consts[6]), zero, len(weights))
    bias = facts.consts[8] if len(facts.consts) > 8 else None
    if found is None or zero is None or (bias is not None and bias.shape != (len(weights),)):
        return None
    (factor, shift), (low, high) = found, map(f32, integer_range(zero.dtype))
    added = np.zeros(len(weights), np.int32) if bias is None else bias.astype(np.int32)

    def finish(sums: Array, y: Array, made: list[Call], given: Sequence[Any]) -> Call:
        return partial(_requantized_channels, sums, factor, added, shift, low, high, y)

    def chunk(c: Array, start: int, of_row: Array, zeros: Array, y: Array) -> Call:
        return partial(_codes_from_chunk, c, start, of_row, zeros, factor, added, shift, low, high, y)

    return _convolution(facts, 3, (2, 5), finish, chunk)
