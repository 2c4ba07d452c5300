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


def to_tensor(array: Array) -> torch.Tensor:
    """A copy of the array as a tensor."""
    for dtype, (carrier, held) in _VIEWED.items():
        if array.dtype == held:
            return torch.from_numpy(array.view(torch.empty(0, dtype=carrier).numpy().dtype).copy()).view(dtype)
    return torch.from_numpy(np.array(array))


def is_finite(array: Array) -> bool:
    """Return whether it has neither NaN nor infinities."""
    return array.dtype.kind in "biuSUO" or bool(np.isfinite(array.astype(np.float32, copy=False)).all())
