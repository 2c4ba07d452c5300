"""``fx2onnx::checked``, an operator of ours: a tensor as it is, where sizes that only the data tells are as they have to be."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fx2onnx.aten_map.table.registry import TABLE, Table, translates
from fx2onnx.capture.recording.size_checks import CHECKED, composed
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, dtype_of
from fx2onnx.sizes.assumptions import MOST_CHARS, put_shortly
from fx2onnx.sizes.expr import Scalar, is_real_number

_COMPARED = {"eq": "Equal", "ne": "Equal", "lt": "Less", "ge": "Less", "gt": "Greater", "le": "Greater"}
_WHERE_FALSE = frozenset({"ne", "ge", "le"})


@translates(CHECKED)
def checked(
    op: Emit, self: ir.Value, signs: Sequence[str], lefts: Sequence[Scalar], rights: Sequence[Scalar], line: str
) -> ir.Value:
    """checked(Tensor self, str[] signs, Scalar[] lefts, Scalar[] rights, str line) -> Tensor

    Shapes:  self as it is.
    ONNX:    Slice from a start that a Gather takes from [0], at 0 where the comparisons, as they are joined, are true; at 1, which
             is beyond the end, where they are not. The Gather is named after them and the line, since engines name the node that fails.
    """
    places: list[ir.Value] = []
    for sign, left, right in zip(signs, lefts, rights, strict=True):
        if sign in _COMPARED:
            places.append(_place(op, sign, left, right))
        else:
            join = op.Mul if sign == "or" else op.Max
            assert isinstance(left, int)
            joined = [places.pop() for _ in range(left)]
            places.append(functools.reduce(join, reversed(joined)))
    start = op.Gather(np.zeros(1, np.int64), op.reshape(places[0], [1]), axis=0)
    named = start.producer()
    assert named is not None
    text = f"{put_shortly(composed(signs, lefts, rights), MOST_CHARS)} has to be true"
    named.name = op.builder.unique(f"{text} ({line})" if line else text)
    dims = dims_of(self)
    whole = self if dims else op.reshape(self, [1])
    end = np.array([np.iinfo(np.int64).max])
    outputs = ((dtype_of(self), dims or (1,)),)
    passed = op.Slice(whole, start, end, np.zeros(1, np.int64), outputs=outputs)
    return passed if dims else op.reshape(passed, [])


def _place(op: Emit, sign: str, left: Scalar, right: Scalar) -> ir.Value:
    """0 where the comparison is true, else 1."""
    holds, fails = (1, 0) if sign in _WHERE_FALSE else (0, 1)
    dtype = ir.DataType.DOUBLE if is_real_number(left) or is_real_number(right) else ir.DataType.INT64
    is_so = op.node(_COMPARED[sign], op.size(left, dtype), op.size(right, dtype))
    return op.Where(is_so, op.const(holds), op.const(fails))


def without_checks(table: Table) -> Table:
    """``table``, with tensors as they are in the place of checks."""
    return table.extended({CHECKED: lambda op, self, signs, lefts, rights, line: self})


TABLE.add(CHECKED, 0, checked, is_complex=True)
