"""MatMul, Gemm, Einsum, Det."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.semantics.kernels.elementwise import Call, Outs, check_same_dtype, each
from fx2onnx.semantics.kernels.threads import product
from fx2onnx.semantics.limits import check_shape
from fx2onnx.semantics.registry import Calls, kernel
from fx2onnx.semantics.types import NARROW_FLOATS, Array, Spec, narrowed, widen


def matmul_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of ``np.matmul``. Raises: ValueError where the inner dims differ."""
    if not a or not b:
        raise ValueError("MatMul has no scalars")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise ValueError(f"inner dims differ: {list(a)} x {list(b)}")
    batch = np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))
    return batch + ((left[-2],) if len(a) > 1 else ()) + ((right[-1],) if len(b) > 1 else ())


def _matmul_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_same_dtype(inputs)
    return ((matmul_shape(inputs[0].shape, inputs[1].shape), inputs[0].dtype),)


def _narrow_product(a: Array, b: Array, out: Array) -> None:
    out[...] = np.matmul(widen(a), widen(b)).astype(a.dtype)


LEAST_INTEGERS = 1 << 12
"""Products of two numbers from which matrices of integers are worth a conversion."""


def integer_product(a: Array, b: Array, out: Array) -> None:
    """out = a @ b of integers: in float64, which BLAS multiplies, where no sum can be rounded; NumPy has loops for the rest."""
    count = a.size * (b.shape[-1] if b.ndim > 1 else 1)
    most = (
        [max(abs(int(one.max())), abs(int(one.min()))) for one in (a, b)] if count >= LEAST_INTEGERS and b.size else []
    )
    if most and math.prod(most) * a.shape[-1] < 1 << 53:
        np.copyto(out, np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64), casting="unsafe")
    else:
        np.matmul(a, b, out=out)


@kernel("MatMul", kind="into", infer=_matmul_infer)
@Calls
def matmul(out: Outs, a: Array, b: Array) -> list[Call]:
    """out[0] = a @ b, batched by broadcasting. Numerics: narrow floats are multiplied in float32."""
    if a.dtype in NARROW_FLOATS:
        return [functools.partial(_narrow_product, a, b, out[0])]
    if a.dtype.kind in "iu":
        return [functools.partial(integer_product, a, b, out[0])]
    return [product(a, b, out[0])]


def gemm_infer(inputs: Sequence[Array], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Shape and dtype of op(a) @ op(b)."""
    a, b = inputs[0], inputs[1]
    check_same_dtype([item for item in inputs if item is not None])
    rows, inner = a.shape[::-1] if attrs.get("transA", 0) else a.shape
    other, columns = b.shape[::-1] if attrs.get("transB", 0) else b.shape
    if inner != other:
        raise ValueError(f"inner dims differ: {inner} and {other}")
    return (((rows, columns), a.dtype),)


def _narrow_gemm(left: Array, right: Array, c: Array | None, alpha: float, beta: float, y: Array) -> None:
    wide = np.matmul(widen(left), widen(right)) * np.float32(alpha)
    if c is not None:
        wide = wide + widen(c) * np.float32(beta)
    y[...] = wide.astype(y.dtype)


def _scale(y: Array, factor: float) -> None:
    y[...] = (y * factor).astype(y.dtype)


def _add_scaled(y: Array, c: Array, factor: float) -> None:
    np.add(y, (c * np.asarray(factor)).astype(c.dtype), out=y)


@kernel("Gemm", kind="into", infer=gemm_infer)
@Calls
def gemm(
    out: Outs,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    **_: Any,
) -> list[Call]:
    """out[0] = alpha * op(a) @ op(b) + beta * c, where op transposes if asked to."""
    left, right = a.T if transA else a, b.T if transB else b
    y = out[0]
    if a.dtype in NARROW_FLOATS:
        return [functools.partial(_narrow_gemm, left, right, c, alpha, beta, y)]
    calls = [functools.partial(integer_product, left, right, y) if y.dtype.kind in "iu" else product(left, right, y)]
    if alpha != 1.0 and y.dtype.kind in "iu":
        calls.append(functools.partial(_scale, y, alpha))
    elif alpha != 1.0:
        calls.append(each(np.multiply, y, y, np.asarray(alpha, y.dtype)))
    if c is not None and beta == 1.0:
        calls.append(each(np.add, y, y, c))
    elif c is not None and beta != 0.0:
        calls.append(functools.partial(_add_scaled, y, c, beta))
    return calls


@kernel("Einsum", 12)
def einsum(*arrays: Array, equation: str) -> Array:
    """The sum of products that ``equation`` names."""
    text = equation.replace(" ", "")
    check_same_dtype(arrays)
    sizes: dict[str, int] = {}
    terms = text.split("->")[0].split(",")
    if len(terms) != len(arrays):
        raise ValueError(f"{len(terms)} terms for {len(arrays)} operands")
    for term, array in zip(terms, arrays, strict=True):
        if "..." not in term:
            if len(term) != array.ndim:
                raise ValueError(f"the term {term!r} is for {len(term)} axes, its operand has {array.ndim}")
            for label, dim in zip(term, array.shape, strict=True):
                if sizes.setdefault(label, dim) not in (dim, 1) and dim != 1:
                    raise ValueError(f"{label!r} is both {sizes[label]} and {dim}")
    if "->" in text and "..." not in text:
        check_shape([sizes[label] for label in text.split("->")[1]], arrays[0].dtype, "the result of Einsum")
    wide = [widen(array) for array in arrays]
    return narrowed(np.array(np.einsum(text, *wide, optimize=len(arrays) > 1)), arrays[0].dtype)


@kernel("Det", 11)
def det(x: Array) -> Array:
    """The determinants of the last two axes."""
    return np.asarray(np.linalg.det(widen(x))).astype(x.dtype)
