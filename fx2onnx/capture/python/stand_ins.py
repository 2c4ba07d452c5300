"""Stand-ins for Python's ``len``, ``type``, ``int``, ``float`` and ``range`` in the user's files: they know symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from types import FunctionType
from typing import Any

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.capture.python.data_numbers import DataNumber

SYMBOLIC: Mapping[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool, DataNumber: float}
"""The classes of numbers during a capture, each with the class that eager PyTorch has there."""


@answers_for_caller
def length_of(value: torch.Tensor | Sized) -> int | torch.SymInt:
    kind: type = type(value)
    if kind in LENGTHS:
        return LENGTHS[kind](value)  # type: ignore[no-any-return]
    if not THREAD.captures:
        return len(value)
    if isinstance(value, torch.Tensor):
        return value.shape[0] if kind is torch.Tensor and value.dim() > 0 else len(value)
    own = getattr(kind, "__len__", None)
    length = own(value) if type(own) is FunctionType else None
    return length if type(length) is torch.SymInt or (type(length) is int and length >= 0) else len(value)


LENGTHS: dict[type, Callable[[Any], Any]] = {}
"""Classes of lists whose length is a size, with what gives it."""
ARRAYS: set[type] = set()
"""Classes of arrays that hold a tensor of the run, as ``tensor``."""


def class_of(value: object) -> type:
    """The class that a value has in eager PyTorch: a number's is Python's or NumPy's."""
    kind = type(value)
    return getattr(getattr(value, "node", None), "kind", SYMBOLIC[kind]) if kind in SYMBOLIC else kind


@answers_for_caller
class _OfType(type):
    """The class of what stands for ``type``."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if len(args) != 1 or kwargs or not THREAD.captures:
            return type(*args, **kwargs)
        kind = class_of(args[0])
        return _STANDS_FOR.get(kind, kind) if cls is TYPE_OF_NUMBERS else kind

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, type)


@answers_for_caller
class _OfNumber(type):
    """The class of what stands for ``int`` and ``float``: equal to it, and of the same instances."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        value = args[0] if len(args) == 1 and not kwargs and THREAD.captures else None
        if type(value) in ARRAYS:
            value = value.tensor  # type: ignore[attr-defined]
        if isinstance(value, torch.Tensor):
            value = value.item()
            args = (value,)
        if type(value) in SYMBOLIC:
            return _CONVERT[cls](value)
        return cls.__base__(*args, **kwargs)  # type: ignore[misc]

    def __instancecheck__(cls, value: object) -> bool:
        return issubclass(class_of(value), cls.__base__)  # type: ignore[arg-type]

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.__base__)  # type: ignore[arg-type]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__base__

    def __hash__(cls) -> int:
        return hash(cls.__base__)


@answers_for_caller
class _OfRange(type):
    """The class of what stands for ``range``: of its turns, only the number has to be a plain one."""

    def __call__(cls, *args: Any) -> Any:
        if THREAD.captures:
            args = tuple(arg.item() if isinstance(arg, torch.Tensor) else arg for arg in args)
        is_of_size = THREAD.captures and 1 <= len(args) <= 3 and torch.SymInt in map(type, args)
        if not is_of_size:
            plain = range(*args)
            has_exits = THREAD.captures and THREAD.tracer is not None and THREAD.tracer.branching.has_exits
            return THREAD.tracer.plugin("loops").left_range(plain) if has_exits else plain
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        count = -((start - stop) // step)
        if (
            THREAD.tracer is not None
            and THREAD.tracer.branching.has_loops
            and THREAD.tracer.plugin("loops").may_loop(count)
        ):
            return THREAD.tracer.plugin("loops").range_of(start, count, step)
        turns = range(count)
        if type(start) is int and type(step) is int:
            return range(start, start + len(turns) * step, step)
        return [start + turn * step for turn in turns]

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, range)


RANGE = _OfRange("range", (), {})
TYPE, TYPE_OF_NUMBERS = (_OfType("type", (type,), {}) for _ in range(2))
INT, FLOAT = (_OfNumber(kind.__name__, (kind,), {}) for kind in (int, float))
_STANDS_FOR: Mapping[type, type] = {int: INT, float: FLOAT}


def to_int(value: Any) -> object:
    if type(value) is DataNumber:
        return value.rounded_to_int()
    if type(value) is torch.SymInt and value.node.pytype is not int:  # one of NumPy's
        return torch.SymInt(value.node.sym_int())  # type: ignore[no-untyped-call]
    return int(value) if type(value) is torch.SymBool else torch.sym_int(value)  # type: ignore[no-untyped-call]


def to_float(value: Any) -> object:
    if type(value) is DataNumber:
        return value
    if type(value) in (torch.SymInt, torch.SymFloat):  # which may be one of NumPy's
        return torch.SymFloat(value.node.sym_float().sym_float())  # type: ignore[no-untyped-call]
    return float(bool(value)) if type(value) is torch.SymBool else torch.sym_float(value)  # type: ignore[no-untyped-call]


_CONVERT: Mapping[type, Callable[[Any], object]] = {
    INT: answers_for_caller(to_int),
    FLOAT: answers_for_caller(to_float),
}
