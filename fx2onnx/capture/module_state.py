"""The module is left as it was: training flags, attributes, parameters, buffers, whatever forward did or raised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def preserved(root: torch.nn.Module, training: bool | None) -> Iterator[None]:
    """Inside, the module is in eval mode (``training=None`` or False) or in training mode; afterwards as before."""
    saved = [(module, _attributes(module)) for module in root.modules()]
    try:
        for module, _ in saved:
            module.training = bool(training)
        yield
    finally:
        for module, attributes in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """A copy of the attributes; the registries and plain containers one level deep, since forward may change them."""
    return {
        name: value.copy() if type(value) in (dict, list, set) or name in _REGISTRIES else value
        for name, value in module.__dict__.items()
    }


_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})


def weight_names(root: torch.nn.Module) -> dict[int, tuple[str, str, torch.Tensor]]:
    """State-dict name, kind and tensor of every parameter and buffer, by the tensor's id; tied ones under one name."""
    names: dict[int, tuple[str, str, torch.Tensor]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), (name, "parameter", parameter))
    for name, buffer in root.named_buffers(remove_duplicate=False):
        names.setdefault(id(buffer), (name, "buffer", buffer))
    return names
