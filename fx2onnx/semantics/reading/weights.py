"""From ``TensorProto`` to read-only arrays; external files are mapped, never copied, and stay inside their folder."""

from __future__ import annotations

import errno
import math
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from fx2onnx.base.errors import UserError
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.reading.nodes import check_text
from fx2onnx.semantics.reading.program import data_type
from fx2onnx.semantics.types import Array, DataType, abstract_array, string_array

_PACKED_BITS = {2: 2, 4: 4, 6: 6}
"""Elements of these widths are packed several to a byte, the low bits first."""

_EXTERNAL = onnx.TensorProto.EXTERNAL


class WeightStore:
    """Reads tensors of one model. Maps of external files are shared and live as long as an array that uses them.

    ``opens_files``: without, tensors in other files are abstract arrays: shape and dtype, and no numbers.
    """

    def __init__(self, folders: tuple[str, ...], *, opens_files: bool = True) -> None:
        self.folders = folders
        self.opens_files = opens_files
        self._maps: dict[tuple[str, tuple[str, ...]], memoryview] = {}

    def any_array(self, tensor: Any, what: str) -> Array:
        """The elements of an initializer in any of its forms. Raises: as ``array``."""
        if isinstance(tensor, onnx.TensorProto):
            return self.array(tensor, what)
        return dense_array(tensor) if isinstance(tensor, onnx.SparseTensorProto) else self.held(tensor, what)

    def array(self, proto: Any, what: str) -> Array:
        """The elements of a ``TensorProto``.

        Raises: UserError E302 for external data that is missing or out of bounds, E303 for a tensor that contradicts
        itself, E404 for a claimed size above the memory limit.
        """
        dtype, shape = check_header(proto, what)
        if proto.data_location == _EXTERNAL:
            return _read_only(self._external(_place_of(proto, what), dtype, shape, "", what))
        return _read_only(_internal(proto, dtype, shape, what))

    def check(self, tensor: Any, what: str) -> None:
        """Look at an initializer that nothing reads, without its elements. Raises: UserError E303."""
        if isinstance(tensor, onnx.TensorProto):
            check_header(tensor, what)
        elif isinstance(tensor, onnx.SparseTensorProto):
            _sparse_parts(tensor)

    def held(self, tensor: Any, what: str) -> Array:
        """The elements of a tensor of ``onnx_ir``, not copied where they are in memory. Raises: as ``array``."""
        dtype = _element_type(int(tensor.dtype), what)
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in tensor.shape)
        _check_dims(shape, what)
        import onnx_ir as ir  # the tensor's own

        if isinstance(tensor, ir.ExternalTensor):
            place = (str(tensor.location), tensor.offset or 0, tensor.length)
            return _read_only(self._external(place, dtype, shape, str(tensor.base_dir or ""), what))
        if dtype is DataType.STRING:
            items = tensor.string_data() if hasattr(tensor, "string_data") else tensor.numpy().ravel().tolist()
            return _strings(items, shape, what)
        check_shape(shape, dtype.numpy(), what)
        return _read_only(_guarded(tensor.numpy, shape, what))

    def _external(
        self, place: tuple[str, int, int | None], dtype: DataType, shape: tuple[int, ...], folder: str, what: str
    ) -> Array:
        location, offset_bytes, length_bytes = place
        element = dtype.numpy()
        if element.kind == "O":
            raise UserError("E303", f"{what} is a string tensor in an external file, which ONNX does not allow")
        bits = _PACKED_BITS.get(dtype.bitwidth, 0)
        count = math.prod(shape)
        size_bytes = -(-count * bits // 8) if bits else count * element.itemsize
        if length_bytes is not None and length_bytes != size_bytes:
            raise UserError(
                "E302", f"{what} claims {length_bytes} external bytes; its shape and dtype make {size_bytes}"
            )
        check_shape(shape, element, what)
        if count == 0:
            return np.zeros(shape, element)
        if not self.opens_files:
            return abstract_array(shape, element)
        data = self._map(location, (folder,) if folder else self.folders, what)
        if offset_bytes < 0 or offset_bytes + size_bytes > len(data):
            raise UserError(
                "E302",
                f"{what} lies at bytes {offset_bytes}..{offset_bytes + size_bytes} of {location}, which has {len(data)}",
            )
        raw = np.frombuffer(data, np.uint8, size_bytes, offset_bytes)
        return unpack(raw, element, bits, shape) if bits else raw.view(element).reshape(shape)

    def _map(self, location: str, folders: tuple[str, ...], what: str) -> memoryview:
        place = (location, folders)
        if place not in self._maps:
            path = confined_path(location, folders, what)
            try:
                with open(path, "rb") as file:
                    self._maps[place] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno == errno.ENOMEM:
                    raise MemoryError(f"no room for {location} in the process") from error
                raise UserError("E302", f"{what}: {location} cannot be read", why=str(error)) from error
        return self._maps[place]


def confined_path(location: str, folders: tuple[str, ...], what: str) -> str:
    """The real path of external data, which must be a regular file inside one of ``folders``.

    Raises: UserError E302 where it is absolute, has ``..``, leads out by a link, or does not exist.
    """
    if not folders:
        raise UserError(
            "E302",
            f"{what} is in the external file {location!r}, but the model was not given as a file",
            next='name its folder: SessionOptions().add_session_config_entry("session.model_external_initializers_file_folder_path", "...")',
        )
    parts = Path(location.replace("\\", "/")).parts
    if not location or "\0" in location or os.path.isabs(location) or ".." in parts:
        raise UserError("E302", f"{what}: external data must be inside the model's folder, not at {location!r}")
    for folder in folders:
        real = os.path.realpath(os.path.join(folder, location))
        if not os.path.exists(real):
            continue
        if not any(os.path.commonpath([real, root]) == root for root in map(os.path.realpath, folders)):
            raise UserError("E302", f"{what}: {location!r} is a link out of the model's folder")
        if not stat.S_ISREG(os.stat(real).st_mode):
            raise UserError("E302", f"{what}: {location!r} is not a regular file")
        return real
    raise UserError(
        "E302",
        f"{what}: the external file {location!r} does not exist in {folders[0]!r}",
        next="keep the two files in one folder: copy it there, or export with external_data=False (--no-external-data)",
    )


def unpack(raw: Array, dtype: Any, bits: int, shape: tuple[int, ...]) -> Array:
    """Elements of 2, 4 or 6 bits out of bytes, low bits first."""
    if bits == 6:
        each = np.unpackbits(raw, count=math.prod(shape) * bits, bitorder="little").reshape(-1, bits)
        return np.asarray(np.packbits(each, axis=1, bitorder="little").view(dtype).reshape(shape))
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    spread = np.empty((raw.size, per_byte), np.uint8)
    for position in range(per_byte):
        np.bitwise_and(raw >> (bits * position), mask, out=spread[:, position])
    codes: Array = spread.reshape(-1)[: math.prod(shape)]
    if dtype.name.startswith("int"):
        codes = ((codes.astype(np.int8) << (8 - bits)) >> (8 - bits)).astype(np.int8)
        return codes.astype(dtype).reshape(shape)
    if dtype.name.startswith("uint"):
        return codes.astype(dtype).reshape(shape)
    return np.asarray(codes.view(dtype).reshape(shape))


def declared(tensor: Any, what: str) -> tuple[DataType, tuple[int, ...]]:
    """Element type and shape that an initializer claims; its data, which may be missing, is not read."""
    if isinstance(tensor, onnx.SparseTensorProto):
        return _element_type(tensor.values.data_type, what), tuple(tensor.dims)
    if isinstance(tensor, onnx.TensorProto):
        return _element_type(tensor.data_type, what), tuple(tensor.dims)
    return _element_type(int(tensor.dtype), what), tuple(tensor.shape)


_FIELD_OF: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float_data", onnx.TensorProto.COMPLEX64: "float_data",
    onnx.TensorProto.DOUBLE: "double_data", onnx.TensorProto.COMPLEX128: "double_data",
    onnx.TensorProto.INT64: "int64_data", onnx.TensorProto.UINT32: "uint64_data",
    onnx.TensorProto.UINT64: "uint64_data", onnx.TensorProto.STRING: "string_data",
}  # fmt: skip
"""The field that holds the elements of each type, where they are not in ``raw_data``; for all others ``int32_data``."""

