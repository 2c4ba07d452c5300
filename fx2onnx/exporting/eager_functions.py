"""Functions whose last bit each library rounds in its own way, as eager PyTorch computes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fx2onnx.optimize.evaluate import Array, Function


def _eager(function: Callable[..., torch.Tensor]) -> Function:
    def compute(*arrays: Array) -> Array:
        array: Array = function(*(torch.tensor(array, device="cpu") for array in arrays)).numpy()
        return np.asarray(array, dtype=arrays[0].dtype)

    return compute


EAGER_FUNCTIONS: dict[str, Function] = {
    "Cos": _eager(torch.cos),
    "Exp": _eager(torch.exp),
    "Log": _eager(torch.log),
    "Pow": _eager(torch.pow),
    "Sin": _eager(torch.sin),
}
"""ONNX operator -> function of arrays of float32 or float16; for ``fold_constants``."""
