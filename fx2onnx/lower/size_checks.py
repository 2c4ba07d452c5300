"""``fx2onnx::checked``, an operator of ours: a tensor as it is, where sizes that only the data tells are as they have to be."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fx2onnx.aten_map.table.registry import TABLE, Table, translates
from fx2onnx.base.dims import Scalar
from fx2onnx.base.relations import Relation
from fx2onnx.capture.recording.size_checks import CHECKED
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, dtype_of

_COMPARED = {"eq": "Equal", "ne": "Equal", "lt": "Less", "ge": "Less", "gt": "Greater", "le": "Greater"}
_WHERE_FALSE = frozenset({"ne", "ge", "le"})


@translates(CHECKED)
def checked(op: Emit, self: ir.Value, sign: str, left: Scalar, right: Scalar, line: str) -> ir.Value:
    """fx2onnx::checked(Tensor self, str sign, SymInt left, SymInt right, str line) -> Tensor

    Shapes:  self as it is.
    ONNX:    Slice from a start that a Gather takes from [0], at 0 where the comparison is true; at 1, which is beyond the end,
             where it is not. The Gather is named after the comparison and the line, since engines name the node that fails.
    """
    holds, fails = (1, 0) if sign in _WHERE_FALSE else (0, 1)
    is_so = op.node(_COMPARED[sign], op.size(left), op.size(right))
    place = op.Where(is_so, op.const(holds), op.const(fails))
    start = op.Gather(np.zeros(1, np.int64), op.reshape(place, [1]), axis=0)
    named = start.producer()
    assert named is not None
    text = str(Relation(sign, (left, right)))
    named.name = op.builder.unique(f"{text} has to be true ({line})" if line else f"{text} has to be true")
    dims = dims_of(self)
    whole = self if dims else op.reshape(self, [1])
    end = np.array([np.iinfo(np.int64).max])
    outputs = ((dtype_of(self), dims or (1,)),)
    passed = op.Slice(whole, start, end, np.zeros(1, np.int64), outputs=outputs)
    return passed if dims else op.reshape(passed, [])


def without_checks(table: Table) -> Table:
    """``table``, with tensors as they are in the place of checks."""
    return table.extended({CHECKED: lambda op, self, sign, left, right, line: self})


TABLE.add(CHECKED, 0, checked, is_complex=True)
