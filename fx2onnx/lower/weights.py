"""The module's tensors as ONNX tensors that share their memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from fx2onnx.base.errors import UserError
from fx2onnx.irx.data_file import Bytes, Piece, all_bytes
from fx2onnx.irx.transposition import transposed_pieces


class ModuleWeight(TorchTensor):
    """A parameter or buffer; its bytes are read from the tensor's own memory when the file is written."""

    def __init__(self, tensor: torch.Tensor, name: str, reads: list[int] | None = None) -> None:
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        super().__init__(plain, name=name)
        self._reads = reads

    def put(self, tensor: torch.Tensor) -> None:
        """Have the numbers of another tensor of the same shape and dtype."""
        ModuleWeight.__init__(self, tensor, self.name or "", self._reads)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.raw.nbytes

    def numpy(self) -> npt.NDArray[Any]:
        """The numbers."""
        if self._reads is not None:
            self._reads.append(id(self))
        return self.raw.numpy(force=True) if self.raw.dtype == torch.float32 else super().numpy()

    def pieces(self, size: int) -> Iterator[Piece]:
        """The bytes in C order: the tensor's own memory where it lies so, else copies of some rows. From another device
        only as much is read at a time.
        """
        return tensor_pieces(self.raw, size)

    def permuted_pieces(self, perm: tuple[int, ...], size: int) -> Iterator[Piece]:
        """The bytes of the weight in another axis order."""
        return tensor_pieces(self.raw.permute(perm), size)

    def tobytes(self) -> bytes:
        """The bytes in C order, little-endian."""
        return all_bytes(self)

    @property
    def lacks_data(self) -> bool:
        """True if the tensor is a mere description (the module is on the meta device)."""
        return self.raw.device.type == "meta"


def tensor_pieces(tensor: torch.Tensor, size: int) -> Iterator[Piece]:
    """The bytes of a tensor in C order."""
    is_here = tensor.device.type == "cpu"
    if tensor.is_contiguous() and not is_here:
        flat_tensor, count = tensor.reshape(-1), max(size // tensor.itemsize, 1)
        for start in range(0, tensor.numel(), count):
            part = flat_tensor[start : start + count]
            yield Piece(part.nbytes, functools.partial(_copy, part))
        return
    if tensor.is_contiguous():
        yield Piece(tensor.nbytes, lambda _: tensor.reshape(-1).view(torch.uint8).numpy())
        return
    flat = tensor.dim() <= 2
    transposed = tensor.dim() == 2 and tensor.stride(0) == 1
    if transposed and is_here and tensor.dtype == torch.float32 and 0 < tensor[0].nbytes <= size:
        yield from transposed_pieces(tensor.t().numpy(), size)
    elif tensor.nbytes <= size:
        yield Piece(tensor.nbytes, functools.partial(_copy, tensor))
    elif flat and (rows := size // 2 // tensor[0].nbytes):
        copy = _copy_transposed if transposed else _copy
        for start in range(0, len(tensor), rows):
            part = tensor[start : start + rows]
            yield Piece(part.nbytes, functools.partial(copy, part))
    else:
        for part in tensor:
            yield from tensor_pieces(part, size)


def _copy(tensor: torch.Tensor, memory: Bytes) -> None:
    torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _copy_transposed(tensor: torch.Tensor, memory: Bytes) -> None:
    """Copied as it lies and transposed in the cache: twice as fast as in one go (torch blocks only the transpose of a
    whole contiguous matrix).
    """
    _copy(tensor.t().contiguous().t(), memory)


def as_onnx(tensor: torch.Tensor, name: str, reads: list[int] | None = None) -> ir.TensorProtocol:
    """The ONNX tensor for ``tensor``; that its numbers are read is noted in ``reads``. Raises UserError E203 for layouts that ONNX does not have."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantised" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise UserError(
            "E203",
            f"the weight {name} is a {kind} tensor",
            next="make it dense before exporting (tensor.to_dense(), tensor.dequantize())",
        )
    return ModuleWeight(tensor, name, reads)
