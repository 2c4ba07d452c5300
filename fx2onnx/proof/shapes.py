"""Sizes of outputs as they follow from those of the operands, where onnx has no numbers for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fx2onnx.proof.sizes import Dim, NamedSize, broadcast, quotient, sign
from fx2onnx.proof.terms import Args, Shape, Terms, array_of

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
UNARY = frozenset(
    [
        *(
            "Relu",
            "Sigmoid",
            "Tanh",
            "Erf",
            "Exp",
            "Log",
            "Sqrt",
            "Reciprocal",
            "Neg",
            "Abs",
            "Not",
            "Floor",
            "Ceil",
            "Round",
            "Sign",
        ),
        *(
            "Sin",
            "Cos",
            "Softplus",
            "HardSwish",
            "HardSigmoid",
            "LeakyRelu",
            "Elu",
            "Selu",
            "Celu",
            "Gelu",
            "Mish",
            "Cast",
            "IsNaN",
        ),
        *("IsInf", "ThresholdedRelu", "Swish"),
    ]
)
"""One element in, one out: what moves data passes them by."""
BINARY = frozenset(
    [
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "And", "Or", "Xor"),
        *("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"),
    ]
)
_SAME = UNARY | {
    *(
        "Softmax",
        "LogSoftmax",
        "Hardmax",
        "LayerNormalization",
        "BatchNormalization",
        "InstanceNormalization",
        "Dropout",
    ),
    *("CumSum", "CastLike", "Clip", "RMSNormalization", "Trilu"),
}
REDUCTIONS = frozenset(
    f"Reduce{name}" for name in ("Mean", "Sum", "Prod", "Max", "Min", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
)


def full(shape: Shape) -> tuple[int, ...] | None:
    """A shape all of whose sizes are known; None for another."""
    sizes = tuple(size for size in shape or () if isinstance(size, int))
    return None if shape is None or len(sizes) < len(shape) else sizes


def whole(shape: Shape) -> tuple[Dim, ...] | None:
    """A shape all of whose sizes have numbers or names; None for another."""
    sizes = tuple(size for size in shape or () if size is not None)
    return None if shape is None or len(sizes) < len(shape) else sizes


def axes_of(terms: Terms, args: Args, attributes: Mapping[str, Any]) -> list[int] | None:
    """The axes in the attribute or the second input."""
    array = array_of(terms, args, 1)
    found = attributes.get("axes") if array is None else array.reshape(-1).tolist()
    return None if found is None else [int(axis) for axis in found]


def inferred(terms: Terms, op: str, args: Args, attributes: Mapping[str, Any]) -> Shape:
    """The sizes of the first output; None where nothing follows."""
    dims = [None if arg is None else terms.dims.get(arg) for arg in args]
    first = dims[0] if dims else None
    if op in _SAME:
        return first
    if op in BINARY or op == "Where":
        return broadcast(dims)
    if op == "MatMul" and first and dims[1] and min(len(first), len(dims[1])) >= 2:
        outer = broadcast([first[:-2], dims[1][:-2]])
        return None if outer is None else (*outer, first[-2], dims[1][-1])
    if op == "Gemm" and first and dims[1] and len(first) == len(dims[1]) == 2:
        return first[1 if attributes.get("transA") else 0], dims[1][0 if attributes.get("transB") else 1]
    if op == "Gather" and first and dims[1] is not None:
        axis = attributes.get("axis", 0) % len(first)
        return (*first[:axis], *dims[1], *first[axis + 1 :])
    if op in REDUCTIONS and first is not None:
        axes = reduced_axes(terms, args, attributes)
        if axes is None:
            return None
        keeps = attributes.get("keepdims", 1)
        return tuple(1 if axis in axes else size for axis, size in enumerate(first) if keeps or axis not in axes)
    if op == "GlobalAveragePool" and first:
        return (*first[:2], *(1,) * (len(first) - 2))
    if op == "Expand" and first is not None and args[1] is not None:
        stated = terms.integers(args[1])
        return None if stated is None else broadcast([first, stated.tolist()])
    if op == "Concat" and all(dims):
        axis = attributes["axis"]
        rows = [[*each] for each in dims if each]
        total = sum(row[axis] for row in rows)
        return tuple(total if place == axis % len(rows[0]) else size for place, size in enumerate(rows[0]))
    if op == "ArrayFeatureExtractor" and first and dims[1]:
        return (*first[:-1], _product(dims[1])) if len(first) > 1 else (1, _product(dims[1]))
    return None


def reduced_axes(terms: Terms, args: Args, attributes: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The axes of a reduction from the first on; None where they are not known."""
    known = None if args[0] is None else terms.dims.get(args[0])
    given = attributes.get("axes")
    if len(args) > 1 and args[1] is not None:
        array = array_of(terms, args, 1)
        if array is None:
            return None
        given = array.tolist()
    if known is None or (not given and attributes.get("noop_with_empty_axes")):
        return None
    return tuple(sorted(axis % len(known) for axis in given)) if given else tuple(range(len(known)))


def view_dims(terms: Terms, op: str, args: Args, attributes: Mapping[str, Any], shape: Shape) -> tuple[Dim, ...] | None:
    """The sizes of a view of a value whose rank is known; None where they do not follow."""
    x = args[0]
    known = None if x is None else terms.dims.get(x)
    if known is None:
        return None
    if op == "Flatten":
        axis = attributes.get("axis", 1)
        axis += len(known) if axis < 0 else 0
        return _product(known[:axis]), _product(known[axis:])
    if op == "Unsqueeze":
        axes = axes_of(terms, args, attributes)
        if axes is None:
            return None
        rank, rest = len(known) + len(axes), iter(known)
        new = {axis % rank for axis in axes}
        return tuple(1 if axis in new else next(rest) for axis in range(rank))
    if op == "Squeeze":
        axes = axes_of(terms, args, attributes)
        if axes is None:
            return (
                whole(shape)
                if any(isinstance(size, NamedSize) for size in known)
                else tuple(s for s in known if s != 1)
            )
        gone = {axis % len(known) for axis in axes}
        return tuple(size for axis, size in enumerate(known) if axis not in gone)
    return _target(terms, known, args, bool(attributes.get("allowzero"))) or whole(shape)


def _product(sizes: Sequence[Dim]) -> Dim:
    return math.prod(sizes)


def _target(terms: Terms, known: tuple[Dim, ...], args: Args, allows_zero: bool) -> tuple[Dim, ...] | None:
    """The sizes that a Reshape states: 0 is the size that was there, -1 what is left."""
    stated = terms.integers(args[1]) if len(args) > 1 and args[1] is not None else None
    if stated is None:
        return None
    found: list[Dim] = []
    for axis, size in enumerate(stated.reshape(-1).tolist()):
        old = known[axis] if axis < len(known) else None
        if size == 0 and not allows_zero:
            if old is None:
                return None
            found.append(old)
        elif isinstance(size, NamedSize) and sign(size) != 1:
            is_copied = old is not None and size.is_natural and quotient(old, size) is not None
            if not is_copied:
                return None  # it may be -1, or 0 where the size that was there is another
            found.append(size)
        else:
            found.append(size)
    if found.count(-1) > 1 or any(isinstance(size, int) and size < -1 for size in found):
        return None
    if -1 not in found:
        return tuple(found)
    free = found.index(-1)
    left = quotient(_product(known), _product([size for size in found if size != -1]))
    return None if left is None else tuple(left if axis == free else size for axis, size in enumerate(found))
