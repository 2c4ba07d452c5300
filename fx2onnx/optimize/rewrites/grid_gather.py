"""A Gather that takes every element in order -> a Reshape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.optimize.rewrite import Match, Rewrite, Why, attribute, is_constant, required, static_dims

LIMIT_INDICES = 1 << 18
"""Larger index tensors are not compared: it would cost milliseconds."""


@dataclass(frozen=True, eq=False)
class GridMatch(Match):
    x: ir.Value
    dims: tuple[int, ...]


class GridGather(Rewrite[GridMatch]):
    """``GatherND(x, all indices in order)`` -> ``Reshape(x)``.

    transformers index their padding masks so: ``mask[batch_indices, key_indices]``.

    Refuses:   indices that are computed, incomplete or in another order; batch dims; dims that are unknown.
    """

    roots: ClassVar = ("GatherND",)
    since = 11

    def match(self, node: ir.Node) -> GridMatch | Why:
        x, indices = node.inputs[0], node.inputs[1]
        dims, places = static_dims(x), static_dims(indices)
        if not dims or not places or attribute(node, "batch_dims", 0):
            return Why("the dims are unknown, or there are batch dims")
        count = math.prod(dims)
        if places[-1] != len(dims) or math.prod(places[:-1]) != count or count * len(dims) > LIMIT_INDICES:
            return Why("the indices are not one for each element")
        if indices is None or not is_constant(indices) or indices.const_value is None:
            return Why("the indices are computed")
        grid = np.stack(np.unravel_index(np.arange(count), dims), axis=-1)
        if not np.array_equal(indices.const_value.numpy().reshape(-1, len(dims)), grid):
            return Why("the indices are in another order")
        return GridMatch(required(node, 0), places[:-1])

    def build(self, op: Emit, m: GridMatch) -> ir.Value:
        return op.reshape(m.x, m.dims)
