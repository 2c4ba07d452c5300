"""Attributes and methods by which Python asks something of a tensor without an operator that a dispatcher would show."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils import _python_dispatch

from fx2onnx.base.code_patch import CodePatch, NameGroup, Patched, SharedReason, answers_for_caller, put_name
from fx2onnx.torchcompat.frames import asked_by_user, asking_frame

Own: TypeAlias = Callable[..., Any]
"""torch's own answer: called with what torch's attribute or function is called with."""


Answer: TypeAlias = Callable[..., Any]
"""The answer to such a question, for the thread that captures: called with the question's name, ``Own``, the tensor, storage or class
that is asked, and the arguments."""


class _Asked(threading.local):
    answer: Answer | None = None
    """None in a thread that captures nothing."""


_ASKED = _Asked()

ATTRIBUTES = ("_base", "_version", "grad_fn", "is_leaf", "is_quantized", "requires_grad")
METHODS = ("_is_view", "apply_", "as_subclass", "data_ptr", "item", "map_", "numpy", "tolist")
FUNCTIONS = (
    torch.Tensor.__repr__, torch.Tensor.__reduce_ex__, torch.Tensor.__deepcopy__, torch.Tensor.__dlpack__,
    torch.nn.Parameter.__new__, torch.UntypedStorage.__getitem__, torch.TypedStorage.__getitem__,
)  # fmt: skip


_UNSEEN = "whoever counts the modes that are on sees none of ours"


def install_tensor_hooks(answer: Answer) -> None:
    """Have ``answer`` called in this thread until ``Changes`` end."""
    put_name(_ASKED, "answer", answer)
    _TAKEN.put_in()
    for code_patch in _PATCHES:
        code_patch.put_in()


def requires_grad(tensor: torch.Tensor) -> bool:
    """Return whether autograd itself tracks the tensor."""
    return bool(_OWN_REQUIRES_GRAD(tensor))


def real_address(tensor: torch.Tensor) -> int:
    """The place of a real tensor's first element in memory, also where forward set its ``.data`` during a capture."""
    return torch._C.TensorBase.data_ptr(tensor)


_OWN_REQUIRES_GRAD: Own = vars(torch._C.TensorBase)["requires_grad"].__get__
is_quantized: Own = vars(torch._C.TensorBase)["is_quantized"].__get__
"""torch's own answer for a real tensor, also during a capture."""


def _attribute(holder: type, name: str) -> property:
    plain = vars(holder)[name]
    own = plain.__get__

    @answers_for_caller
    def get(asked: Any) -> Any:
        answer = _ASKED.answer
        return own(asked) if answer is None else answer(name, own, asked)

    return property(get, plain.__set__)


def _method(holder: type, name: str) -> Callable[..., Any]:
    return _asked(name, vars(holder)[name])


@answers_for_caller
def _asked(name: str, own: Own) -> Callable[..., Any]:
    def call(asked: Any, *args: Any, **kwargs: Any) -> Any:
        answer = _ASKED.answer
        return own(asked, *args, **kwargs) if answer is None else answer(name, own, asked, *args, **kwargs)

    call.__name__ = name
    return call


def _function(function: Any) -> CodePatch:
    return CodePatch(function, partial(_asked, function.__name__), SharedReason.ASKED)


def _as_nobody(function: Any) -> CodePatch:
    """``function``, which gives user code None, as where nothing is captured."""

    @answers_for_caller
    def replacement(original: Own) -> Callable[..., Any]:
        return lambda *args: None if asked_by_user() else original(*args)

    return CodePatch(function, replacement, _UNSEEN)


def _modes() -> int:
    return 0 if _ASKED.answer is not None and asked_by_user() else _LEN()


_LEN = torch._C._len_torch_dispatch_stack
_TAKEN = NameGroup(
    [
        *(
            Patched(torch.Tensor, name, _attribute(torch._C.TensorBase, name), SharedReason.ASKED)
            for name in ATTRIBUTES
        ),
        *(Patched(torch.Tensor, name, _method(torch._C.TensorBase, name), SharedReason.ASKED) for name in METHODS),
        Patched(torch.UntypedStorage, "device", _attribute(torch._C.StorageBase, "device"), SharedReason.ASKED),
        Patched(torch.UntypedStorage, "data_ptr", _method(torch._C.StorageBase, "data_ptr"), SharedReason.ASKED),
        Patched(torch._C, "_len_torch_dispatch_stack", answers_for_caller(_modes), _UNSEEN),
    ]
)
_PATCHES = (*map(_function, FUNCTIONS), _as_nobody(_python_dispatch._get_current_dispatch_mode))


@answers_for_caller
def is_asked_by_copy() -> bool:
    """Return whether it is ``copy.copy`` that asks."""
    frame = asking_frame()
    return frame is not None and frame.f_globals.get("__name__") == "copy"
