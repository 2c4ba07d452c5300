"""Window functions: constants, since their length is a Python number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import fixed
from fx2onnx.aten_map.table.dtypes import TORCH_DTYPES
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit

NAMES = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")


def _window(name: str) -> Callable[..., ir.Value]:
    function = getattr(torch, name)

    def entry(
        op: Emit, window_length: Any, periodic: bool = True, alpha: float | None = None, beta: float | None = None
    ) -> ir.Value:
        dtype = op.result_dtype()
        shape = {key: number for key, number in (("alpha", alpha), ("beta", beta)) if number is not None}
        length = fixed(window_length, "the length of a window")
        found = function(length, periodic, **shape, dtype=TORCH_DTYPES[dtype], device="cpu")
        return op.const(found.double().numpy(), dtype)

    return entry


for _name in NAMES:
    _overloads = " ".join(
        f"{_name}.{variant}" for variant in getattr(torch.ops.aten, _name).overloads() if "out" not in variant
    )
    register_shared(_window(_name), "a constant", *overloads_of(_overloads))
