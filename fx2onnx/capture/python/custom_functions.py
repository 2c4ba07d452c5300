"""``torch.autograd.Function`` classes with a ``symbolic`` of the older exporter, which has no effect here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import torch

from fx2onnx.base.answering import answers_for_caller
from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.torchcompat.frames import user_location


class _Thread(threading.local):
    warnings: dict[type, str] | None = None


_THREAD = _Thread()


def note_symbolics(warnings: dict[type, str]) -> None:
    """Until ``Changes`` end, ``warnings`` gets a line for each such class that is applied in this thread."""
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
