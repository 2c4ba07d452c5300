"""``OrtValue``: onnxruntime's wrapper of a run-time value, here around a NumPy array or a list."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.runner.options import refuses
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.types import TENSOR_NAMES, Array, Value, describe, numpy_dtype_of_code, onnx_dtype


@public_methods
class OrtValue:
    """A value with its type, as ``run_with_ort_values`` takes and gives it."""

    def __init__(self, value: Value) -> None:
        self._value = value

    @staticmethod
    def ortvalue_from_numpy(array: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        return OrtValue(np.asarray(array))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(array: Array, onnx_element_type: int) -> OrtValue:
        """The array's bytes as elements of an ONNX type that NumPy lacks. Raises: TypeError where the widths differ."""
        dtype = numpy_dtype_of_code(onnx_element_type)
        if dtype.itemsize != array.dtype.itemsize:
            raise TypeError(f"elements of {array.dtype} do not have the width of {dtype}")
        return OrtValue(np.asarray(array).view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        dtype = numpy_dtype_of_code(element_type) if isinstance(element_type, int) else np.dtype(element_type)
        check_shape(shape, dtype)
        return OrtValue(np.zeros(tuple(shape), dtype))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """The elements of another library's tensor, in its memory. Raises: UserError E001 for what has no ``__dlpack__``."""
        if isinstance(data, OrtValue):
            return cls(data.numpy())
        if not hasattr(data, "__dlpack__"):
            raise UserError("E001", f"a {type(data).__name__} has no __dlpack__", next="pass the tensor itself")
        return cls(np.from_dlpack(data))

    as_sparse_tensor = refuses("as_sparse_tensor")
    ort_value_from_sparse_tensor = refuses("ort_value_from_sparse_tensor")

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.numpy().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    def update_inplace(self, array: Array) -> None:
        """Raises: TypeError for another shape or dtype."""
        own = self.numpy()
        if own.shape != array.shape or own.dtype != array.dtype:
            raise TypeError(f"{describe(array)} does not fit a value of {describe(own)}")
        np.copyto(own, array)

    def element_type(self) -> int:
        dtype = onnx_dtype(self.numpy().dtype)
        return 0 if dtype is None else int(dtype)

    def tensor_size_in_bytes(self) -> int:
        return int(self.numpy().nbytes)

    def data_ptr(self) -> int:
        return int(self.numpy().ctypes.data)

    def is_sparse_tensor(self) -> bool:
        return False

    def numpy(self) -> Array:
        """The array. Raises: TypeError for a sequence."""
        if not isinstance(self._value, np.ndarray):
            raise TypeError("the value is not a tensor")
        return self._value

    def value(self) -> Value:
        return self._value

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def has_value(self) -> bool:
        return self._value is not None

    def shape(self) -> list[int]:
        return list(self.numpy().shape)

    def data_type(self) -> str:
        dtype = onnx_dtype(self.numpy().dtype)
        return f"tensor({TENSOR_NAMES[dtype]})" if dtype is not None else str(self.numpy().dtype)

    def device_name(self) -> str:
        return "cpu"


class OrtValueVector(list[Any]):
    """Values in a row, as ``run_with_ortvaluevector`` takes and fills them."""

    def push_back(self, value: OrtValue) -> None:
        self.append(value)

    def push_back_batch(self, values: Sequence[OrtValue]) -> None:
        self.extend(values)

    def reserve(self, count: int) -> None:
        """Accepted: a list grows by itself."""

    def shrink_to_fit(self) -> None:
        """Accepted: a list has no room to give back."""

    def element_type_at(self, place: int) -> int:
        return int(self[place].element_type())

    def bool_tensor_indices(self) -> list[int]:
        return [place for place, value in enumerate(self) if value.data_type() == "tensor(bool)"]

    def dlpack_at(self, place: int) -> Any:
        return self[place].numpy().__dlpack__()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None = None) -> list[Any]:
        made = [value.numpy().__dlpack__() for value in self]
        return made if to_tensor is None else [to_tensor(each) for each in made]


@public_methods
class IOBinding:
    """Inputs and outputs named ahead of ``run_with_iobinding``; everything lies in the machine's memory."""

    def __init__(self, session: Any) -> None:
        self._names = [arg.name for arg in session.get_outputs()]
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, array: Array) -> None:
        self._inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value.value()

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """The elements at an address, such as that of a PyTorch tensor. Nothing is copied: they must stay there."""
        self._inputs[name] = _at_address(element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output. The result is written to ``buffer_ptr`` if that is given."""
        if shape is None or buffer_ptr is None:
            self._outputs[name] = None
        else:
            self._outputs[name] = OrtValue(_at_address(element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """The result is written into ``value``."""
        self._outputs[name] = value

    def clear_binding_inputs(self) -> None:
        self._inputs = {}

    def clear_binding_outputs(self) -> None:
        self._outputs = {}

    def synchronize_inputs(self) -> None:
        """Nothing to wait for."""

    def synchronize_outputs(self) -> None:
        """Nothing to wait for."""

    def run(self, session: Any, run_options: Any = None) -> None:
        """Called by ``run_with_iobinding``."""
        names = list(self._outputs) or self._names
        self._results = [OrtValue(value) for value in session.run(names, self._inputs, run_options)]
        for position, name in enumerate(names):
            target = self._outputs.get(name)
            if target is not None:
                target.update_inplace(self._results[position].numpy())
                self._results[position] = target

    def get_outputs(self) -> list[OrtValue]:
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(self._results)

    def copy_outputs_to_cpu(self) -> list[Value]:
        return [value.value() for value in self._results]


def _at_address(element_type: Any, shape: Sequence[int], buffer_ptr: int) -> Array:
    """The caller's own memory as an array."""
    dtype = numpy_dtype_of_code(element_type) if isinstance(element_type, int) else np.dtype(element_type)
    size_bytes = math.prod(shape) * dtype.itemsize
    if dtype.kind == "O" or (size_bytes and not buffer_ptr):
        raise UserError("E001", f"no array of {dtype} can be bound at the address {buffer_ptr}")
    if not size_bytes:
        return np.empty(tuple(shape), dtype)
    raw = (ctypes.c_uint8 * size_bytes).from_address(buffer_ptr)
    return np.ctypeslib.as_array(raw).view(dtype).reshape(tuple(shape))


def as_plain(value: Any) -> Any:
    """The value in an ``OrtValue``; anything else as it is."""
    return value.value() if isinstance(value, OrtValue) else value
