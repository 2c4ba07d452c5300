"""Runs of the eager module: as it is, in float64, and with its operators rounding otherwise."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

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
from fx2onnx.torchcompat.pytrees import flatten
from fx2onnx.torchcompat.reference import Widened, plain_kernels, without_mkldnn
from fx2onnx.verify.arrays import to_numpy
from fx2onnx.verify.exact_codes import ExactCodes
from fx2onnx.verify.module_state import kept
from fx2onnx.verify.noise import Draw, Redrawing, Replaying
from fx2onnx.verify.on_cpu import redirected
from fx2onnx.verify.wide import InFloat64, widened


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
        with record("eager PyTorch in float64"), without_mkldnn(), self.exactly(), mode, _replayed(draws):
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