_TYPED_FIELDS = tuple(dict.fromkeys(("int32_data", *_FIELD_OF.values())))


def check_header(proto: Any, what: str) -> tuple[DataType, tuple[int, ...]]:
    """Element type and shape of a ``TensorProto``.

    Raises: UserError E303 where they cannot be, and where its elements are not in exactly one of the fields for them.
    """
    dtype, shape = _element_type(proto.data_type, what), tuple(proto.dims)
    _check_dims(shape, what)
    filled = [name for name in _TYPED_FIELDS if getattr(proto, name)]
    if proto.HasField("raw_data"):
        filled.append("raw_data")
    if proto.data_location == _EXTERNAL:
        if filled:
            raise UserError("E303", f"{what} lies in an external file and has elements in {filled[0]}, too")
        return dtype, shape
    if len(filled) > 1:
        raise UserError("E303", f"{what} has its elements twice, in {' and in '.join(filled)}")
    if not filled:
        if 0 not in shape:
            raise UserError("E303", f"{what} has no elements; its shape is {list(shape)}")
        return dtype, shape
    wanted = _FIELD_OF.get(proto.data_type, "int32_data")
    if filled[0] != wanted and (filled[0] != "raw_data" or dtype is DataType.STRING):
        raise UserError("E303", f"{what} is {dtype.name} and has its elements in {filled[0]}, not in {wanted}")
    return dtype, shape


