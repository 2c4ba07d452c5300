"""AWQ: columns that meet large inputs are made finer by a factor, and ranges smaller where few numbers are far out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.quantize.codes import Codes, blocked, nearest, ranges
from fx2onnx.quantize.schemes import Array, Scheme

RATIOS = 20
"""Exponents that are tried, from 0 on in equal steps below 1."""
SEARCH_ROWS = 512
"""Of more rows so many, at equal distances, stand for all in the search of the exponent."""
WIDE_BLOCK = 512
"""Blocks beyond this are judged by the diagonal alone."""
_TILE_NUMBERS = 1 << 22


@dataclass(frozen=True, eq=False)
class Layer:
    """A weight [rows, columns] and what its codes are."""

    rows: Array
    scheme: Scheme
    block: int
    dtype: np.dtype[Any]


def best_channels(layers: Sequence[Layer], gram: Array, sizes: Array) -> Array | None:
    """What the columns of layers that read the same are multiplied with; None where nothing is better than 1.

    sizes: the mean magnitude of each input. Source: Lin et al.: AWQ (2023), 3.2; ``s = sizes ** a``, brought around 1.
    """
    few = [layer.rows[:: -(-len(layer.rows) // SEARCH_ROWS)] for layer in layers]
    best, channels = np.inf, None
    for step in range(RATIOS):
        scale = np.maximum(sizes.astype(np.float64), 1e-4 * max(float(sizes.max()), 1e-30)) ** (step / RATIOS)
        tried = (scale / np.sqrt(scale.max() * scale.min())).astype(np.float32)
        error = 0.0
        for layer, rows in zip(layers, few, strict=True):
            codes = nearest(rows, layer.scheme, layer.block, layer.dtype, channels=tried)
            error += error_of(codes.values(rows.shape[1]) - rows, gram)
        if error < best:
            best, channels = error, tried if step else None
    return channels


def with_ranges(layer: Layer, gram: Array, channels: Array | None) -> Codes:
    """The nearest codes with, for each block, the range that makes its part of the outputs change least.

    Source: the same, and its code (``auto_clip``).
    """
    columns, block = layer.rows.shape[1], layer.block
    within = _gram_of_blocks(gram, channels, columns, block)
    rows_of_tile = max(_TILE_NUMBERS // columns, 1)
    made = []
    for start in range(0, len(layer.rows), rows_of_tile):
        rows = layer.rows[start : start + rows_of_tile]
        blocks = blocked(rows if channels is None else rows * channels, block)
        made.append(ranges(blocks, layer.scheme, layer.dtype, functools.partial(_error, within))[2])
    return nearest(
        layer.rows, layer.scheme, block, layer.dtype, method="awq", channels=channels, shrink=np.concatenate(made)
    )


def error_of(off: Array, gram: Array) -> float:
    """The squares of ``off @ x``, summed over rows and inputs."""
    return float(np.einsum("rk,rk->", off @ gram, off, dtype=np.float64))


def _error(within: Array, off: Array) -> Array:
    if within.ndim == 2:
        return np.asarray(np.einsum("rbk,bk,rbk->rb", off, within, off))
    moved = np.matmul(off.transpose(1, 0, 2), within).transpose(1, 0, 2)
    return np.asarray(np.einsum("rbk,rbk->rb", moved, off))


def _gram_of_blocks(gram: Array, channels: Array | None, columns: int, block: int) -> Array:
    """[blocks, block, block] of the inputs that are divided by ``channels``; of wide blocks [blocks, block], the diagonal."""
    size = np.ones(columns, np.float32) if channels is None else 1 / channels
    if block > WIDE_BLOCK:
        return np.asarray(blocked((np.diagonal(gram) * size * size)[None], block)[0])
    blocks = -(-columns // block)
    found = np.zeros((blocks, block, block), np.float32)
    for index in range(blocks):
        part = slice(index * block, min((index + 1) * block, columns))
        count = part.stop - part.start
        found[index, :count, :count] = gram[part, part] * size[part] * size[part, None]
    return found
