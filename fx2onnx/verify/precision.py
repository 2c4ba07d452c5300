"""A file in 16 bits beside a module that is not: the same numbers for both, and outputs as the module has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from fx2onnx.judge.constants import NEAR_THE_END
from fx2onnx.judge.engines import Array
from fx2onnx.judge.tolerance import is_mask_value
from fx2onnx.verify.interface import Interface

_FLOATS = (np.float16, np.float32)
_TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def rounded_inputs(tensors: Sequence[torch.Tensor], names: Sequence[str | None], file: Interface) -> list[torch.Tensor]:
    """The tensors with numbers that the file's inputs can have: what is rounded before both run is no difference."""
    if not file.grain.epsilon:
        return list(tensors)
    found = []
    for tensor, name in zip(tensors, names, strict=True):
        dtype = file.dtypes.get(name or "")
        narrow = None if dtype is None else _TORCH.get(np.dtype(dtype).name)
        is_other = narrow is not None and tensor.is_floating_point() and tensor.dtype != narrow
        found.append(tensor.to(narrow).to(tensor.dtype) if is_other else tensor)
    return found


def as_input(array: Array, name: str, file: Interface) -> Array:
    """The numbers in the dtype that the file's input has."""
    dtype = file.dtypes.get(name)
    if not file.grain.epsilon or dtype is None or not _is_float(array) or not _is_float(np.empty(0, dtype)):
        return array
    return array.astype(dtype, copy=False)


def widened(got: Array, want: Array) -> Array:
    """Floats in the dtype of ``want``; anything else as it is."""
    return got.astype(want.dtype) if got.dtype != want.dtype and _is_float(got) and _is_float(want) else got


def as_module_has_it(got: Array, want: Array) -> Array:
    """An output in the module's dtype, where both are floats of other widths; where it is infinite because the file's dtype
    ends before the module's number, this.
    """
    found = widened(got, want)
    if found is got or found.shape != want.shape or np.isfinite(found).all():
        return found
    end = (1 - NEAR_THE_END) * float(ml_dtypes.finfo(got.dtype).max)
    is_beyond = np.isinf(found) & (np.abs(want) > end) & (np.signbit(found) == np.signbit(want))
    return np.where(is_beyond, want, found)


def narrowed(array: Array, dtype: Any) -> Array:
    """Floats in another dtype, those that masks add as its lowest; as they are where it has no room for them."""
    if array.dtype == dtype or not _is_float(array):
        return array
    end = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(over="ignore"):
        masked = is_mask_value(array) & np.isfinite(array)
        found = np.where(masked, np.copysign(end, array), array).astype(dtype)
    return found if np.array_equal(np.isfinite(found), np.isfinite(array)) else array


def _is_float(array: Array) -> bool:
    return array.dtype in _FLOATS or array.dtype.name == "bfloat16"
