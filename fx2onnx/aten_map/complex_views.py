"""Views between complex numbers and pairs of reals, and conjugate transposes.

A complex tensor is a real one with a trailing axis of 2, so the two views are nothing to do.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.axes import swap
from fx2onnx.aten_map.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, dtype_of, rank_of

aten = torch.ops.aten


@translates(
    aten.view_as_real.default,
    aten.view_as_real_copy.default,
    aten.view_as_complex.default,
    aten.view_as_complex_copy.default,
)
def view_as_real(op: Emit, self: ir.Value) -> ir.Value:
    """view_as_real(Tensor(a) self) -> Tensor(a)
    view_as_real_copy(Tensor self) -> Tensor
    view_as_complex(Tensor(a) self) -> Tensor(a)
    view_as_complex_copy(Tensor self) -> Tensor
    """
    return self


@translates(aten.mH.default, aten.mH.a, aten.adjoint.default, aten.matrix_H.default, aten.matrix_H.a)
def mH(op: Emit, self: ir.Value) -> ir.Value:
    """mH(Tensor(a) self) -> Tensor(a)
    adjoint(Tensor(a) self) -> Tensor(a)
    matrix_H(Tensor(a) self) -> Tensor(a)

    The last two axes exchanged; of a complex tensor, the imaginary parts negated as well.
    """
    rank = rank_of(self)
    if len(op.result[0][1]) != rank or not _is_pair(op, self):
        return swap(op, self, rank - 2, rank - 1)
    signs = op.const(np.array([1, -1]), dtype_of(self))
    result: ir.Value = op.Mul(swap(op, self, rank - 3, rank - 2), signs)
    return result


def _is_pair(op: Emit, value: ir.Value) -> bool:
    """Whether ``value`` holds complex numbers: marked so, or the wanted dims keep its trailing axis of 2."""
    if value.meta.get("fx2onnx.complex"):
        return True
    dims, wanted = dims_of(value), tuple(op.result[0][1])
    plain = (*dims[:-2], dims[-1], dims[-2])
    return wanted != plain and len(dims) > 2 and wanted == (*dims[:-3], dims[-2], dims[-3], dims[-1])
