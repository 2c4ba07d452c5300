"""The contents of a ``TypeProto``: the type of a value and its dims."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.types import (
    Array,
    DataType,
    MapType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    onnx_dtype,
)

Dims: TypeAlias = tuple[int | str | None, ...]


@lru_cache(maxsize=64)
def data_type(code: int) -> DataType:
    """The element type of that number. Raises: UserError E303."""
    try:
        return DataType(code)
    except ValueError:
        raise UserError("E303", f"{code} is no element type that ONNX knows") from None


@lru_cache(maxsize=64)
def _tensor_type(code: int) -> TensorType:
    if code == DataType.UNDEFINED:
        raise UserError("E303", "a tensor type does not say its element type")
    return TensorType(data_type(code))


def type_of_array(array: Array) -> TensorType:
    """The type of a constant."""
    dtype = onnx_dtype(array.dtype)
    assert dtype is not None
    return _tensor_type(int(dtype))


def type_and_dims(proto: Any) -> tuple[Any, Dims | None]:
    """The type (None where it is not given) and the dims of the tensors in it (None where their rank is not known).

    Raises: UserError E303 for a type that does not say what it is of.
    """
    form = proto.WhichOneof("value")
    if form == "tensor_type":
        tensor = proto.tensor_type
        return _tensor_type(tensor.elem_type), dims_of(tensor.shape) if tensor.HasField("shape") else None
    if form is None:
        return None, None
    if form == "sparse_tensor_type":
        sparse = proto.sparse_tensor_type
        dims = dims_of(sparse.shape) if sparse.HasField("shape") else None
        return SparseTensorType(data_type(sparse.elem_type)), dims
    if form == "map_type":
        return MapType(data_type(proto.map_type.key_type), _inner(proto.map_type.value_type)[0]), None
    if form == "sequence_type":
        inner, dims = _inner(proto.sequence_type.elem_type)
        return SequenceType(inner), dims
    if form == "optional_type":
        inner, dims = _inner(proto.optional_type.elem_type)
        return OptionalType(inner), dims
    raise UserError("E303", f"the runner does not know values of {form}")


def type_of_info(info: Any) -> tuple[Any, Dims | None]:
    """``type_and_dims`` of a ``ValueInfoProto``. Raises: UserError E303 with its name."""
    try:
        return type_and_dims(info.type)
    except UserError as error:
        raise UserError(error.code, f"the type of {info.name!r} is not valid", why=error.what) from error


def _inner(proto: Any) -> tuple[Any, Dims | None]:
    inner, dims = type_and_dims(proto)
    if inner is None:
        raise UserError("E303", "the type of a sequence, optional or map does not say what is in it")
    return inner, dims


def dims_of(shape: Any) -> Dims:
    """A fixed size as a number, a symbolic one as its name, an unknown one as None; so is a negative one (onnxruntime)."""
    dims: list[int | str | None] = []
    for dim in shape.dim:
        form = dim.WhichOneof("value")
        if form == "dim_value":
            size = dim.dim_value
            dims.append(size if size >= 0 else None)
        else:
            dims.append(dim.dim_param or None if form else None)
    return tuple(dims)


def denotations_of(proto: Any) -> list[str]:
    """The denotation of each dim of a tensor type, empty where it has none."""
    if proto.WhichOneof("value") != "tensor_type":
        return []
    return [dim.denotation for dim in proto.tensor_type.shape.dim]
