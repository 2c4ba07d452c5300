"""The module is left as it was: training flags, attributes, parameters, buffers, whatever forward did or raised."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch

from fx2onnx.base.memoized import forgotten
from fx2onnx.capture.module_tree import modules, named_tensors


@contextlib.contextmanager
def preserved(root: torch.nn.Module, training: bool | None) -> Iterator[None]:
    """Inside, the module is in eval mode (``training=None`` or False) or in training mode; afterwards as before."""
    frozen = [(tensor, tensor.requires_grad) for _, kind, tensor in named_tensors(root) if kind == "parameter"]
    saved = [(module, dict(module.__dict__), _contents(module)) for module in modules(root)]
    own = [attributes["forward"] for _, attributes, _ in saved if callable(attributes.get("forward"))]
    try:
        for module, _, _ in saved:
            module.training = bool(training)
        with forgotten({type(module) for module, _, _ in saved}, own):
            yield
    finally:
        for parameter, requires_grad in frozen:
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
        for module, attributes, contents in saved:
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for container, content in contents:
                if container or content:
                    container.clear()
                    container.extend(content) if isinstance(container, list) else container.update(content)


_CONTAINERS = frozenset({dict, list, set, OrderedDict})


def _contents(module: torch.nn.Module) -> list[tuple[Any, Any]]:
    """The registries (of parameters, hooks, ...) and plain containers of the module, with a copy of what they hold.

    They are filled again rather than replaced: handles of hooks refer to them.
    """
    found: dict[int, tuple[Any, Any]] = {}
    for name, value in module.__dict__.items():
        if type(value) in _CONTAINERS:
            found[id(value)] = (value, value.copy() if value else ())
            if value and not name.startswith("_"):
                _add_nested(value, found)
    return list(found.values())


def _add_nested(container: Any, found: dict[int, tuple[Any, Any]]) -> None:
    pending = [container]
    while pending:
        current = pending.pop()
        for value in current.values() if isinstance(current, dict) else current:
            if type(value) in _CONTAINERS and id(value) not in found:
                found[id(value)] = (value, value.copy())
                pending.append(value)


@contextlib.contextmanager
def buffers_kept(root: torch.nn.Module) -> Iterator[None]:
    """For a run on the real module (tracing with proxies): buffers that it writes have their values again afterwards."""
    buffers = [tensor for _, kind, tensor in named_tensors(root) if kind == "buffer"]
    saved = [(buffer, buffer.detach().clone(), buffer._version) for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value, version in saved:
                if buffer._version != version:
                    buffer.copy_(value)


def weight_names(root: torch.nn.Module) -> dict[int, tuple[str, str, torch.Tensor]]:
    """State-dict name, kind and tensor of every parameter and buffer, by the tensor's id; tied ones under one name."""
    return {id(tensor): (name, kind, tensor) for name, kind, tensor in named_tensors(root)}
