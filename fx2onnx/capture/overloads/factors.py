"""Determinants and linear equations with the factors that their gradients are taken by."""

from __future__ import annotations

import torch

from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder

aten = torch.ops.aten


@register(Kind.RECORD, aten._linalg_det.default, aten._linalg_slogdet.default, aten._linalg_solve_ex.default)
def _with_factors(
    recorder: BaseRecorder, call: Call, A: torch.Tensor, B: torch.Tensor | None = None, left: bool = True
) -> tuple[object, ...]:
    """The result by the operator without factors. Those of a determinant are of the transposed matrix where it is
    contiguous, since the gradient's formula takes them so. Source: ATen/native/BatchLinearAlgebra.cpp.
    """
    info: tuple[object, ...] = ()
    is_turned = A.is_contiguous() and not A.is_complex()
    if call.func is aten._linalg_solve_ex.default:
        is_turned = False
        solution, number = recorder.handle(aten.linalg_solve_ex.default, (A, B), {"left": left})
        results, info = (solution,), (number,)
    elif call.func is aten._linalg_det.default:
        results = (recorder.handle(aten.linalg_det.default, (A,), {}),)
    else:
        results = tuple(recorder.handle(aten.linalg_slogdet.default, (A,), {}))
    with recorder.mode:
        matrix = A.mT if is_turned else A
    factors, pivots, _ = recorder.handle(aten.linalg_lu_factor_ex.default, (matrix,), {})
    return (*results, factors, pivots, *info)
