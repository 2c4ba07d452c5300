"""Types as models declare them: what ``onnx_ir`` has too, which takes as long to import as all kernels of the runner.

Numbers and names are those of ``TensorProto.DataType`` and of ``onnx_ir.DataType``, whose members equal these.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

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
    DataType.FLOAT: "float32", DataType.DOUBLE: "float64", DataType.STRING: "object",
    DataType.FLOAT4E2M1: "float4_e2m1fn", DataType.FLOAT6E2M3: "float6_e2m3fn", DataType.FLOAT6E3M2: "float6_e3m2fn",
    DataType.FLOAT8E4M3FN: "float8_e4m3fn", DataType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    DataType.FLOAT8E5M2: "float8_e5m2", DataType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    DataType.FLOAT8E8M0: "float8_e8m0fnu",
}  # fmt: skip
"""The names in NumPy and ``ml_dtypes`` of dtypes that ONNX names otherwise."""

_DTYPES: dict[DataType, Dtype] = {
    member: np.dtype(_NAMES.get(member, member.name.lower())) for member in DataType if member
}

_NARROW_BITS = {
    DataType.FLOAT6E2M3: 6, DataType.FLOAT6E3M2: 6, DataType.FLOAT4E2M1: 4, DataType.UINT4: 4, DataType.INT4: 4,
    DataType.UINT2: 2, DataType.INT2: 2,
}  # fmt: skip


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


Array: TypeAlias = npt.NDArray[Any]
Value: TypeAlias = Any
"""``Array``, ``list`` (a sequence), ``dict`` or list of dicts (maps), or None (an empty optional)."""

Shape: TypeAlias = tuple[int, ...]
Spec: TypeAlias = tuple[Shape, Dtype]

TENSOR_NAMES: dict[DataType, str] = {
    member: member.name.lower() for member in DataType if member is not DataType.UNDEFINED
}
"""onnxruntime's word for each element type."""

STRING_DTYPE = DataType.STRING.numpy()
FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)


def shape_of(value: Value) -> Shape:
    """The shape of an array; () for what has none."""
    return value.shape if isinstance(value, np.ndarray) else ()


def numpy_dtype_of_code(code: int) -> Dtype:
    """The NumPy dtype of a ``TensorProto.DataType`` number."""
    return DataType(code).numpy()


NARROW_FLOATS = frozenset(
    member.numpy() for member in TENSOR_NAMES if member.is_floating_point() and member.bitwidth < 32
)
"""Floats that kernels widen to float32 before they sum or call a transcendental function."""

NARROW_INTS = frozenset(np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2))
"""Integers that NumPy knows only as extension types."""

_BY_DTYPE = {member.numpy(): member for member in TENSOR_NAMES}


def onnx_dtype(dtype: Dtype) -> DataType | None:
    """The ONNX dtype of a NumPy dtype; any kind of string is STRING; None where ONNX has none."""
    known = _BY_DTYPE.get(dtype)
    if known is None and dtype.kind in "USOT":
        return DataType.STRING
    return _BY_DTYPE.get(np.dtype(dtype.type)) if known is None else known


def is_float(dtype: Dtype) -> bool:
    return dtype.kind == "f" or dtype in NARROW_FLOATS


def is_integer(dtype: Dtype) -> bool:
    return dtype.kind in "iu" or dtype in NARROW_INTS


def is_tensor_type(type_: Any) -> bool:
    """Return whether values of the type are arrays."""
    return type(type_) is TensorType


def type_name(type_: Any) -> str:
    """onnxruntime's spelling: ``tensor(float)``, ``seq(tensor(int64))``, ``optional(...)``, ``map(int64,tensor(float))``."""
    if is_tensor_type(type_):
        return f"tensor({TENSOR_NAMES.get(type_.dtype, 'undefined')})"
    if type_ is None:
        return "tensor(undefined)"
    if isinstance(type_, MapType):
        return f"map({TENSOR_NAMES.get(type_.key_dtype, 'undefined')},{type_name(type_.value_type)})"
    if isinstance(type_, SequenceType):
        return f"seq({type_name(type_.elem_type)})"
    if isinstance(type_, OptionalType):
        return f"optional({type_name(type_.elem_type)})"
    if isinstance(type_, SparseTensorType):
        return f"sparse_tensor({TENSOR_NAMES.get(type_.dtype, 'undefined')})"
    return str(type_)


_ZEROS = bytes(16)
"""One element of the widest dtype: every element of an abstract array lies there."""


def abstract_array(shape: tuple[int, ...], dtype: Dtype) -> Array:
    """A read-only array that has a shape and dtype and no memory."""
    if dtype.kind == "O":
        return np.broadcast_to(np.zeros((), dtype), shape)
    return np.ndarray(shape, dtype, _ZEROS, 0, (0,) * len(shape))


def is_abstract(value: Value) -> bool:
    """Return whether ``abstract_array`` made this array of numbers."""
    base: Any = value.base if isinstance(value, np.ndarray) else None
    return base is _ZEROS


def describe(value: Value) -> str:
    """One short line about a run-time value, never its contents."""
    if isinstance(value, np.ndarray):
        dtype = onnx_dtype(value.dtype)
        name = TENSOR_NAMES[dtype] if dtype is not None else str(value.dtype)
        return f"{name}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list):
        return f"seq of {len(value)}" + (f" ({describe(value[0])}, ...)" if value else "")
    return "none" if value is None else type(value).__name__


def as_value(value: Any) -> Value:
    """NumPy scalars become 0-d arrays; everything else stays as it is."""
    if isinstance(value, (np.ndarray, list, dict)) or value is None:
        return value
    if isinstance(value, str):
        return np.array(value, dtype=object)
    return np.asarray(value)


