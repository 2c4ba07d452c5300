"""The settings of torch while this thread captures a module."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import GetSetDescriptorType
from typing import Any, cast

import torch
from torch._dispatch.python import enable_python_dispatcher

from fx2onnx.base.changes import Changes, before_change
from fx2onnx.base.code_patch import THREAD, CodePatch, Delegate, SharedReason, answers_for_caller, instead_of, put_name
from fx2onnx.torchcompat.dispatch import PreDispatchMode, SplitMode
from fx2onnx.torchcompat.fake_tensors import FakeMode
from fx2onnx.torchcompat.frames import asked_by_user, user_location
from fx2onnx.torchcompat.pytrees import flatten, pytree
from fx2onnx.torchcompat.versions import found

_COND = "_cond_op_wrapper"
"""The name of the function that ``torch.cond`` has compiled."""


def _call_directly(function: Callable[..., object], args: tuple[Any, ...], *_: object, **__: object) -> object:
    if function.__name__ == _COND:  # it takes tensors only; compiling takes nested operands apart
        *rest, operands = args
        leaves, structure = pytree.tree_flatten(tuple(operands))
        pred, *branches = rest
        args = (pred, *(_on_leaves(branch, structure) for branch in branches), tuple(leaves))
    return function(*args)


def _on_leaves(branch: Callable[..., object], structure: pytree.TreeSpec) -> Callable[..., object]:
    return lambda *leaves: branch(*pytree.tree_unflatten(leaves, structure))


_ASSIGNED = "an assignment makes the tensor one over other memory, which no operator shows"


_DATA: GetSetDescriptorType = vars(torch._C.TensorBase)["data"]
set_data = _DATA.__set__
"""``x.data = y`` as torch does it, also where it is watched."""


def install_assignment_hook(
    assigned: Callable[[torch.Tensor, torch.Tensor], bool], read: Callable[[torch.Tensor, torch.Tensor], object]
) -> None:
    """Watch assignments: until ``Changes`` end, ``assigned(x, y)`` is called before ``x.data = y`` in this thread, which no dispatcher shows;
    nothing is assigned where it says that this is no change. ``read(x, y)`` is called where ``y = x.data`` is read.
    """
    thread = threading.get_ident()

    def replace(self: torch.Tensor, value: torch.Tensor) -> None:
        if threading.get_ident() != thread or assigned(self, value):
            set_data(self, value)

    def show(self: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = _DATA.__get__(self)
        if threading.get_ident() == thread:
            read(self, value)
        return value

    put_name(torch.Tensor, "data", property(show, replace), _ASSIGNED)


def say_compiling() -> None:
    """Until ``Changes`` end, ``torch.compiler.is_compiling()`` is true, as while ``torch.export`` runs a module."""
    put_name(torch.compiler, "_is_compiling_flag", True, "libraries take the code that they have for torch.export")


class _EagerHere(Delegate):
    """A stance of ``torch.compile`` (``torch.compiler.set_stance``) under which this thread's captures run functions as they
    were written: compiled code would read memory that fake tensors do not have.
    """

    @property
    def stance(self) -> str:
        return "force_eager" if THREAD.captures else str(self.original.stance)


def _xor(self: torch.SymInt, other: int | torch.SymInt) -> torch.SymInt:
    node = self.node
    right = other.node if isinstance(other, torch.SymInt) else node.wrap_int(other)
    return torch.SymInt(node.bitwise_xor(right))  # type: ignore[no-untyped-call]


def _add_operators() -> None:
    """Add operators of sizes that eager PyTorch, where they are plain numbers, has, and this torch's symbolic sizes lack."""
    for name in ("__xor__", "__rxor__"):
        if not hasattr(torch.SymInt, name):
            put_name(torch.SymInt, name, _xor, SharedReason.METHODS)


def _run_as_written() -> None:
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    stance = getattr(eval_frame, "_stance", None)
    if stance is not None and not isinstance(stance, _EagerHere):
        put_name(eval_frame, "_stance", _EagerHere(stance), SharedReason.WRITTEN)


