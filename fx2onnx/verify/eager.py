"""Runs of the eager module: as it is, in float64, and with its operators rounding otherwise.

A module on another device runs on the CPU, with copies of its tensors. Where inputs are tried that forward may not take (an id
behind the last row of a table), the CPU raises; a GPU stops for the rest of the process, with all that the user has there.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from fx2onnx.base.changes import Changes
from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.capture.python.held_names import Names
from fx2onnx.capture.python.inputs import Arguments
from fx2onnx.capture.python.module_state import keep, set_mode
from fx2onnx.judge.engines import Array
from fx2onnx.torchcompat.capture_modes import attention_as_written
from fx2onnx.torchcompat.eager_modes import EagerMode
from fx2onnx.torchcompat.modules import ModuleTree
from fx2onnx.torchcompat.pytrees import flatten, is_built_otherwise, pytree
from fx2onnx.torchcompat.reference import Widened, plain_kernels, without_mkldnn
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.module_state import kept
from fx2onnx.verify.noise import Draw, Redrawing, Replaying
from fx2onnx.verify.rounded_weights import ExactCodes
from fx2onnx.verify.wide import InFloat64, assignable, widened

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


@dataclass(frozen=True, slots=True)
class Eager:
    """The module and its arguments."""

    root: torch.nn.Module
    arguments: Arguments
    codes: ExactCodes | None = None
    """The exact codes of a module with products of codes."""
    on_device: bool = False
    """True if it runs on the device of the example inputs, not on the CPU."""

    def run(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """forward's tensors, flat, as arrays."""
        if not self.on_device:
            return [as_array(value) for value in outputs_of(self.root, self.arguments, tensors)]
        with plain_kernels():
            results = outputs_of(self.root, self.arguments, _moved(self.arguments, tensors))
            return [as_array(value) for value in results]

    def in_float64(
        self, tensors: Sequence[torch.Tensor], draws: Sequence[Draw], seconds: float = math.inf
    ) -> list[Array]:
        """The same with float64 inside, and with the same random numbers. Raises: TimeoutError after so many seconds."""
        mode = InFloat64()
        mode.end_seconds = time.monotonic() + seconds
        with record("eager PyTorch in float64"), without_mkldnn(), self.exactly(), assignable(), mode, _replayed(draws):
            return self.run([widened(tensor) for tensor in tensors])

    def moved(
        self, tensors: Sequence[torch.Tensor], draws: Sequence[Draw], mode: EagerMode, seconds: float = math.inf
    ) -> list[Array]:
        """The same where operators round or choose otherwise, as ``mode`` has it. Raises: TimeoutError after so many seconds."""
        mode.end_seconds = time.monotonic() + seconds
        with record("eager PyTorch, rounding otherwise"), self.exactly(), mode, _replayed(draws):
            return self.run(tensors)

    def redrawn(self, tensors: Sequence[torch.Tensor], later: int) -> list[Array]:
        """The same with other random numbers."""
        with self.exactly(), Redrawing(later):
            return self.run(tensors)

    def exactly(self) -> contextlib.AbstractContextManager[Any]:
        """Products of codes as they come to, for modes to be entered behind it."""
        return self.codes or contextlib.nullcontext()


def _replayed(draws: Sequence[Draw]) -> contextlib.AbstractContextManager[Any]:
    return Replaying(draws) if draws else contextlib.nullcontext()


_TAKE_GRADIENTS: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
_NO_HISTORY = "does not require grad and does not have a grad_fn"
"""The error of ``torch.autograd.grad`` where gradients are off."""


def takes_gradients(root: torch.nn.Module) -> bool:
    """Return whether an earlier run showed that forward takes gradients, which have to be on for it."""
    return root in _TAKE_GRADIENTS


