"""The numbers in integer values that are computed from sizes: ``Concat(Gather(Shape(x), 0), 64)`` is ``[batch, 64]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from fx2onnx.irx.values import MAX_KNOWN_INTS, dims_of, known_array, known_ints, known_sizes, set_known_sizes
from fx2onnx.sizes.bounds import known_sign
from fx2onnx.sizes.expr import Dim, DimLike, apply, product

Held: TypeAlias = list[DimLike]
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


class SizeValues:
    """Visits nodes in order and notes on their outputs which sizes they hold."""

    def __init__(self) -> None:
        self._flags: dict[ir.Value, list[bool]] = {}
        """Booleans that are known: which of the sizes are -1."""

    def visit(self, node: ir.Node) -> None:
        """Note the numbers that the node's output holds, if they are known."""
        if len(node.outputs) != 1 or not node.inputs:
            return
        result = node.outputs[0]
        if node.op_type == "Equal":
            self._equal(node)
        elif node.op_type == "Where":
            self._where(node)
        elif result.dtype in _INTEGERS and node.op_type in _RULES:
            self._note(result, _RULES[node.op_type](node))

    @staticmethod
    def _note(value: ir.Value, held: Held | None) -> None:
        if held is None or len(held) > MAX_KNOWN_INTS or value.shape is None or len(value.shape) > 1:
            return
        if len(value.shape) == 1 and isinstance(value.shape[0], int) and value.shape[0] != len(held):
            return
        if all(isinstance(size, int | Dim) for size in held):
            set_known_sizes(value, held)

    def _equal(self, node: ir.Node) -> None:
        pair = _operands(node)
        if pair is None:
            return
        answers = [_is_equal(one, other) for one, other in zip(*pair, strict=True)]
        if None not in answers:
            self._flags[node.outputs[0]] = [bool(answer) for answer in answers]

    def _where(self, node: ir.Node) -> None:
        chosen, yes, no = node.inputs[0], known_sizes(node.inputs[1]), known_sizes(node.inputs[2])
        flags = self._flags.get(chosen) if chosen is not None else None
        if flags is None and chosen is not None:
            array = known_array(chosen)
            flags = None if array is None else [bool(item) for item in array.reshape(-1)]
        if flags is None or yes is None or no is None or node.outputs[0].dtype not in _INTEGERS:
            return
        count = max(len(flags), len(yes), len(no))
        if any(len(items) not in (1, count) for items in (flags, yes, no)):
            return
        flags, yes, no = (items * count if len(items) == 1 else items for items in (flags, yes, no))  # type: ignore[assignment]
        self._note(node.outputs[0], [a if flag else b for flag, a, b in zip(flags, yes, no, strict=True)])


def is_natural(size: DimLike) -> bool:
    """Return whether the size is surely no less than 0."""
    return known_sign("ge", size) is True


def _is_equal(one: DimLike, other: DimLike) -> bool | None:
    if one == other:
        return True
    gap = one - other
    if not isinstance(gap, Dim):
        return gap == 0
    if any(isinstance(a, int) and a < 0 and is_natural(b) for a, b in ((one, other), (other, one))):
        return False
    return None


def _operands(node: ir.Node) -> tuple[Held, Held] | None:
    """The numbers in both operands, broadcast."""
    one, other = known_sizes(node.inputs[0]), known_sizes(node.inputs[1])
    if one is None or other is None:
        return None
    count = max(len(one), len(other))
    if len(one) not in (1, count) or len(other) not in (1, count):
        return None
    return (one * count if len(one) == 1 else one), (other * count if len(other) == 1 else other)


def _shape(node: ir.Node) -> Held | None:
    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    start, end = _int(node, "start", 0), _int(node, "end", None)
    return list(dims_of(source)[start:end])


def _size(node: ir.Node) -> Held | None:
    source = node.inputs[0]
    return None if source is None or source.shape is None else [product(dims_of(source))]


