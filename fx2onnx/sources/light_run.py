"""Run a model for what it hands over, not for its numbers: on fake tensors where they do."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch

Result = TypeVar("Result")


def run_lightly(model: torch.nn.Module, call: Callable[..., Result], inputs: Mapping[str, torch.Tensor]) -> Result:
    """What ``call(**inputs)`` gives, as fake tensors where they do, else as real ones; the inputs are short."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    try:
        with _silent_fakes(), FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
            return call(**{name: mode.from_tensor(value) for name, value in inputs.items()})
    except Exception:  # fake kernels refuse what real ones do: grouped products of float32, values that Python reads
        if any(value.device.type == "meta" for value in model.parameters()):
            raise
        with torch.no_grad():
            return call(**inputs)


@contextlib.contextmanager
def _silent_fakes() -> Iterator[None]:
    """torch logs the whole stack of what a fake kernel refuses; here that is an answer."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
