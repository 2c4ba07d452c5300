"""Tensors as NumPy has them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from fx2onnx.judge.engines import Array

_VIEWED = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


def to_numpy(tensor: torch.Tensor) -> Array:
    """The tensor as NumPy has it; complex numbers as a trailing pair of reals."""
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in _VIEWED:
        carrier, dtype = _VIEWED[tensor.dtype]
        return tensor.contiguous().view(carrier).numpy().view(dtype)
    return tensor.numpy()


def is_finite(array: Array) -> bool:
    """Whether it has neither NaN nor infinities."""
    return array.dtype.kind in "biuSUO" or bool(np.isfinite(array.astype(np.float32, copy=False)).all())
