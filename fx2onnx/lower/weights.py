"""The module's tensors as ONNX tensors that share their memory."""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from fx2onnx.base.errors import UserError


class Weight(TorchTensor):
    """A parameter or buffer; its bytes are read from the tensor's own memory when the file is written."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        super().__init__(plain, name=name)

    def permuted(self, perm: tuple[int, ...]) -> Weight:
        """The weight in another axis order, as a contiguous copy."""
        return Weight(self.raw.permute(perm).contiguous(), self.name or "")

    @property
    def lacks_data(self) -> bool:
        """Whether the tensor is a mere description (the module is on the meta device)."""
        return self.raw.device.type == "meta"


def as_onnx(tensor: torch.Tensor, name: str) -> ir.TensorProtocol:
    """The ONNX tensor for ``tensor``. Raises UserError E203 for layouts that ONNX does not have."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise UserError(
            "E203",
            f"the weight {name} is a {kind} tensor",
            next="make it dense before exporting (tensor.to_dense(), tensor.dequantize())",
        )
    return Weight(tensor, name)
