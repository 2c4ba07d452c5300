"""Numbers in the place of a call's own, with which a real kernel is tried: zeros, ones, matrices that have an inverse, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

aten = torch.ops.aten

Fill: TypeAlias = Callable[[list[int], torch.dtype], torch.Tensor]
"""A tensor of a shape and a dtype."""
_MOST_SEQUENCES = 64
"""The largest number of packed sequences that is tried."""


def zeros(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    return aten.zeros.default(sizes, dtype=dtype, device="cpu")  # type: ignore[no-any-return]


def ones(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    return aten.ones.default(sizes, dtype=dtype, device="cpu")  # type: ignore[no-any-return]


def identity(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Matrices that have an inverse; integers are 0, which is an index of all that is not empty."""
    made = zeros(sizes, dtype)
    if len(sizes) > 1 and (dtype.is_floating_point or dtype.is_complex):
        aten.fill_.Scalar(aten.diagonal.default(made, 0, -2, -1), 1)
    return made


def rising(sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    """0, 1, 2, ... in a row."""
    made = zeros(sizes, torch.float32)
    row = aten.arange.default(made.numel(), dtype=torch.float32, device="cpu")
    return aten._to_copy.default(aten.view.default(row, sizes), dtype=dtype)  # type: ignore[no-any-return]


def sizes_of_batches(rows: int, steps: int) -> Iterator[Fill]:
    """Integers in a row are sizes of batches, which do not rise, of so many ``steps`` and ``rows`` in all, for each number of sequences
    for which there are some; other tensors are 0.
    """
    for first in range(1, min(rows, _MOST_SEQUENCES) + 1):
        more, sizes = rows - steps, [1] * steps
        for step in range(steps):
            sizes[step] += min(max(more, 0), first - 1)
            more -= first - 1
        if sum(sizes) == rows and sizes[0] == first:
            yield lambda shape, dtype, sizes=sizes: _in_a_row(sizes, shape, dtype)  # type: ignore[misc]


def _in_a_row(numbers: list[int], shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    made = zeros(shape, dtype)
    if shape == [len(numbers)] and not dtype.is_floating_point:
        for place, number in enumerate(numbers):
            aten.fill_.Scalar(aten.select.int(made, 0, place), number)
    return made
