"""The module's tensors as ONNX tensors that share their memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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

    def numpy(self) -> npt.NDArray[np.generic]:
        self._require_data()
        return super().numpy()

    def tobytes(self) -> bytes:
        self._require_data()
        return super().tobytes()

    def tofile(self, file: object) -> None:
        self._require_data()
        super().tofile(file)

    def _require_data(self) -> None:
        if self.raw.device.type == "meta":
            raise UserError(
                "E301",
                f"the weight {self.name} has no data",
                why="the module is on the meta device",
                next="export with f=None for the structure only, or load the weights before exporting",
            )


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