def _int(node: ir.Node, name: str, default: int | None) -> int | None:
    found = node.attributes.get(name)
    return default if found is None else int(found.value)


def _same(node: ir.Node) -> Held | None:
    return known_sizes(node.inputs[0])


def _gather(node: ir.Node) -> Held | None:
    held, places = known_sizes(node.inputs[0]), known_ints(node.inputs[1])
    if held is None or places is None or node.inputs[0].shape is None or len(node.inputs[0].shape) != 1:  # type: ignore[union-attr]
        return None
    return [held[place] for place in places] if all(-len(held) <= place < len(held) for place in places) else None


def _slice(node: ir.Node) -> Held | None:
    held = known_sizes(node.inputs[0])
    if held is None:
        return None
    if len(node.inputs) == 1:
        starts, ends, axes = (_ints(node, name) for name in ("starts", "ends", "axes"))
        step = 1
    else:
        given = [known_ints(node.inputs[i]) if i < len(node.inputs) else None for i in range(1, 5)]
        starts, ends, axes, step = given[0], given[1], given[2], (given[3] or [1])[0]
    if starts is None or ends is None or len(starts) != 1 or len(ends) != 1 or axes not in (None, [0], [-1]):
        return None
    return held[slice(starts[0], ends[0] if step > 0 or ends[0] >= -len(held) else None, step)]


def _ints(node: ir.Node, name: str) -> list[int] | None:
    found = node.attributes.get(name)
    return None if found is None else [int(item) for item in found.value]


def _concat(node: ir.Node) -> Held | None:
    parts = [known_sizes(value) for value in node.inputs]
    return None if None in parts else [size for part in parts if part is not None for size in part]


def _constant_of_shape(node: ir.Node) -> Held | None:
    shape = known_ints(node.inputs[0]) if node.inputs[0].const_value is not None else known_sizes(node.inputs[0])  # type: ignore[union-attr]
    fill = node.attributes.get("value")
    if shape is None or len(shape) > 1 or fill is None or not all(isinstance(size, int) for size in shape):
        return None
    count = int(shape[0]) if shape else 1  # type: ignore[arg-type]
    return [int(fill.as_tensor().numpy().reshape(-1)[0])] * count if 0 <= count <= MAX_KNOWN_INTS else None


def _arithmetic(function: Callable[[DimLike, DimLike], object]) -> Callable[[ir.Node], Held | None]:
    def rule(node: ir.Node) -> Held | None:
        pair = _operands(node)
        if pair is None:
            return None
        made = [function(one, other) for one, other in zip(*pair, strict=True)]
        return None if None in made else made  # type: ignore[return-value]

    return rule


def _divided(top: DimLike, bottom: DimLike) -> object:
    """ONNX cuts towards zero, Python rounds down: the same of what is not negative."""
    if is_natural(top) and isinstance(bottom, int) and bottom > 0:
        return top // bottom
    return None


def _remainder(top: DimLike, bottom: DimLike) -> object:
    return top % bottom if is_natural(top) and isinstance(bottom, int) and bottom > 0 else None


def _reduce_prod(node: ir.Node) -> Held | None:
    held: Sequence[DimLike] | None = known_sizes(node.inputs[0])
    return None if held is None else [product(list(held))]


_RULES: dict[str, Callable[[ir.Node], Held | None]] = {
    "Shape": _shape,
    "Size": _size,
    **dict.fromkeys(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"), _same),
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Add": _arithmetic(lambda one, other: one + other),
    "Sub": _arithmetic(lambda one, other: one - other),
    "Mul": _arithmetic(lambda one, other: one * other),
    "Div": _arithmetic(_divided),
    "Mod": _arithmetic(_remainder),
    "Max": _arithmetic(lambda one, other: apply("max", one, other)),
    "Min": _arithmetic(lambda one, other: apply("min", one, other)),
    "ReduceProd": _reduce_prod,
}
"""Operator -> what its output holds."""
