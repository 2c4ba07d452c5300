"""Products of bytes by the instruction that multiplies four of each and adds them to an int32 (AVX-512 VNNI)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from fx2onnx.runner.fast.compiled import compiled, i32, operand
from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.registry import Calls, Facts, Prepared
from fx2onnx.semantics.types import Array, Spec

LANES, VECTORS, ROWS = 16, 4, 6
COLUMNS = LANES * VECTORS
"""Columns of a block of weights: with ``ROWS`` rows, the sums take 24 of the 32 vector registers."""
INT32, UINT8, INT8 = (np.dtype(one) for one in (np.int32, np.uint8, np.int8))
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


@compiled
def corrected(c: Array, rows: Array, zero: Array, flip: Any, of_column: Array, of_row: Array, out: Array) -> None:
    """out = the sums of x - zero times w - its zero point, from those of the bytes as they are."""
    shift = i32(zero[0]) + flip
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = c[r, j] + shift * of_column[j] - of_row[j] * rows[r]


@compiled
def _pack_fed(weights: Array, zero: Array, lift: Any, packed: Array, of_column: Array, of_row: Array) -> None:
    """``pack`` of weights less ``lift``, with what their zero point adds to each column and takes from each row."""
    inner, outs = weights.shape
    low = i32(zero[0]) - lift
    for j in range(outs):
        of_column[j], of_row[j] = i32(inner) * low, low
    for block in range(packed.shape[0]):
        first = block * COLUMNS
        for q in range(packed.shape[1]):
            target = packed[block, q]
            for k in range(4):
                row = min(4 * q + k, inner - 1)
                for lane in range(min(COLUMNS, outs - first)):
                    code = i32(weights[row, first + lane]) - lift if 4 * q + k < inner else i32(0)
                    target[lane, k] = code
                    of_column[first + lane] -= code


@compiled
def fed_products(
    a: Array, b: Array, a_zero: Array, b_zero: Array, flip: Any, lift: Any,
    rows: Array, packed: Array, c: Array, totals: Array, terms: Array, sums: Array,
) -> None:  # fmt: skip
    """sums = the products of matrices of bytes less their zero points. Shapes: a [N, rows, K], b [N, K, columns], sums [N, rows, columns]."""
    for n in range(a.shape[0]):
        bytes_of(a[n], flip, rows)
        _pack_fed(b[n], b_zero, lift, packed, terms[0], terms[1])
        products(rows, packed, c)
        row_sums(rows, totals)
        corrected(c, totals, a_zero, i32(flip), terms[0], terms[1], sums[n])


Finish = Callable[[Array, Array, list[Call], Sequence[Any]], Call]
"""From the sums, the output, the calls so far, to which it may add, and the operands: the call that makes the output."""


def flip_of(dtype: Any) -> int:
    """The number added to values of one type of a byte so that they are uint8."""
    return 128 if dtype == INT8 else 0


def is_byte(spec: Any) -> bool:
    return spec is not None and spec[1] in (UINT8, INT8)


def prepare_fed(facts: Facts, place: int, zeros: tuple[int, int], finish: Finish) -> Prepared | None:
    """A product of two operands that are fed: as many matrices of one as of the other, each with one zero point."""
    left, right = facts.inputs[0], facts.inputs[place]
    given = [facts.inputs[zero] if len(facts.inputs) > zero else None for zero in zeros]
    if left is None or right is None or not is_byte(right) or left[0][:-2] != right[0][:-2]:
        return None
    if min(len(left[0]), len(right[0])) < 2:
        return None
    (*lead, inner, outs), rows = right[0], left[0][-2]
    if 0 in (*left[0], *right[0]) or any(zero is not None and math.prod(zero[0]) != 1 for zero in given):
        return None
    count, quads, blocks = math.prod(lead), -(-inner // 4), -(-outs // COLUMNS)
    scratch: tuple[Spec, ...] = (
        ((rows, quads * 4), UINT8),
        ((blocks, quads, COLUMNS, 4), INT8),
        ((rows, blocks * COLUMNS), INT32),
        ((rows,), INT32),
        ((2, outs), INT32),
        ((count, rows, outs), INT32),
    )
    flip, lift = np.uint8(flip_of(left[1])), i32(128 if right[1] == UINT8 else 0)

    def calls(out: Outs, room: list[Array], *operands: Any) -> list[Call]:
        found = [operands[zero] if len(operands) > zero else None for zero in zeros]
        points = [
            np.zeros(1, kind) if one is None else one for one, kind in zip(found, (left[1], right[1]), strict=True)
        ]
        shapes = (
            (operands[0], (count, rows, inner)),
            (operands[place], (count, inner, outs)),
            *((one, (1,)) for one in points),
        )
        pairs = [operand(*one) for one in shapes]
        made = [call for _, copies in pairs for call in copies]
        a, b, a_zero, b_zero = (one for one, _ in pairs)
        made.append(partial(fed_products, a, b, a_zero, b_zero, flip, lift, *room))
        sums = room[5].reshape(count * rows, outs)
        made.append(finish(sums, out[0].reshape(sums.shape), made, operands))
        return made

    return Prepared(Calls(calls), scratch, inplace=())
