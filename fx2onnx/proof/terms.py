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
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.proof.nodes import Array
from fx2onnx.proof.numbers import (
    FOLD_ROUNDINGS,
    Number,
    added,
    multiplied,
    number_of,
    roundings_apart,
    trimmed,
    without_front,
)
from fx2onnx.proof.sizes import Dim, NamedSize, Objects, broadcast

Key: TypeAlias = tuple[Any, ...]
Shape: TypeAlias = tuple[Dim | None, ...] | None
"""Sizes as far as they are known; None for an unknown number of axes."""
Args: TypeAlias = list[int | None]
"""The terms of a node's inputs; None for one that is left out."""

MOST_MOVED = 1 << 21
"""Elements of values whose order is followed, one by one."""
MOST_SIZES = 256


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


@dataclass(frozen=True, slots=True)
class TermView:
    """All elements of a term in another order, of any size: ``factors`` of their number, in the order of ``perm``; none: as they are."""

    core: int
    factors: tuple[Dim, ...] = ()
    perm: tuple[int, ...] = ()


class Terms:
    """The terms of the values of several graphs, as numbers: equal numbers are equal values."""

    def __init__(self, *, is_real: bool) -> None:
        self.is_real = is_real
        self._ids: dict[Key, int] = {}
        self._keys: list[Key] = []
        self.constants: dict[int, Array] = {}
        self.folded: dict[Key, list[int] | None] = {}
        """The outputs of operators of constants, by operator, attributes and operands; None where they are not computed."""
        self.forms: dict[int, AffineMap | Product] = {}
        self.moves: dict[int, Move] = {}
        self._near: dict[Key, list[tuple[list[tuple[Number, ...]], int]]] = {}
        """Constants that count as equal to the first of them, and their term."""
        self.worst: dict[int, float] = {}
        """The number of roundings between constants that count as equal, by term."""
        self.shapes: dict[int, tuple[int, ...]] = {}
        """The sizes of each term whose sizes are all known."""
        self.dims: dict[int, tuple[Dim, ...]] = {}
        self.views: dict[int, TermView] = {}
        self.sizes: dict[int, Objects] = {}
        """The numbers of each term of integers that are sizes."""
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
        if shape is not None and term not in self.dims:
            self.dims[term] = tuple(
                NamedSize.of("dim", term, axis) if size is None else size for axis, size in enumerate(shape)
            )
            sizes = tuple(size for size in shape if isinstance(size, int))
            if len(sizes) == len(shape):
                self.shapes[term] = sizes
        return term

    def key(self, term: int) -> Key:
        return self._keys[term]

    def constant(self, array: Array) -> int:
        """The term of a constant, by dtype, shape and bits."""
        bits = hashlib.sha256(
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            if array.dtype.kind not in "OUS"
            else repr(array.tolist()).encode()
        )
        term = self.of("constant", str(array.dtype), array.shape, bits.digest())
        self.constants[term], self.dtypes[term] = array, str(array.dtype)
        return self.shaped(term, array.shape)

    def alike(self, term: int | None) -> int | None:
        """A term, the same for constants that a fold may have rounded and that have zeros of one sign."""
        number = None if term is None or not self.is_real else self.number(term)
        if number is None:
            return term
        zeros = np.signbit(number.held) & (number.held == 0)
        key = ("constant", self.dtypes[term or 0], np.packbits(zeros).tobytes() if zeros.any() else b"")
        return self.near(key, [number])

    def integers(self, term: int) -> Objects | None:
        """The numbers of a term of a few integers, with names where they are sizes; None for another."""
        array = self.constants.get(term)
        if array is not None and array.dtype.kind in "iub" and array.size <= MOST_SIZES:
            return array.astype(object)
        return self.sizes.get(term)

    def sized(self, numbers: Objects, dtype: str = "int64") -> int:
        """The term of integers that are sizes, a constant where all have numbers."""
        if not any(isinstance(each, NamedSize) for each in numbers.reshape(-1)):
            return self.constant(numbers.astype(dtype))
        term = self.of("sizes", dtype, numbers.shape, tuple(numbers.reshape(-1)))
        self.sizes[term], self.dtypes[term] = numbers, dtype
        return self.shaped(term, numbers.shape)

    def places(self, term: int) -> Move | None:
        """A term as elements of another one; None where its shape is not known, or it is large."""
        known = self.moves.get(term)
        shape = self.shapes.get(term)
        if known is not None or shape is None or math.prod(shape) > MOST_MOVED:
            return known
        return Move(term, np.arange(math.prod(shape)).reshape(shape), tuple(range(len(shape))))

    def flat_core(self, term: int) -> int | None:
        """The term whose elements a term has in their order, and its last axis; None where it is another."""
        view = self.views.get(term)
        if view is not None:
            is_flat = not view.perm and self.dims[term] and self.dims[view.core]
            return view.core if is_flat and self.dims[term][-1] == self.dims[view.core][-1] else None
        move = self.moves.get(term)
        if move is None or not move.places.ndim or move.places.shape[-1:] != self.shapes[move.core][-1:]:
            return None
        flat = move.places.reshape(-1)
        is_same = flat.size == math.prod(self.shapes[move.core]) and (flat == np.arange(flat.size)).all()
        return move.core if is_same else None

    def reshaped(self, term: int, dims: tuple[Dim, ...]) -> int:
        """The term of all elements in their order, of other sizes."""
        move = self.places(term)
        sizes = tuple(size for size in dims if isinstance(size, int))
        if move is not None and len(sizes) == len(dims):
            if math.prod(sizes) != move.places.size:  # no runtime has such a view
                return self.shaped(self.of("none", term, dims), dims)
            return self.moved(Move(move.core, move.places.reshape(sizes)))
        view = self.views.get(term, TermView(term))
        return self.viewed(view, dims)

    def viewed(self, view: TermView, dims: tuple[Dim, ...]) -> int:
        """The term of a view, of the fewest factors."""
        order = [(place, view.factors[place]) for place in view.perm if view.factors[place] != 1]
        used = {place: rank for rank, place in enumerate(sorted(place for place, _ in order))}
        runs: list[list[tuple[int, Dim]]] = []
        for place, size in order:
            if runs and used[place] == used[runs[-1][-1][0]] + 1:
                runs[-1].append((place, size))
            else:
                runs.append([(place, size)])
        starts = sorted(run[0][0] for run in runs)
        by_start = {run[0][0]: math.prod([size for _, size in run]) for run in runs}
        view = TermView(view.core)
        if len(runs) > 1:
            factors = tuple(by_start[start] for start in starts)
            view = TermView(view.core, factors, tuple(starts.index(run[0][0]) for run in runs))
        if not view.perm and dims == self.dims.get(view.core):
            return view.core
        term = self.of("view", view.core, view.factors, view.perm, dims)
        self.views.setdefault(term, view)
        self.dtypes.setdefault(term, self.dtypes.get(view.core, ""))
        return self.shaped(term, dims)

    def moved(self, move: Move) -> int:
        """The term of elements in another order."""
        places = move.places
        if move.core in self.sizes:
            flat = self.sizes[move.core].reshape(-1)[places.reshape(-1)]
            return self.sized(flat.reshape(places.shape), self.dtypes[move.core])
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
        shapes = tuple(number.shape for number in numbers)
        known = self._near.setdefault((*key, shapes), [])
        for variants, term in known:
            apart = _apart(numbers, variants[0])
            if apart <= FOLD_ROUNDINGS:
                others = [_apart(numbers, each) for each in variants[1:]] if apart else []
                if apart and 0.0 not in others:
                    variants.append(tuple(numbers))
                self.worst[term] = max(self.worst.get(term, 0.0), apart, *others)
                return term
        term = self.of("near", *key, shapes, len(known))
        known.append(([tuple(numbers)], term))
        return term

    def number(self, term: int) -> Number | None:
        """A constant float as a number; None for another term."""
        return number_of(self.constants.get(term))

    def affine(self, term: int) -> AffineMap:
        form = self.forms.get(term)
        return form if isinstance(form, AffineMap) else AffineMap(term)

    def term_of(self, form: AffineMap) -> int:
        """The term of an affine form, with its scale in the weights of the product that it scales."""
        core, scale, shift = form.core, form.scale, form.shift
        if scale is not None and (scale.value == 1).all() and self.fits(scale, core):
            scale = None
        product = self.forms.get(core)
        if scale is not None and isinstance(product, Product) and self.fits(scale, core):
            scaled = _scaled(product, scale)
            if scaled is not None:
                core, scale = self.product(scaled, self.dims.get(core)), None
        if shift is not None and not shift.value.any() and self.fits(shift, core):
            shift = None
        if scale is None and shift is None:
            return core
        given, shape = [each for each in (scale, shift) if each is not None], self.dims.get(core)
        key = ("affine", core, scale is not None, shift is not None)
        if not all(self.fits(each, core) for each in given):  # no form: the core is smaller, or may be
            term = self.near(key, given)
            return term if shape is None else self.shaped(term, broadcast([shape, *(each.shape for each in given)]))
        inside = self.flat_core(core)
        if inside is not None and all(each.ndim <= 1 for each in given):
            inner = self.affine(inside)
            moved = multiplied(inner.shift, scale) if inner.shift is not None else None
            whole = self.term_of(AffineMap(inner.core, multiplied(inner.scale, scale), added(moved, shift)))
            return self.reshaped(whole, self.dims[core])
        parts = [None if each is None else trimmed(each) for each in (scale, shift)]
        term = self.near(key, [each for each in parts if each is not None])
        self.forms.setdefault(term, AffineMap(core, *parts))
        return self.shaped(term, shape)

    def fits(self, number: Number | Array, core: int) -> bool:
        """Return whether a constant makes a value no larger."""
        dims, sizes = self.dims.get(core, ()), number.shape
        pairs = zip(sizes[::-1], dims[::-1], strict=False)
        return len(sizes) <= max(len(dims), 0) and all(one in (1, size) for one, size in pairs)

    def product(self, form: Product, shape: Shape) -> int:
        """The term of a product with constant weights."""
        term = self.near((form.kind, form.attributes, form.core), [form.weight])
        self.forms.setdefault(term, form)
        return self.shaped(term, shape)


def _apart(numbers: Sequence[Number], others: Sequence[Number]) -> float:
    return max(map(roundings_apart, numbers, others), default=0.0)


def array_of(terms: Terms, args: Args, index: int) -> Array | None:
    """The constant that is an input; None where there is none."""
    term = args[index] if index < len(args) else None
    return None if term is None else terms.constants.get(term)


def _scaled(product: Product, scale: Number) -> Product | None:
    """A product whose outputs are scaled by channel, as one with other weights; None where the scale is not by channel."""
    weight, scale = product.weight, without_front(scale)
    if scale.ndim:
        if product.kind == "Conv":
            axes = weight.ndim - 2
            if scale.ndim != axes + 1 or scale.shape != (weight.shape[0], *(1,) * axes):
                return None
            scale = scale.part(lambda array: array.reshape(-1, *(1,) * (axes + 1)))
        elif scale.shape != weight.shape[-1:]:
            return None
    return replace(product, weight=weight.times(scale))
