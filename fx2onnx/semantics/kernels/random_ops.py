"""Random numbers. A ``seed`` makes a node repeat itself; without one each run differs."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from fx2onnx.base.stack_frames import public
from fx2onnx.semantics.kernels.cast import cast_array
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import Array, Dtype, numpy_dtype_of_code, widen

_shared: np.random.Generator | None = None


@public
def set_seed(seed: int) -> None:
    """Make the nodes without a ``seed`` draw from one generator that starts here, as onnxruntime's ``set_seed`` does."""
    global _shared
    _shared = np.random.default_rng(seed)


def generator(seed: float | int | None) -> np.random.Generator:
    """A generator; the float attribute ``seed`` is taken by its bits."""
    if seed is None:
        return np.random.default_rng() if _shared is None else _shared.spawn(1)[0]
    return np.random.default_rng(seed if isinstance(seed, int) and seed >= 0 else list(struct.pack("<d", float(seed))))


DISTRIBUTIONS = {
    "RandomNormal": ("normal", {"mean": 0.0, "scale": 1.0}),
    "RandomUniform": ("uniform", {"low": 0.0, "high": 1.0}),
}
"""NumPy's name of each, and its parameters in order."""


def _register(op_type: str, method: str, defaults: Mapping[str, float]) -> None:
    def draw(shape: Sequence[int], dtype: Dtype, seed: float | None, given: Mapping[str, float]) -> Array:
        check_shape(shape, dtype, "a random tensor")
        parameters = (given.get(name, default) for name, default in defaults.items())
        return cast_array(getattr(generator(seed), method)(*parameters, tuple(shape)), dtype)

    def random(*, shape: Sequence[int], dtype: int = 1, seed: float | None = None, **given: float) -> Array:
        return draw(shape, numpy_dtype_of_code(dtype), seed, given)

    def random_like(x: Array, *, dtype: int | None = None, seed: float | None = None, **given: float) -> Array:
        return draw(x.shape, x.dtype if dtype is None else numpy_dtype_of_code(dtype), seed, given)

    random.__doc__ = f"Numbers of the {method} distribution."
    random_like.__doc__ = f"Numbers of the {method} distribution in x's shape."
    kernel(op_type, is_random=True)(random)
    kernel(f"{op_type}Like", is_random=True)(random_like)


for _op_type, (_method, _parameters) in DISTRIBUTIONS.items():
    _register(_op_type, _method, _parameters)


@kernel("Bernoulli", 15, is_random=True)
def bernoulli(x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """1 with probability x."""
    drawn = generator(seed).random(x.shape) < widen(x)
    return cast_array(drawn, x.dtype if dtype is None else numpy_dtype_of_code(dtype))


@kernel("Multinomial", 7, is_random=True)
def multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """``sample_size`` class numbers a row, drawn by the unnormalized log probabilities x."""
    if sample_size < 1:
        raise ValueError(f"sample_size is {sample_size}, it must be 1 or more")
    check_shape((x.shape[0], sample_size), np.dtype(np.int64), "a random tensor")
    wide = widen(x).astype(np.float64)
    weight = np.exp(wide - wide.max(axis=1, keepdims=True))
    total = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    drawn = generator(seed).random((x.shape[0], sample_size))
    rows = [np.searchsorted(edges, points) for edges, points in zip(total, drawn, strict=True)]
    chosen = np.minimum(np.array(rows).reshape(x.shape[0], sample_size), x.shape[1] - 1)
    return cast_array(chosen, numpy_dtype_of_code(dtype))
