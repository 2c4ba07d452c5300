"""Products of bytes by the instruction that multiplies four of each and adds them to an int32 (AVX-512 VNNI)."""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from fx2onnx.runner.fast.compiled import compiled, i32
from fx2onnx.semantics.types import Array

LANES, VECTORS, ROWS = 16, 4, 6
COLUMNS = LANES * VECTORS
"""Columns of a block of weights: with ``ROWS`` rows, the sums take 24 of the 32 vector registers."""
IS_THERE = bool(llvmlite.binding.get_host_cpu_features().get("avx512vnni"))


def pack(weights: Array) -> Array:
    """int8 [K, N] as [blocks of N, K / 4, ``COLUMNS``, 4], zeros at the ends."""
    inner, outs = weights.shape
    quads, blocks = -(-inner // 4), -(-outs // COLUMNS)
    full = np.zeros((quads * 4, blocks * COLUMNS), np.int8)
    full[:inner, :outs] = weights
    return np.ascontiguousarray(full.reshape(quads, 4, blocks, COLUMNS).transpose(2, 0, 3, 1))


def _loop(rows: int) -> Any:
    """The intrinsic ``(a, lda, b, quads, c, ldc)`` that computes ``rows`` rows of one block; the numbers count int32."""

    @intrinsic  # type: ignore[untyped-decorator]
    def block(typing: Any, a: Any, lda: Any, b: Any, quads: Any, c: Any, ldc: Any) -> Any:
        vector = ir.VectorType(ir.IntType(32), LANES)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, lda, b, quads, c, ldc = arguments
            function = numba.core.cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), "llvm.x86.avx512.vpdpbusd.512"
            )
            word, at = ir.IntType(32), ir.IntType(64)
            zero = ir.Constant(vector, [0] * LANES)
            sums = [[numba.core.cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in range(rows)]
            for line in sums:
                for place in line:
                    builder.store(zero, place)
            left, right, out = (builder.inttoptr(one, word.as_pointer()) for one in (a, b, c))
            with numba.core.cgutils.for_range(builder, quads) as loop:
                start = builder.mul(loop.index, ir.Constant(at, COLUMNS))
                weights = []
                for number in range(VECTORS):
                    place = builder.gep(right, [builder.add(start, ir.Constant(at, number * LANES))])
                    weights.append(builder.load(builder.bitcast(place, vector.as_pointer()), align=4))
                for row in range(rows):
                    step = builder.add(builder.mul(lda, ir.Constant(at, row)), loop.index)
                    four = builder.load(builder.gep(left, [step]), align=1)
                    first = builder.insert_element(ir.Constant(vector, ir.Undefined), four, ir.Constant(word, 0))
                    spread = builder.shuffle_vector(
                        first, ir.Constant(vector, ir.Undefined), ir.Constant(vector, [0] * LANES)
                    )
                    for place, weight in zip(sums[row], weights, strict=True):
                        builder.store(builder.call(function, [builder.load(place), spread, weight]), place)
            for row, line in enumerate(sums):
                for number, place in enumerate(line):
                    step = builder.add(builder.mul(ldc, ir.Constant(at, row)), ir.Constant(at, number * LANES))
                    target = builder.bitcast(builder.gep(out, [step]), vector.as_pointer())
                    builder.store(builder.load(place), target, align=4)
            return context.get_dummy_value()

        number = numba.types.int64
        return numba.types.void(number, number, number, number, number, number), generate

    return block


_six, _one = _loop(ROWS), _loop(1)


@compiled
def products(a: Array, b: Array, c: Array) -> None:
    """c = the sums of uint8 rows times packed weights.

    Shapes: a [rows, 4 * quads] uint8, b as ``pack``, c [rows, blocks * COLUMNS] int32.
    """
    rows, quads = a.shape[0], b.shape[1]
    lda, ldc = a.shape[1] // 4, c.shape[1]
    left, right, out = a.ctypes.data, b.ctypes.data, c.ctypes.data
    for block in range(b.shape[0]):
        weights = right + block * quads * COLUMNS * 4
        target = out + block * COLUMNS * 4
        row = 0
        while row + ROWS <= rows:
            _six(left + row * lda * 4, lda, weights, quads, target + row * ldc * 4, ldc)
            row += ROWS
        while row < rows:
            _one(left + row * lda * 4, lda, weights, quads, target + row * ldc * 4, ldc)
            row += 1


@compiled
def bytes_of(x: Array, flip: Any, out: Array) -> None:
    """The rows of x as uint8, with zeros up to a multiple of four; ``flip`` is 128 for int8."""
    for r in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[r, j] = np.uint8(x[r, j]) ^ flip
        for j in range(x.shape[1], out.shape[1]):
            out[r, j] = np.uint8(0)


@compiled
def row_sums(a: Array, out: Array) -> None:
    """The sum of each row of uint8."""
    for r in range(a.shape[0]):
        total = i32(0)
        for j in range(a.shape[1]):
            total += i32(a[r, j])
        out[r] = total
