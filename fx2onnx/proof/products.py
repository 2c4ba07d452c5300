"""Equations of windows and products that hold bit for bit: padding, transposed and merged weights, rows of views."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fx2onnx.proof.exact import TermMaker, is_zero, rule
from fx2onnx.proof.moves import transposed
from fx2onnx.proof.nodes import as_key
from fx2onnx.proof.sizes import Dim
from fx2onnx.proof.terms import Args, Shape, Terms


def window(terms: Terms, x: int, axes: int, attributes: Mapping[str, Any], value: float) -> tuple[int, dict[str, Any]]:
    """The input and all attributes of a Conv or MaxPool, with numbers around its input that change nothing as its padding."""
    stated: dict[str, Any] = {"strides": [1] * axes, "dilations": [1] * axes, "pads": [0] * 2 * axes}
    stated |= {"auto_pad": b"NOTSET", **attributes}
    inner = terms.key(x)
    if (
        inner[0] == "around"
        and (terms.constants[inner[2]] == value).all()
        and stated["auto_pad"] in (b"NOTSET", "NOTSET")
    ):
        pads = inner[3]
        more = (*pads[2 : axes + 2], *pads[axes + 4 :])
        if not any(pads[:2]) and not any(pads[axes + 2 : axes + 4]) and min(more, default=-1) >= 0:
            x, stated["pads"] = inner[1], [one + other for one, other in zip(stated["pads"], more, strict=True)]
    return x, stated


def window_key(stated: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, as_key(value)) for name, value in stated.items()))


def conv_window(terms: Terms, x: int, axes: int, attributes: Mapping[str, Any]) -> tuple[int, tuple[Any, ...]]:
    """The input of a Conv, and its attributes but the size of its kernel."""
    given = {"group": 1, **{name: value for name, value in attributes.items() if name != "kernel_shape"}}
    x, stated = window(terms, x, axes, given, 0.0)
    return x, window_key(stated)


@rule("MaxPool")
def _max_pool(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    """``MaxPool(Relu(x))`` is ``Relu(MaxPool(x))``."""
    terms, x = reader.terms, args[0]
    if x is None:
        return None
    x, stated = window(terms, x, len(attributes["kernel_shape"]), attributes, -math.inf)
    key, rectified = window_key(stated), terms.key(x)
    if rectified[0] != "op" or rectified[2] != "Relu":
        return terms.of("largest", key, x)
    inner = terms.shaped(terms.of("largest", key, rectified[5][0]), shape)
    return reader.by_element("Relu", [inner], {}, shape, dtype)


@rule("Conv")
def _conv(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    terms, x, weight = reader.terms, args[0], args[1]
    dims = None if weight is None else terms.dims.get(weight)
    if terms.is_real or dims is None or x is None:
        return None
    x, key = conv_window(terms, x, len(dims) - 2, attributes)
    rest = args[1:2] if len(args) < 3 or args[2] is None or is_zero(terms, args, 2) else args[1:]
    return terms.shaped(terms.of("conv", key, x, *rest), shape)


@rule("MatMul")
def _matmul(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    """Rows of a view are rows of what it is a view of; a product of a float32 matrix has no order of its sums."""
    terms, (x, y) = reader.terms, (args[0], args[1])
    weight = None if y is None else terms.dims.get(y)
    core = None if x is None else terms.flat_core(x)
    if (
        terms.is_real
        or core is None
        or weight is None
        or len(weight) != 2
        or shape is None
        or len(terms.dims[core]) < 2
    ):
        return None
    found = reader.by_element("MatMul", [core, y], {}, (*terms.dims[core][:-1], weight[1]), dtype)
    return terms.reshaped(found, (*terms.dims[x or 0][:-1], weight[1]))


@rule("Gemm")
def _gemm(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    """``a @ b + c``."""
    terms, found = reader.terms, list[int | None](args)
    if terms.is_real or shape is None or any(attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    for place, name in enumerate(("transA", "transB")):
        value = found[place]
        if attributes.get(name):
            if value is None or len(terms.dims.get(value, ())) != 2:
                return None
            array = terms.constants.get(value)
            found[place] = transposed(terms, value, (1, 0)) if array is None else terms.constant(array.T)
    product = reader.by_element("MatMul", found[:2], {}, shape, dtype)
    bias = found[2] if len(found) > 2 else None
    return product if bias is None else reader.by_element("Add", [product, bias], {}, shape, dtype)


def columns(
    reader: TermMaker, x: int, width: int, ends: Sequence[int], shape: Sequence[Dim], dtype: str
) -> list[int] | None:
    """Parts of the last axis: those of a product with constant weights are products with parts of them; None for another term."""
    terms, key = reader.terms, reader.terms.key(x)
    parts = [slice(end - size, end) for size, end in zip(np.diff([0, *ends]), ends, strict=True)]
    array = terms.constants.get(x)
    if array is not None:
        is_wide = array.ndim and array.shape[-1] == width
        return [terms.constant(array[..., part]) if is_wide else x for part in parts]
    if key[0] != "op" or key[2] not in ("Add", "MatMul") or len(key[5]) != 2:
        return None
    if key[2] == "MatMul":
        weight = terms.constants.get(key[5][1])
        if weight is None or weight.ndim != 2 or weight.shape[1] != width:
            return None
        operands = [[key[5][0], terms.constant(weight[:, part])] for part in parts]
    else:
        sides = [columns(reader, each, width, ends, shape, dtype) for each in key[5]]
        if any(side is None for side in sides):
            return None
        operands = [list(pair) for pair in zip(*sides, strict=True)]
    sizes = [(*shape[:-1], part.stop - part.start) for part in parts]
    return [reader.by_element(key[2], pair, {}, size, dtype) for pair, size in zip(operands, sizes, strict=True)]
