"""float16 by way of float32: NumPy computes it number by number."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call, Outs
from fx2onnx.semantics.registry import Calls, Facts, Kernel, Prepared, bind
from fx2onnx.semantics.types import FLOAT32, LEAST_HALVES, Array, floats_of_halves, halves_of_floats

Convert = Callable[[Array, Array], None]

_BY_FLOATS = frozenset({
    "AveragePool", "BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "LogSoftmax", "LpNormalization", "MaxPool", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceSum", "ReduceSumSquare", "RMSNormalization", "Softmax",
})  # fmt: skip


def is_by_floats(kernel: Kernel) -> bool:
    """Return whether float32 gives the results of the kernel on float16, rounded once: NumPy computes float16 number by number."""
    return kernel.elementwise or (not kernel.domain and kernel.op_type in _BY_FLOATS)


def in_floats(
    kernel: Kernel,
    facts: Facts,
    prepare: Callable[[Facts], Prepared | None] | None,
    widen: Convert = floats_of_halves,
    narrow: Convert = halves_of_floats,
) -> Prepared | None:
    """The kernel on float16 by way of float32, as ``prepare`` computes that. None for kernels that are not ``is_by_floats`` and for
    few numbers.
    """
    half, (shape, dtype) = np.dtype(np.float16), facts.outputs[0]
    given = [spec is not None and spec[1] == half for spec in facts.inputs]
    if not any(given) or not is_by_floats(kernel) or kernel.op_type in _BY_BITS or len(facts.outputs) > 1:
        return None
    if max(math.prod(one[0]) for one in (facts.outputs[0], *facts.inputs) if one is not None) < LEAST_HALVES:
        return None
    if kernel.op_type in _COMPARING and widen is floats_of_halves:
        return None
    specs = [
        (spec[0], FLOAT32) if spec is not None and is_half else spec
        for spec, is_half in zip(facts.inputs, given, strict=True)
    ]
    consts = [
        one if one is None or not is_half else one.astype(FLOAT32) if one.size < LEAST_HALVES else None
        for one, is_half in zip(facts.consts, given, strict=True)
    ]
    result_spec = (shape, FLOAT32 if dtype == half else dtype)
    inner = None
    if prepare is not None:
        inner = prepare(Facts(specs, consts, [result_spec], [False] * len(given), facts.attrs, facts.kept))
    late = [is_half and const is None for is_half, const in zip(given, consts, strict=True)]
    scratch = [spec for spec, is_late in zip(specs, late, strict=True) if spec is not None and is_late]
    scratch += [result_spec] if dtype == half else []

    def calls(out: Outs, room: list[Array], *operands: Array) -> list[Call]:
        rooms, made = iter(room), list[Call]()
        wide = list(operands)
        for place, (x, const, is_half) in enumerate(zip(operands, consts, given, strict=True)):
            if late[place]:
                wide[place] = next(rooms)
                made.append(functools.partial(widen, x, wide[place]))
            elif is_half and const is not None:
                wide[place] = const
        result = next(rooms) if dtype == half else out[0]
        if inner is not None:
            made += bind(inner.fn, [result], list(rooms), *wide)
        else:
            made += bind(kernel.fn, [result], *wide, **facts.attrs)
        return made if result is out[0] else [*made, functools.partial(narrow, result, out[0])]

    return Prepared(Calls(calls), (*scratch, *(inner.scratch if inner is not None else ())), inplace=())


_BY_BITS = frozenset({"Abs", "Neg", "Where"})
"""Operators that NumPy computes by the bits, for float16, too."""
_COMPARING = frozenset({"Clip", "Max", "Min", "Relu"})
"""Operators that NumPy computes without rounding float16: it takes them as long as its conversions."""
