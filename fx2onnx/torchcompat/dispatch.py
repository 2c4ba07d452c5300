"""Dispatch keys and modes: what sees each operator, and when."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeAlias

import torch
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fx2onnx.torchcompat.operators import OpOverload

__all__ = [
    "ASKS_DEVICE", "PRE_DISPATCH", "PreDispatchMode", "SplitMode", "TorchDispatchMode",
    "UnnotedMode", "no_dispatch", "no_functions_of_subclasses", "no_modes", "real_kernels",
]  # fmt: skip

PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
ASKS_DEVICE = torch.ops.prim.device.default
no_functions_of_subclasses = torch._C.DisableTorchFunctionSubclass
"""A context in which no ``__torch_function__`` is called."""
_PYTHON = torch._C.DispatchKey.Python
_include = torch._C._dispatch_tls_set_dispatch_key_included
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded

Types: TypeAlias = Sequence[type]
Operands: TypeAlias = Sequence[object]
Named: TypeAlias = Mapping[str, object] | None
Handler: TypeAlias = Callable[[], Any]
"""Gives the function to which each call of an operator is passed: a ``weakref.WeakMethod``, as the method's object has the mode."""

_SEEN: dict[OpOverload, None] = {}
"""Operators that a ``PreDispatchMode`` has seen."""
_MANY = 10_000
"""The largest number of operators that are remembered."""


class _ModesOfThread(threading.local, torch._ops._ModeStackStateForPreDispatch):
    """The modes on the PreDispatch key in each thread: torch has one note of it for all threads, though the key is each
    one's own, so that another that calls ``torch.export`` would see what this one captures. It stays for the life of
    the process: taken out, it would lose the note of a thread that is in ``torch.export`` just then.
    """


_ops: Any = torch._ops
if _ops._mode_stack_state_for_pre_dispatch.count() == 0:
    _ops._mode_stack_state_for_pre_dispatch = _ModesOfThread()  # type: ignore[no-untyped-call]


def _is_compiled() -> bool:
    """Nothing is compiled where modes of ours are on: torch need not keep their calls from its compiler, which takes 4 us each
    and imports the compiler at the first.
    """
    return False


class UnnotedMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that is on in its thread and nowhere noted: torch notes in variables of the process that a mode is on, and
    functions compiled in other threads look there.
    """

    def __enter__(self) -> Self:
        torch._C._push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *_: object) -> None:
        torch._C._pop_torch_dispatch_stack(self.__dict__.get("_mode_key"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return _is_compiled()


class PreDispatchMode(SchemaCheckMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees operators before composite ones are split.

    torch admits only modes of its own classes on the PreDispatch key, hence the base class, whose checks are replaced.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self._dispatch_key = PRE_DISPATCH
        self._handler = handler

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return _is_compiled()

    def __enter__(self) -> Self:
        _ops._set_mode_pre_dispatch(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ops.unset_mode_pre_dispatch(None, schema_check=True)

    def __torch_dispatch__(self, func: OpOverload, types: Types, args: Operands = (), kwargs: Named = None) -> object:
        if PRE_DISPATCH not in func._dispatch_cache:
            func._dispatch_cache[PRE_DISPATCH] = partial(self._directly, func)
            _SEEN[func] = None
        return self._handler()(func, args, kwargs or {})

    def call_directly(self) -> None:
        """Operators that came here before come by the short way from the first time on."""
        for func in tuple(_ops.get_cached_ops()):
            func._uncache_dispatch(PRE_DISPATCH)  # as torch does where modes change; other threads may add to the set
        for func in _SEEN:
            func._dispatch_cache[PRE_DISPATCH] = partial(self._directly, func)

    def _directly(self, func: OpOverload, *args: object, **kwargs: object) -> object:
        """Do the work of torch between an operator's call and this mode's handler, without the search for modes and for tensor
        subclasses that it makes at every call.
        """
        stack = _ops._mode_stack_state_for_pre_dispatch
        if stack._schema_check_mode is not self or _is_excluded(_PYTHON):
            func._dispatch_cache.pop(PRE_DISPATCH, None)
            return func(*args, **kwargs)
        stack._schema_check_mode = None
        _include(PRE_DISPATCH, False)
        try:
            return self._handler()(func, args, kwargs or {})
        finally:
            stack._schema_check_mode = self
            _include(PRE_DISPATCH, True)

    def call_directly_no_more(self) -> None:
        """Operators are as torch has them again."""
        for func in _SEEN:
            func._dispatch_cache.pop(PRE_DISPATCH, None)
        if len(_SEEN) > _MANY:
            _SEEN.clear()


class SplitMode(UnnotedMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sees operators after autograd, functorch and composite ones are dealt with.

    device_of: the device of a tensor without data, None for another. Autograd asks for that of every tensor that it meets,
    which is more than half of all calls.
    """

    def __init__(self, handler: Handler, device_of: Callable[[object], torch.device | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = handler
        self._device_of = device_of

    def __torch_dispatch__(self, func: OpOverload, types: Types, args: Operands = (), kwargs: Named = None) -> object:
        if func is ASKS_DEVICE:
            device = self._device_of(args[0])
            if device is not None:
                return device
        return self._handler()(func, args, kwargs or {})


any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Returns True if autocast is on for some kind of device."""


def in_function_transform() -> bool:
    """Return whether ``torch.vmap``, ``torch.func.grad`` or the like is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def takes_tangents() -> bool:
    """Return whether ``torch.autograd.forward_ad`` is at work."""
    return forward_ad._current_level >= 0


_KEYS = torch._C.DispatchKey
no_dispatch = partial(
    torch._C._ExcludeDispatchKeyGuard,
    torch._C.DispatchKeySet(_KEYS.PythonDispatcher)
    | torch._C.DispatchKeySet(_KEYS.Python)
    | torch._C.DispatchKeySet(_KEYS.PythonTLSSnapshot),
)
"""Operators inside are seen by no mode and run for real. Without the Python dispatcher each takes 4 us less."""


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """Operators inside are seen by no mode; tensors of other classes compute as they do."""
    with _disable_current_modes():
        yield


@contextlib.contextmanager
def real_kernels() -> Iterator[None]:
    """Operators inside run for real as eager PyTorch runs them, whatever surrounds them: no modes, autocast or gradients."""
    with no_dispatch(), torch._C.DisableTorchFunction(), torch._C._DisableAutocast(), torch.no_grad():
        yield
