"""The module's tensors as ONNX tensors that share their memory, transposed as fast as memory allows."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype

from fx2onnx.base.errors import UserError
from fx2onnx.irx.data_file import Bytes, Piece, all_bytes
from fx2onnx.irx.values import ir_shape

Array: TypeAlias = npt.NDArray[Any]

NAMES = (
    ("scipy_cblas_somatcopy64_", ctypes.c_int64),
    ("cblas_somatcopy64_", ctypes.c_int64),
    ("cblas_somatcopy", ctypes.c_int),
)
"""The names of ``cblas_somatcopy`` (an extension of BLAS) in builds of OpenBLAS, and their integers."""

ROW_MAJOR, TRANSPOSED = 101, 112
"""``CblasRowMajor`` and ``CblasTrans`` of cblas.h."""


@functools.cache
def _somatcopy() -> Callable[..., None] | None:
    """``cblas_somatcopy(order, trans, rows, cols, alpha, a, lda, b, ldb)``; None where NumPy's BLAS has none."""
    try:
        library = ctypes.CDLL(
            importlib.import_module("numpy._core._multiarray_umath").__file__
        )  # looks into what that depends on, too
    except (ImportError, OSError):
        return None
    for name, integer in NAMES:
        function = getattr(library, name, None)
        if function is not None:
            place, pointer = ctypes.c_int, ctypes.c_void_p
            function.argtypes = [place, place, integer, integer, ctypes.c_float, pointer, integer, pointer, integer]
            function.restype = None
            return function  # type: ignore[no-any-return]
    return None


def transposed_pieces(matrix: Array, size: int) -> Iterator[Piece]:
    """The bytes of ``matrix.T`` in C order, some of its rows at a time.

    Shapes:    matrix (m, n); a column must fit into ``size`` bytes.
    Dtypes:    any; float32 is some 5 times faster than by NumPy, which goes element by element.
    """
    length, count = matrix.shape
    apart, inside = matrix.strides
    function = (
        _somatcopy() if matrix.dtype == np.float32 and inside == 4 and apart % 4 == 0 and apart >= 4 * count else None
    )
    row_bytes = length * matrix.itemsize
    step = size // row_bytes
    for start in range(0, count, step):
        part = matrix[:, start : start + step] if step < count else matrix
        yield Piece(row_bytes * part.shape[1], functools.partial(_transpose, part, function))


def _transpose(matrix: Array, function: Callable[..., None] | None, target: Bytes) -> None:
    length, rows = matrix.shape
    if function is None:
        target.view(matrix.dtype).reshape(rows, length)[...] = matrix.T
        return
    leading = matrix.strides[0] // 4
    function(ROW_MAJOR, TRANSPOSED, length, rows, 1.0, matrix.ctypes.data, leading, target.ctypes.data, length)


class ModuleWeight(TorchTensor):
    """A parameter or buffer; its bytes are read from the tensor's own memory when the file is written."""

    def __init__(self, tensor: torch.Tensor, name: str, reads: list[int] | None = None) -> None:
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        shape = ir_shape(plain.shape)  # given, it is not made number by number
        super(TorchTensor, self).__init__(plain, from_torch_dtype(plain.dtype), shape=shape, name=name)
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
