"""Random numbers. A ``seed`` makes a node repeat itself; without one each run differs."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from fx2onnx.runner.kernels.cast import cast_array
from fx2onnx.runner.limits import check_shape
from fx2onnx.runner.registry import kernel
from fx2onnx.runner.types import Array, Dtype, numpy_dtype_of_code, widen

_shared: np.random.Generator | None = None


def set_seed(seed: int) -> None:
    """Make the nodes without a ``seed`` draw from one generator that starts here, as onnxruntime's ``set_seed`` does."""
    global _shared
    _shared = np.random.default_rng(seed)


def generator(seed: float | int | None) -> np.random.Generator:
    """A generator; the float attribute ``seed`` is taken by its bits."""
    if seed is None:
        return np.random.default_rng() if _shared is None else _shared.spawn(1)[0]
    return np.random.default_rng(seed if isinstance(seed, int) and seed >= 0 else list(struct.pack("<d", float(seed))))


def _normal(shape: Sequence[int], dtype: Dtype, mean: float, scale: float, seed: float | None) -> Array:
    check_shape(shape, dtype, "a random tensor")
    return cast_array(generator(seed).normal(mean, scale, tuple(shape)), dtype)


def _uniform(shape: Sequence[int], dtype: Dtype, low: float, high: float, seed: float | None) -> Array:
    check_shape(shape, dtype, "a random tensor")
    return cast_array(generator(seed).uniform(low, high, tuple(shape)), dtype)


@kernel("RandomNormal", is_random=True)
def random_normal(
    *, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Array:
    """Normal numbers."""
    return _normal(shape, numpy_dtype_of_code(dtype), mean, scale, seed)


@kernel("RandomNormalLike", is_random=True)
def random_normal_like(
    x: Array, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Array:
    """Normal numbers in x's shape."""
    return _normal(x.shape, x.dtype if dtype is None else numpy_dtype_of_code(dtype), mean, scale, seed)


@kernel("RandomUniform", is_random=True)
def random_uniform(
    *, shape: Sequence[int], dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Array:
    """Uniform numbers."""
    return _uniform(shape, numpy_dtype_of_code(dtype), low, high, seed)


@kernel("RandomUniformLike", is_random=True)
def random_uniform_like(
    x: Array, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Array:
    """Uniform numbers in x's shape."""
    return _uniform(x.shape, x.dtype if dtype is None else numpy_dtype_of_code(dtype), low, high, seed)


@kernel("Bernoulli", 15, is_random=True)
def bernoulli(x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """1 with probability x."""
    drawn = generator(seed).random(x.shape) < widen(x)
    return cast_array(drawn, x.dtype if dtype is None else numpy_dtype_of_code(dtype))


@kernel("Multinomial", 7, is_random=True)
def multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """``sample_size`` class numbers a row, drawn by the unnormalized log probabilities x."""
    check_shape((x.shape[0], sample_size), np.dtype(np.int64), "a random tensor")
    wide = widen(x).astype(np.float64)
    weight = np.exp(wide - wide.max(axis=1, keepdims=True))
    total = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    drawn = generator(seed).random((x.shape[0], sample_size))
    rows = [np.searchsorted(edges, points) for edges, points in zip(total, drawn, strict=True)]
    chosen = np.minimum(np.array(rows).reshape(x.shape[0], sample_size), x.shape[1] - 1)
    return cast_array(chosen, numpy_dtype_of_code(dtype))