def _as_written(model: Callable[..., object] | None = None, **_: object) -> Callable[..., object]:
    """``torch.compile``, also as a decorator with arguments."""
    if getattr(model, "__name__", "") == _COND:
        return lambda *args: _call_directly(cast(Callable[..., object], model), args)
    return _as_written if model is None else model


def _linearized(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``torch.func.linearize`` without the graph that it traces, in which numbers that forward computes would be constants."""
    return function(*primals), lambda *tangents: torch.func.jvp(function, primals, tangents)[1]


@answers_for_caller
def _fast_path_of(original: Callable[[], bool]) -> Callable[..., object]:
    """Have the fast path off for torch's own modules, unless ``fused_attention``."""
    return lambda: (THREAD.fuses_attention or asked_by_user()) and original()


@contextlib.contextmanager
def fused_attention() -> Iterator[None]:
    """Inside, torch's modules take their fused path in inference, as in eager PyTorch."""
    before, THREAD.fuses_attention = THREAD.fuses_attention, True
    try:
        yield
    finally:
        THREAD.fuses_attention = before


_CODE_PATCHES = (
    CodePatch(
        torch.backends.mha.get_fastpath_enabled,
        _fast_path_of,
        "torch's modules take no fused path, which is not for training, unless masks are given, which mean something else there",
    ),
    *(
        instead_of(function, _call_directly, SharedReason.WRITTEN)
        for function in found("_higher_order_ops.utils._hop_compile_and_call")
    ),
    instead_of(torch.compile, _as_written, SharedReason.WRITTEN),
    instead_of(torch.func.linearize, _linearized, SharedReason.WRITTEN),
)
"""Attention's fused inference path is off where it gives the same, and nothing is compiled, by the function that newer versions of torch have for it
in control flow or by ``torch.compile`` itself.
"""


@answers_for_caller
def _runs_here(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    leaves = (leaf.value for leaf in flatten((args, kwargs))[0])
    return THREAD.captures and any(
        isinstance(leaf, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in leaf.shape) for leaf in leaves
    )


def _run_by_python() -> None:
    """Patch torch: until ``Changes`` end, scripted and traced functions and methods that get tensors of symbolic sizes are run by
    Python.
    """
    for kind in (torch._C.ScriptMethod, torch._C.ScriptFunction):
        original = kind.__call__

        @answers_for_caller
        def call(self: Any, *args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            if not _runs_here(args, kwargs):
                return _original(self, *args, **kwargs)
            from fx2onnx.torchcompat.scripted import result_of

            return result_of(self, args, kwargs, _original)

        call.__signature__ = NotImplemented  # type: ignore[attr-defined]  # so that its schema is read
        put_name(kind, "__call__", call, SharedReason.SCRIPT)


_FLEX_ATTENTION = "torch.nn.attention.flex_attention"


def _attend(self: object, *args: object) -> object:
    """The functions see all places at once; what they read has its gradient, which the operator gives when compiled only."""
    return sys.modules[type(self).__module__].math_attention(*args)


def _no(*_: object, **__: object) -> bool:
    return False


_FLEX_PATCHES = (
    *(
        instead_of(type(operator).__call__, _attend, SharedReason.WRITTEN)
        for operator in found("ops.higher_order.flex_attention")
    ),
    # Torch 2.15 asks which sizes are of data: ours are no symbols of sympy.
    *(
        instead_of(function, _no, SharedReason.QUESTIONS)
        for function in found("fx.experimental.symbolic_shapes.has_free_unbacked_symbols")
    ),
)


@functools.lru_cache(maxsize=1)
def _unwarned(warn: Callable[..., object]) -> CodePatch:
    return instead_of(warn, _no, "it warns of attention that runs uncompiled: a capture is")


def attend_as_written() -> None:
    """Let attention run as written, in this thread until ``Changes`` end, without the warning that nothing is
    compiled."""
    warn = getattr(sys.modules.get(_FLEX_ATTENTION), "_warn_once", None)
    for patch in (*_FLEX_PATCHES, *([_unwarned(warn)] if warn is not None else [])):
        patch.put_in()


@contextlib.contextmanager
def attention_as_written() -> Iterator[None]:
    """A block in which ``attend_as_written`` holds, where there is such attention."""
    with Changes():
        if _FLEX_ATTENTION in sys.modules:
            attend_as_written()
        yield


class TakesGradients(BaseException):
    """Forward takes gradients while composite operators are recorded whole, whose writes and results have no history."""


def _refuse_backward(*args: object, **kwargs: object) -> object:
    raise TakesGradients


_NO_BACKWARD = instead_of(
    torch.autograd.graph._engine_run_backward, _refuse_backward, "results recorded whole have no history"
)


_FAKE_TENSOR_LOG = logging.getLogger("torch._subclasses.fake_tensor")


def _unlogged(record: logging.LogRecord) -> bool:
    """A failing operator becomes our error; torch would print its own stack before."""
    return record.exc_info is None or not THREAD.captures


@contextlib.contextmanager
def capture_modes(
    fake_mode: FakeMode, recorder: PreDispatchMode | SplitMode, gradients: bool = False
) -> Iterator[None]:
    """Everything inside runs on fake tensors, seen by ``recorder``; other threads see nothing of it."""
    with Changes():
        put_name(THREAD, "captures", True)
        for code_patch in (*_CODE_PATCHES, *(() if isinstance(recorder, SplitMode) else (_NO_BACKWARD,))):
            code_patch.put_in()
        if isinstance(recorder, SplitMode):
            from fx2onnx.torchcompat.split import split_as_written

            split_as_written()
        _run_as_written()
        _run_by_python()
        attend_as_written()
        _add_operators()
        before_change(fake_mode.release)
        if _unlogged not in _FAKE_TENSOR_LOG.filters:
            before_change(partial(_FAKE_TENSOR_LOG.removeFilter, _unlogged))
            _FAKE_TENSOR_LOG.addFilter(_unlogged)
        with torch.set_grad_enabled(gradients), fake_mode, enable_python_dispatcher(), recorder:
            if isinstance(recorder, PreDispatchMode):
                before_change(recorder.call_directly_no_more)
                recorder.call_directly()
            yield


class _Thread(threading.local):
    warnings: dict[type, str] | None = None


_THREAD = _Thread()


def note_symbolics(warnings: dict[type, str]) -> None:
    """Until ``Changes`` end, ``warnings`` gets a line for each ``torch.autograd.Function`` that is applied in this thread and has a ``symbolic`` of the
    older exporter, which has no effect here.
    """
    before_change(partial(_note_in, _THREAD.warnings))
    _note_in(warnings)
    if _PATCH is not None:
        _PATCH.put_in()
    else:
        put_name(torch.autograd.Function, "apply", classmethod(_noted(_apply)), _WHY)


def _note_in(warnings: dict[type, str] | None) -> None:
    _THREAD.warnings = warnings


@answers_for_caller
def _noted(original: Callable[..., object]) -> Callable[..., object]:
    @answers_for_caller
    def apply(cls: type, *args: object, **kwargs: object) -> object:
        if _THREAD.warnings is not None and hasattr(cls, "symbolic") and cls not in _THREAD.warnings:
            where = user_location()
            _THREAD.warnings[cls] = (
                f"the symbolic of {cls.__qualname__} has no effect: what its forward computes is in the file"
                + (f"   ({where})" if where else "")
            )
        return original(cls, *args, **kwargs)

    return apply


_WHY = "its forward is recorded, and its symbolic has no effect"
_APPLY = vars(torch.autograd.Function)["apply"]
_PATCH = CodePatch(_APPLY.__func__, _noted, _WHY) if isinstance(_APPLY, classmethod) else None
"""None where ``apply`` is no function of Python, as from torch 2.14 on."""


@answers_for_caller
def _apply(cls: type, *args: object, **kwargs: object) -> object:
    return _APPLY.__get__(None, cls)(*args, **kwargs)
