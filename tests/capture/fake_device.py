"""A device ``apart`` in Python: memory of its own, which only copies reach, and the CPU's operators. For a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves

backend_registration._setup_privateuseone_for_python_backend("apart")
DEVICE = torch.device("apart:0")
KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
READ: list[int] = []
"""Bytes of each copy from the device to the CPU."""
COMPUTED: list[str] = []
"""Operators that ran there."""
_MEMORY: list[torch.Tensor] = []
_CPU = torch.device("cpu")
aten = torch.ops.aten


def empty(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the device."""
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    memory = torch.empty(0 if 0 in sizes else last + 1, dtype=dtype)
    _MEMORY.append(memory)
    storage = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), DEVICE, memory.nbytes)
    tensor: torch.Tensor = torch._C._acc.create_empty_tensor([0], dtype)
    aten.set_.source_Storage_storage_offset.redispatch(KEY, tensor, storage, 0, list(sizes), list(strides))
    return tensor


def seen(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor on the CPU."""
    storage = tensor.untyped_storage()
    same = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), _CPU, storage.nbytes())
    found = torch.empty(0, dtype=tensor.dtype)
    return found.set_(same, tensor.storage_offset(), tensor.shape, tensor.stride())


def put(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the device."""
    made = empty(tensor.shape, tensor.stride(), tensor.dtype)
    seen(made).copy_(tensor)
    return made


def _become(tensor: torch.Tensor, other: torch.Tensor) -> None:
    where = other.untyped_storage(), other.storage_offset(), other.shape, other.stride()
    aten.set_.source_Storage_storage_offset.redispatch(KEY, tensor, *where)


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if target.device == DEVICE:
        seen(target).copy_(seen(source) if source.device == DEVICE else source)
    else:
        READ.append(source.nbytes)
        target.copy_(seen(source))
    return target


def _of_sizes(sizes: Sequence[int], dtype: Any = None, *_: object, **__: object) -> torch.Tensor:
    plain = torch.empty(sizes, dtype=dtype, device="meta")
    return empty(plain.shape, plain.stride(), plain.dtype)


def _of_strides(
    sizes: Sequence[int], strides: Sequence[int], dtype: Any = None, *_: object, **__: object
) -> torch.Tensor:
    return empty(sizes, strides, dtype or torch.get_default_dtype())


ANYWHERE = frozenset(
    {"index", "index_put_", "_index_put_impl_", "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss"}
)
"""Operators that take places or lengths that lie on the CPU, as those of a GPU do."""


def _computed(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Any other operator, on the CPU. Raises: RuntimeError beside more than a number that lies on the CPU, as a GPU does."""
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    places = {each.device for each in given if each.device == DEVICE or each.dim()}
    if len(places) > 1 and func._opname not in ANYWHERE:
        raise RuntimeError(f"{func._opname}: expected all tensors to be on the same device, found {places}")
    if DEVICE in places:
        COMPUTED.append(func._opname)

    def there(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(there, value))
        is_ours = isinstance(value, torch.Tensor) and value.device == DEVICE
        return seen(value) if is_ours else _CPU if isinstance(value, torch.device) else value

    named = {name: there(value) for name, value in kwargs.items()}
    outs = {each.name: kwargs[each.name] for each in func._schema.arguments if each.is_out}
    if outs:  # these it may resize, which memory that lies there cannot be
        plain = {name: torch.empty(0, dtype=out.dtype) for name, out in outs.items()}
        func(*map(there, args), **named | plain)
        for name, out in outs.items():
            _become(out, put(plain[name]))
        return tuple(outs.values()) if len(outs) > 1 else next(iter(outs.values()))
    result = func(*map(there, args), **named)
    if func._schema.is_mutable:
        return args[0]
    if isinstance(result, list | tuple):
        return type(result)(map(put, result))
    return put(result) if isinstance(result, torch.Tensor) else result


def _convolution(*args: Any) -> torch.Tensor:
    return _computed(aten.convolution.default, *args)


def _view(overload: Any) -> Any:
    return lambda *args, **kwargs: overload.redispatch(KEY, *args, **kwargs)


LIBRARY = torch.library.Library("aten", "IMPL")
for _name, _function in {
    "_copy_from": _copy_from,
    "convolution_overrideable": _convolution,
    "empty.memory_format": _of_sizes,
    "empty_strided": _of_strides,
    "as_strided": _view(aten.as_strided.default),
    "view": _view(aten.view.default),
    "_reshape_alias": _view(aten._reshape_alias.default),
}.items():
    LIBRARY.impl(_name, _function, "PrivateUse1")
FALLBACK = torch.library.Library("_", "IMPL")
FALLBACK.fallback(_computed, "PrivateUse1")