def string_array(items: Sequence[Any], shape: Sequence[int]) -> Array:
    """An object array of ``str``."""
    out = np.empty(len(items), dtype=object)
    if any(issubclass(kind, bytes) for kind in set(map(type, items))):
        items = [item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in items]
    out[:] = items
    return out.reshape(tuple(shape))


def widen(x: Array) -> Array:
    """Narrow floats as float32; others as they are."""
    if x.dtype == np.float16 and x.size >= LEAST_HALVES:
        out = np.empty(x.shape, np.float32)
        floats_of_halves(x, out)
        return out
    return x.astype(np.float32) if x.dtype in NARROW_FLOATS else x


LEAST_HALVES = 1 << 13
"""NumPy, which converts number by number, is as fast for fewer."""
HALVES_BLOCK = 1 << 15
_UNBIASED = np.asarray(2.0**112, np.float32)


def floats_of_halves(x: Array, out: Array) -> None:
    """out = float16 as float32: exponent and mantissa move by 13 bits, and a product with 2 ** 112 makes up for the other bias.

    Shapes: out like x, in C order.
    """
    halves, floats = np.ascontiguousarray(x).reshape(-1), out.reshape(-1)
    bits, codes, words = floats.view(np.int32), halves.view(np.int16), halves.view(np.uint16)
    for start in range(0, halves.size, 2 * HALVES_BLOCK):
        cut = slice(start, start + 2 * HALVES_BLOCK)
        some, y = bits[cut], floats[cut]
        np.copyto(some, codes[cut])
        np.left_shift(some, _BITS["13"], some)
        np.bitwise_and(some, _BITS["sign and half"], some)
        np.multiply(y, _UNBIASED, y)
        if np.maximum.reduce(codes[cut]) >= 0x7C00 or np.maximum.reduce(words[cut]) >= 0xFC00:
            y[...] = halves[cut]  # infinite, or no numbers


_BITS = {name: np.asarray(value, np.int32) for name, value in {
    "magnitude": 0x7FFFFFFF, "exponent": 0x7F800000, "rounded": 0xFFF, "bias": 126 << 23, "sign": 0x8000,
    "sign and half": ~0x70000000, "13": 13, "16": 16}.items()}  # fmt: skip
_ABOVE, _SHIFT = (np.asarray(value, np.float32) for value in (2.0**16, 2.0**13))


def halves_of_floats(x: Array, out: Array) -> None:
    """out = float32 as float16, rounded to the nearest, halves to even.

    Shapes: out like x, both in C order. Numerics: |x| plus 2 ** 13 times its power of two, which is 2 ** -14 at least, has as many bits
    as float16; the last twelve bits of the sum and its exponent add up to those of the result.
    """
    floats, halves = x.reshape(-1), out.reshape(-1)
    scratch = np.empty((3, min(HALVES_BLOCK, floats.size)), np.int32)
    least = scratch[2].view(np.float32)  # a quarter of the time of a maximum with one number
    least.fill(2.0**-14)
    for start in range(0, floats.size, HALVES_BLOCK):
        y, target = floats[start : start + HALVES_BLOCK], halves[start : start + HALVES_BLOCK]
        power = np.dot(y, y)
        if np.isnan(power):
            target[...] = y
            continue
        bits, (a, b) = y.view(np.int32), scratch[:2, : y.size]
        sums, powers = a.view(np.float32), b.view(np.float32)
        np.bitwise_and(bits, _BITS["magnitude"], a)
        if power > 2.0**31:  # some may become infinite
            np.minimum(sums, _ABOVE, out=sums)
        np.bitwise_and(a, _BITS["exponent"], b)
        np.maximum(powers, least[: y.size], out=powers)
        np.multiply(powers, _SHIFT, powers)
        np.add(sums, powers, sums)
        np.subtract(a, _BITS["bias"], a)
        np.bitwise_and(a, _BITS["rounded"], b)
        np.right_shift(a, _BITS["13"], a)
        np.add(a, b, a)
        np.right_shift(bits, _BITS["16"], b)
        np.bitwise_and(b, _BITS["sign"], b)
        np.bitwise_or(a, b, a)
        np.copyto(target.view(np.int16), a, casting="unsafe")


def narrowed(value: Any, dtype: Dtype) -> Array:
    """A result computed in a wider dtype, in the dtype it must have; no copy where it has it already."""
    array = np.asarray(value)
    if dtype == np.float16 and array.dtype == FLOAT32 and array.size >= LEAST_HALVES:
        out = np.empty(array.shape, dtype)
        halves_of_floats(np.ascontiguousarray(array), out)
        return out
    return array.astype(dtype, copy=False)


MAX_LISTED = 12
"""Names that an error lists; of more, only their number is given."""


def listed(texts: Iterable[str], separator: str = ", ") -> str:
    """The texts on one line, the first of them where they are many."""
    result = list(texts)
    more = [f"... and {len(result) - MAX_LISTED} more"] if len(result) > MAX_LISTED else []
    return separator.join([*result[:MAX_LISTED], *more])


def _vecdot(left: Array, right: Array, out: Array | None = None) -> Array:
    """The products of real vectors along the last axis, each by the routine that takes products of matrices."""
    room = None if out is None else out[..., None, None]
    product: Array = np.matmul(left[..., None, :], right[..., :, None], room)
    return product[..., 0, 0]


vecdot = cast("Callable[..., Array]", getattr(np, "vecdot", _vecdot))
"""``numpy.vecdot``, since NumPy 2.0."""

_umath = (getattr(np, "_core", None) or np.core).umath
clip = cast("Callable[..., Array]", getattr(_umath, "clip", np.clip))
"""The ufunc that ``numpy.clip`` calls after 1.3 us of Python: ``clip(x, low, high, out)``."""
