"""The module is left as it was: training flags, attributes, parameters, buffers, whatever forward did or raised."""

from __future__ import annotations

import functools
from collections import OrderedDict
from operator import is_
from typing import Any, TypeVar

import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.memoized import keep_apart
from fx2onnx.capture.python.module_tree import ModuleTree


def preserve(tree: ModuleTree, training: bool | None) -> None:
    """Until ``Changes`` end, the modules are in eval mode (``training=None`` or False) or in training mode; then as before.

    Only what differs is put back, so that another thread that runs the module never finds it without its attributes.
    """
    frozen = [(tensor, tensor.requires_grad) for _, kind, tensor in tree.tensors if kind == "parameter"]
    saved = [_Saved(module) for module in tree.modules]
    own = [state.attributes["forward"] for state in saved if callable(state.attributes.get("forward"))]
    before_change(functools.partial(_put_back, frozen, saved))
    for state in saved:
        _set_mode(state.module, state.training, bool(training))
    keep_apart(set(map(type, tree.modules)), own)


def _put_back(frozen: list[tuple[torch.Tensor, bool]], saved: list[_Saved]) -> None:
    for parameter, requires_grad in frozen:
        if parameter.requires_grad != requires_grad:
            parameter.requires_grad_(requires_grad)
    for state in saved:
        _set_mode(state.module, getattr(state.module, "training", None), state.training)
        _fill_dict(state.module.__dict__, state.attributes)
        for container in state.empty:
            if container:
                container.clear()
        for container, content in state.filled:
            if isinstance(container, list):
                container[:] = content
            elif isinstance(container, set):
                container &= content
                container |= content
            else:
                _fill_dict(container, content)


def _set_mode(module: torch.nn.Module, found: bool | None, mode: bool) -> None:
    if found is mode:
        return
    if "training" in module.__dict__:
        module.__dict__["training"] = mode  # a quarter of the time of ``Module.__setattr__``
    else:
        module.training = mode  # a scripted module keeps it elsewhere


_ABSENT = object()
K = TypeVar("K")


def _fill_dict(found: dict[K, object], before: dict[K, object]) -> None:
    """``found`` is as ``before``, in its order; what is there all the time is never missing, save to change the order."""
    if len(found) == len(before) and all(map(is_, found.values(), before.values())) and list(found) == list(before):
        return
    own = set(map(id, before))
    try:
        for key in [key for key in found if id(key) not in own and key not in before]:
            del found[key]
    except TypeError:  # a size of the capture, whose hash ended with it
        found.clear()
    for key, value in before.items():
        if found.get(key, _ABSENT) is not value:
            found[key] = value
    if list(found) != list(before):
        found.clear()
        found.update(before)


_CONTAINERS = frozenset({dict, list, set, OrderedDict})


class _Saved:
    """A module's attributes, with its registries (of parameters, hooks, ...) and plain containers and what they hold.

    Containers are filled again rather than replaced: handles of hooks refer to them.
    """

    __slots__ = ("attributes", "empty", "filled", "module", "training")

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.training = module.training
        self.attributes = module.__dict__.copy()
        containers = [item for item in self.attributes.items() if type(item[1]) in _CONTAINERS]
        self.empty: list[Any] = [value for _, value in containers if not value]
        self.filled: list[tuple[Any, Any]] = [(value, value.copy()) for _, value in containers if value]
        nested = [value for name, value in containers if value and not name.startswith("_")]
        if nested:
            self._add_nested(nested)

    def _add_nested(self, pending: list[Any]) -> None:
        seen = {id(value) for value, _ in self.filled}
        while pending:
            current = pending.pop()
            for value in current.values() if isinstance(current, dict) else current:
                if type(value) in _CONTAINERS and id(value) not in seen:
                    seen.add(id(value))
                    self.filled.append((value, value.copy()))
                    pending.append(value)


def keep_buffers(tree: ModuleTree) -> None:
    """For a run on the real module (tracing with proxies): buffers that it writes have their values again afterwards."""
    buffers = [tensor for _, kind, tensor in tree.tensors if kind == "buffer"]
    before_change(
        functools.partial(_write_back, [(buffer, buffer.detach().clone(), buffer._version) for buffer in buffers])
    )


def keep_gradients(tree: ModuleTree) -> None:
    """For a run below autograd: ``backward`` in forward would leave fake tensors in the parameters' ``grad``."""
    before_change(
        functools.partial(
            _put_gradients_back, [(tensor, tensor.grad) for _, kind, tensor in tree.tensors if kind == "parameter"]
        )
    )


def _put_gradients_back(saved: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    for tensor, gradient in saved:
        if tensor.grad is not gradient:
            tensor.grad = gradient


def _write_back(saved: list[tuple[torch.Tensor, torch.Tensor, int]]) -> None:
    with torch.no_grad():
        for buffer, value, version in saved:
            if buffer._version != version:
                buffer.copy_(value)


def weight_names(tree: ModuleTree) -> dict[int, tuple[str, str, torch.Tensor]]:
    """State-dict name, kind and tensor of every parameter and buffer, by the tensor's id; tied ones under one name."""
    return {id(tensor): (name, kind, tensor) for name, kind, tensor in tree.tensors}
