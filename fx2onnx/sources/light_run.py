"""Run a model for what it hands over, not for its numbers: on fake tensors where they do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

Result = TypeVar("Result")
_MANY = 8
"""Joined weights beyond which one fake tensor stands for all of them."""


def run_lightly(model: torch.nn.Module, call: Callable[..., Result], inputs: Mapping[str, torch.Tensor]) -> Result:
    """The result of ``call(**inputs)``, as fake tensors where they do, else as real ones; the inputs are short."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with _silent_fakes(), FakeTensorMode(allow_non_fake_inputs=True) as mode, _FewerFakes(), torch.no_grad():
            return call(**{name: mode.from_tensor(value) for name, value in inputs.items()})
    except Exception:  # fake kernels refuse what real ones do: grouped products of float32, values that Python reads
        if any(value.device.type == "meta" for value in model.parameters()):
            raise
        with torch.no_grad():
            return call(**inputs)


class _FewerFakes(TorchFunctionMode):
    """``copy.deepcopy`` clones a fake tensor. Torch's own copies the memory of one that was made of a number, which is not
    there: an error in Python, and a heap that ends the process some time later (2.13 and 2.15).
    Weights that are joined, hundreds of experts, become one fake tensor: it takes milliseconds to make one of each.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch._subclasses.fake_tensor import FakeTensor

        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            tensor, memo = args
            memo[id(tensor)] = copied = tensor.clone()
            return copied
        if func is torch.cat and len(args) == 1 and not kwargs and len(args[0]) > _MANY:
            first = args[0][0]
            if not any(isinstance(one, FakeTensor) or one.dtype != first.dtype for one in args[0]):
                return first.new_empty((sum(one.shape[0] for one in args[0]), *first.shape[1:]))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _silent_fakes() -> Iterator[None]:
    """torch logs the whole stack of what a fake kernel refuses; here that is an answer."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
