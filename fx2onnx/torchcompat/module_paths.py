"""The path of the module whose forward runs, kept where ``torch.nn.Module`` is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from fx2onnx.base.code_patch import CodePatch, put_name
from fx2onnx.torchcompat.module_tree import ModuleTree


class ModulePaths(threading.local):
    """Paths of the modules whose ``__call__`` is running in this thread, outermost first."""

    def __init__(self) -> None:
        self.names: dict[int, str] | None = None
        self.stack: list[str] = []

    @property
    def current(self) -> str:
        return self.stack[-1] if self.stack else ""

    def name_of(self, module: object) -> str:
        """The path of a module of the root, else an empty one."""
        return (self.names or {}).get(id(module), "")

    def entered(self, module: torch.nn.Module) -> list[str] | None:
        """The paths, that of ``module`` being the last now; None in a thread that does not capture."""
        if self.names is None:
            return None
        stack = self.stack
        stack.append(self.names.get(id(module)) or (stack[-1] if stack else ""))
        return stack


PATHS = ModulePaths()


def track_modules(tree: ModuleTree) -> None:
    """Keep ``PATHS`` while modules of ``tree`` are called by this thread, until ``Changes`` end."""
    put_name(PATHS, "names", {id(module): name for name, module in tree.named})
    put_name(PATHS, "stack", [])
    _CALLS.put_in()


_fx2onnx_entered = PATHS.entered


def _call(self: Any, *args: object, **kwargs: object) -> object:
    """As ``torch.nn.Module._wrapped_call_impl``, in whose place this code is put: a frame more for each module would end
    the run at fewer levels of modules than eager PyTorch can run.
    """
    stack = _fx2onnx_entered(self)
    try:
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)
    finally:
        if stack is not None:
            stack.pop()


MODULE_CALL: Callable[..., object] = torch.nn.Module._wrapped_call_impl
"""What ``torch.nn.Module.__call__`` is."""
_CALLS = CodePatch.of_code(MODULE_CALL, _call.__code__, _fx2onnx_entered=_fx2onnx_entered)
