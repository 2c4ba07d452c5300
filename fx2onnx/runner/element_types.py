"""Types as models declare them: what ``onnx_ir`` has too, which takes as long to import as all kernels of the runner.

Numbers and names are those of ``TensorProto.DataType`` and of ``onnx_ir.DataType``, whose members equal these.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes  # noqa: F401  (NumPy knows its names then)
import numpy as np

Dtype: TypeAlias = np.dtype[Any]


class DataType(enum.IntEnum):
    """Element types of tensors. Source: ``onnx.proto``, IR version 14."""

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
    FLOAT6E2M3 = 27
    FLOAT6E3M2 = 28

    def numpy(self) -> Dtype:
        """The NumPy dtype; strings are object arrays. Raises: TypeError for UNDEFINED."""
        if self not in _DTYPES:
            raise TypeError(f"NumPy has no dtype for {self.name}")
        return _DTYPES[self]

    @property
    def bitwidth(self) -> int:
        """Bits of an element; ``TensorProto`` packs those of two and four."""
        return _NARROW_BITS.get(self, 8 * self.numpy().itemsize)

    def is_floating_point(self) -> bool:
        return self.name.startswith(("FLOAT", "BFLOAT", "DOUBLE"))


_NAMES = {
    DataType.FLOAT: "float32",
    DataType.DOUBLE: "float64",
    DataType.STRING: "object",
    DataType.FLOAT4E2M1: "float4_e2m1fn",
    DataType.FLOAT6E2M3: "float6_e2m3fn",
    DataType.FLOAT6E3M2: "float6_e3m2fn",
    DataType.FLOAT8E4M3FN: "float8_e4m3fn",
    DataType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    DataType.FLOAT8E5M2: "float8_e5m2",
    DataType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    DataType.FLOAT8E8M0: "float8_e8m0fnu",
}
"""What NumPy and ``ml_dtypes`` call those that they do not call the same."""

_DTYPES: dict[DataType, Dtype] = {
    member: np.dtype(_NAMES.get(member, member.name.lower())) for member in DataType if member
}

_NARROW_BITS = {
    DataType.FLOAT6E2M3: 6,
    DataType.FLOAT6E3M2: 6,
    DataType.FLOAT4E2M1: 4,
    DataType.UINT4: 4,
    DataType.INT4: 4,
    DataType.UINT2: 2,
    DataType.INT2: 2,
}


@dataclass(frozen=True, slots=True)
class _OfElements:
    dtype: DataType


class TensorType(_OfElements):
    """Arrays of one element type."""

    __slots__ = ()


class SparseTensorType(_OfElements):
    """Sparse tensors of one element type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _OfValues:
    elem_type: Any


class SequenceType(_OfValues):
    """Lists of values of one type."""

    __slots__ = ()


class OptionalType(_OfValues):
    """A value of one type, or none."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary: keys of one dtype, values of one type."""

    key_dtype: DataType
    value_type: Any