def _element_type(code: int, what: str) -> DataType:
    if code == 0:
        raise UserError("E303", f"{what} has no element type")
    return data_type(code)


def _check_dims(shape: tuple[int, ...], what: str) -> None:
    if any(dim < 0 for dim in shape):
        raise UserError("E303", f"{what} has the invalid shape {list(shape)}")


def _read_only(array: Array) -> Array:
    """The array itself or a view that cannot be written; a copy where its memory is not aligned."""
    if array.dtype.kind != "O" and not array.flags.aligned:
        array = array.copy()
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def _place_of(proto: Any, what: str) -> tuple[str, int, int | None]:
    """File, offset and length of external data. Raises: UserError E303 for numbers that are none."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    check_text(*entries, *entries.values())
    if not entries.get("location"):
        raise UserError("E303", f"{what} lies in an external file, and no location says in which")
    try:
        length = entries.get("length")
        return entries["location"], int(entries.get("offset") or 0), int(length) if length else None
    except ValueError as error:
        raise UserError("E303", f"{what} has external data at no number of bytes", why=str(error)[:200]) from error


def _internal(proto: Any, dtype: DataType, shape: tuple[int, ...], what: str) -> Array:
    if dtype is DataType.STRING:
        return _strings(proto.string_data, shape, what)
    element = dtype.numpy()
    check_shape(shape, element, what)
    if proto.HasField("raw_data"):
        data = proto.raw_data  # protobuf copies it at each access
        _check_bytes(len(data), dtype, shape, what)
        return _elements(np.frombuffer(data, np.uint8), dtype, shape)
    items = getattr(proto, _FIELD_OF.get(proto.data_type, "int32_data"))
    if element.kind == "c":
        return _guarded(
            lambda: np.array(items, np.empty(0, element).real.dtype).view(element).reshape(shape), shape, what
        )
    if element.kind in "biuf" and dtype is not DataType.FLOAT16:
        return _guarded(lambda: np.array(items, element).reshape(shape), shape, what)
    bits = np.uint16 if dtype.bitwidth == 16 else np.uint8
    raw: Array = np.array(items, np.int32).astype(bits)
    if dtype.bitwidth == 6:  # not packed here
        if (raw > 63).any():
            raise UserError("E303", f"{what} has numbers of more than 6 bits")
        return _guarded(lambda: raw.view(element).reshape(shape), shape, what)
    _check_bytes(raw.nbytes, dtype, shape, what)
    return _elements(raw.view(np.uint8), dtype, shape)


def _elements(raw: Array, dtype: DataType, shape: tuple[int, ...]) -> Array:
    """The elements that these bytes are."""
    bits = _PACKED_BITS.get(dtype.bitwidth, 0)
    return unpack(raw, dtype.numpy(), bits, shape) if bits else raw.view(dtype.numpy()).reshape(shape)


def _check_bytes(count: int, dtype: DataType, shape: tuple[int, ...], what: str) -> None:
    needed = -(-math.prod(shape) * dtype.bitwidth // 8)
    if count != needed:
        why = f"{count} bytes; {dtype.name}{list(shape)} is {needed}"
        raise UserError("E303", f"{what} does not hold what its shape and dtype say", why=why)


def _strings(items: Any, shape: tuple[int, ...], what: str) -> Array:
    if len(items) != math.prod(shape):
        raise UserError("E303", f"{what} has {len(items)} strings for shape {list(shape)}")
    return string_array(items, shape)


_TENSOR_FAULTS = (ValueError, TypeError, OverflowError, RuntimeError, AttributeError, KeyError, AssertionError)
"""The exceptions of NumPy and onnx_ir for a tensor whose data and type do not fit; the cause is chained."""


def _guarded(read: Callable[[], Any], shape: tuple[int, ...], what: str) -> Array:
    try:
        array = np.asarray(read())
    except _TENSOR_FAULTS as error:
        raise UserError("E303", f"{what} does not hold what its shape and dtype say", why=str(error)[:300]) from error
    if array.shape != shape:
        raise UserError("E303", f"{what} has data of shape {list(array.shape)}, not {list(shape)}")
    return array


def dense_array(sparse: Any) -> Array:
    """The dense form of a ``SparseTensorProto``. Raises: UserError E303 for what ``_sparse_parts`` refuses."""
    values, indices, dims = _sparse_parts(sparse)
    dense = np.zeros(dims, values.dtype)
    dense.reshape(-1)[indices] = values
    return _read_only(dense)


def _sparse_parts(sparse: Any) -> tuple[Array, Array, tuple[int, ...]]:
    """Values, their places in the flattened tensor, and its shape. Raises: UserError E303 where these do not fit."""
    dims = tuple(sparse.dims)
    what = f"the sparse tensor {sparse.values.name!r}"
    _check_dims(dims, what)
    check_shape(dims, _element_type(sparse.values.data_type, what).numpy())
    inside = WeightStore(())
    values = inside.array(sparse.values, f"the values of {what}")
    indices = inside.array(sparse.indices, f"the indices of {what}").astype(np.int64)
    if values.ndim != 1:
        raise UserError("E303", f"{what} has values of shape {list(values.shape)}; they must have one axis")
    wrong = UserError("E303", f"{what} has indices out of range")
    if indices.ndim == 2:
        if indices.shape[1] != len(dims) or (indices < 0).any() or (indices >= np.array(dims)).any():
            raise wrong
        indices = indices @ np.array([math.prod(dims[axis + 1 :]) for axis in range(len(dims))], np.int64)
    if indices.ndim != 1 or indices.size != values.size or (indices < 0).any() or (indices >= math.prod(dims)).any():
        raise wrong
    if (np.diff(indices) <= 0).any():
        raise UserError("E303", f"{what} has indices that do not ascend: ONNX has each once, in order")
    return values, indices, dims
