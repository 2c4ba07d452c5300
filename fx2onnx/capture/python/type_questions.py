"""``type(x)`` in a module's own code gives for a fake tensor what it would for a tensor.

A fake tensor is of a subclass, so ``type(x) is torch.Tensor`` would be false during capture and true in eager PyTorch.
``isinstance`` and ``torch.is_tensor`` need no help. Where the code of a module mentions ``type``, its globals get a
``type`` of their own for as long as capture runs.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sized
from types import CodeType
from typing import Any

import torch

from fx2onnx.base.code_patch import THREAD, put_name
from fx2onnx.capture.python.module_tree import ModuleTree
from fx2onnx.capture.torch_private.fake_tensors import FakeTensor


class _AsBuiltin(type):
    """Makes the replacement give for ``isinstance`` and ``issubclass`` what the builtin does."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __call__(cls, *args: Any, **kwargs: object) -> type:
        if len(args) == 1 and type(args[0]) is FakeTensor and THREAD.captures:
            return torch.Tensor
        return type(*args, **kwargs)


class TypeOf(metaclass=_AsBuiltin):
    """``type``, save that a fake tensor is a ``torch.Tensor``."""


def answer_as_tensors(tree: ModuleTree) -> None:
    """Until ``Changes`` end, in the code of the modules of ``tree``, ``type(x)`` says ``torch.Tensor`` for a fake tensor,
    and ``len(x)`` may be a symbolic size; in this thread.
    """
    parts = tree.modules
    own = [vars(part)["forward"] for part in parts if "forward" in vars(part)]
    kinds = {base for kind in set(map(type, parts)) for base in kind.__mro__}
    for name, instead, spaces in (
        ("type", TypeOf, (*_asking(iter(own)), *(space for kind in kinds for space in _spaces_of_class(kind)))),
        ("len", _length, _spaces_of_modules(kinds, own)),
    ):
        for space in spaces:
            if name not in space:
                put_name(space, name, instead)


def _length(value: torch.Tensor | Sized) -> int | torch.SymInt:
    """``len``, save that a tensor's may be a symbolic size, where Python's own has to be a plain number."""
    return value.shape[0] if type(value) is FakeTensor and THREAD.captures and value.dim() > 0 else len(value)


def _spaces_of_modules(kinds: set[type], own: list[Callable[..., object]]) -> Iterator[dict[str, object]]:
    """Globals of the files that define the classes ``kinds``, and the forwards ``own`` that are set on modules."""
    for name in {kind.__module__ for kind in kinds}:
        if name.split(".")[0] not in ("torch", "builtins", "fx2onnx") and name in sys.modules:
            yield vars(sys.modules[name])
    for forward in own:
        space = getattr(inspect.unwrap(forward), "__globals__", None)
        if space is not None and not space.get("__name__", "").startswith("torch."):
            yield space


_ASKING: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()
"""Names of the functions of a class whose code mentions ``type``."""


def _spaces_of_class(kind: type) -> Iterator[dict[str, object]]:
    if kind.__module__.split(".")[0] in ("torch", "builtins"):
        return
    if kind not in _ASKING:
        _ASKING[kind] = tuple(name for name, value in vars(kind).items() if any(_asking(iter((value,)))))
    if _ASKING[kind]:
        yield from _asking(iter([vars(kind)[name] for name in _ASKING[kind] if name in vars(kind)]))


def _asking(functions: Iterator[object]) -> Iterator[dict[str, object]]:
    """Globals of those functions whose code mentions ``type``."""
    for function in functions:
        plain = inspect.unwrap(function) if callable(function) else None
        code, space = getattr(plain, "__code__", None), getattr(plain, "__globals__", None)
        if code is not None and space is not None and _mentions_type(code):
            yield space


def _mentions_type(code: CodeType) -> bool:
    return "type" in code.co_names or any(
        _mentions_type(constant) for constant in code.co_consts if isinstance(constant, CodeType)
    )
