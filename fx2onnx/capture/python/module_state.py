"""The module is left as it was, whatever forward did or raised: training flags, attributes, parameters, buffers; and so are the states
of random numbers."""

from __future__ import annotations

import functools
import pickle
import random
import threading
from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, is_

import numpy as np
import torch

from fx2onnx.base.changes import before_change
from fx2onnx.base.memoized import keep_apart
from fx2onnx.capture.python.held import Snapshot
from fx2onnx.capture.python.outside import namespaces_of
from fx2onnx.capture.rare_roads import road
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.torchcompat.thread_state import keep_modes


def preserve(tree: ModuleTree, training: bool | None, arguments: Iterable[tuple[str, object]] = ()) -> Snapshot:
    """Until ``Changes`` end, the modules are in eval or in training mode, or with ``training=None`` each in its own; then they,
    and the objects among ``arguments``, are as before.

    Only what differs is put back, so that another thread that runs the module never finds it without its attributes.
    """
    snapshot = keep(tree, arguments)
    if training is not None:
        for module in tree.modules:
            if getattr(module, "training", None) is not training:
                set_mode(module, training)
    own = [module.__dict__["forward"] for module in tree.modules if "forward" in module.__dict__]
    keep_apart(set(map(type, tree.modules)), filter(callable, own))
    return snapshot


def keep(tree: ModuleTree, arguments: Iterable[tuple[str, object]] = ()) -> Snapshot:
    """Let the modules and the objects among ``arguments`` hold what they hold now when ``Changes`` end. Returns what
    that is."""
    modes = [(module, type(module), module.training) for module in tree.modules]
    snapshot = snapshot_of(tree, arguments)
    leaves = [tensor for tensor in chain(tree.weights, snapshot.tensors.values()) if tensor.is_leaf]
    before_change(functools.partial(_put_back, leaves, [*map(_GRADIENTS, leaves)], modes, snapshot))
    if snapshot.has_advancing:
        snapshot.names().stand_in_for_iterators()
    return snapshot


def snapshot_of(tree: ModuleTree, arguments: Iterable[tuple[str, object]] = ()) -> Snapshot:
    """Note the contents of the modules, of the objects among ``arguments``, and of the globals that the modules' code names."""
    return Snapshot(tree.named, arguments, functools.partial(namespaces_of, tree.modules))


_GRADIENTS = attrgetter("requires_grad", "grad", "_backward_hooks")


def _put_back(
    leaves: list[torch.Tensor],
    gradients: list[tuple[bool, torch.Tensor | None, object]],
    modes: list[tuple[torch.nn.Module, type, bool]],
    snapshot: Snapshot,
) -> None:
    now = [*map(_GRADIENTS, leaves)]
    if not all(map(is_, chain.from_iterable(now), chain.from_iterable(gradients))):
        for tensor, (requires_grad, gradient, hooks) in zip(leaves, gradients, strict=True):
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if tensor.grad is not gradient:
                tensor.grad = gradient
            if hooks is None and tensor._backward_hooks is not None:
                tensor._backward_hooks = None
    for module, kind, mode in modes:
        if type(module) is not kind:
            module.__class__ = kind
        if getattr(module, "training", None) is not mode:
            set_mode(module, mode)
    snapshot.put_back()


def set_mode(module: torch.nn.Module, mode: bool) -> None:
    """Set a module's flag alone, without its own ``train``."""
    if "training" in module.__dict__:
        module.__dict__["training"] = mode  # a quarter of the time of ``Module.__setattr__``
    else:
        module.training = mode  # a scripted module keeps it elsewhere


def keep_numbers(written: Iterable[torch.Tensor], others: Iterable[torch.Tensor] = ()) -> None:
    """Let real tensors that a run may write have their numbers again when ``Changes`` end, and ``others`` their
    memory."""
    found = {id(tensor): _Before(tensor, is_written=True) for tensor in written}
    found |= {id(tensor): _Before(tensor, is_written=False) for tensor in others if id(tensor) not in found}
    before_change(functools.partial(_put_numbers_back, list(found.values())))


def _put_numbers_back(saved: list[_Before]) -> None:
    for before in saved:
        before.put_back()


class _Before:
    """A tensor's memory, and its numbers where a run may write them."""

    def __init__(self, tensor: torch.Tensor, *, is_written: bool) -> None:
        self._tensor, self._memory, self._same = tensor, memory_of(tensor), tensor.detach()
        self._numbers = self._same.clone() if is_written and not tensor.is_meta else None
        self._version = None if tensor.is_inference() else tensor._version

    def put_back(self) -> None:
        tensor, numbers = self._tensor, self._numbers
        if memory_of(tensor) != self._memory or tensor.shape != self._same.shape:
            tensor.data = self._same  # what ``tensor.data = other`` replaced
        if numbers is None:
            return
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            is_plain = type(tensor) in _PLAIN and tensor.layout == torch.strided and not tensor.is_quantized
            is_same = is_plain and self._version is not None and tensor._version == self._version
            if not (is_same and torch.equal(tensor, numbers)):  # ``tensor.data.add_(1)`` leaves the version as it is
                self._same.copy_(numbers)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def memory_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory; 0 for a tensor without memory of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def weight_names(tree: ModuleTree) -> dict[int, tuple[str, str, torch.Tensor]]:
    """State-dict name, kind and tensor of every parameter and buffer, by the tensor's id; tied ones under one name."""
    return {id(tensor): (name, kind, tensor) for name, kind, tensor in tree.tensors}


def keep_process_state() -> Callable[[], bool]:
    """Until ``Changes`` end, forward may enter modes, set seeds and draw random numbers: afterwards torch's modes are as before, and the
    process draws as if it had not. Returns a function that says whether Python's or NumPy's numbers may have been drawn since.
    """
    own: object = {}
    if threading.active_count() == 1:
        before_change(functools.partial(_put_torch_state_back, torch.get_rng_state()))
        states = keep_host_states()
    else:
        states, own = host_states(), road("random draws").draw_apart()
    keep_modes()
    return lambda: bool(own) or host_states() != states


def keep_host_states() -> tuple[tuple[object, ...], bytes]:
    """Until ``Changes`` end, forward may draw random numbers of Python and NumPy: afterwards they go on as if it had
    not. Returns their states."""
    states = host_states()
    before_change(functools.partial(_put_host_states_back, states))
    return states


def host_states() -> tuple[tuple[object, ...], bytes]:
    """The states of Python's and NumPy's random generators, which ``==`` compares."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def _put_host_states_back(states: tuple[tuple[object, ...], bytes]) -> None:
    random.setstate(states[0])
    np.random.set_state(pickle.loads(states[1]))


def _put_torch_state_back(state: torch.Tensor) -> None:
    if not torch.equal(torch.get_rng_state(), state):
        torch.set_rng_state(state)
