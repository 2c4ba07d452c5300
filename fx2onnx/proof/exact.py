"""Equations that hold bit for bit, by operator: views, neutral operands, sums of products in another form.

They assume that every size is at least 1, that a runtime takes the same sum of products in any order, and that zeros of padding
change no sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx

from fx2onnx.proof.moves import transposed
from fx2onnx.proof.nodes import Array
from fx2onnx.proof.shapes import BINARY, REDUCTIONS, UNARY, VIEWS, full, reduced_axes, view_dims
from fx2onnx.proof.sizes import broadcast
from fx2onnx.proof.terms import Args, Shape, Terms, array_of


class TermMaker(Protocol):
    """The part of ``rules.Reader`` that equations use."""

    terms: Terms

    def by_element(
        self, op: str, args: Sequence[int | None], attributes: Mapping[str, Any], shape: Shape, dtype: str
    ) -> int: ...


_NEUTRAL = {"Mul": 1, "Div": 1, "Add": -0.0, "Sub": 0.0, "And": True, "Or": False}
"""The number that changes nothing as the second input, and for commutative operators as the first: -0.0 + 0.0 is 0.0."""
_REPEATS = frozenset(["view", "moved", "slice"])
"""Terms that hold elements of another one."""


def is_zero(terms: Terms, args: Args, index: int) -> bool:
    """Return whether an operand is zeros: a constant, or one made larger by operators that only repeat."""
    term = args[index] if index < len(args) else None
    while term is not None and term not in terms.constants:
        key = terms.key(term)
        if key[0] == "op" and key[2] == "Concat":
            return all(is_zero(terms, [part], 0) for part in key[5])
        term = key[1] if key[0] in _REPEATS else key[5][0] if key[0] == "op" and key[2] == "Expand" else None
    array = None if term is None else terms.constants[term]
    return array is not None and array.dtype != object and not array.any()


def unrepeated(reader: TermMaker, args: Args, shape: Shape) -> Args:
    """The operands of an operator that broadcasts, without what it would repeat itself."""
    terms, found = reader.terms, list(args)
    for place, arg in enumerate(args):
        key = ("",) if arg is None else terms.key(arg)
        array = None if arg is None else terms.constants.get(arg)
        shorter = key[5][0] if key[0] == "op" and key[2] == "Expand" and not key[1] else None
        if array is not None and 1 < array.size <= _MOST_REPEATED:
            once = _once(array)
            shorter = None if once.shape == array.shape else terms.constant(once)
        if shorter is not None:
            others = [*found[:place], shorter, *found[place + 1 :]]
            dims = broadcast([None if each is None else terms.dims.get(each) for each in others])
            if dims is not None and None not in dims and dims == shape:
                found = others
    return found


_MOST_REPEATED = 1 << 16


def _once(array: Array) -> Array:
    """An array without what broadcasting repeats of it."""
    bits = array.view(f"u{array.itemsize}") if array.dtype.kind == "f" else array
    for axis, size in enumerate(array.shape):
        if size > 1 and (bits == bits.take([0], axis)).all():
            array, bits = array.take([0], axis), bits.take([0], axis)
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return array


def exact(
    reader: TermMaker, op: str, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str
) -> int | None:
    """The term of an operator of one output by an equation that holds bit for bit; None where there is none."""
    terms, x = reader.terms, args[0] if args else None
    if op in BINARY or op == "Where":
        shorter = unrepeated(reader, args, shape)
        if shorter != args:
            return reader.by_element(op, shorter, attributes, shape, dtype)
    key = ("",) if x is None else terms.key(x)
    if op in UNARY and key[0] == "op" and key[2] == "Expand":
        inner = reader.by_element(op, [key[5][0]], attributes, terms.dims.get(key[5][0]), dtype)
        return reader.by_element("Expand", [inner, *key[5][1:]], {}, shape, dtype)
    if op == "Constant":
        return _constant(terms, attributes)
    if x is None:
        return None
    if op in EXACT:
        found = EXACT[op](reader, args, attributes, shape, dtype)
        if found is not None:
            return found
    if op in ("Identity",) or (len(args) == 1 and op in ("Concat", "Max", "Min", "Sum")):
        return x
    known = terms.shapes.get(x)
    is_whole = known is not None and full(shape) == known
    if is_whole and (op in ("Expand", "Tile") or (op == "Pad" and is_zero(terms, args, 1))):
        return x
    if op in REDUCTIONS and op not in ("ReduceLogSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp"):
        axes, sizes = reduced_axes(terms, args, attributes), terms.dims.get(x, ())
        if axes is not None and all(sizes[axis] == 1 for axis in axes):
            keeps = attributes.get("keepdims", 1)
            return terms.reshaped(x, tuple(size for axis, size in enumerate(sizes) if keeps or axis not in axes))
    if op in VIEWS:
        dims = view_dims(terms, op, args, attributes, shape)
        return None if dims is None else terms.reshaped(x, dims)
    if op in _NEUTRAL and len(args) == 2 and args[1] is not None:
        return _without_neutral(terms, op, x, args[1], shape)
    return None


def _constant(terms: Terms, attributes: Mapping[str, Any]) -> int | None:
    for name, value in attributes.items():
        if name == "value":
            return terms.constant(onnx.numpy_helper.to_array(value))
        if name in ("value_float", "value_floats"):
            return terms.constant(np.array(value, np.float32))
        if name in ("value_int", "value_ints"):
            return terms.constant(np.array(value, np.int64))
    return None


def _without_neutral(terms: Terms, op: str, x: int, y: int, shape: Shape) -> int | None:
    """``x * 1``, ``x + 0``, ``x and True`` and the like, where the constant does not make it larger."""
    wanted = _NEUTRAL[op]
    for value, other in ((x, y),) if op in ("Div", "Sub") else ((x, y), (y, x)):
        array = terms.constants.get(other)
        if array is None or array.dtype == object or not array.size or not (array == wanted).all():
            continue
        if wanted == 0 and array.dtype.kind not in "iub" and (np.signbit(array) != np.signbit(wanted)).any():
            continue
        dims = terms.dims.get(value)
        fits = dims is not None and array.ndim <= len(dims)
        if array.ndim == 0 or (fits and all(one in (1, size) for one, size in zip(array.shape[::-1], dims[::-1]))):  # type: ignore[index]  # noqa: B905
            return value
    return None


Rule: TypeAlias = Callable[[TermMaker, Args, Mapping[str, Any], Shape, str], int | None]
EXACT: dict[str, Rule] = {}


def rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        EXACT.update(dict.fromkeys(ops, function))
        return function

    return register


@rule("Dropout")
def _dropout(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    array = array_of(reader.terms, args, 2)
    trains = len(args) > 2 and args[2] is not None and (array is None or bool(array))
    return None if trains else args[0]


@rule("Cast")
def _cast(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    is_same = reader.terms.dtypes.get(args[0] or 0) == str(onnx.helper.tensor_dtype_to_np_dtype(attributes["to"]))
    return args[0] if is_same and args[0] is not None else None


@rule("CastLike")
def _cast_like(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    terms, x = reader.terms, args[0]
    if x is None or not dtype or terms.dtypes.get(x) == dtype:
        return x if dtype else None
    array = terms.constants.get(x)
    if array is not None:
        return terms.constant(array.astype(dtype))
    return reader.by_element("Cast", [x], {"to": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}, shape, dtype)


@rule("ConstantOfShape")
def _constant_of_shape(
    reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str
) -> int | None:
    """``ConstantOfShape(s)`` is ``Expand(constant, s)``."""
    value = attributes.get("value")
    array = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    scalar = reader.terms.constant(array.reshape(()))
    return reader.by_element("Expand", [scalar, args[0]], {}, shape, str(array.dtype))


@rule("Slice")
def _slice(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    """Constant parts of axes in any order, whole axes left out."""
    terms, x = reader.terms, args[0]
    dims = None if x is None else terms.dims.get(x)
    found = [array_of(terms, args, place) for place in range(1, 5)]
    given = [place for place in range(1, 5) if place < len(args) and args[place] is not None]
    if x is None or dims is None or any(found[place - 1] is None for place in given):
        return None
    if len(args) == 1:
        starts, ends, axes, steps = attributes["starts"], attributes["ends"], attributes.get("axes"), None
    else:
        starts, ends, axes, steps = (None if each is None else each.reshape(-1).tolist() for each in found)
    parts: dict[int, tuple[Any, Any, int]] = {}
    for start, end, axis, step in zip(
        starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True
    ):
        size = dims[axis % len(dims)]
        if isinstance(size, int):
            part = slice(start, end if step > 0 or end > -size - 1 else None, step).indices(size)
            if part == (0, size, 1):
                continue
            parts[axis % len(dims)] = part if step > 0 else (start, end, step)
        elif (start, step) != (0, 1) or end < _NO_END:
            parts[axis % len(dims)] = (start, end if end < _NO_END else None, step)
    return sliced(terms, x, parts, shape)


_NO_END = 2**31 - 1


def sliced(terms: Terms, x: int, parts: Mapping[int, Any], shape: Shape) -> int:
    """The term of parts of axes, each once; slices of a slice are one where their axes differ."""
    key = terms.key(x)
    if key[0] == "slice" and not set(parts) & {axis for axis, _ in key[2]}:
        parts, x = {**dict(key[2]), **parts}, key[1]
    if not parts:
        return x
    if shape is None or None in shape:
        rows = [parts.get(axis, (0, None, 1)) for axis in range(len(terms.dims[x]))]
        known = zip(terms.dims[x], rows, strict=True)
        shape = tuple(
            size if row == (0, None, 1) else len(range(size)[slice(*row)]) if isinstance(size, int) else None
            for size, row in known
        )
    term = terms.of("slice", x, tuple(sorted(parts.items())))
    terms.dtypes.setdefault(term, terms.dtypes.get(x, ""))
    return terms.shaped(term, shape)


@rule("Gather")
def _gather(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    """One place of an axis is a part of size 1."""
    terms, x = reader.terms, args[0]
    place, dims = array_of(terms, args, 1), None if x is None else terms.dims.get(x)
    axis = attributes.get("axis", 0)
    if x is None or place is None or place.ndim or dims is None or not isinstance(dims[axis], int):
        return None
    start = int(place) % dims[axis]
    rest = (*dims[: axis % len(dims)], *dims[axis % len(dims) + 1 :])
    kept = tuple(1 if each == axis % len(dims) else size for each, size in enumerate(dims))
    return terms.reshaped(sliced(terms, x, {axis % len(dims): (start, start + 1, 1)}, kept), rest)


@rule("Transpose")
def _transpose(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    x = args[0]
    if x is None or x not in reader.terms.dims:
        return None
    return transposed(reader.terms, x, tuple(attributes.get("perm", range(len(reader.terms.dims[x]))[::-1])))


@rule("Where")
def _where(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    """``Where(not c, a, b)`` is ``Where(c, b, a)``."""
    terms, condition = reader.terms, args[0]
    key = terms.key(condition or 0)
    array = None if condition is None else terms.constants.get(condition)
    if key[0] == "op" and key[2] == "Not":
        return reader.by_element("Where", [key[5][0], args[2], args[1]], attributes, shape, dtype)
    if array is not None and array.size and not array.reshape(-1)[0]:
        return reader.by_element("Where", [terms.constant(~array), args[2], args[1]], attributes, shape, dtype)
    return None


@rule("Pad")
def _pad(reader: TermMaker, args: Args, attributes: Mapping[str, Any], shape: Shape, dtype: str) -> int | None:
    terms, x = reader.terms, args[0]
    is_plain = attributes.get("mode", b"constant") in (b"constant", "constant") and len(args) in (2, 3)
    pads, number = array_of(terms, args, 1), array_of(terms, args, 2)
    if x is None or not is_plain or pads is None or (number is None and len(args) > 2 and args[2] is not None):
        return None
    kind = number.dtype if number is not None else dtype or terms.dtypes.get(x)
    if not kind:
        return None
    value = terms.constant(np.zeros((), kind) if number is None else number.reshape(()))
    return x if not pads.any() else terms.of("around", x, value, tuple(pads.tolist()))
