"""The modules of a module, their tensors under ``state_dict`` names, and the path of the module whose forward runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from fx2onnx.base.code_patch import CodePatch, put_name


class ModuleTree:
    """The modules of ``root``, and their tensors, found once for all who look at them before a run."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.named = _named_modules(root)
        """Each module once, under the first of its names; outer ones first."""
        self.modules = [module for _, module in self.named]
        self.tensors = _named_tensors(self.named)
        """Name, kind (``parameter`` or ``buffer``) and tensor of each parameter, then of each buffer, tied ones once."""
        self.weights = [tensor for _, _, tensor in self.tensors]

    def buffers(self) -> list[torch.Tensor]:
        return [tensor for _, kind, tensor in self.tensors if kind == "buffer"]


def _named_modules(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    found: dict[int, tuple[str, torch.nn.Module]] = {}
    pending: list[tuple[str, torch.nn.Module]] = [("", root)]
    while pending:
        place = pending.pop()
        name, module = place
        if id(module) in found:
            continue
        found[id(module)] = place
        children = module._modules
        if children:
            prefix = f"{name}." if name else ""
            inner = [(prefix + key, child) for key, child in children.items() if child is not None]
            pending.extend(reversed(inner))
    return list(found.values())


def _named_tensors(modules: list[tuple[str, torch.nn.Module]]) -> list[tuple[str, str, torch.Tensor]]:
    found: dict[int, tuple[str, str, torch.Tensor]] = {}
    for kind, registry in (("parameter", "_parameters"), ("buffer", "_buffers")):
        for name, module in modules:
            tensors = getattr(module, registry)
            for key, tensor in tensors.items() if tensors else ():
                if tensor is not None and id(tensor) not in found:
                    found[id(tensor)] = (f"{name}.{key}" if name else key, kind, tensor)
    return list(found.values())


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
    """A module's call as ``torch.nn.Module._wrapped_call_impl`` has it, in whose place this code is put: a frame more for each module would end
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
"""The function that ``torch.nn.Module.__call__`` is."""
_CALLS = CodePatch.of_code(
    MODULE_CALL, _call.__code__, "which module runs is kept, at no frame more", _fx2onnx_entered=_fx2onnx_entered
)
