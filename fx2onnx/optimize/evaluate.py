"""What constant folding computes: operators in NumPy. ``EVALUATORS`` are exact, ``LAST_BIT`` are rounded by each library in
its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from fx2onnx.optimize.rewrite import attribute

Array: TypeAlias = npt.NDArray[Any]
Inputs: TypeAlias = Sequence[Array | None]
Evaluator: TypeAlias = Callable[[ir.Node, Inputs], Array]
Function: TypeAlias = Callable[..., Array]


class CannotFold(Exception):
    """This node is left to the runtime."""


def _operands(inputs: Inputs) -> list[Array]:
    return [array for array in inputs if array is not None]


def _plain(function: Callable[..., Any]) -> Evaluator:
    """A NumPy function whose result is the same in every runtime."""
    return lambda node, inputs: np.asarray(function(*_operands(inputs)))


def _divide(node: ir.Node, inputs: Inputs) -> Array:
    top, bottom = _operands(inputs)
    if top.dtype.kind == "f":
        return np.asarray(top / bottom)
    if not bottom.all():
        raise CannotFold
    quotient = np.abs(top) // np.abs(bottom)
    return np.asarray(np.where((top < 0) != (bottom < 0), -quotient, quotient)).astype(top.dtype)


def _modulo(node: ir.Node, inputs: Inputs) -> Array:
    top, bottom = _operands(inputs)
    if top.dtype.kind == "f" or attribute(node, "fmod", 0) or not bottom.all():
        raise CannotFold
    return np.asarray(np.mod(top, bottom))


def _cast(node: ir.Node, inputs: Inputs) -> Array:
    (array,), target = _operands(inputs), ir.DataType(attribute(node, "to")).numpy()
    if array.dtype.kind == "f" and target.kind in "iu":
        limits = np.iinfo(target)
        lowest = np.isneginf(array)
        inside = (array >= limits.min) & (array < limits.max)
        if not (inside | (lowest & (target == np.int64))).all():
            raise CannotFold  # processors disagree
        array = np.where(lowest, array.dtype.type(limits.min), array)
    return array.astype(target)


def _reshape(node: ir.Node, inputs: Inputs) -> Array:
    array, shape = _operands(inputs)
    target = [int(size) for size in shape]
    if not attribute(node, "allowzero", 0):
        target = [array.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    return array.reshape(target)


def _axes(node: ir.Node, inputs: Inputs, index: int = 1) -> list[int] | None:
    """Axes that are an attribute in old opsets and an input in new ones."""
    found: list[int] | None = attribute(node, "axes")
    if found is None and len(inputs) > index and inputs[index] is not None:
        found = [int(axis) for axis in np.asarray(inputs[index]).reshape(-1)]
    return found


def _squeeze(node: ir.Node, inputs: Inputs) -> Array:
    axes = _axes(node, inputs)
    return np.asarray(np.squeeze(_operands(inputs)[0], None if axes is None else tuple(axes)))


def _unsqueeze(node: ir.Node, inputs: Inputs) -> Array:
    axes = _axes(node, inputs)
    if axes is None:
        raise CannotFold
    return np.expand_dims(_operands(inputs)[0], tuple(axes))


def _slice(node: ir.Node, inputs: Inputs) -> Array:
    data = _operands(inputs)[0]
    if len(inputs) == 1:
        raise CannotFold
    given = [None if array is None else [int(n) for n in array] for array in inputs[1:]] + [None, None]
    starts, ends = given[0] or [], given[1] or []
    axes = given[2] if given[2] is not None else range(len(starts))
    steps = given[3] if given[3] is not None else [1] * len(starts)
    key = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = data.shape[axis]
        key[axis] = slice(start, None if step < 0 and end < -size else end, step)
    return data[tuple(key)]


def _expand(node: ir.Node, inputs: Inputs) -> Array:
    data, shape = _operands(inputs)
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(int(size) for size in shape)))


def _gather(node: ir.Node, inputs: Inputs) -> Array:
    data, indices = _operands(inputs)
    return np.asarray(np.take(data, indices, axis=attribute(node, "axis", 0)))


def _gather_elements(node: ir.Node, inputs: Inputs) -> Array:
    data, indices = _operands(inputs)
    return np.take_along_axis(data, indices, attribute(node, "axis", 0))


def _gather_nd(node: ir.Node, inputs: Inputs) -> Array:
    data, indices = _operands(inputs)
    if attribute(node, "batch_dims", 0):
        raise CannotFold
    return np.asarray(data[tuple(np.moveaxis(indices, -1, 0))])


def _reduce(function: Callable[..., Any]) -> Evaluator:
    def evaluate(node: ir.Node, inputs: Inputs) -> Array:
        data, axes = _operands(inputs)[0], _axes(node, inputs)
        if not axes or data.dtype.kind == "f" or data.size == 0:
            raise CannotFold
        keep = bool(attribute(node, "keepdims", 1))
        return np.asarray(function(data, axis=tuple(axes), keepdims=keep)).astype(data.dtype)

    return evaluate


def _range(node: ir.Node, inputs: Inputs) -> Array:
    start, limit, delta = _operands(inputs)
    if start.dtype.kind != "i":
        raise CannotFold
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _constant_of_shape(node: ir.Node, inputs: Inputs) -> Array:
    value = attribute(node, "value")
    fill = np.zeros(1, np.float32) if value is None else value.numpy()
    return np.full([int(size) for size in _operands(inputs)[0]], fill.reshape(-1)[0], dtype=fill.dtype)


def _triangle(node: ir.Node, inputs: Inputs) -> Array:
    arrays = _operands(inputs)
    keep = np.triu if attribute(node, "upper", 1) else np.tril
    return np.asarray(keep(arrays[0], int(arrays[1]) if len(arrays) > 1 else 0))


def _cumulative_sum(node: ir.Node, inputs: Inputs) -> Array:
    data, axis = _operands(inputs)
    if data.dtype.kind == "f" or attribute(node, "exclusive", 0) or attribute(node, "reverse", 0):
        raise CannotFold
    return np.asarray(np.cumsum(data, axis=int(axis), dtype=data.dtype))


def _chained(function: Callable[[Array, Array], Array]) -> Evaluator:
    def evaluate(node: ir.Node, inputs: Inputs) -> Array:
        result, *others = _operands(inputs)
        for other in others:
            result = np.asarray(function(result, other))
        return result

    return evaluate


EVALUATORS: dict[str, Evaluator] = {
    **{
        name: _plain(getattr(np, name.lower()))
        for name in ("Ceil", "Equal", "Floor", "Greater", "Less", "Sqrt", "Tile")
    },
    "Abs": _plain(np.abs),
    "Add": _plain(np.add),
    "And": _plain(np.logical_and),
    "Cast": _cast,
    "Concat": lambda node, inputs: np.concatenate(_operands(inputs), axis=attribute(node, "axis")),
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumulative_sum,
    "Div": _divide,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "GreaterOrEqual": _plain(np.greater_equal),
    "Identity": _plain(lambda array: array),
    "LessOrEqual": _plain(np.less_equal),
    "Max": _chained(np.maximum),
    "Min": _chained(np.minimum),
    "Mod": _modulo,
    "Mul": _plain(np.multiply),
    "Neg": _plain(np.negative),
    "Not": _plain(np.logical_not),
    "Or": _plain(np.logical_or),
    "Range": _range,
    "Reciprocal": _plain(lambda array: np.ones_like(array) / array),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Sign": _plain(np.sign),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _plain(np.subtract),
    "Transpose": lambda node, inputs: np.transpose(_operands(inputs)[0], attribute(node, "perm")),
    "Trilu": _triangle,
    "Unsqueeze": _unsqueeze,
    "Where": _plain(np.where),
    "Xor": _plain(np.logical_xor),
}
"""Operator -> evaluator. Sums of floats are left out: their result depends on the order of addition."""


def _rounded_once(function: Callable[..., Any]) -> Function:
    """A NumPy function taken in float64 and rounded once."""
    return lambda *arrays: np.asarray(function(*(array.astype(np.float64) for array in arrays))).astype(arrays[0].dtype)


LAST_BIT: dict[str, Function] = {
    "Cos": _rounded_once(np.cos),
    "Exp": _rounded_once(np.exp),
    "Log": _rounded_once(np.log),
    "Pow": _rounded_once(np.power),
    "Sin": _rounded_once(np.sin),
}
"""Operator -> function of arrays of float32 or float16. Libraries differ in the last bit of these."""


def _last_bit(function: Function, inputs: Inputs) -> Array:
    arrays = _operands(inputs)
    if arrays[0].dtype not in (np.float32, np.float16):
        raise CannotFold
    return function(*arrays)


def _integer_power(base: Array, exponent: Array) -> Array:
    """As PyTorch has it, beyond 2**53 too, where runtimes go through float64. Raises ValueError for exponents below 0."""
    return np.asarray(np.power(base, exponent)).astype(base.dtype)


def evaluate(node: ir.Node, inputs: Inputs, functions: Mapping[str, Function] = LAST_BIT) -> Array | None:
    """The node's one output, or None where it is left to the runtime (also where it would fail there).

    functions: what computes the operators of ``LAST_BIT``.
    """
    if node.domain or len(node.outputs) != 1:
        return None
    exact, rounded = EVALUATORS.get(node.op_type), functions.get(node.op_type)
    try:
        with np.errstate(all="ignore"):
            if exact is not None:
                array = np.asarray(exact(node, inputs))
            elif node.op_type == "Pow" and all(array.dtype.kind in "iu" for array in _operands(inputs)):
                array = _integer_power(*_operands(inputs))
            elif rounded is not None:
                array = _last_bit(rounded, inputs)
            else:
                return None
    except (CannotFold, ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError):
        return None
    return array if array.flags.c_contiguous else array.copy()
