"""torch's state of this thread that a capture sets: modes, dispatch keys, function transforms, gradients. It is as before afterwards,
also where an interrupt left a ``with`` in the middle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from fx2onnx.base.changes import before_change

DispatchModes: TypeAlias = tuple[list[TorchDispatchMode], list[TorchDispatchMode | None]]

_C: Any = torch._C
_overrides: Any = torch.overrides
_python_dispatch: Any = torch.utils._python_dispatch
_ops: Any = torch._ops
_functorch = torch._C._functorch


def _default_device_context() -> object:
    """The context that ``torch.set_default_device`` entered in this thread, if any."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


def _set_default_device_context(context: object) -> None:
    torch.set_default_device(getattr(context, "device", None))
    if context is None:  # torch 2.8 would ask None for its device
        vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)


def list_device_constructors() -> None:
    """torch notes once, at the first use of a default device, which functions make tensors: not while one is replaced."""
    _device_constructors()


def function_modes() -> list[TorchFunctionMode]:
    if not _C._len_torch_function_stack():
        return []
    found: list[TorchFunctionMode] = _overrides._get_current_function_mode_stack()
    context = _default_device_context()
    return [mode for mode in found if mode is not context]


def set_function_modes(modes: list[TorchFunctionMode]) -> None:
    context = _default_device_context()
    while _C._len_torch_function_stack():
        _C._pop_torch_function_stack()
    for mode in ([] if context is None else [context]) + modes:
        _C._push_on_torch_function_stack(mode)


def dispatch_modes() -> DispatchModes:
    """The modes on operators, and those that see them before composite ones are split: torch.export's two, and ours."""
    stack = _python_dispatch._get_current_dispatch_mode_stack() if _C._len_torch_dispatch_stack() else []
    early = _ops._mode_stack_state_for_pre_dispatch
    return stack, [early.get(0), early.get(1), early._schema_check_mode]


def set_dispatch_modes(modes: DispatchModes) -> None:
    for mode in reversed(_python_dispatch._get_current_dispatch_mode_stack()):
        _C._pop_torch_dispatch_stack(getattr(mode, "_mode_key", None))
    for mode in modes[0]:
        _C._push_on_torch_dispatch_stack(mode)
    early = _ops._mode_stack_state_for_pre_dispatch
    for place, mode in enumerate(modes[1][:2]):
        early.set(place, mode)
    early._schema_check_mode = modes[1][2]


_IGNORED_BY_COMPILER = "_is_in_any_mode_without_ignore_compile_internals"
_NOTES = tuple(
    name
    for name in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode", _IGNORED_BY_COMPILER)
    if hasattr(_python_dispatch, name)
)


def mode_notes() -> tuple[bool, ...]:
    """The notes that torch keeps, for all threads, of modes that are on in some."""
    space = vars(_python_dispatch)
    return tuple([space[name] for name in _NOTES])


def set_mode_notes(notes: tuple[bool, ...]) -> None:
    vars(_python_dispatch).update(zip(_NOTES, notes, strict=True))
    if _IGNORED_BY_COMPILER in _NOTES:
        _python_dispatch.set_is_in_mode_without_ignore_compile_internals(notes[-1])


def dispatch_keys() -> tuple[int, int]:
    """The dispatch keys that are on and off; autocast is on for a kind of device where its key is not off."""
    return _C._dispatch_tls_local_include_set().raw_repr(), _C._dispatch_tls_local_exclude_set().raw_repr()


def set_dispatch_keys(keys: tuple[int, int]) -> None:
    include, exclude = (_C.DispatchKeySet.from_raw_repr(key) for key in keys)
    for key in _KEYS:
        if _C._dispatch_tls_is_dispatch_key_included(key) != include.has(key):
            _C._dispatch_tls_set_dispatch_key_included(key, include.has(key))
        if _C._dispatch_tls_is_dispatch_key_excluded(key) != exclude.has(key):
            _C._dispatch_tls_set_dispatch_key_excluded(key, exclude.has(key))
    off = str(exclude)
    for kind, name in AUTOCAST.items():
        torch.set_autocast_enabled(kind, f"Autocast{name}" not in off)


_KEYS = tuple(
    getattr(_C.DispatchKey, name)
    for name in (
        "Python", "PythonTLSSnapshot", "PythonDispatcher", "PreDispatch", "BackendSelect", "ADInplaceOrView", "Functionalize",
        "FuncTorchDynamicLayerBackMode", "FuncTorchDynamicLayerFrontMode", "FuncTorchBatched", "FuncTorchVmapMode",
        "FuncTorchGradWrapper", "Conjugate", "Negative", "Tracer", "Autograd", "AutogradCPU", "AutogradCUDA", "AutogradMeta",
    )
    if hasattr(_C.DispatchKey, name)
)  # fmt: skip


AUTOCAST = {
    "cpu": "CPU", "cuda": "CUDA", "xpu": "XPU", "mps": "MPS", "hpu": "HPU", "mtia": "MTIA", "maia": "MAIA", "xla": "XLA",
    "ipu": "IPU", "privateuseone": "PrivateUse1",
}  # fmt: skip
"""Kinds of devices, as their keys name them."""


def transforms() -> int:
    """The number of ``torch.vmap``, ``torch.func.grad`` and the like that are running."""
    return int(_functorch.get_dynamic_layer_stack_depth())


def set_transforms(depth: int) -> None:
    if transforms() > depth:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


class Part(NamedTuple):
    """A part of the state: how it is read and put back."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], object]


PARTS = (
    Part("gradients", torch.is_grad_enabled, _C._set_grad_enabled),
    Part("__torch_function__", _C._get_torch_function_state, _C._set_torch_function_state),
    Part("default device", _default_device_context, _set_default_device_context),
    Part("functions' modes", function_modes, set_function_modes),
    Part("function transforms", transforms, set_transforms),
    Part("operators' modes", dispatch_modes, set_dispatch_modes),
    Part("dispatch keys, autocast", dispatch_keys, set_dispatch_keys),
)
"""The state that each thread has of its own."""

NOTES = Part("modes that are on", mode_notes, set_mode_notes)
"""The state that all threads share: restored if this is the only thread."""


def keep_modes() -> None:
    """Let this thread's modes be as they are now when ``Changes`` end."""
    parts = (*PARTS, NOTES) if threading.active_count() == 1 else PARTS
    before_change(partial(_put_back, parts, [part.get() for part in parts]))


def _put_back(parts: Sequence[Part], values: Sequence[object]) -> None:
    for part, value in zip(parts, values, strict=True):
        if part.get() != value:
            part.put(value)
