"""Methods and attributes that Python's and NumPy's numbers have and torch's symbolic ones have not, or whose answer is the number."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.capture.shapes.numpy_nodes import as_numpy
from fx2onnx.capture.shapes.size_math import (
    METHODS_OF_TRUTHS,
    REAL,
    Formula,
    Number,
    bit_length,
    has_result,
    nonzero,
)
from fx2onnx.capture.shapes.symnode import size_node, sym_number, unwrap
from fx2onnx.sizes.expr import apply, is_real_number

Function: TypeAlias = Callable[..., Number]


@answers_for_caller
def _method(formula: Formula, own: str) -> Function:
    """A method that Python's or NumPy's number has, or that NumPy looks for."""

    def method(self: Number, *others: Number) -> Number:
        node = self.node
        found = formula(node.value, *map(unwrap, others))
        return getattr(int(self), own)(*others) if found is None else sym_number(node.env, found)

    return method


def _floordiv(name: str, order: int) -> Function:
    """``//`` of real numbers; torch's own rounds the quotient down, which may be 1 more. ``order``: -1 where the divisor comes first."""
    own = {kind: getattr(kind, name) for kind in (torch.SymInt, torch.SymFloat)}

    @answers_for_caller
    def floordiv(self: Number, other: Number) -> Number:
        node = size_node(self)
        is_number = isinstance(other, int | float) or size_node(other) is not None
        top, bottom = (node.value, unwrap(other))[::order] if node is not None and is_number else (0, 0)
        if node is None or not (is_real_number(top) or is_real_number(bottom)):
            return own[type(self)](self, other)
        if not has_result(node.env, nonzero(bottom)):
            raise ZeroDivisionError("float floor division by zero")
        found = sym_number(node.env, apply("floordiv", apply("float", top), apply("float", bottom)))
        return as_numpy(found, np.float64 if hasattr(node, "kind") else None)

    return floordiv


@answers_for_caller
def _rounded(self: Number, digits: int | None = None) -> Number:
    return self if digits is None or digits >= 0 else round(int(self), digits)


@answers_for_caller
def _format(self: Number, how: str) -> str:
    """The text of the size as its expression, in as many places; what shows the number's digits needs it."""
    plain = how.removesuffix("d")
    if plain and not re.fullmatch(r"(.?[<>^])?\d+", plain):
        return format(int(self) if type(self) is torch.SymInt else float(self), how)
    return format(str(self), plain)


@answers_for_caller
def _itself(self: Number) -> Number:
    return self


_PLAIN: Mapping[type, Function] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
    np.ndarray: lambda array: np.array(array.tolist()) if array.dtype == object else array,
}
"""The number or array with which NumPy computes in the place of a size, or of an array of objects."""


def _like(value: Number) -> Number:
    """A plain number of the kind of a size; any other value itself."""
    node = size_node(value)
    return value if node is None else getattr(node, "kind", node.pytype)(1)


@answers_for_caller
def reducing(original: Function) -> Function:
    """NumPy's way to ``np.sum``, ``np.prod``, ``np.max`` and ``np.min`` of a list: its numbers are NumPy's."""

    def reduced(numbers: Number, ufunc: np.ufunc, *args: Number, **kwargs: Number) -> Number:
        found = original(numbers, ufunc, *args, **kwargs)
        if size_node(found) is None and type(found) not in (bool, int, float):
            return found
        parts = np.asarray(numbers, object).ravel()
        kind = type(ufunc.reduce([*map(_like, parts)]))
        if size_node(found) is not None:
            return as_numpy(found, kind)
        return found if all(size_node(part) is None for part in parts) else kind(found)

    return reduced


_SUM: Number = np.sum
REDUCTIONS = (sys.modules[_SUM.__wrapped__.__globals__["__name__"]], "_wrapreduction", reducing)
"""The place of the function behind these, and its wrapper."""


@answers_for_caller
def ufunc_of_sizes(_: Number, ufunc: np.ufunc, method: str, *inputs: Number, **kwargs: Number) -> Number:
    """``__array_ufunc__`` of sizes: by their own methods, as NumPy computes with objects; where they have none, of the plain numbers."""
    compute, sizes = getattr(ufunc, method), (torch.SymInt, torch.SymFloat, torch.SymBool)
    try:
        found = compute(*(np.array(value, object) if type(value) in sizes else value for value in inputs), **kwargs)
        if type(found) not in (torch.SymInt, torch.SymFloat):
            return found
        return as_numpy(found, type(compute(*map(_like, inputs), **kwargs)))
    except (AttributeError, TypeError):  # of a method that the size has not
        return compute(*(_PLAIN[type(value)](value) if type(value) in _PLAIN else value for value in inputs), **kwargs)


_OF_BOTH: Mapping[str, object] = {
    "__divmod__": answers_for_caller(lambda self, other: (self // other, self % other)),
    "__rdivmod__": answers_for_caller(lambda self, other: (other // self, other % self)),
    "__format__": _format,
    "real": property(_itself),
    "imag": 0,
    "conjugate": _itself,
    "__array_ufunc__": ufunc_of_sizes,
    "rint": answers_for_caller(lambda self: as_numpy(1.0 * round(self))),
    "__floordiv__": _floordiv("__floordiv__", 1),
    "__rfloordiv__": _floordiv("__rfloordiv__", -1),
    **{name: _method(formula, name) for name, formula in REAL.items()},
}
ATTRIBUTES: Mapping[type, Mapping[str, object]] = {
    torch.SymInt: {
        **_OF_BOTH,
        "__invert__": answers_for_caller(lambda self: -self - 1),
        "__round__": _rounded,
        "bit_length": _method(bit_length, "bit_length"),
        "numerator": property(_itself),
        "denominator": 1,
        "to_bytes": answers_for_caller(lambda self, *args, **kwargs: int(self).to_bytes(*args, **kwargs)),
        "as_integer_ratio": answers_for_caller(lambda self: (self, 1)),
        "bit_count": answers_for_caller(lambda self: int(self).bit_count()),
    },
    torch.SymFloat: _OF_BOTH,
    torch.SymBool: {"real": property(_itself), **METHODS_OF_TRUTHS},
}
"""The attributes that sizes have meanwhile, by their class."""
