"""How far float32 PyTorch is off from itself where its weights and inputs are off by some units in the last place.

float64 shows how far float32's rounding moves an output, once. Where a program chooses (``topk`` among nearly equal
scores, ``argmax``, sorting), that one number says little: another rounding chooses otherwise, and engines round
otherwise. So an output that fails is judged again with the largest of several such movements.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch

RUNS = 4
"""Movements looked at."""


def nudged(
    root: torch.nn.Module, tensors: Sequence[torch.Tensor], units: float
) -> Iterator[tuple[torch.nn.Module, list[torch.Tensor]]]:
    """Copies of the module and its inputs, each number of them off by at most ``units`` in the last place. Seeded."""
    for seed in range(RUNS):
        generator = torch.Generator().manual_seed(seed)
        module = copy.deepcopy(root)
        with torch.no_grad():
            for weight in module.parameters():
                weight.copy_(_nudged(weight, units, generator))
        yield module, [_nudged(tensor, units, generator) for tensor in tensors]


def _nudged(tensor: torch.Tensor, units: float, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 4:
        return tensor
    step = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) * 2 - 1
    return tensor + tensor * step * (units * torch.finfo(tensor.dtype).eps)
