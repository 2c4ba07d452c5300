"""Typed values: dtype and dims of an ``onnx_ir.Value``, where dims are ints or ``sizes.expr.Dim`` expressions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from fx2onnx.irx.private_names import copied_shape, fixed_shape, give_notes
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.sizes.text import named

_DIMS_KEY = "fx2onnx.dims"
Dims = tuple[DimLike, ...]
Operand: TypeAlias = ir.Value | npt.NDArray[Any] | bool | int | float | Sequence[int] | None
"""A node's input, as ``Emit`` takes it."""
OutputType: TypeAlias = tuple[ir.DataType, Sequence[DimLike]]

MAX_KNOWN_INTS = 64
"""Shape inference reads the numbers of constants up to this many: shapes, axes, pads; never weights."""


def ir_shape(dims: Sequence[DimLike | None]) -> ir.Shape:
    """The onnx_ir shape: expressions become symbolic dims named by their text, None an unnamed one."""
    for dim in dims:
        if type(dim) is not int:
            return ir.Shape([str(dim) if isinstance(dim, Dim) else dim for dim in dims])
    return fixed_shape(dims)  # type: ignore[arg-type]


def set_type(value: ir.Value, dtype: ir.DataType, dims: Sequence[DimLike]) -> ir.Value:
    """Give ``value`` its dtype and dims; returns it."""
    value.dtype = dtype
    value.shape = ir_shape(dims)
    value.meta.data[_DIMS_KEY] = tuple(dims)
    return value


def note_dims(value: ir.Value, dims: Sequence[DimLike]) -> None:
    """Note which sizes the dims stand for; what the file says of its shape stays."""
    value.meta.data[_DIMS_KEY] = tuple(dims)


def forget_dims(value: ir.Value) -> None:
    """Drop what was noted of the value: its dims, and the sizes that it holds."""
    value.meta.data.pop(_DIMS_KEY, None)
    value.meta.data.pop(_SIZES_KEY, None)


def new_value(name: str | None, dtype: ir.DataType, dims: Sequence[DimLike]) -> ir.Value:
    dims = tuple(dims)
    value = ir.Value(name=name, shape=ir_shape(dims), type=ir.TensorType(dtype))
    give_notes(value, {_DIMS_KEY: dims})
    return value


def let_go(values: Iterable[ir.Value]) -> None:
    """Take the numbers from the values of a graph that is done with: its parts refer to each other, so that they and the
    weights are freed only when the collector comes by.
    """
    for value in values:
        value.const_value = None


def copied_type(value: ir.Value, name: str) -> ir.Value:
    """A new value of the same dtype and dims, with what else is noted of them."""
    copy = ir.Value(name=name, shape=None if value.shape is None else copied_shape(value.shape), type=value.type)
    give_notes(copy, dict(value.meta.data))
    return copy


def dims_of(value: ir.Value) -> Dims:
    """The dims: ints and ``Dim`` expressions. Raises ValueError where the rank is unknown."""
    dims: Dims | None = value.meta.data.get(_DIMS_KEY)
    if dims is not None:
        return dims
    if value.shape is None:
        raise ValueError(f"value {value.name} has no shape")
    return tuple(
        dim if isinstance(dim, int) else named(str(dim.value) if dim.value is not None else f"{value.name}_{axis}")
        for axis, dim in enumerate(value.shape)
    )


def dtype_of(value: ir.Value) -> ir.DataType:
    """The dtype. Raises ValueError where it is unknown."""
    dtype = value.dtype
    if dtype is None:
        raise ValueError(f"value {value.name} has no dtype")
    return dtype


def as_data_type(dtype: Any) -> ir.DataType:
    """The dtype as ONNX has it; ``dtype`` may be PyTorch's or NumPy's, or a name such as ``"float32"``."""
    if type(dtype) is ir.DataType:
        return dtype
    if isinstance(dtype, int):
        return ir.DataType(dtype)
    name = str(dtype)
    return ir.DataType.from_numpy(np.dtype(name.removeprefix("torch.") if name.startswith("torch.") else dtype))


def rank_of(value: ir.Value) -> int:
    return len(dims_of(value))


def lacks_data(value: ir.Value) -> bool:
    """Return whether a constant has no numbers to read: the module is on the meta device."""
    return bool(getattr(value.const_value, "lacks_data", False))


def known_array(value: ir.Value | None) -> npt.NDArray[np.generic] | None:
    """The numbers of a small constant, else None."""
    tensor = None if value is None else value.const_value
    if type(tensor) is ir.Tensor:  # whose size takes longer than its array
        array: npt.NDArray[np.generic] = tensor.numpy()
        return array if array.size <= MAX_KNOWN_INTS else None
    if tensor is None or tensor.size > MAX_KNOWN_INTS or getattr(tensor, "lacks_data", False):
        return None
    return np.asarray(tensor.numpy())


def known_ints(value: ir.Value | None) -> list[int] | None:
    """The numbers of a small integer constant as a flat list, else None."""
    array = known_array(value)
    return None if array is None or array.dtype.kind not in "iu" else [int(number) for number in array.reshape(-1)]


_SIZES_KEY = "fx2onnx.sizes"


def set_known_sizes(value: ir.Value, sizes: Sequence[DimLike]) -> None:
    """Note that an int64 value holds these sizes, so that shapes made from it stay known."""
    value.meta[_SIZES_KEY] = tuple(sizes)


def noted_sizes(value: ir.Value) -> tuple[DimLike, ...] | None:
    """The sizes that ``set_known_sizes`` noted."""
    return value.meta.data.get(_SIZES_KEY)


def known_sizes(value: ir.Value | None) -> list[DimLike] | None:
    """The sizes an int64 value holds: of a constant, or noted by ``set_known_sizes``; else None."""
    if value is None:
        return None
    noted = value.meta.data.get(_SIZES_KEY)
    if noted is not None:
        return list(noted)
    ints = known_ints(value)
    return None if ints is None else list(ints)


_COMPLEX_KEY = "fx2onnx.complex"


def mark_complex(value: ir.Value) -> ir.Value:
    """Note that the last axis holds the real and the imaginary part; returns the value."""
    value.meta[_COMPLEX_KEY] = True
    return value


def is_complex(value: ir.Value) -> bool:
    return bool(value.meta.data.get(_COMPLEX_KEY))


def notes_of(value: ir.Value) -> tuple[Dims, bool, tuple[DimLike, ...] | None]:
    """The dims, ``is_complex`` and ``noted_sizes``."""
    return dims_of(value), is_complex(value), noted_sizes(value)


_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
"""NumPy's names of dtypes that differ from ONNX's in lower case."""


def dtype_name(number: int) -> str:
    """The name of a member of ``onnx.TensorProto.DataType``: ``float32``, ``bfloat16``."""
    try:
        name: str = onnx.TensorProto.DataType.Name(number)  # type: ignore[arg-type, unused-ignore]
    except ValueError:  # of a later version
        return f"dtype {number}"
    return _NAMES.get(name, name.lower())
