"""The modules of a module, and their tensors, under ``state_dict`` names.

As torch's ``named_modules`` and its like, which resume one generator for each level above every module that they give: at
2,000 levels that takes longer than the export, and Python's recursion limit stops it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch


def named_modules(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Each module once, under the first of its names; outer ones first."""
    seen: set[int] = set()
    pending: list[tuple[str, torch.nn.Module]] = [("", root)]
    while pending:
        name, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        prefix = f"{name}." if name else ""
        inner = [(prefix + key, child) for key, child in module._modules.items() if child is not None]
        pending.extend(reversed(inner))


def modules(root: torch.nn.Module) -> list[torch.nn.Module]:
    """``root`` and all modules below it."""
    return [module for _, module in named_modules(root)]


def named_tensors(root: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Name, kind (``parameter`` or ``buffer``) and tensor of each parameter, then of each buffer, tied ones once."""
    tree = [(f"{name}." if name else "", module) for name, module in named_modules(root)]
    seen: set[int] = set()
    for kind in ("parameter", "buffer"):
        for prefix, module in tree:
            for key, tensor in (module._parameters if kind == "parameter" else module._buffers).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield prefix + key, kind, tensor
