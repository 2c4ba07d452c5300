"""Tensors remembered by a few sums of their numbers, so that equal ones are found again without keeping them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fx2onnx.judge.constants import SKETCH_ROUNDED
from fx2onnx.judge.engines import Array

PARTS = 16
"""Sums are of so many parts of a tensor, which makes it seldom that those of others are close."""

Sketch = tuple[float, ...]
"""Weighted sums of parts of a tensor's numbers; last the sum of their magnitudes."""


class Sketches:
    """Keys by tensors; ``close`` is how far the sums of two may be apart, as a share of that of the magnitudes."""

    def __init__(self, close: float = SKETCH_ROUNDED) -> None:
        self._close = close
        self._known: dict[tuple[torch.dtype, tuple[int, ...]], dict[Sketch, list[Any]]] = {}
        self._tables: dict[int, Array] = {}
        self._weights = torch.empty(0, dtype=torch.float64)

    def add(self, tensor: torch.Tensor, key: Any) -> None:
        """Remember a tensor."""
        known = self._known.setdefault((tensor.dtype, tuple(tensor.shape)), {})
        known.setdefault(self._sketch(tensor), []).append(key)

    def find(self, tensor: torch.Tensor) -> list[Any] | None:
        """The keys of the tensor of the nearest numbers, where they are near at all; of integers and bools, of the same."""
        known = self._known.get((tensor.dtype, tuple(tensor.shape)))
        if known is None:
            return None
        one = self._sketch(tensor)
        if one in known or not (tensor.is_floating_point() or tensor.is_complex()):
            return known.get(one)
        distances = np.abs(self._table(known) - one).max(axis=1)
        nearest = int(distances.argmin())
        return list(known.values())[nearest] if distances[nearest] <= self._close * one[-1] else None

    def _table(self, known: dict[Sketch, list[Any]]) -> Array:
        """The sketches as rows."""
        table = self._tables.get(id(known))
        if table is None or len(table) != len(known):
            table = self._tables[id(known)] = np.array(list(known))
        return table

    def _sketch(self, tensor: torch.Tensor) -> Sketch:
        """Weighted by numbers that differ at every place, so that a permutation shows."""
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        flat = torch.nan_to_num(
            tensor.detach().reshape(-1).to("cpu", torch.float64), nan=3.0, posinf=1e30, neginf=-1e30
        )
        if len(self._weights) < len(flat):
            generator = torch.Generator().manual_seed(0)
            self._weights = torch.rand(2 * len(flat), dtype=torch.float64, generator=generator) + 0.5
        weighted = flat * self._weights[: len(flat)]
        whole = len(flat) // PARTS * PARTS
        parts = weighted[:whole].view(PARTS, -1).sum(1)
        return (*parts.tolist(), float(weighted[whole:].sum()), float(flat.abs().sum()))
