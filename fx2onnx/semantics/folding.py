"""Constant folding's arithmetic: the result of one operator by its kernel, and whether every runtime has the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.semantics import kernels  # noqa: F401  (which names the file of each)
from fx2onnx.semantics.registry import find_kernel, outputs_of
from fx2onnx.semantics.schemas import NEWEST_OPSET, signature_of
from fx2onnx.semantics.types import Array, numpy_dtype_of_code

Inputs: TypeAlias = Sequence[Array | None]
Attributes: TypeAlias = Mapping[str, Any]
Guard: TypeAlias = Callable[[Inputs, Attributes], bool]
Function: TypeAlias = Callable[..., Array]


def _always(inputs: Inputs, attrs: Attributes) -> bool:
    return True


def _of_kinds(kinds: str) -> Guard:
    """A guard that holds if the first operand is of these kinds of dtypes."""
    return lambda inputs, attrs: inputs[0] is not None and inputs[0].dtype.kind in kinds


def _is_reducible(inputs: Inputs, attrs: Attributes) -> bool:
    """Sums of floats depend on the order of addition; of nothing, and over no axes, runtimes have their own idea."""
    data, axes = inputs[0], attrs.get("axes") if len(inputs) < 2 else inputs[1]
    return data is not None and data.dtype.kind != "f" and data.size > 0 and axes is not None and np.size(axes) > 0


def _is_divisible(inputs: Inputs, attrs: Attributes) -> bool:
    top, bottom = inputs
    return top is not None and bottom is not None and (top.dtype.kind == "f" or bool(bottom.all()))


def _has_remainder(inputs: Inputs, attrs: Attributes) -> bool:
    return not attrs.get("fmod") and _of_kinds("iu")(inputs, attrs) and _is_divisible(inputs, attrs)


def _is_representable(inputs: Inputs, attrs: Attributes) -> bool:
    """Processors disagree about floats that no integer of the dtype is near; minus infinity is the least int64 everywhere."""
    array, to = inputs[0], numpy_dtype_of_code(attrs["to"])
    if array is None or array.dtype.kind != "f" or to.kind not in "iu":
        return array is not None
    limits = np.iinfo(to)
    inside = (array >= limits.min) & (array < limits.max)
    return bool((inside | (np.isneginf(array) & (to == np.int64))).all())


def _is_power_of_integers(inputs: Inputs, attrs: Attributes) -> bool:
    """Beyond 2**53 too, where runtimes go through float64: PyTorch's numbers are exact, and wrap."""
    base, exponent = inputs
    if base is None or exponent is None or base.dtype.kind not in "iu" or exponent.dtype.kind not in "iu":
        return False
    return not exponent.size or bool(exponent.min() >= 0 and exponent.max() <= np.iinfo(base.dtype).max)


EXACT: Mapping[str, Guard] = {
    **dict.fromkeys(
        (
            "Abs", "Add", "And", "Ceil", "Concat", "ConstantOfShape", "Equal", "Expand", "Floor", "Gather", "GatherElements",
            "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not",
            "Or", "Reciprocal", "Reshape", "Sign", "Slice", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Trilu",
            "Unsqueeze", "Where", "Xor",
        ),
        _always,
    ),
    **dict.fromkeys(("ReduceMax", "ReduceMin", "ReduceSum"), _is_reducible),
    "Cast": _is_representable,
    "CumSum": _of_kinds("iu"),
    "Div": _is_divisible,
    "Mod": _has_remainder,
    "Pow": _is_power_of_integers,
    "Range": _of_kinds("i"),
}  # fmt: skip
"""Operators whose results have the same bits in every runtime, and for which operands."""


def _rounded_once(op_type: str, *arrays: Array) -> Array:
    """The kernel taken in float64 and rounded once."""
    found = compute(op_type, NEWEST_OPSET, [array.astype(np.float64) for array in arrays], {})
    assert found is not None
    return found.astype(arrays[0].dtype)


LAST_BIT: Mapping[str, Function] = {
    op_type: partial(_rounded_once, op_type) for op_type in ("Cos", "Exp", "Log", "Pow", "Sin")
}
"""Operator -> function of arrays of float32 or float16. Libraries differ in the last bit of these."""

_FAULTS = (UserError, ValueError, TypeError, IndexError, KeyError, ArithmeticError, AssertionError, MemoryError)
"""The exceptions of kernels for operands that do not fit: a node that fails is left to the runtime."""


def fold(
    op_type: str, opset: int, inputs: Inputs, attrs: Attributes, functions: Mapping[str, Function] = LAST_BIT
) -> Array | None:
    """The one output of an operator of the standard domain, with the bits of every runtime; None where they may differ, or where
    a runtime would fail.

    functions: what computes the operators of ``LAST_BIT``.
    """
    guard, function = EXACT.get(op_type), functions.get(op_type)
    try:
        if guard is not None and guard(inputs, attrs):
            return compute(op_type, opset, inputs, attrs)
        arrays = [array for array in inputs if array is not None]
        if function is None or arrays[0].dtype not in (np.float32, np.float16):
            return None
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(found := function(*arrays)).reshape(found.shape)
    except _FAULTS:
        return None


def compute(op_type: str, opset: int, inputs: Inputs, attrs: Attributes) -> Array | None:
    """The first output of any operator of the standard domain that has a kernel; None where it has none, or refuses the operands."""
    found = compute_all(op_type, opset, inputs, attrs, 1)
    return None if found is None else found[0]


def compute_all(op_type: str, opset: int, inputs: Inputs, attrs: Attributes, count: int) -> list[Array] | None:
    """The first ``count`` outputs, as ``compute`` gives the first."""
    signature = signature_of("", op_type, opset)
    if signature is None:
        return None
    kernel = find_kernel("", op_type, signature.since_version)
    allowed = signature.input_dtypes
    try:
        if kernel is None or any(
            array is not None and array.dtype not in allowed[min(place, len(allowed) - 1)]
            for place, array in enumerate(inputs)
        ):
            return None
        extras = {"kept": {}, "n_outputs": count, "version": signature.since_version}
        attrs = {**attrs, **{name: extras[name] for name in kernel.extras}}
        with np.errstate(all="ignore"):
            if kernel.infer is None:
                found = list(outputs_of(kernel.fn(*inputs, **attrs)))
            else:
                out = [np.empty(shape, dtype) for shape, dtype in kernel.infer(inputs, attrs)]
                kernel.fn(out, *inputs, **attrs)
                found = out
    except _FAULTS:
        return None
    arrays = [np.asarray(each) for each in found[:count]]
    return [array if array.flags.c_contiguous else array.copy() for array in arrays]
