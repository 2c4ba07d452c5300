"""What a module's forward writes into, which is as it was after each run: its buffers, and parameters that it writes into."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from fx2onnx.capture.torch_private.dispatch import WatchingMode
from fx2onnx.capture.torch_private.operators import OpOverload
from fx2onnx.capture.torch_private.pytrees import pytree
from fx2onnx.verify.wide import written_arguments

_WRITTEN: weakref.WeakKeyDictionary[torch.nn.Module, frozenset[str]] = weakref.WeakKeyDictionary()
"""Parameters that forward is known to write into."""
_SEEN: weakref.WeakKeyDictionary[torch.nn.Module, dict[bool, frozenset[str]]] = weakref.WeakKeyDictionary()
"""Those that a first run wrote into, in training mode or not."""


@contextlib.contextmanager
def put_back(root: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Inside, these parameters are as they were after each run, as all buffers are: forward is known to write into them."""
    _WRITTEN[root] = frozenset(names)
    try:
        yield
    finally:
        del _WRITTEN[root]


def _seen(root: torch.nn.Module) -> frozenset[str]:
    return _SEEN.get(root, {}).get(root.training, frozenset())


def own_of(root: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What forward is known to write into."""
    written = _WRITTEN.get(root, frozenset()) | _seen(root)
    parameters = {name: value for name, value in root.named_parameters() if name in written} if written else {}
    return {**parameters, **dict(root.named_buffers())}


@contextlib.contextmanager
def kept(root: torch.nn.Module) -> Iterator[set[int]]:
    """Inside, forward runs once; buffers and parameters are as they were afterwards. Gives where the memory of those lies that
    it may have written into.
    """
    before = own_of(root)
    saved = {name: tensor.detach().clone() for name, tensor in before.items()}
    places = {_memory(tensor) for tensor in before.values()}
    noting = None if root.training in _SEEN.get(root, ()) else Noting(root, before, places)
    try:
        with noting or contextlib.nullcontext():
            yield places
        if noting is not None:
            _SEEN.setdefault(root, {})[root.training] = frozenset(noting.saved)
    finally:
        with torch.no_grad():
            for name, tensor in own_of(root).items():
                if name in saved and tensor.shape == saved[name].shape:
                    tensor.copy_(saved[name])
            if noting is not None:
                noting.put_back()


class Noting(WatchingMode):  # type: ignore[no-untyped-call]
    """Keeps the numbers of each parameter that an operator is about to write into, and where it lies in ``places``."""

    def __init__(self, root: torch.nn.Module, known: Collection[str], places: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = {name: value for name, value in root.named_parameters() if name not in known}
        self.saved: dict[str, torch.Tensor] = {}
        self._names = {_memory(value): name for name, value in self.parameters.items()}
        self._places = places

    def put_back(self) -> None:
        """The parameters have the numbers that they had."""
        for name, numbers in self.saved.items():
            self.parameters[name].detach().copy_(numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = written_arguments(func) if isinstance(func, OpOverload) else ()
        for place, argument in places:
            self._keep(args[place] if place < len(args) else kwargs.get(argument))
        return func(*args, **kwargs)

    def _keep(self, written: Any) -> None:
        for leaf in pytree.tree_leaves(written):
            place = _memory(leaf) if isinstance(leaf, torch.Tensor) else 0
            name = self._names.get(place) if place else None
            if name is not None and name not in self.saved:
                self.saved[name] = self.parameters[name].detach().clone()
                self._places.add(place)


def _memory(tensor: torch.Tensor) -> int:
    """Where it lies; 0 of a tensor that has no memory of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
