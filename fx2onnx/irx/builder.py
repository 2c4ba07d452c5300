"""The graph under construction, and what a translation may know of a value.

All looks of a translation go through ``Accessors``, since identical layers are translated once and copied: the type of an
operand is the same in all of them; what is beyond the type is recorded as looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.base.escape import storable
from fx2onnx.base.events import details
from fx2onnx.irx.values import (
    MAX_KNOWN_INTS,
    Dims,
    OutputType,
    dims_of,
    dtype_of,
    is_complex,
    lacks_data,
    new_value,
    rank_of,
)
from fx2onnx.sizes.expr import DimLike, Scalar

MOST_COMPARED_BYTES = 16384
"""Constants up to this size are compared with each other."""


class Key(NamedTuple):
    """The key under which a value of the graph, or a fact on one, is kept to be found again."""

    what: str
    values: tuple[ir.Value, ...] = ()
    """The values that it is made of."""
    rest: tuple[Any, ...] = ()
    """The other parts of the key: sizes, dtypes, an axis."""


class Builder:
    """Nodes, initializers, names. Shared by the ``Emit`` of nested subgraphs."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.opset_imports: dict[str, int] = {"": opset}
        self.functions: dict[tuple[str, str, str], ir.Function] = {}
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[Any, ...], ir.Value] = {}
        self.spans = details()
        self.symbols: dict[str, tuple[ir.Value, int | None]] = {}
        """The source of each symbol's number: an axis of a value, or (None) the integer value itself."""
        self.inputs: list[ir.Value] = []
        """The model's inputs: symbols without an axis of their own are solved from their sizes."""
        self.sizes: Mapping[str, int] = {}
        """The example's sizes of the symbols that do not depend on data: operands have to fit at these."""
        self.emitted: dict[Key, ir.Value] = {}
        """Values that are emitted once: sizes, masks, weights in another order."""
        self.verdicts: dict[Key, bool] = {}
        """The results of checks that look beyond the types of values."""
        self.reads: list[int] = []
        """The ids of values, and of weights' tensors, whose numbers or producer translations looked at, in order. What they emit
        then need not hold for another layer's operands of the same types.
        """

    def unique(self, name: str) -> str:
        """``name``, or ``name_N`` where it is taken."""
        if not name.isascii():
            name = storable(name)
        names = self._names
        if name not in names:
            names[name] = 0
            return name
        while True:
            names[name] += 1
            candidate = f"{name}_{names[name]}"
            if candidate not in names:
                names[candidate] = 0
                return candidate

    def take(self, names: Sequence[str]) -> None:
        """Have the names taken, each by ``unique``."""
        taken = dict.fromkeys(names, 0)
        if len(taken) == len(names) and not self._names and "".join(names).isascii():
            self._names = taken
            return
        for name in names:
            self.unique(name)

    def add_initializer(self, name: str, tensor: ir.TensorProtocol, dims: Sequence[DimLike]) -> ir.Value:
        """Register a weight under ``name`` (made unique)."""
        name = self.unique(name)
        value = self.initializers[name] = new_value(name, tensor.dtype, dims)
        value.const_value = tensor
        return value

    def constant(self, array: npt.NDArray[Any], dtype: ir.DataType) -> ir.Value:
        """An initializer holding ``array``; equal small ones are one."""
        key = (dtype, array.shape, array.tobytes()) if array.nbytes <= MOST_COMPARED_BYTES else (id(array),)
        found = self._constants.get(key)
        if found is None:
            found = self.add_initializer("const", ir.Tensor(array, dtype=dtype), array.shape)
            self._constants[key] = found
        return found


class Emitter(Protocol):
    """The interface of ``Emit`` for its parts that have a file of their own; they lie below it."""

    builder: Builder
    opset: int

    def node(self, op_type: str, *inputs: Any, **keywords: Any) -> ir.Value: ...

    def const(self, data: Any, dtype: ir.DataType | None = None) -> ir.Value: ...

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value: ...

    def size(self, dim: Scalar, dtype: ir.DataType = ...) -> ir.Value: ...

    def size_of_axis(self, value: ir.Value, axis: int) -> ir.Value: ...


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