def outputs_of(root: torch.nn.Module, arguments: Arguments, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The outputs of forward, flat: tensors and numbers. What it writes into is a copy or is put back.

    Gradients are off, as a module is used; a second run has them on where forward takes some.
    """
    if not takes_gradients(root):
        try:
            return _outputs(root, arguments, tensors, gradients=False)
        except RuntimeError as cause:
            if _NO_HISTORY not in str(cause):
                raise
        _TAKE_GRADIENTS.add(root)
    return _outputs(root, arguments, tensors, gradients=True)


def _outputs(
    root: torch.nn.Module, arguments: Arguments, tensors: Sequence[torch.Tensor], *, gradients: bool
) -> list[Any]:
    copies = [_copied(tensor) for tensor in tensors]
    args, kwargs = arguments.rebuilt(copies)
    # Compiled under a mode, ``torch.cond`` leaves notes in the compiler by which it fails later without one.
    with (
        torch.compiler.set_stance("force_eager"),
        attention_as_written(),
        redirected(root),
        kept(root, arguments.objects()) as (places, names),
        torch.set_grad_enabled(gradients),
    ):
        names.put(arguments.held(copies))
        leaves = [leaf.value for leaf in flatten(root(*args, **kwargs))[0]]
        leaves += _ends(arguments, copies, names)
        return [_detached(leaf, places) for leaf in leaves if isinstance(leaf, torch.Tensor | int | float)]


def _ends(arguments: Arguments, copies: Sequence[torch.Tensor], names: Names) -> list[Any]:
    """The values that are afterwards in the places of ``arguments.ends``."""
    found: dict[str, Any] = {}
    if arguments.ends:
        found = {arguments.name_of(change.name) or change.name: change.after for change in names.changes()}
    for leaf, copy in zip(arguments.leaves, copies, strict=True):
        if leaf.name in arguments.ends and leaf.name not in found:
            found[leaf.name] = names.now([leaf.place])[0] if leaf.place else copy
    rest = [name for name in arguments.ends if name not in found]
    found |= zip(rest, names.now(rest), strict=True)
    return [found[name] for name in arguments.ends]


def placed(arguments: Arguments, tensors: Sequence[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
    """``(args, kwargs)`` with copies of these tensors, each on the device of the example's."""
    return arguments.rebuilt(_moved(arguments, tensors))


def _moved(arguments: Arguments, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    pairs = zip(arguments.leaves, tensors, strict=True)
    return [_copied(tensor, leaf.tensor.device) for leaf, tensor in pairs]


def failed_on_arguments(cause: Exception, given: str = "the example inputs") -> UserError:
    """The error where forward itself fails on what the user gave."""
    return UserError(
        "E101",
        f"eager PyTorch itself fails on {given}",
        why=f"{type(cause).__name__}: {str(cause)[:300]}",
        next="check that module(*args, **kwargs) runs, in eval mode, with these arguments",
    )


def as_array(value: Any) -> Array:
    """A tensor or number as an engine gives it."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return to_numpy(value.wide if isinstance(value, Widened) else value)


def _copied(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    if isinstance(tensor, Widened):
        return Widened(_copied(tensor.wide, device), tensor.dtype)
    return tensor.clone() if device in (None, tensor.device) else tensor.to(device)


def _detached(value: Any, places: Collection[int]) -> Any:
    """A copy where it lies in a buffer (``places``), which is put back."""
    if not isinstance(value, torch.Tensor) or isinstance(value, Widened):
        return value
    return value.detach().clone() if value.untyped_storage().data_ptr() in places else value.detach()


@contextlib.contextmanager
def in_mode(root: torch.nn.Module, training: bool | None) -> Iterator[None]:
    """The module in training mode or not, with None in its own; afterwards it is as it was, and so are generators of random numbers. As
    in an export only flags are set: a ``train`` of the module's own may merge weights, or drop some.
    """
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(range(torch.cuda.device_count() if is_used else 0)), Changes():
        tree = ModuleTree(root)
        keep(tree)
        for module in tree.modules:
            set_mode(module, module.training if training is None else training)
        yield
