"""onnxruntime's element-wise operators on quantized tensors (``QLinearAdd`` and its like).

Numerics: float32, as in onnxruntime's own kernels, rounded half to even. Its vector code sums in another order, so a value
that lies between two codes may become the other one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from fx2onnx.semantics.kernels.contrib import MICROSOFT
from fx2onnx.semantics.kernels.integer_products import into_codes
from fx2onnx.semantics.kernels.norm import check_axis
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import kernel
from fx2onnx.semantics.types import FLOAT32, Array, Dtype


def number(value: Array | np.float32 | None, name: str) -> np.float32:
    """A scale or zero point of a whole tensor in float32; 0 where it is left out. Raises: ValueError for several."""
    if value is None:
        return np.float32(0)
    if value.size != 1:
        raise ValueError(f"{name} has the shape {list(value.shape)}; it must be one number")
    return np.float32(value.reshape(()))


def dequantized(x: Array, scale: Array | np.float32 | None, zero: Array | None, name: str) -> Array:
    """The numbers that ``x`` stands for."""
    wide: Array = x.astype(FLOAT32)
    wide -= number(zero, f"{name}_zero_point")
    if scale is not None:
        wide *= number(scale, f"{name}_scale")
    return wide


def codes_of(wide: Array, scale: Array, zero: Array | None, dtype: Dtype) -> Array:
    """Numbers as codes of ``scale`` and ``zero``."""
    return rounded(
        np.asarray(wide / number(scale, "the output's scale")), number(zero, "the output's zero point"), dtype
    )


def rounded(codes: Array, zero: np.float32, dtype: Dtype) -> Array:
    """``codes + zero``, rounded and clipped to the range of ``dtype``; the codes, in float32, are overwritten."""
    y = np.empty(codes.shape, dtype)
    into_codes(codes, np.asarray(zero), y)
    return y


def _translated(x: Array, table: Array) -> Array:
    """The table at each byte: in a third of the time that NumPy takes, which makes indices of 64 bits of them first."""
    return np.frombuffer(bytearray(x.tobytes().translate(table.tobytes())), x.dtype).reshape(x.shape)


LookUp = Callable[[Array, Array], Array]
Function = Callable[[Array, np.float32], Array]


def _by_table(
    look_up: LookUp,
    function: Function,
    x: Array,
    scale: Array,
    zero: Array | None,
    y_scale: Array,
    y_zero: Array | None,
    name: str = "X",
    alpha: float = 0.0,
) -> Array:
    """``function`` of quantized numbers: computed once for each of the 256 codes."""
    if x.dtype.itemsize != 1:
        raise TypeError(f"{name} is {x.dtype}, not uint8 or int8")
    factor, shift = number(scale, f"{name}_scale"), number(zero, f"{name}_zero_point")
    by, start = number(y_scale, "the output's scale"), number(y_zero, "the output's zero point")
    return look_up(x, _table(function, alpha, x.dtype, factor, shift, by, start))


@functools.lru_cache(maxsize=256)
def _table(
    function: Function,
    alpha: float,
    dtype: Dtype,
    scale: np.float32,
    zero: np.float32,
    by: np.float32,
    start: np.float32,
) -> Array:
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    wide = (codes.astype(FLOAT32) - zero) * scale
    return rounded(np.asarray(function(wide, np.float32(alpha)) / by), start, dtype)


def _as_it_is(wide: Array, alpha: np.float32) -> Array:
    return wide


def _sigmoid(wide: Array, alpha: np.float32) -> Array:
    return np.asarray(1 / (1 + np.exp(-wide)))


def _leaky(wide: Array, alpha: np.float32) -> Array:
    return np.where(wide >= 0, wide, wide * alpha)


@kernel("QLinearAdd", domain=MICROSOFT)
def qlinear_add(
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero: Array | None,
    c_scale: Array,
    c_zero: Array | None = None,
) -> Array:
    """The sum of dequantized a and b, quantized again."""
    check_shape(np.broadcast_shapes(a.shape, b.shape), FLOAT32)
    to_c = number(c_scale, "C_scale")
    left, right = number(a_scale, "A_scale") / to_c, number(b_scale, "B_scale") / to_c
    total = dequantized(a, left, a_zero, "A") + dequantized(b, right, b_zero, "B")
    return rounded(np.asarray(total), number(c_zero, "C_zero_point"), a.dtype)


@kernel("QLinearMul", domain=MICROSOFT)
def qlinear_mul(
    a: Array,
    a_scale: Array,
    a_zero: Array | None,
    b: Array,
    b_scale: Array,
    b_zero: Array | None,
    c_scale: Array,
    c_zero: Array | None = None,
) -> Array:
    """The product of dequantized a and b, quantized again."""
    check_shape(np.broadcast_shapes(a.shape, b.shape), FLOAT32)
    factor = number(a_scale, "A_scale") * number(b_scale, "B_scale") / number(c_scale, "C_scale")
    product = np.asarray(dequantized(a, None, a_zero, "A") * dequantized(b, None, b_zero, "B"))
    return rounded(np.multiply(product, factor, out=product), number(c_zero, "C_zero_point"), a.dtype)


@kernel("QLinearSigmoid", domain=MICROSOFT)
def qlinear_sigmoid(
    x: Array,
    scale: Array,
    zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    look_up: LookUp = _translated,
) -> Array:
    """1 / (1 + exp(-x)) of dequantized x, quantized again."""
    return _by_table(look_up, _sigmoid, x, scale, zero, y_scale, y_zero)


@kernel("QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_leaky_relu(
    x: Array,
    scale: Array,
    zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    alpha: float = 0.01,
    look_up: LookUp = _translated,
) -> Array:
    """Dequantized x, below 0 times ``alpha``, quantized again."""
    return _by_table(look_up, _leaky, x, scale, zero, y_scale, y_zero, alpha=alpha)


@kernel("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(y_scale: Array, y_zero: Array, *triples: Array, axis: int, look_up: LookUp = _translated) -> Array:
    """Tensors of their own scales side by side in one scale. ``triples``: tensor, scale, zero point of each."""
    if not triples or len(triples) % 3:
        raise ValueError(
            f"{len(triples)} inputs after the output's scale; they must be tensor, scale, zero point of each"
        )
    parts = [
        _by_table(look_up, _as_it_is, x, scale, zero, y_scale, y_zero, "an input")
        for x, scale, zero in zip(triples[::3], triples[1::3], triples[2::3], strict=True)
    ]
    return np.concatenate(parts, axis=check_axis(axis, parts[0].ndim))


@kernel("QLinearWhere", domain=MICROSOFT)
def qlinear_where(
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    y: Array,
    y_scale: Array,
    y_zero: Array,
    z_scale: Array,
    z_zero: Array,
    *,
    look_up: LookUp = _translated,
) -> Array:
    """x where the condition holds, else y, both in the scale of the output."""
    check_shape(np.broadcast_shapes(condition.shape, x.shape, y.shape), x.dtype)
    left = _by_table(look_up, _as_it_is, x, x_scale, x_zero, z_scale, z_zero, "x")
    right = _by_table(look_up, _as_it_is, y, y_scale, y_zero, z_scale, z_zero, "y")
    return np.where(condition, left, right)
