"""Values of ONNX graphs as terms in normal form: two values with one term are equal, whatever computes them.

A table of equations, applied from the inputs to the outputs. In its exact form they hold bit for bit: names, order of commutative
operands, data movement, what is computed from constants alone. In its real form they hold for real numbers, so that floats differ by
rounding alone: sums and products in any order, affine maps into the weights of the product before or behind them, definitions of
norms and activations. Floats that a fold rounded count as equal there within ``FOLD_ROUNDINGS`` roundings of what they were made of.

Nothing here comes from the optimizer or shares code with it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

from fx2onnx.semantics.schemas import onnx_schema

Array: TypeAlias = npt.NDArray[Any]
Key: TypeAlias = tuple[Any, ...]
Shape: TypeAlias = tuple[int | None, ...] | None
"""Sizes as far as they are known; None for an unknown number of axes."""
Args: TypeAlias = list[int | None]
"""The terms of a node's inputs; None for one that is left out."""

FOLD_ROUNDINGS = 32.0
"""Roundings of a float that folds of a few weights may come to; each is at most half a unit in the last place."""
RANDOM = frozenset(
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"]
)
FOLD_BYTES = 64 << 20
MOST_MOVED = 1 << 21
"""Elements of values whose order is followed, one by one."""
"""Constants up to here are computed by value."""
_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of floats. ``size`` has the magnitudes that they were summed from, of which their rounding is a share."""

    value: Array
    unit: float
    size: Array | None = None
    """Default: the magnitudes of the floats themselves."""

    @property
    def magnitude(self) -> Array:
        return np.abs(self.value).astype(np.float64) if self.size is None else self.size

    @property
    def wide(self) -> Array:
        """The floats in float64."""
        return self.value.astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class AffineMap:
    """``scale * core + shift``, by element. Either may be missing; the core is no such form."""

    core: int
    scale: Number | None = None
    shift: Number | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """A product with constant weights: ``kind`` is MatMul or Conv, whose outputs are the last axis or axis 1."""

    kind: str
    attributes: Key
    core: int
    weight: Number


@dataclass(frozen=True, slots=True)
class Move:
    """Elements of a term in another order: ``places`` has, for each, its place in the core, and the shape that they have now."""

    core: int
    places: Array
    perm: tuple[int, ...] | None = None
    """The axes, where it is a transposition."""


class Terms:
    """The terms of the values of several graphs, as numbers: equal numbers are equal values."""

    def __init__(self, *, is_real: bool) -> None:
        self.is_real = is_real
        self._ids: dict[Key, int] = {}
        self._keys: list[Key] = []
        self.constants: dict[int, Array] = {}
        self.forms: dict[int, AffineMap | Product] = {}
        self.moves: dict[int, Move] = {}
        self._near: dict[Key, list[tuple[tuple[Number, ...], int]]] = {}
        self.worst: dict[int, float] = {}
        """By term, how many roundings apart the constants were that count as equal."""
        self.shapes: dict[int, tuple[int, ...]] = {}
        """The sizes of each term whose sizes are all known."""
        self.dims: dict[int, tuple[int | None, ...]] = {}
        self.dtypes: dict[int, str] = {}

    def of(self, *key: Any) -> int:
        """The number of a key, the same for equal keys."""
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._keys)
            self._keys.append(key)
        return found

    def shaped(self, term: int, shape: Shape) -> int:
        """The term, whose shape is noted where it is known."""
        if shape is not None:
            self.dims.setdefault(term, shape)
            sizes = tuple(size for size in shape if size is not None)
            if len(sizes) == len(shape):
                self.shapes.setdefault(term, sizes)
        return term

    def key(self, term: int) -> Key:
        return self._keys[term]

    def constant(self, array: Array) -> int:
        """The term of a constant, by dtype, shape and bits."""
        number = self._number(array)
        if self.is_real and number is not None:
            term = self.near(("constant", str(array.dtype)), [number])
            self.constants.setdefault(term, array)
            self.shaped(term, array.shape)
            self.dtypes[term] = str(array.dtype)
            return term
        bits = hashlib.sha256(
            np.ascontiguousarray(array).tobytes() if array.dtype != object else repr(array.tolist()).encode()
        )
        term = self.of("constant", str(array.dtype), array.shape, bits.digest())
        self.constants[term], self.dtypes[term] = array, str(array.dtype)
        return self.shaped(term, array.shape)

    def places(self, term: int) -> Move | None:
        """A term as elements of another one; None where its shape is not known, or it is large."""
        known = self.moves.get(term)
        shape = self.shapes.get(term)
        if known is not None or shape is None or math.prod(shape) > MOST_MOVED:
            return known
        return Move(term, np.arange(math.prod(shape)).reshape(shape), tuple(range(len(shape))))

    def view(self, term: int) -> Move | None:
        """A term that has the elements of another one in their order, and its last axis; None where it is another."""
        move = self.moves.get(term)
        if move is None or not move.places.ndim or move.places.shape[-1:] != self.shapes[move.core][-1:]:
            return None
        flat = move.places.reshape(-1)
        is_same = flat.size == math.prod(self.shapes[move.core]) and (flat == np.arange(flat.size)).all()
        return move if is_same else None

    def moved(self, move: Move) -> int:
        """The term of elements in another order."""
        places = move.places
        if places.shape == self.shapes.get(move.core) and (places.reshape(-1) == np.arange(places.size)).all():
            return move.core
        term = self.of(
            "moved", move.core, places.shape, hashlib.sha256(np.ascontiguousarray(places).tobytes()).digest()
        )
        self.moves.setdefault(term, move)
        self.shaped(term, places.shape)
        self.dtypes.setdefault(term, self.dtypes.get(move.core, ""))
        return term

    def near(self, key: Key, numbers: Sequence[Number]) -> int:
        """The term of a key and constants, the same for constants that are a few roundings apart."""
        shapes = tuple(number.value.shape for number in numbers)
        known = self._near.setdefault((*key, shapes), [])
        for others, term in known:
            apart = max(map(_apart, numbers, others), default=0.0)
            if apart <= FOLD_ROUNDINGS:
                self.worst[term] = max(self.worst.get(term, 0.0), apart)
                return term
        term = self.of("near", *key, shapes, len(known))
        known.append((tuple(numbers), term))
        return term

    def number(self, term: int) -> Number | None:
        """A constant float as a number; None for another term."""
        array = self.constants.get(term)
        return None if array is None else self._number(array)

    @staticmethod
    def _number(array: Array) -> Number | None:
        unit = _UNITS.get(str(array.dtype))
        return None if unit is None else Number(array, unit)

    def affine(self, term: int) -> AffineMap:
        form = self.forms.get(term)
        return form if isinstance(form, AffineMap) else AffineMap(term)

    def term_of(self, form: AffineMap) -> int:
        """The term of an affine form, with its scale in the weights of the product that it scales."""
        core, scale, shift = form.core, form.scale, form.shift
        if scale is not None and (scale.value == 1).all():
            scale = None
        product = self.forms.get(core)
        if scale is not None and isinstance(product, Product):
            scaled = _scaled(product, scale)
            if scaled is not None:
                core, scale = self.product(scaled, self.dims.get(core)), None
        if shift is not None and not shift.value.any() and shift.value.size <= 1:
            shift = None
        if scale is None and shift is None:
            return core
        view = self.view(core)
        if view is not None and all(each is None or each.value.ndim <= 1 for each in (scale, shift)):
            inner = self.affine(view.core)
            moved = multiplied(inner.shift, scale) if inner.shift is not None else None
            whole = self.term_of(AffineMap(inner.core, multiplied(inner.scale, scale), added(moved, shift)))
            return self.moved(Move(whole, view.places, view.perm))
        shape = self.dims.get(form.core)
        rank = None if shape is None else len(shape)
        parts = [None if each is None else _trimmed(each, rank) for each in (scale, shift)]
        term = self.near(
            ("affine", core, *(each is not None for each in parts)), [each for each in parts if each is not None]
        )
        self.forms.setdefault(term, AffineMap(core, *parts))
        full = self.shapes.get(form.core)
        if full is not None:
            self.shaped(term, np.broadcast_shapes(full, *(each.value.shape for each in parts if each is not None)))
        elif shape is not None and all(each is None or each.value.ndim <= len(shape) for each in parts):
            self.shaped(term, (None,) * len(shape))
        return term

    def product(self, form: Product, shape: Shape) -> int:
        """The term of a product with constant weights."""
        term = self.near((form.kind, form.attributes, form.core), [form.weight])
        self.forms.setdefault(term, form)
        return self.shaped(term, shape)


def array_of(terms: Terms, args: Args, index: int) -> Array | None:
    """The constant that is an input; None where there is none."""
    term = args[index] if index < len(args) else None
    return None if term is None else terms.constants.get(term)


def _apart(one: Number, other: Number) -> float:
    """The largest number of roundings between two constants of one shape."""
    if one.value.shape != other.value.shape:
        return math.inf
    if one.size is other.size is None and np.array_equal(one.value, other.value):
        return 0.0
    few = [each.value.reshape(-1)[:64] for each in (one, other)]
    unit = max(one.unit, other.unit)
    if one.size is other.size is None and not np.allclose(
        few[0], few[1], rtol=FOLD_ROUNDINGS * unit, atol=0, equal_nan=True
    ):
        return math.inf
    with np.errstate(invalid="ignore"):
        off = np.abs(one.wide - other.wide)
    if not off.any():
        return 0.0
    size = np.maximum(one.magnitude, other.magnitude) * unit
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(off == 0, 0.0, off / size)
    return float(share.max()) if np.isfinite(share).all() else math.inf


def _trimmed(number: Number, rank: int | None) -> Number:
    """A constant without leading axes of size 1, and one that is the same everywhere as a scalar."""
    if rank is not None and number.value.size and number.value.ndim <= rank:
        first = number.value.reshape(-1)[0]
        if (number.value == first).all():
            return Number(np.asarray(first), number.unit, np.asarray(number.magnitude.max()))
    while number.value.ndim and number.value.shape[0] == 1:
        number = Number(number.value[0], number.unit, number.magnitude[0])
    return number


def _scaled(product: Product, scale: Number) -> Product | None:
    """A product whose outputs are scaled by channel, as one with other weights; None where the scale is not by channel."""
    weight = product.weight
    value, size = scale.wide, scale.magnitude
    while value.ndim and value.shape[0] == 1:
        value, size = value[0], size[0]
    if value.ndim:
        if product.kind == "Conv":
            axes = weight.value.ndim - 2
            if value.ndim != axes + 1 or value.shape[1:] != (1,) * axes or value.shape[0] != weight.value.shape[0]:
                return None
            value, size = (each.reshape(-1, *(1,) * (axes + 1)) for each in (value, size))
        elif value.ndim != 1 or value.shape[0] != weight.value.shape[-1]:
            return None
    unit = max(weight.unit, scale.unit)
    return Product(
        product.kind, product.attributes, product.core, Number(weight.wide * value, unit, weight.magnitude * size)
    )


def multiplied(one: Number | None, other: Number | None) -> Number | None:
    """The product of two constants, as they broadcast; None is 1."""
    if one is None or other is None:
        return one or other
    return Number(one.wide * other.wide, max(one.unit, other.unit), one.magnitude * other.magnitude)


def added(one: Number | None, other: Number | None) -> Number | None:
    """The sum of two constants, as they broadcast; None is 0."""
    if one is None or other is None:
        return one or other
    return Number(one.wide + other.wide, max(one.unit, other.unit), one.magnitude + other.magnitude)


def evaluated(node: onnx.NodeProto, arrays: Sequence[Array | None], opset: int) -> list[Array] | None:
    """The outputs of a node on constants, by the evaluator of the onnx package; None where it has none or they are large."""
    total = sum(0 if array is None else array.nbytes for array in arrays)
    if total > FOLD_BYTES or node.op_type in RANDOM or node.op_type in ("Conv", "If", "Loop", "Scan"):
        return None
    if any(array is not None and array.dtype.kind not in "fiubOU" for array in arrays):
        return None
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(name for name in node.input if name)]
    for value in inputs:
        array = next(array for name, array in zip(node.input, arrays, strict=True) if name == value.name)
        assert array is not None
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        value.type.CopyFrom(onnx.helper.make_tensor_type_proto(kind, array.shape))
    names = [name for name in node.output if name]
    graph = onnx.GraphProto(name="constant", node=[node], input=inputs)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    model = onnx.ModelProto(ir_version=10, graph=graph, opset_import=[onnx.helper.make_opsetid("", opset)])
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, {n: a for n, a in zip(node.input, arrays, strict=True) if n})
    except Exception:  # an evaluator of the onnx package has classes of its own for what it lacks
        return None
    results = [np.asarray(each) for each in found]
    return None if sum(each.nbytes for each in results) > FOLD_BYTES else results


def attributes_of(node: onnx.NodeProto, opset: int) -> dict[str, Any]:
    """The attributes of a node as Python values, with the defaults of its schema."""
    schema = onnx_schema(node.op_type, opset, node.domain)
    found: dict[str, Any] = {}
    for name, attribute in (schema.attributes if schema is not None else {}).items():
        if attribute.default_value is not None and attribute.default_value.type:
            found[name] = onnx.helper.get_attribute_value(attribute.default_value)
    for attribute in node.attribute:
        found[attribute.name] = onnx.helper.get_attribute_value(attribute)
    return found


def as_key(value: Any) -> Any:
    """An attribute as part of a key."""
    if isinstance(value, onnx.TensorProto | onnx.SparseTensorProto | onnx.TypeProto | onnx.GraphProto):
        return value.SerializeToString(deterministic=True)
    return tuple(map(as_key, value)) if isinstance(value, list | tuple) else value
