"""Products of codes as they come to. On CPUs without VNNI the int8 kernels of eager PyTorch and of onnxruntime add pairs of
products in 16 bits, where 255 * 127 + 255 * 127 has no room: what they give then is no measure of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from fx2onnx.torchcompat.eager_modes import EagerMode

OVERFLOWS = (
    "eager PyTorch's own int8 kernels overflow on this CPU, which adds pairs of products in 16 bits ({}): compared with what "
    "the codes come to"
)
"""A note of the verdict."""
_AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


def is_product(func: Any) -> bool:
    """Return whether the operator is a layer of codes that quantizes what it gives, in steps that do not depend on it."""
    name = func._schema.name
    return (
        func.namespace == "quantized"
        and name.removeprefix("quantized::").startswith(("linear", "conv"))
        and any(argument.name in ("output_scale", "Y_scale_i") for argument in func._schema.arguments)
    )


class ExactCodes(EagerMode):
    """The quantized values that the sums come to, for a layer whose values are off by more than a step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.overflowed: dict[str, None] = {}
        """The operators that were off."""

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if not is_product(func) or not isinstance(result, torch.Tensor) or not result.is_quantized:
            return result
        names = [argument.name for argument in func._schema.arguments]
        exact = _exact(func._schema.name, dict(zip(names, args, strict=False)) | kwargs, result)
        if int((exact.int_repr().int() - result.int_repr().int()).abs().max()) <= 1:
            return result
        self.overflowed.setdefault(func._schema.name)
        return exact


def _exact(name: str, given: Mapping[str, Any], like: torch.Tensor) -> torch.Tensor:
    x = given.get("qx", given.get("X")).dequantize().double()
    packed = next(given[key] for key in ("packed_weight", "W_prepack", "weight") if key in given)
    weight, bias = packed.unpack()
    weight, bias = weight.dequantize().double(), None if bias is None else bias.detach().double()
    if "linear" in name:
        found = functional.linear(x, weight, bias)
    else:
        is_line = "1d" in name  # PyTorch packs one axis as two
        spare = packed.output_padding() if packed.transpose() else [0] * (weight.dim() - 2)
        settings = (packed.stride(), packed.padding(), packed.dilation(), packed.transpose(), spare, packed.groups())
        found = torch.ops.aten.convolution.default(x.unsqueeze(2) if is_line else x, weight, bias, *settings)
        found = found.squeeze(2) if is_line else found
    if "qaccum" in given:
        found = found + given["qaccum"].dequantize()
    if "negative_slope" in given:
        found = functional.leaky_relu(found, given["negative_slope"])
    for word, function in _AFTER.items():
        found = function(found) if name.endswith(f"_{word}") else found
    return torch.quantize_per_tensor(found.float(), like.q_scale(), like.q_zero_point(), like.dtype)
