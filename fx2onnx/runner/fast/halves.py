"""Products of few rows with weights of 4 bits or of float16: the weights are read once, and no copy of them is kept."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from fx2onnx.runner.fast.compiled import compiled, f32, i32, is_plain, operand, summing
from fx2onnx.runner.fast.lines import from_half, to_half
from fx2onnx.runner.fast.taps import HAS_HALVES, LANES, halves
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import FLOAT32, Array

MAX_ROWS = 4
"""More rows are faster as a product of matrices."""


@summing
def _multiply(x: Array, codes: Array, scales: Array, zeros: Array, bias: Array, y: Array) -> None:
    """Shapes: x [rows, blocks, 2, bytes], even columns before odd ones; codes [N, blocks, bytes]; scales, zeros [N, blocks]."""
    blocks, size = codes.shape[1:]
    for n in range(codes.shape[0]):
        for r in range(x.shape[0]):
            total = bias[n]
            for g in range(blocks):
                part, zero = f32(0), zeros[n, g]
                for k in range(size):
                    byte = i32(codes[n, g, k])
                    part += x[r, g, 0, k] * (f32(byte & i32(15)) - zero) + x[r, g, 1, k] * (f32(byte >> i32(4)) - zero)
                total += part * scales[n, g]
            y[r, n] = total


def prepare_MatMulNBits(facts: Facts) -> Prepared | None:
    spec, attrs = facts.inputs[0], facts.attrs
    columns, outs, size = attrs["K"], attrs["N"], attrs["block_size"]
    consts = [*facts.consts, *[None] * (6 - len(facts.consts))]
    given = [*facts.inputs, *[None] * (6 - len(facts.inputs))]
    if spec is None or not is_plain(spec) or math.prod(spec[0][:-1]) > MAX_ROWS or spec[0][-1] != columns:
        return None
    if attrs.get("bits", 4) != 4 or columns % size or size % 2 or given[3] is not None or given[4] is not None:
        return None
    codes, scales, bias = consts[1], consts[2], consts[5]
    if codes is None or scales is None or scales.dtype != FLOAT32 or (given[5] is not None and bias is None):
        return None
    rows, blocks = math.prod(spec[0][:-1]), columns // size
    packed = np.ascontiguousarray(codes).reshape(outs, blocks, size // 2)
    scale, zeros = np.array(scales).reshape(outs, blocks), np.full((outs, blocks), 8, FLOAT32)
    shift = np.zeros(outs, FLOAT32) if bias is None else np.array(bias, FLOAT32)

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        source, made = operand(x, (rows, blocks, size // 2, 2))
        copy = partial(np.copyto, room[0], source.transpose(0, 1, 3, 2))
        return [*made, copy, partial(_multiply, room[0], packed, scale, zeros, shift, out[0].reshape(rows, outs))]

    return Prepared(Calls(calls), (((rows, blocks, 2, size // 2), FLOAT32),), inplace=())


@compiled
def _add_lines(x: Array, weights: int, line: Array, y: Array) -> None:
    """y += x times the float16 at an address, [inner, outs]; ``line`` is scratch of one row of them. outs is a multiple of ``LANES``."""
    for k in range(x.shape[1]):
        halves(weights + 2 * k * line.size, line.ctypes.data, line.size, LANES, 1)
        for r in range(x.shape[0]):
            by = x[r, k]
            for j in range(line.size):
                y[r, j] += by * line[j]


@summing
def _sum_lines(x: Array, weights: int, line: Array, y: Array) -> None:
    """y += x times the float16 at an address, [outs, inner]. inner is a multiple of ``LANES``."""
    for n in range(y.shape[1]):
        halves(weights + 2 * n * line.size, line.ctypes.data, line.size, LANES, 1)
        for r in range(x.shape[0]):
            total = f32(0)
            for k in range(line.size):
                total += x[r, k] * line[k]
            y[r, n] += total


def prepare_halves(facts: Facts, weights: Array, bias: Array | None, is_turned: bool) -> Prepared | None:
    """Few rows of float16 times constant weights [K, N], or [N, K] where ``is_turned``; summed in float32 and rounded once."""
    spec, width = facts.inputs[0], weights.shape[-1]
    if not HAS_HALVES or spec is None or spec[1] != np.float16 or weights.ndim != 2 or not weights.flags.c_contiguous:
        return None
    rows, (inner, outs) = math.prod(spec[0][:-1]), weights.shape[::-1] if is_turned else weights.shape
    if not 0 < rows <= MAX_ROWS or width % LANES or 0 in weights.shape or not spec[0]:
        return None
    start = np.zeros(outs, FLOAT32) if bias is None else bias.astype(FLOAT32).reshape(-1)
    add, scratch = _sum_lines if is_turned else _add_lines, ((rows, inner), (width,), (rows, outs))

    def calls(out: Outs, room: list[Array], x: Array, *_: Any) -> list[Call]:
        wide, line, sums = room
        source, made = operand(x, (rows, inner))
        multiply = partial(add, wide, weights.ctypes.data, line, sums)
        made += [partial(from_half, source, wide), partial(np.copyto, sums, start), multiply]
        return [*made, partial(to_half, sums, out[0].reshape(rows, outs))]

    return Prepared(Calls(calls), tuple((shape, FLOAT32) for shape in scratch), inplace=())
