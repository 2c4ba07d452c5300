"""A module on another device is compared on the CPU, with copies of its tensors.

Where inputs are tried that forward may not take (an id behind the last row of a table, a sequence behind the last position),
the CPU raises. A GPU stops for the rest of the process, with all that the user has there.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.torchcompat.pytrees import flatten, is_built_otherwise, pytree

CPU = torch.device("cpu")
T = TypeVar("T")
_HERE = frozenset({"cpu", "meta"})
_MOVED: weakref.WeakKeyDictionary[torch.nn.Module, tuple[contextlib.ExitStack, Elsewhere]] = weakref.WeakKeyDictionary()
"""Modules that have copies on the CPU for now: how they get their own again, and what sends the rest there."""


@contextlib.contextmanager
def on_cpu(root: torch.nn.Module, arguments: T) -> Iterator[T]:
    """Inside, the tensors of the module are copies on the CPU, until ``leave``; afterwards they are its own. Gives the
    ``arguments`` with copies there, too.
    """
    elsewhere = Elsewhere(_devices(root, arguments))
    if not elsewhere.devices or root in _MOVED:
        yield arguments
        return
    with contextlib.ExitStack() as own:
        _MOVED[root] = own, elsewhere
        try:
            for module in root.modules():
                if not isinstance(module, torch.jit.ScriptModule):  # whose tensors Python cannot exchange
                    for tensors in (module._parameters, module._buffers, vars(module)):
                        _exchange(tensors, elsewhere.here, own)
            leaves, rebuild = flatten(arguments, is_built_otherwise)
            yield rebuild([elsewhere.here(leaf.value) for leaf in leaves])
        finally:
            _MOVED.pop(root, None)


def leave(root: torch.nn.Module) -> bool:
    """Give the module its own tensors before ``on_cpu`` ends. Returns whether it had copies."""
    found = _MOVED.pop(root, None)
    if found is not None:
        found[0].close()
    return found is not None


@contextlib.contextmanager
def redirected(root: torch.nn.Module) -> Iterator[None]:
    """For a run of the module: operators stay on the CPU where the module has copies there, and ask for its device."""
    if root not in _MOVED:
        yield
        return
    _, elsewhere = _MOVED[root]
    with elsewhere, _Uncast(elsewhere.devices):
        yield


class Elsewhere(EagerMode):
    """A mode that takes tensors on the module's device, and those that are made there, for tensors on the CPU."""

    def __init__(self, devices: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.devices = devices
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Each tensor, which has to stay, and its copy, by the tensor's id."""

    def here(self, value: object) -> object:
        """A tensor's copy on the CPU, the same one each time; anything else as it is."""
        if isinstance(value, torch.device):
            return CPU if value.type in self.devices else value
        if not isinstance(value, torch.Tensor) or value.device.type not in self.devices:
            return value
        if id(value) not in self._copies:
            copy: torch.Tensor = value.detach().cpu()
            if isinstance(value, torch.nn.Parameter):
                copy = torch.nn.Parameter(copy, requires_grad=value.requires_grad)
            self._copies[id(value)] = value, copy
        return self._copies[id(value)][1]

    def seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(self.here, (args, kwargs))
        return func(*args, **kwargs)


class _Uncast(TorchFunctionMode):
    """Raises RuntimeError where autocast is on, which casts for other operators on the CPU. Functions of torch still see it, the
    operators inside no longer.
    """

    def __init__(self, devices: frozenset[str]) -> None:
        super().__init__()
        self._devices = (*devices, "cpu")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for device in self._devices:
            if torch.is_autocast_enabled(device):
                raise RuntimeError(f"autocast of {device} casts for other operators on the CPU")
        return func(*args, **(kwargs or {}))


def _devices(root: torch.nn.Module, arguments: object) -> frozenset[str]:
    leaves = (*root.parameters(), *root.buffers(), *pytree.tree_leaves(arguments))
    return frozenset(leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)) - _HERE


def _exchange(tensors: dict[str, Any], here: Callable[[object], object], own: contextlib.ExitStack) -> None:
    """Put copies into a module's dict of tensors, or of other attributes, which may be lists of them."""
    for name, value in list(tensors.items()):
        copy = pytree.tree_map(here, value) if isinstance(value, torch.Tensor | list | tuple | dict) else value
        if copy is not value and any(map(_differs, *map(pytree.tree_leaves, (copy, value)))):
            own.callback(tensors.__setitem__, name, value)
            tensors[name] = copy


def _differs(one: object, other: object) -> bool:
    return one is not other
