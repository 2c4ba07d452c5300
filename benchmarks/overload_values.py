"""Numbers for drawn calls: tensors of any dtype with values of several kinds, and what a name says about an argument."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
DTYPES = {
    torch.float32: 50, torch.float64: 12, torch.float16: 7, torch.bfloat16: 6, torch.int64: 9, torch.int32: 4,
    torch.uint8: 4, torch.bool: 5, torch.complex64: 3,
}  # fmt: skip
"""dtypes of the leading tensor, and how often each is drawn."""
KINDS = {"normal": 12, "positive": 6, "unit": 4, "whole": 5, "ties": 3, "wide": 2, "special": 2, "zeros": 1}
"""Kinds of values of a tensor, and how often each is drawn."""
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 1e-30, 3e4]
INDEX_NAMES = frozenset([
    "index", "indices", "target", "targets", "row_indices", "offset2bag", "batch_sizes", "sorter", "pivots",
    "LU_pivots", "ind", "repeats",
])  # fmt: skip
"""Tensors of integers, mostly."""
MASK_NAMES = frozenset(["mask", "condition", "attn_mask", "dropout_mask"])
STRINGS = {
    "reduce": ["sum", "prod", "mean", "amax", "amin", "max", "min"],
    "rounding_mode": ["trunc", "floor", None],
    "mode": ["reflect", "constant", "replicate", "circular", "reduced", "complete", "r", "bilinear", "nearest"],
    "pad_mode": ["reflect", "constant"],
    "side": ["left", "right"],
    "ord": ["fro", "nuc"],
    "p": ["fro", "nuc"],
    "driver": ["gels", "gelsy", "gelsd", "gelss", None],
    "approximate": ["none", "tanh"],
    "norm": ["forward", "backward", "ortho", None],
    "indexing": ["ij", "xy"],
    "UPLO": ["L", "U"],
    "interpolation": ["linear", "lower", "higher", "midpoint", "nearest"],
    "padding": ["same", "valid"],
    "padding_side": ["left", "right"],
    "equation": ["ij,jk->ik", "ij->ji", "i,i->", "bij,bjk->bik", "ii->i", "...i,i->..."],
}
"""Known values of arguments that are text."""
FLOAT_CHOICES = [0.0, 0.5, 1.0, 2.0, -1.5, 3.0, 0.25, 1e-5]
FLOATS_BY_NAME: dict[str, list[float]] = {
    "eps": [1e-5, 1e-3, 0.0, 0.1], "p": [2.0, 1.0, 0.0, 3.0, 0.5, float("inf")], "dropout": [0.0],
    "dropout_p": [0.0, 0.0, 0.0, 0.5], "momentum": [0.1, 0.0, 1.0], "q": [0.0, 0.5, 0.3, 1.0],
    "label_smoothing": [0.0, 0.1], "lambd": [0.5, 1.0], "std": [1.0, 0.5], "rtol": [1e-5, 0.1, 0.0],
    "atol": [1e-8, 0.1, 0.0], "rcond": [1e-6, 1e-3, 0.1, -1.0], "tol": [1e-6, 0.1], "base": [2.0, 10.0],
    "norm_type": [2.0, 1.0, 3.0],
}  # fmt: skip


def weighted(rng: random.Random, table: dict[Any, int]) -> Any:
    """A key of ``table``, drawn by its weight."""
    return rng.choices(list(table), list(table.values()))[0]


def tensor(
    rng: random.Random, shape: Sequence[int], dtype: torch.dtype, kind: str = "", high: int | None = None
) -> torch.Tensor:
    """A tensor. ``high``: integers lie in ``0..high-1``; ``kind``: one of ``KINDS``, else drawn."""
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    shape = list(shape)
    kind = kind or weighted(rng, KINDS)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if high is not None:
        return torch.randint(0, max(high, 1), shape, generator=generator).to(dtype)
    if dtype in INTEGERS:
        least = 0 if dtype == torch.uint8 or kind in ("positive", "unit") else -5
        return torch.randint(least, 6, shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.complex64).to(dtype)
    return _floats(rng, shape, kind, generator).to(dtype)


def _floats(rng: random.Random, shape: list[int], kind: str, generator: torch.Generator) -> torch.Tensor:
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "positive":
        return normal.abs() + 0.1
    if kind == "unit":
        return torch.rand(shape, generator=generator, dtype=torch.float64)
    if kind in ("whole", "ties"):
        return (normal * (3 if kind == "whole" else 1)).round()
    if kind == "wide":
        return normal * 50
    if kind == "zeros":
        return torch.full(shape, rng.choice([0.0, 1.0]), dtype=torch.float64)
    if kind == "special":
        chosen = torch.randint(0, len(SPECIAL), shape, generator=generator)
        some = torch.rand(shape, generator=generator) < 0.3
        return torch.where(some, torch.tensor(SPECIAL, dtype=torch.float64)[chosen], normal)
    return normal


def matrix(rng: random.Random, shape: Sequence[int], dtype: torch.dtype, kind: str) -> torch.Tensor:
    """Matrices of a kind: ``general``, ``definite`` (positive definite), ``symmetric``, ``lower`` or ``upper``."""
    found = tensor(rng, shape, dtype, "normal")
    if kind in ("definite", "symmetric") and shape[-1] == shape[-2]:
        turned = found.mH
        found = found @ turned + torch.eye(shape[-1], dtype=dtype) if kind == "definite" else found + turned
    if kind in ("lower", "upper"):
        found = found.tril() if kind == "lower" else found.triu()
        found = found + 2 * torch.eye(shape[-2], shape[-1], dtype=dtype)
    return found


def scalar(rng: random.Random, name: str, dtype: torch.dtype) -> bool | int | float | complex:
    """A Python number for an argument that takes any."""
    if name in ("p", "ord"):
        return rng.choice([2, 1, 0, 3, float("inf"), -float("inf"), 0.5, -1, 2.0])
    if name == "correction":
        return rng.choice([0, 1, 2, 0.5])
    kind = rng.random()
    if dtype.is_complex and kind < 0.2:
        return complex(rng.choice([1.0, -0.5]), rng.choice([0.5, 2.0]))
    if kind < 0.45:
        return rng.choice([0, 1, 2, 3, -1, -3, 5])
    if kind < 0.93:
        return rng.choice([*FLOAT_CHOICES, 0.1, 0.9, -0.3])
    return rng.random() < 0.5
