"""``int(x)`` of a size that only the data tells, where Python's own has to be a plain number."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from typing import Any

import torch

from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.base.source import SourceLocation


class _Kind(type):
    """Of a class that stands for ``int`` under its name: it makes what ``int`` makes, and ``int``'s objects are its own."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and THREAD.captures:
            (value,) = args
            kind = type(value)
            if kind is torch.SymInt or kind is torch.SymFloat:
                return torch.sym_int(value)  # type: ignore[no-untyped-call]
            if kind is torch.Tensor and value.numel() == 1 and value.dtype in _INTEGERS:
                return value.item()
        return int(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, int)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, int)

    def __eq__(cls, other: object) -> bool:
        return other is int or other is cls

    def __hash__(cls) -> int:
        return hash(int)


class _Int(int, metaclass=_Kind):
    pass


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def calls_int(where: SourceLocation | None) -> bool:
    """Whether the line may have a call of ``int``."""
    return where is not None and "int(" in linecache.getline(where.file, where.line)


def keep_sizes(files: Iterable[str]) -> None:
    """Until ``Changes`` end, ``int(x)`` of a symbolic size is that size in the code of these files; in this thread."""
    wanted = set(files)
    for module in list(sys.modules.values()) if wanted else ():
        if getattr(module, "__file__", None) in wanted and "int" not in vars(module):
            put_name(vars(module), "int", _Int)
