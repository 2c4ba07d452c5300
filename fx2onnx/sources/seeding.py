"""Random weights: reproducible, no larger than memory, and such that they hide no mistake.

Freshly built layers are full of zeros and ones (biases, norm weights, running statistics). A folding or fusion that
drops or swaps them would go unseen, so constants are moved a little.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.foreign_errors import reported

if TYPE_CHECKING:
    from torch import Tensor, nn


# Drawing the weights and one forward pass need room beside the weights.
_SHARE = 0.8


def check_memory(spec: str, build: Callable[[], nn.Module], advice: str) -> None:
    """Compare the weights of ``build()``, which is run on the meta device, with the free memory.

    Raises:   UserError E404. Whatever ``build`` itself raises on the meta device says nothing and is left to the real
              build, which reports it.
    """
    import psutil

    try:
        with torch.device("meta"):
            outline = build()
    except UserError:
        raise
    except Exception:  # the check is a courtesy: what fails here fails again, with its reason, in the real build
        return
    needed_bytes = sum(value.nbytes for value in (*outline.parameters(), *outline.buffers()))
    available_bytes = psutil.virtual_memory().available
    if needed_bytes > available_bytes * _SHARE:
        raise UserError(
            "E404",
            f"{spec} has {needed_bytes / 1e9:.1f} GB of weights, {available_bytes / 1e9:.1f} GB of memory are free",
            next=advice,
        )


_ZERO_SPREAD = 0.02  # as the weights of a transformer are initialized: small against activations of size 1
_SCALE_SPREAD = 0.2
_VARIANCE_FLOOR = 0.1


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's CPU random numbers start from ``seed`` inside the block; the caller's state comes back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def move_constants(module: nn.Module, seed: int = 0) -> None:
    """Give every constant floating-point parameter and every running statistic its own random values, in place.

    Zeros become small normal numbers, other constants c become c * (0.8 .. 1.2); running means and variances are
    moved relative to the spread of their channel. Tensors that are not constant stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if _is_movable_constant(parameter):
                _move(parameter, generator)
        for layer in module.modules():
            mean, var = getattr(layer, "running_mean", None), getattr(layer, "running_var", None)
            if isinstance(mean, torch.Tensor) and isinstance(var, torch.Tensor) and mean.device.type == "cpu":
                mean.add_(torch.randn(mean.shape, generator=generator).to(mean) * var.sqrt() * 0.1)
                var.mul_(_factors(var, generator))


def settle(module: nn.Module, seed: int, *args: object) -> None:
    """``move_constants``, with the running statistics that ``module(*args)`` really has. In place.

    Without batch norms nothing is run. The statistics are not moved any further: deep random networks spread little
    around a large mean, and a shift of one layer would be amplified in the next.

    Raises:   UserError E601 where the module cannot be called with ``args``.
    """
    move_constants(module, seed)
    if any(isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        shapes = ", ".join(str(list(getattr(arg, "shape", []))) for arg in args)
        what = f"{type(module).__name__} cannot be called with inputs of shape {shapes}"
        with reported(what, next="choose other sizes"):
            calibrate_norms(module, *args)


def calibrate_norms(module: nn.Module, *args: object, **kwargs: object) -> None:
    """Set the running statistics of all batch norms to those of one forward call, in place.

    Random weights with untouched statistics let activations grow from block to block; calibrated, they stay near 1.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 1.0
        layer.train()
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()
            if layer.running_var is not None:
                # A channel that hardly moves in one batch would be amplified without bound in the next.
                layer.running_var.clamp_(min=_VARIANCE_FLOOR * float(layer.running_var.mean()))


def _is_movable_constant(value: Tensor) -> bool:
    if value.device.type != "cpu" or not value.is_floating_point() or value.numel() == 0:
        return False
    flat = value.detach().reshape(-1)
    return bool((flat[:64] == flat[0]).all()) and bool((flat == flat[0]).all())


def _move(value: Tensor, generator: torch.Generator) -> None:
    if value.detach().reshape(-1)[0] == 0:
        value.copy_(torch.randn(value.shape, generator=generator) * _ZERO_SPREAD)
    else:
        value.mul_(_factors(value, generator))


def _factors(value: Tensor, generator: torch.Generator) -> Tensor:
    return (1.0 + _SCALE_SPREAD * (2.0 * torch.rand(value.shape, generator=generator) - 1.0)).to(value.dtype)
