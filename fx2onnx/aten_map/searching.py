"""Searching: membership, sorted positions, histograms."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of, rank_of

aten = torch.ops.aten
D = ir.DataType


@translates(aten.isin.Tensor_Tensor)
def isin_tensor_tensor(
    op: Emit, elements: ir.Value, test_elements: ir.Value, assume_unique: bool, invert: bool
) -> ir.Value:
    """isin(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor

    ONNX:    every element beside every test element: Equal and a reduction by Max. Memory: elements x tests.
    """
    tests = op.Reshape(test_elements, [-1]) if rank_of(test_elements) != 1 else test_elements
    if dims_of(tests)[0] == 0:
        return op.expand(op.const(np.array(invert)), dims_of(elements))
    same = compare(op, "Equal", op.Unsqueeze(elements, axes=[rank_of(elements)]), tests)
    found = op.cast(op.ReduceMax(op.cast(same, D.INT32), axes=[-1], keepdims=0), D.BOOL)
    return op.Not(found) if invert else found


@translates(aten.isin.Tensor_Scalar)
def isin_tensor_scalar(op: Emit, elements: ir.Value, test_element: Any, assume_unique: bool, invert: bool) -> ir.Value:
    """isin(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor

    ONNX:    Equal.
    """
    return compare(op, "NotEqual" if invert else "Equal", elements, test_element)


@translates(aten.isin.Scalar_Tensor)
def isin_scalar_tensor(op: Emit, element: Any, test_elements: ir.Value, assume_unique: bool, invert: bool) -> ir.Value:
    """isin(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor

    ONNX:    Equal and a reduction by Max.
    """
    same = op.cast(compare(op, "Equal", test_elements, element), D.INT32)
    found = op.cast(op.ReduceMax(same, keepdims=0), D.BOOL)
    return op.Not(found) if invert else found
