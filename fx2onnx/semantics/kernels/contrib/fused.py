"""onnxruntime's fused operators: norms with a sum before them, activations, products and convolutions with what follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.activation import gelu, swish
from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.conv import conv
from fx2onnx.semantics.kernels.elementwise import Outs
from fx2onnx.semantics.kernels.matmul import gemm, gemm_infer, matmul_shape
from fx2onnx.semantics.kernels.threads import multiply
from fx2onnx.semantics.kernels.windows import conv_window
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import find_kernel, kernel, same_as_first
from fx2onnx.semantics.types import Array, Dtype, Spec, narrowed, numpy_dtype_of_code, vecdot, widen


def _row(values: Array, x: Array, name: str) -> Array:
    if values.shape != x.shape[-1:]:
        raise ValueError(f"{name} has the shape {list(values.shape)}, not {list(x.shape[-1:])}")
    return widen(values)


def _summed(x: Array, skip: Array, bias: Array | None) -> Array:
    """x + skip + bias, wide; ``skip`` may lack the batch."""
    if skip.shape != x.shape and (x.ndim != 3 or skip.shape not in (x.shape[1:], (1, *x.shape[1:]))):
        raise ValueError(f"skip of shape {list(skip.shape)} does not fit {list(x.shape)}")
    total: Array = widen(x) + widen(skip)
    return total if bias is None else np.add(total, _row(bias, x, "bias"), out=total)


def _inverse_root(square: Array, width: int, epsilon: float) -> Array:
    mean = square / np.asarray(max(width, 1), square.dtype)
    inverse: Array = np.ones((), square.dtype) / np.sqrt(mean + np.asarray(epsilon, square.dtype))
    return inverse[..., None]


def _skip_norm_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x = inputs[0]
    small = (*x.shape[:-1], 1), np.dtype(np.float64) if x.dtype == np.float64 else np.dtype(np.float32)
    return ((x.shape, x.dtype), small, small, (x.shape, x.dtype))[: max(attrs.get("n_outputs", 1), 1)]


def _written(out: Outs, results: Sequence[Array], dtype: Dtype) -> None:
    for place, (target, result) in enumerate(zip(out, results, strict=False)):
        target[...] = narrowed(result, dtype) if place in (0, 3) else result


@kernel("SkipLayerNormalization", domain=MICROSOFT, kind="into", infer=_skip_norm_infer)
def skip_layer_normalization(
    out: Outs,
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
    n_outputs: int = 1,
) -> None:
    """out[0] = (s - mean) * rstd * gamma + beta of s = x + skip + bias; out[3] = s.

    Shapes:   x [B, S, D]; skip as x, or [S, D]; gamma, beta, bias [D].
    Numerics: in float32 at least.
    """
    total = _summed(x, skip, bias)
    width = x.shape[-1]
    mean = np.add.reduce(total, axis=-1, keepdims=True) / np.asarray(max(width, 1), total.dtype)
    y = total - mean
    inverse = _inverse_root(vecdot(y, y), width, epsilon)
    y *= inverse
    y *= _row(gamma, x, "gamma")
    if beta is not None:
        y += _row(beta, x, "beta")
    _written(out, (y, mean, inverse, total), x.dtype)


@kernel("SkipSimplifiedLayerNormalization", domain=MICROSOFT, kind="into", infer=_skip_norm_infer)
def skip_simplified_layer_normalization(
    out: Outs,
    x: Array,
    skip: Array,
    gamma: Array,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
    n_outputs: int = 1,
) -> None:
    """out[0] = s / sqrt(mean(s ** 2) + epsilon) * gamma of s = x + skip + bias; out[3] = s."""
    total = _summed(x, skip, bias)
    inverse = _inverse_root(vecdot(total, total), x.shape[-1], epsilon)
    y = total * inverse
    y *= _row(gamma, x, "gamma")
    _written(out, (y, np.zeros((), total.dtype), inverse, total), x.dtype)


@kernel("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, n_outputs: int = 1
) -> tuple[Array, ...]:
    """x / sqrt(mean(x ** 2) + epsilon) * scale over axes ``axis..``: onnxruntime's, in ONNX's own domain."""
    place = axis % max(x.ndim, 1)
    wide = widen(x).reshape(*x.shape[:place], math.prod(x.shape[place:]))
    inverse = _inverse_root(vecdot(wide, wide), wide.shape[-1], epsilon)
    y = (wide * inverse).reshape(x.shape) * widen(scale)
    kept = inverse.reshape(x.shape[:place] + (1,) * (x.ndim - place)).astype(numpy_dtype_of_code(stash_type))
    return (narrowed(y, scale.dtype), kept)[:n_outputs]


@kernel("Gelu", domain=MICROSOFT, kind="into", infer=same_as_first)
def gelu_of_microsoft(out: Outs, x: Array) -> None:
    """out[0] = x * (1 + erf(x / sqrt 2)) / 2."""
    gelu(out, x)


def _with_bias(x: Array, bias: Array | None) -> Array:
    return x if bias is None else narrowed(widen(x) + _row(bias, x, "bias"), x.dtype)


@kernel("BiasGelu", domain=MICROSOFT, kind="into", infer=same_as_first)
def bias_gelu(out: Outs, x: Array, bias: Array) -> None:
    """out[0] = gelu(x + bias)."""
    gelu(out, _with_bias(x, bias))


@kernel("FastGelu", domain=MICROSOFT, kind="into", infer=same_as_first)
def fast_gelu(out: Outs, x: Array, bias: Array | None = None) -> None:
    """out[0] = gelu(x + bias) in its tanh form."""
    gelu(out, _with_bias(x, bias), approximate="tanh")


@kernel("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    """x * sigmoid(alpha * x)."""
    return narrowed(swish(widen(x), alpha=alpha), x.dtype)


def _oriented(x: Array, transposes: int, transposes_batch: int) -> Array:
    """``x`` as FusedMatMul reads it: its first axis moved behind the last batch axis, its last two exchanged."""
    if transposes_batch and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    return x.swapaxes(-1, -2) if transposes and x.ndim > 1 else x


def _fused_matmul_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    left, right = (
        _oriented(value, attrs.get(f"trans{name}", 0), attrs.get(f"transBatch{name}", 0))
        for name, value in zip("AB", inputs, strict=True)
    )
    return ((matmul_shape(left.shape, right.shape), inputs[0].dtype),)


@kernel("FusedMatMul", domain=MICROSOFT, kind="into", infer=_fused_matmul_infer)
def fused_matmul(
    out: Outs,
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> None:
    """out[0] = alpha * op(a) @ op(b)."""
    left, right = _oriented(widen(a), transA, transBatchA), _oriented(widen(b), transB, transBatchB)
    y = out[0] if left.dtype == out[0].dtype else np.empty(out[0].shape, left.dtype)
    multiply(left, right, y)
    if alpha != 1.0:
        np.multiply(y, np.asarray(alpha, y.dtype), out=y)
    if y is not out[0]:
        out[0][...] = narrowed(y, a.dtype)


@kernel("TransposeMatMul", domain=MICROSOFT)
def transpose_matmul(a: Array, b: Array, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Array:
    """alpha * op(a) @ op(b), under FusedMatMul's older name."""
    left, right = _oriented(a, transA, 0), _oriented(b, transB, 0)
    check_shape(matmul_shape(left.shape, right.shape), a.dtype)
    return np.asarray(np.matmul(left, right) * np.asarray(alpha, a.dtype))


