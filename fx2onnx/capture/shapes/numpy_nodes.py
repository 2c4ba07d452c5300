"""NumPy's numbers of sizes: ``np.sqrt(n)``, ``np.int32(n)``, ``np.prod(x.shape) / 2``, whose tensors have NumPy's dtypes."""

from __future__ import annotations

import numpy as np
import torch

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.capture.shapes.size_math import Number
from fx2onnx.capture.shapes.symnode import NUMPY_NODES, DimNode, size_node
from fx2onnx.sizes.expr import Dim, Scalar


@answers_for_caller
class NumPyNode(DimNode):
    """The object behind a float64 of NumPy, which is no number of Python's: a tensor of it has its dtype."""

    __slots__ = ()
    kind: type[np.generic] = np.float64
    dtype = torch.float64

    def _wrap(self, value: Scalar) -> DimNode:
        made = super()._wrap(value)
        return type(self)(self.env, made.value, float) if made.pytype is float else made

    def wrap_int(self, value: Scalar) -> DimNode:
        return type(self)(self.env, value, int)

    def wrap_float(self, value: Scalar) -> DimNode:
        return type(self)(self.env, value, float)


class NumPyNode32(NumPyNode):
    """The object behind a float32 of NumPy."""

    __slots__ = ()
    kind, dtype = np.float32, torch.float32


@answers_for_caller
class NumPyInteger(NumPyNode):
    """The object behind an int64 of NumPy, whose real results are float64."""

    __slots__ = ()
    kind: type[np.generic] = np.int64
    dtype = torch.int64

    def _wrap(self, value: Scalar) -> DimNode:
        made = DimNode._wrap(self, value)
        behind = NumPyNode if made.pytype is float else type(self)
        return behind(self.env, made.value, made.pytype if made.pytype is float else self.kind)

    def wrap_int(self, value: Scalar) -> DimNode:
        return type(self)(self.env, value, self.kind)

    def is_int(self) -> bool:
        return self.pytype is not float

    def sym_float(self) -> DimNode:
        return NumPyNode(self.env, super().sym_float().value, float)

    def maybe_as_int(self) -> int | None:
        return None if type(self.value) is Dim or self.pytype is float else int(self.value)

    constant_int = maybe_as_int

    def trunc(self) -> DimNode:
        return DimNode(self.env, self.value, int)

    sym_int = floor = ceil = trunc


class NumPyInteger32(NumPyInteger):
    """The object behind an int32 of NumPy."""

    __slots__ = ()
    kind, dtype = np.int32, torch.int32


NUMPY_NODES |= {each.kind: each for each in (NumPyNode, NumPyNode32, NumPyInteger, NumPyInteger32)}


@answers_for_caller
def as_numpy(number: Number, kind: type | None = np.float64) -> Number:
    """A symbolic number as one of NumPy's, of a kind that has nodes; any other as it is."""
    node, behind = size_node(number), NUMPY_NODES.get(kind)  # type: ignore[arg-type]
    if node is None or behind is None:
        return number
    if issubclass(behind, NumPyInteger):
        return torch.SymInt(behind(node.env, node.value, behind.kind)) if node.is_int() else number  # type: ignore[no-untyped-call]
    return torch.SymFloat(behind(node.env, node.sym_float().value, float))  # type: ignore[no-untyped-call]
