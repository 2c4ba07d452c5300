"""What a translation may know of a value: its type, its numbers where it is constant, the node that makes it.

All looks of a translation go through these methods of ``Emit``, since identical layers are translated once and copied:
the type of an operand is the same in all of them; what is beyond the type is recorded as looked at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.irx.builder import Builder
from fx2onnx.irx.values import (
    MAX_KNOWN_INTS,
    Dims,
    OutputType,
    dims_of,
    dtype_of,
    is_complex,
    lacks_data,
    rank_of,
)


class Accessors:
    """The part of ``Emit`` that looks; values and nodes are not changed."""

    builder: Builder
    result: tuple[OutputType, ...]
    """dtype and dims of each output of the ATen node being translated, as PyTorch has them."""

    dims = staticmethod(dims_of)
    dtype = staticmethod(dtype_of)
    rank = staticmethod(rank_of)
    is_complex = staticmethod(is_complex)

    @staticmethod
    def is_float(value: ir.Value) -> bool:
        return dtype_of(value).is_floating_point()

    @staticmethod
    def is_integer(value: ir.Value) -> bool:
        return dtype_of(value).is_integer()

    @staticmethod
    def is_bool(value: ir.Value) -> bool:
        return dtype_of(value) == ir.DataType.BOOL

    def result_dtype(self, index: int = 0) -> ir.DataType:
        """The dtype PyTorch gives output ``index``."""
        return self.result[index][0]

    def result_dims(self, index: int = 0) -> Dims:
        """The dims PyTorch gives output ``index``."""
        return tuple(self.result[index][1])

    @staticmethod
    def is_constant(value: ir.Value) -> bool:
        """Return whether the value is an initializer: a weight or a constant."""
        return value.const_value is not None

    def constant(self, value: ir.Value, most: int = MAX_KNOWN_INTS) -> npt.NDArray[np.generic] | None:
        """The numbers of a constant of at most ``most`` elements; None for others, and on the meta device."""
        tensor = value.const_value
        if tensor is None or tensor.size > most or lacks_data(value):
            return None  # as for every operand of this type: layers are compared by it
        self.builder.reads.append(id(value))
        return np.asarray(tensor.numpy())

    def integers(self, value: ir.Value) -> list[int] | None:
        """The numbers of a small integer constant as a flat list, else None."""
        array = self.constant(value)
        return None if array is None or array.dtype.kind not in "iu" else [int(number) for number in array.reshape(-1)]

    def producer(self, value: ir.Value) -> ir.Node | None:
        """The node that makes the value; None for inputs and constants."""
        self.builder.reads.append(id(value))
        return value.producer()

    def is_dequantized(self, value: ir.Value) -> bool:
        """Return whether ``DequantizeLinear`` makes the value. That nothing makes it is no look: so it is with the weights of layers."""
        maker = value.producer()
        if maker is None:
            return False
        self.builder.reads.append(id(value))
        return bool(maker.op_type == "DequantizeLinear")