def activated(y: Array, name: str, parameters: Mapping[str, Any]) -> Array:
    """An activation by the name of its operator. Raises: ValueError for one that ONNX does not have."""
    if not name:
        return y
    if name == "Clip":
        return np.clip(y, np.float32(parameters.get("min", -np.inf)), np.float32(parameters.get("max", np.inf)))
    found = find_kernel("", name, 22)
    if found is None or found.infer not in (None, same_as_first):
        raise ValueError(f"{name!r} is no activation")
    if found.kind != "into":
        return np.asarray(found.fn(y, **parameters))
    result = np.empty_like(y)
    found.fn([result], y, **parameters)
    return result


_PARAMETERS = {
    "Clip": ("min", "max"), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",),
    "ParametricSoftplus": ("alpha", "beta"), "ScaledTanh": ("alpha", "beta"), "Selu": ("alpha", "gamma"),
    "ThresholdedRelu": ("alpha",),
}  # fmt: skip
"""The parameters of activations, in the order of ``activation_params``."""


@kernel("FusedConv", domain=MICROSOFT)
def fused_conv(
    x: Array,
    w: Array,
    bias: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] | None = None,
    **attrs: Any,
) -> Array:
    """activation(Conv(x, w, bias) + z)."""
    window = conv_window(x.shape, w.shape, attrs)
    shape = (x.shape[0], w.shape[0], *window.out)
    check_shape(shape, x.dtype)
    y = np.empty(shape, x.dtype)
    conv([y], x, w, bias, **attrs)
    if z is not None:
        if z.shape != shape:
            raise ValueError(f"Z has the shape {list(z.shape)}, not {list(shape)}")
        y += z
    return activated(y, activation, dict(zip(_PARAMETERS.get(activation, ()), activation_params or (), strict=False)))


@kernel("FusedGemm", domain=MICROSOFT)
def fused_gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    transA: int = 0,
    transB: int = 0,
    **attrs: Any,
) -> Array:
    """activation(Gemm(a, b, c))."""
    (shape, dtype), *_ = gemm_infer([a, b] if c is None else [a, b, c], {"transA": transA, "transB": transB})
    check_shape(shape, dtype)
    y = np.empty(shape, dtype)
    gemm([y], a, b, c, transA=transA, transB=transB, **attrs)
    given = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    wanted = _PARAMETERS.get(activation, ())
    return activated(y, activation, {key: value for key, value in given.items() if value is not None and key in wanted})
