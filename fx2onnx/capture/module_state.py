"""The module is left as it was: training flags, attributes, parameters, buffers, whatever forward did or raised."""

from __future__ import annotations

import functools
from collections import OrderedDict
from operator import is_
from typing import Any

import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.memoized import keep_apart
from fx2onnx.capture.module_tree import modules, named_tensors


def preserve(root: torch.nn.Module, training: bool | None) -> None:
    """Until ``Changes`` end, the module is in eval mode (``training=None`` or False) or in training mode; then as before.

    Only what differs is put back, so that another thread that runs the module never finds it without its attributes.
    """
    frozen = [(tensor, tensor.requires_grad) for _, kind, tensor in named_tensors(root) if kind == "parameter"]
    saved = [(module, module.training, dict(module.__dict__), _contents(module)) for module in modules(root)]
    own = [attributes["forward"] for _, _, attributes, _ in saved if callable(attributes.get("forward"))]
    before_change(functools.partial(_put_back, frozen, saved))
    for module, mode, _, _ in saved:
        if mode is not bool(training):
            module.training = bool(training)
    keep_apart({type(module) for module, _, _, _ in saved}, own)


def _put_back(frozen: list[tuple[torch.Tensor, bool]], saved: list[tuple[Any, ...]]) -> None:
    for parameter, requires_grad in frozen:
        if parameter.requires_grad != requires_grad:
            parameter.requires_grad_(requires_grad)
    for module, mode, attributes, contents in saved:
        if module.__dict__.get("training") is not mode:
            module.training = mode  # a scripted module keeps it elsewhere
        _fill_dict(module.__dict__, attributes)
        for container, content in contents:
            if not content:
                container.clear()
            elif isinstance(container, list):
                container[:] = content
            elif isinstance(container, set):
                container &= content
                container |= content
            else:
                _fill_dict(container, content)


_ABSENT = object()


def _fill_dict(found: dict[Any, Any], before: dict[Any, Any]) -> None:
    """``found`` is as ``before``, in its order; what is there all the time is never missing, save to change the order."""
    if len(found) == len(before) and all(map(is_, found.values(), before.values())) and list(found) == list(before):
        return
    for key in [key for key in found if key not in before]:
        del found[key]
    for key, value in before.items():
        if found.get(key, _ABSENT) is not value:
            found[key] = value
    if list(found) != list(before):
        found.clear()
        found.update(before)


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


def keep_buffers(root: torch.nn.Module) -> None:
    """For a run on the real module (tracing with proxies): buffers that it writes have their values again afterwards."""
    buffers = [tensor for _, kind, tensor in named_tensors(root) if kind == "buffer"]
    before_change(
        functools.partial(_write_back, [(buffer, buffer.detach().clone(), buffer._version) for buffer in buffers])
    )


def _write_back(saved: list[tuple[torch.Tensor, torch.Tensor, int]]) -> None:
    with torch.no_grad():
        for buffer, value, version in saved:
            if buffer._version != version:
                buffer.copy_(value)


def weight_names(root: torch.nn.Module) -> dict[int, tuple[str, str, torch.Tensor]]:
    """State-dict name, kind and tensor of every parameter and buffer, by the tensor's id; tied ones under one name."""
    return {id(tensor): (name, kind, tensor) for name, kind, tensor in named_tensors(root)}
