"""The modules of a module, and their tensors, under ``state_dict`` names.

As torch's ``named_modules`` and its like, which resume one generator for each level above every module that they give: at
2,000 levels that takes longer than the export, and Python's recursion limit stops it.
"""

from __future__ import annotations

import torch


class ModuleTree:
    """The modules of ``root``, and their tensors, found once for all who look at them before a run."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.named = _named_modules(root)
        """Each module once, under the first of its names; outer ones first."""
        self.modules = [module for _, module in self.named]
        self.tensors = _named_tensors(self.named)
        """Name, kind (``parameter`` or ``buffer``) and tensor of each parameter, then of each buffer, tied ones once."""

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
