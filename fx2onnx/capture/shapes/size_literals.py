"""Tensors of Python's numbers, lists and arrays with sizes among them: ``torch.tensor([n, 2])``, ``torch.LongTensor(range(n))``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.stand_ins import LENGTHS
from fx2onnx.capture.shapes.size_arguments import WHOLE
from fx2onnx.capture.shapes.size_math import Number
from fx2onnx.capture.shapes.symnode import NUMPY_NODES, size_node, sym_number

Function: TypeAlias = Callable[..., Number]
_KEYWORDS = frozenset({"dtype", "device", "requires_grad", "pin_memory", "copy"})


@answers_for_caller
def _tensor(original: Function) -> Function:
    """``torch.tensor`` and its like of numbers, or nested lists of them, with sizes among them."""

    def tensor(data: object, *args: object, **kwargs: Number) -> object:
        if not _holds_size(data) or args or not kwargs.keys() <= _KEYWORDS:
            return original(_writable(data), *args, **kwargs)
        made = tensor_of(data, is_typed=kwargs.get("dtype") is not None)
        return made.to(kwargs.get("device") or made.device, kwargs.get("dtype") or made.dtype)

    return tensor


@answers_for_caller
def _from_numpy(original: Function) -> Function:
    return lambda array: tensor_of(array) if _holds_size(array) else original(_writable(array))


def _writable(data: Number) -> Number:
    """A copy of an array that a capture made of a tensor: torch warns of what nothing may write into."""
    return data.copy() if type(data) is np.ndarray and not data.flags.writeable else data


def _holds_size(data: Number) -> bool:
    kind = type(data)
    if kind in LENGTHS or kind in WHOLE:
        return True
    if kind is np.ndarray:
        return bool(data.dtype == object) and _holds_size(data.tolist())
    if kind in (list, tuple, torch.Size):
        return any(map(_holds_size, data)) or any(map(_is_whole, data))
    return kind in (torch.SymInt, torch.SymFloat, torch.SymBool, DataNumber)


def _is_whole(item: object) -> bool:
    """Return whether the item is a tensor of one data-dependent integer."""
    is_one = isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype in (torch.int64, torch.int32)
    return is_one and type(item.tolist()) is torch.SymInt  # type: ignore[attr-defined]


@answers_for_caller
def tensor_of(data: Number, is_typed: bool = False, real: torch.dtype | None = None) -> torch.Tensor:
    """The numbers of nested lists as a tensor. ``is_typed``: its dtype is given, so that a list may be empty. ``real``: the dtype of real
    numbers, where it is not torch's default.
    """
    if type(data) is np.ndarray:
        return tensor_of(data.tolist(), is_typed, torch.float64)
    real = real or torch.get_default_dtype()
    if type(data) in LENGTHS:
        whole = data.some(is_typed)
        return whole.to(real) if whole.dtype == torch.float64 else whole  # type: ignore[no-any-return]
    if type(data) in WHOLE:
        return WHOLE[type(data)](data)
    if isinstance(data, list | tuple):
        parts = [tensor_of(part, real=real) for part in data]
        dtype = functools.reduce(torch.promote_types, {part.dtype for part in parts})
        if dtype == torch.float64 != real:  # that of all of the list, so that none is rounded
            return tensor_of(data, is_typed, dtype)
        return torch.stack([part.to(dtype) for part in parts])
    if isinstance(data, torch.Tensor):
        return data
    if type(data) is DataNumber:
        return data.tensor.reshape(()).to(real)
    if type(data) is torch.SymBool:
        return _truth_of(data)
    is_real = isinstance(data, float | torch.SymFloat)
    node = size_node(data)
    own = torch.bool if isinstance(data, bool) else real if is_real else torch.int64
    dtype = getattr(node if node is not None else NUMPY_NODES.get(type(data)), "dtype", own)
    return torch.scalar_tensor(data, dtype=dtype)


@answers_for_caller
def _truth_of(item: torch.SymBool) -> torch.Tensor:
    """A comparison of sizes as a tensor, decided by the file."""
    node: Number = item.node
    one, other = (tensor_of(sym_number(node.env, each), real=torch.float64) for each in node.value.args)
    truth: torch.Tensor = getattr(torch, node.value.op)(one, other)
    return truth


@answers_for_caller
def _new(kind: type, *args: Number, **kwargs: Number) -> Number:
    """``torch.Tensor([n, 2])``: of the default dtype."""
    if kind is torch.Tensor and THREAD.captures and len(args) == 1 and not kwargs and _is_series(args[0]):
        return tensor_of(args[0], is_typed=True).to(torch.get_default_dtype())
    return _OWN_NEW(kind, *args, **kwargs)


@answers_for_caller
def _new_tensor(self: torch.Tensor, data: Number, **kwargs: Number) -> Number:
    if THREAD.captures and kwargs.keys() <= _KEYWORDS and _holds_size(data):
        return tensor_of(data, is_typed=True).to(kwargs.get("device") or self.device, kwargs.get("dtype") or self.dtype)
    return _OWN_NEW_TENSOR(self, data, **kwargs)


@answers_for_caller
class _OfType(type):
    """The class of what stands for ``torch.LongTensor`` and its like."""

    original: Number
    dtype: torch.dtype

    def __call__(cls, *args: Number, **kwargs: Number) -> Number:
        if THREAD.captures and len(args) == 1 and not kwargs and _is_series(args[0]):
            return tensor_of(args[0], is_typed=True).to(cls.dtype)
        return cls.original(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.original)

    def __getattr__(cls, name: str) -> Number:
        return getattr(cls.original, name)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.original

    def __hash__(cls) -> int:
        return hash(cls.original)


def _is_series(data: object) -> bool:
    is_one = isinstance(data, torch.Tensor) or type(data) in (torch.SymInt, torch.SymFloat, DataNumber, torch.Size)
    return not is_one and _holds_size(data)


_OWN_NEW = torch.Tensor.__new__
_OWN_NEW_TENSOR = torch.Tensor.new_tensor
METHODS: dict[str, object] = {"__new__": staticmethod(_new), "new_tensor": _new_tensor}
WRAPPED: tuple[tuple[object, str, Callable[[Function], Function]], ...] = (
    *((torch, name, _tensor) for name in ("tensor", "as_tensor", "asarray")),
    (torch, "from_numpy", _from_numpy),
)
_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
TYPES = {
    f"{kind}Tensor": _OfType(f"torch.{kind}Tensor", (), {"original": own, "dtype": own.dtype})
    for kind in _KINDS
    for own in (getattr(torch, f"{kind}Tensor"),)
}
"""The stand-ins for torch's classes of tensors, by name. torch reads the name of a class that ``Tensor.type`` is given."""
