"""The module is left as it was: training flags, attributes, parameters, buffers, whatever forward did or raised."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from fx2onnx.base.memoized import forgotten


@contextlib.contextmanager
def preserved(root: torch.nn.Module, training: bool | None) -> Iterator[None]:
    """Inside, the module is in eval mode (``training=None`` or False) or in training mode; afterwards as before."""
    saved = [(module, dict(module.__dict__), _contents(module)) for module in root.modules()]
    own = [attributes["forward"] for _, attributes, _ in saved if callable(attributes.get("forward"))]
    try:
        for module, _, _ in saved:
            module.training = bool(training)
        with forgotten({type(module) for module, _, _ in saved}, own):
            yield
    finally:
        for module, attributes, contents in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for container, content in contents:
                if container or content:
                    container.clear()
                    container.extend(content) if isinstance(container, list) else container.update(content)


_CONTAINERS = (dict, list, set, OrderedDict)


def _contents(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """The registries (of parameters, hooks, ...) and plain containers of the module, with a copy of what they hold.

    They are filled again rather than replaced: handles of hooks refer to them.
    """
    return [(value, value.copy() if value else ()) for value in module.__dict__.values() if type(value) in _CONTAINERS]


def weight_names(root: torch.nn.Module) -> dict[int, tuple[str, str, torch.Tensor]]:
    """State-dict name, kind and tensor of every parameter and buffer, by the tensor's id; tied ones under one name."""
    names: dict[int, tuple[str, str, torch.Tensor]] = {}
    for name, parameter in root.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), (name, "parameter", parameter))
    for name, buffer in root.named_buffers(remove_duplicate=False):
        names.setdefault(id(buffer), (name, "buffer", buffer))
    return names
