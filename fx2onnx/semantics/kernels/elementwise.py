"""Arithmetic, comparison, logic: one NumPy ufunc an operator, written into the planned buffer."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import Calls, Infer, kernel, same_as_first
from fx2onnx.semantics.types import (
    NARROW_INTS,
    Array,
    Spec,
    is_float,
    narrowed,
    numpy_dtype_of_code,
    widen,
)

Outs = list[Array]
BOOL = np.dtype(np.bool_)


def broadcast_shape(inputs: Sequence[Array]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(array.shape for array in inputs))


def check_same_dtype(inputs: Sequence[Array]) -> None:
    """Raises: TypeError where dtypes differ; NumPy would promote in silence."""
    first = inputs[0].dtype
    for array in inputs[1:]:
        if array.dtype != first:
            raise TypeError(f"operands have the dtypes {', '.join(str(a.dtype) for a in inputs)}; they must be equal")


def broadcast_same(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """``infer`` of operators whose operands and result share one dtype."""
    check_same_dtype(inputs)
    return ((broadcast_shape(inputs), inputs[0].dtype),)


def broadcast_first(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """``infer`` of operators whose result has the first operand's dtype."""
    return ((broadcast_shape(inputs), inputs[0].dtype),)


def broadcast_bool(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """``infer`` of comparisons."""
    check_same_dtype(inputs)
    return ((broadcast_shape(inputs), BOOL),)


def bool_like_first(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return ((inputs[0].shape, BOOL),)


Call = Callable[[], Any]


def each(function: Callable[..., Any], out: Array, *operands: Array) -> Call:
    """The call ``function(*operands, out)`` of an element-wise function. Where no axis matters, arrays are lines, and a single
    operand among many has no axes: NumPy takes a third of the time to see how they fit together. An operand that is ``out`` stays
    the same object: of two objects NumPy asks how their memory overlaps, which takes as long as the computation of a short line.
    """
    target = out
    if out.flags.c_contiguous and all(
        one.size == 1 or (one.size == out.size and one.flags.c_contiguous) for one in operands
    ):
        line = (out.size,)
        target = out.reshape(line)
        operands = tuple(
            target if one is out else one.reshape(() if one.size == 1 != out.size else line) for one in operands
        )
    if function is np.maximum or function is np.minimum:  # NumPy warns of their third place, which takes a microsecond
        return functools.partial(function, *operands, out=target)
    return functools.partial(function, *operands, target)


def reshaped(x: Array, shape: Sequence[int]) -> tuple[Array, list[Call]]:
    """x in another shape, and the call that copies it there where that is no view."""
    y = x.reshape(shape)
    return y, [] if np.may_share_memory(x, y) else [functools.partial(np.copyto, y.reshape(x.shape), x)]


def _reciprocal(x: Array, out: Array) -> None:
    np.divide(np.ones((), x.dtype), x, out=out)  # np.reciprocal is slower


def _div(a: Array, b: Array, out: Array) -> None:
    """Integers are divided toward zero, as in C."""
    if a.dtype.kind not in "iu":
        np.divide(a, b, out=out)
        return
    _refuse_zeros(b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":
        quotient += ((quotient * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)
    np.copyto(out, quotient)


def _refuse_zeros(divisor: Array) -> None:
    """ONNX leaves integers divided by zero undefined; PyTorch and onnxruntime raise."""
    if not divisor.all():
        raise ZeroDivisionError("an integer is divided by zero")


def _pow(a: Array, b: Array, out: Array) -> None:
    if out.size == 1 and a.dtype == b.dtype == np.float64:
        with contextlib.suppress(ArithmeticError, ValueError):  # NumPy rounds a power of one number otherwise than C
            out[...] = math.pow(a.item(), b.item())
            return
    if b.size == 1 and a.dtype.kind in "fiu" and a.shape == out.shape and a is not out:
        power = float(b.reshape(()))
        if power == 0.5 and a.dtype.kind == "f":
            np.sqrt(a, out=out)
            return
        if power in (2.0, 3.0, 4.0):
            np.multiply(a, a, out=out)
            if power > 2:
                np.multiply(out, a if power == 3.0 else out, out=out)
            return
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        exponent = b.astype(np.int64) if b.dtype.kind == "i" else b
        safe = np.power(a, np.where(exponent < 0, 0, exponent).astype(a.dtype))
        inverse = np.where(np.abs(a) == 1, np.where((exponent & 1) == 1, a, np.abs(a)), np.zeros((), a.dtype))
        np.copyto(out, np.where(exponent < 0, inverse, safe), casting="unsafe")
        return
    if a.dtype == b.dtype and a.dtype.kind == "f":
        np.power(a, b, out=out)
        return
    wide = np.float64 if a.dtype in (np.dtype(np.float64), *map(np.dtype, (np.int64, np.int32))) else np.float32
    np.copyto(out, np.power(a.astype(wide), b.astype(wide)), casting="unsafe")


UNARY: dict[str, Callable[..., Any]] = {
    "Abs": np.absolute, "Neg": np.negative, "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt,
    "Reciprocal": _reciprocal, "Exp": np.exp, "Log": np.log, "Sin": np.sin, "Cos": np.cos, "Tan": np.tan,
    "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh,
    "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh, "Round": np.rint, "Sign": np.sign,
    "Not": np.logical_not, "BitwiseNot": np.invert,
}  # fmt: skip
UNARY_SINCE = {
    **dict.fromkeys(("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"), 7),
    **dict.fromkeys(("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Sign"), 9),
    "Round": 11,
    "BitwiseNot": 18,
}
"""The opset that they came with; 1 for the others."""
BINARY: dict[str, tuple[int, Callable[..., Any]]] = {
    "Add": (7, np.add), "Sub": (7, np.subtract), "Mul": (7, np.multiply), "Div": (7, _div), "And": (7, np.logical_and),
    "Or": (7, np.logical_or), "Xor": (7, np.logical_xor), "BitwiseAnd": (18, np.bitwise_and),
    "BitwiseOr": (18, np.bitwise_or), "BitwiseXor": (18, np.bitwise_xor),
}  # fmt: skip
COMPARE: dict[str, tuple[int, Callable[..., Any]]] = {
    "Equal": (7, np.equal),
    "Greater": (7, np.greater),
    "Less": (7, np.less),
    "GreaterOrEqual": (12, np.greater_equal),
    "LessOrEqual": (12, np.less_equal),
}


def _register_unary(op_type: str, ufunc: Callable[..., Any]) -> None:
    def calls(out: Outs, x: Array, **_: Any) -> list[Call]:
        return [each(ufunc, out[0], x)]

    calls.__doc__ = f"out[0] = {ufunc.__name__}(x), elementwise."
    since = UNARY_SINCE.get(op_type, 1)
    kernel(op_type, since, kind="into", infer=same_as_first, inplace=(0,), elementwise=True)(Calls(calls))


def _register_binary(
    op_type: str, since: int, ufunc: Callable[..., Any], infer: Infer, inplace: tuple[int, ...] = ()
) -> None:
    def calls(out: Outs, a: Array, b: Array, **_: Any) -> list[Call]:
        return [each(ufunc, out[0], a, b)]

    calls.__doc__ = f"out[0] = {op_type}(a, b) with NumPy broadcasting."
    kernel(op_type, since, kind="into", infer=infer, inplace=inplace, elementwise=True)(Calls(calls))

    def legacy(a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0, **_: Any) -> Array:
        b = align_legacy(a, b, axis, broadcast)
        ((shape, dtype),) = infer((a, b), {})
        check_shape(shape, dtype)
        out = np.empty(shape, dtype)
        ufunc(a, b, out=out)
        return out

    legacy.__doc__ = f"{op_type} of opsets 1-6: ``b`` is aligned at ``axis`` where ``broadcast`` is set."
    if since == 7:
        kernel(op_type, 1)(legacy)


def align_legacy(a: Array, b: Array, axis: int | None, broadcast: int) -> Array:
    """``b`` with ones appended so that its first axis lies at ``axis`` of ``a``."""
    if not broadcast or axis is None or b.ndim == 0:
        return b
    axis = axis + a.ndim if axis < 0 else axis
    trailing = a.ndim - axis - b.ndim
    return b.reshape(b.shape + (1,) * max(trailing, 0))


for _op_type, _ufunc in UNARY.items():
    _register_unary(_op_type, _ufunc)
for _op_type, (_since, _ufunc) in BINARY.items():
    _register_binary(_op_type, _since, _ufunc, broadcast_same, (0, 1))
for _op_type, (_since, _ufunc) in COMPARE.items():
    _register_binary(_op_type, _since, _ufunc, broadcast_bool)
_register_binary("Pow", 7, _pow, broadcast_first)


@kernel("Mod", 10)
def mod(a: Array, b: Array, *, fmod: int = 0, version: int = 28) -> Array:
    """The remainder; its sign is the divisor's, or the dividend's with ``fmod=1``.

    Raises:   ZeroDivisionError for integers; the remainder of floats by zero is NaN.
    """
    check_same_dtype((a, b))
    if a.dtype.kind in "iu":
        _refuse_zeros(b)
    if fmod != 1 and version < 28 and is_float(a.dtype):
        raise ValueError("before opset 28 there is of floats the remainder of fmod=1 only")
    check_shape(broadcast_shape((a, b)), a.dtype)
    return narrowed((np.fmod if fmod else np.mod)(widen(a), widen(b)), a.dtype)


@kernel("BitShift", 11)
def bit_shift(a: Array, b: Array, *, direction: str) -> Array:
    """a << b or a >> b; shifting by the width or more gives 0."""
    check_same_dtype((a, b))
    check_shape(broadcast_shape((a, b)), a.dtype)
    if direction not in ("LEFT", "RIGHT"):
        raise ValueError(f"direction is {direction!r}, not LEFT or RIGHT")
    return np.asarray(np.left_shift(a, b) if direction == "LEFT" else np.right_shift(a, b))


def _folded(ufunc: Callable[..., Any], out: Array, arrays: Sequence[Array]) -> list[Call]:
    """out = the operands joined by the ufunc, from the left."""
    if len(arrays) == 1:
        return [functools.partial(np.copyto, out, arrays[0])]
    return [each(ufunc, out, *arrays[:2]), *(each(ufunc, out, out, array) for array in arrays[2:])]


def _register_fold(op_type: str, ufunc: Callable[..., Any], what: str) -> None:
    def calls(out: Outs, *arrays: Array, **_: Any) -> list[Call]:
        made = _folded(ufunc, out[0], arrays)
        return (
            [*made, each(np.divide, out[0], out[0], np.asarray(len(arrays), out[0].dtype))]
            if op_type == "Mean"
            else made
        )

    calls.__doc__ = f"out[0] = the elementwise {what}."
    kernel(op_type, kind="into", infer=broadcast_same, elementwise=True)(Calls(calls))


_register_fold("Max", np.maximum, "maximum; NaN wins")
_register_fold("Min", np.minimum, "minimum; NaN wins")
_register_fold("Sum", np.add, "sum")
_register_fold("Mean", np.add, "mean")


@kernel("IsNaN", 9, kind="into", infer=bool_like_first, elementwise=True)
@Calls
def is_nan(out: Outs, x: Array) -> list[Call]:
    """out[0] = x is NaN."""
    return [each(np.not_equal, out[0], x, x)]


@kernel("IsInf", 10)
def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Return whether x is an infinity of a wanted sign."""
    wide = widen(x)
    result: Array = np.isinf(wide)
    if not detect_negative:
        result &= ~(wide < 0)
    if not detect_positive:
        result &= ~(wide > 0)
    return result


def _where_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_same_dtype(inputs[1:])
    return ((broadcast_shape(inputs), inputs[1].dtype),)


_BITS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}


def select(out: Array, condition: Array, x: Array, y: Array) -> None:
    """out = x where condition else y, by the bits of the elements: no branch, which random conditions make slow.

    Buffers: out may lie where y does.
    """
    if condition.size * 16 <= out.size and (condition.all() or not condition.any()):
        np.copyto(out, x if condition.all() else y)
        return
    bits = _BITS.get(out.dtype.itemsize) if out.dtype.kind not in "OV" else None
    if bits is None:
        np.copyto(out, y)
        np.copyto(out, x, where=condition)
        return
    target, first = out.view(bits), x.view(bits)
    np.bitwise_xor(first, y.view(bits), out=target)
    np.multiply(target, np.logical_not(condition), out=target)
    np.bitwise_xor(target, first, out=target)


@kernel("Where", 9, kind="into", infer=_where_infer, inplace=(2,), elementwise=True)
def where(out: Outs, condition: Array, x: Array, y: Array) -> None:
    """out[0] = x where condition else y.

    Buffers: out[0] may be y itself.
    """
    select(out[0], condition, x, y)


@kernel("BitCast", 26)
def bit_cast(x: Array, *, to: int) -> Array:
    """The same bits read as another dtype of the same width."""
    dtype = numpy_dtype_of_code(to)
    if dtype.itemsize != x.dtype.itemsize or (x.dtype in NARROW_INTS) != (dtype in NARROW_INTS):
        raise ValueError(f"cannot read {x.dtype} as {dtype}: the widths differ")
    return np.ascontiguousarray(x).reshape(x.shape).view(dtype).copy()
