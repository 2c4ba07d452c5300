"""The module's tensors as ONNX tensors that share their memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from fx2onnx.base.errors import UserError
from fx2onnx.irx.data_file import Buffers, Bytes, all_bytes
from fx2onnx.irx.transposition import transposed_blocks
from fx2onnx.irx.values import LOOKS


class Weight(TorchTensor):
    """A parameter or buffer; its bytes are read from the tensor's own memory when the file is written."""

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        super().__init__(plain, name=name)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.raw.nbytes

    def numpy(self) -> npt.NDArray[Any]:
        """The numbers."""
        LOOKS.note(self)
        return self.raw.numpy(force=True) if self.raw.dtype == torch.float32 else super().numpy()

    def permuted(self, perm: tuple[int, ...]) -> Weight:
        """The weight in another axis order, over the same memory."""
        return Weight(self.raw.permute(perm), self.name or "")

    def blocks(self, buffers: Buffers) -> Iterator[Bytes]:
        """The bytes in C order: the tensor's own memory where it lies so, else copied into ``buffers``."""
        for block in _blocks(self.raw.cpu(), buffers):
            yield block.reshape(-1).view(torch.uint8).numpy() if isinstance(block, torch.Tensor) else block

    def tobytes(self) -> bytes:
        """The bytes in C order, little-endian."""
        return all_bytes(self)

    @property
    def lacks_data(self) -> bool:
        """Whether the tensor is a mere description (the module is on the meta device)."""
        return self.raw.device.type == "meta"


def _blocks(tensor: torch.Tensor, buffers: Buffers) -> Iterator[torch.Tensor | Bytes]:
    """Pieces of ``tensor`` in C order, as contiguous tensors or as bytes."""
    if tensor.is_contiguous():
        yield tensor
        return
    if (
        tensor.dim() == 2
        and tensor.stride(0) == 1
        and 0 < tensor[0].nbytes <= buffers.size
        and tensor.dtype == torch.float32
    ):
        yield from transposed_blocks(tensor.t().numpy(), buffers)
    elif tensor.nbytes <= buffers.size:
        yield _held(tensor, buffers.take())
    elif tensor.dim() == 2 and (rows := buffers.size // 2 // tensor[0].nbytes):
        transposed = tensor.stride(0) == 1
        for start in range(0, len(tensor), rows):
            first, second = buffers.take().reshape(2, -1)
            piece = tensor[start : start + rows]
            # Copied as it lies and transposed in the cache: twice as fast as in one go (torch blocks only the transpose
            # of a whole contiguous matrix).
            yield _held(_held(piece.t(), second).t() if transposed else piece, first)
    else:
        for part in tensor:
            yield from _blocks(part, buffers)


def _held(tensor: torch.Tensor, buffer: Bytes) -> torch.Tensor:
    return torch.from_numpy(buffer[: tensor.nbytes]).view(tensor.dtype).view(tensor.shape).copy_(tensor)


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
