"""State of the process that forward may change: afterwards as before."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from fx2onnx.capture.torch_private import default_device_context

_AUTOCAST = ("cpu", "cuda")


@contextlib.contextmanager
def process_state_kept() -> Iterator[None]:
    """Inside, forward may set defaults, modes and seeds, and draw random numbers (which other threads may draw again)."""
    flags = _flags()
    device = default_device_context()
    draws = _random_states()
    try:
        yield
    finally:
        if _flags() != flags:
            _set_flags(flags)
        if default_device_context() is not device:
            torch.set_default_device(getattr(device, "device", None))
        _set_random_states(draws)


def _flags() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
        tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST),
    )


def _set_flags(flags: tuple[Any, ...]) -> None:
    grad, dtype, deterministic, warn_only, threads, autocast = flags
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    for kind, (enabled, kind_dtype) in zip(_AUTOCAST, autocast, strict=True):
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, kind_dtype)


def _random_states() -> tuple[Any, Any, Any]:
    numpy_random: Any = sys.modules.get("numpy.random")
    return torch.get_rng_state(), random.getstate(), numpy_random.get_state() if numpy_random else None


def _set_random_states(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy.random"].set_state(states[2])
