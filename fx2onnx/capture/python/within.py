"""The tensors that an object leads to, whatever holds them: sets, views of dicts, bound methods, closures, weak references."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType

import torch

_MOST_PARTS = 2_000
_NOT_LOOKED_INTO = (
    type, ModuleType, str, bytes, int, float, bool, type(None), torch.dtype, torch.device, torch.nn.Module,
)  # fmt: skip


def tensors_within(value: object) -> Iterator[torch.Tensor]:
    """The tensors in an object at any depth, except for those of modules, classes and files of Python."""
    seen: set[int] = set()
    pending = [value]
    while pending and len(seen) < _MOST_PARTS:
        part = pending.pop()
        if id(part) in seen or isinstance(part, _NOT_LOOKED_INTO):
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, FunctionType):  # not what its file has
            pending += [part.__defaults__, part.__kwdefaults__]
            pending += [cell.cell_contents for cell in part.__closure__ or () if cell != CellType()]
        elif isinstance(part, weakref.ref):
            pending.append(part())
        else:
            pending += gc.get_referents(part)
