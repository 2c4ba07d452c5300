"""Data movement as terms: transpositions of any size, slices, and operators by element in front of what moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.proof.sizes import Dim, quotient
from fx2onnx.proof.terms import Move, Terms, TermView

_Factor: TypeAlias = tuple[tuple[int, ...], Dim]
"""A part of the number of elements, and its place in the core: (1, 0) is the first part of what was place 1."""


def _runs(factors: Iterable[_Factor], dims: Sequence[Dim]) -> list[list[_Factor]] | None:
    """The factors of each size, which may cut one in two; None where they do not fit."""
    waiting, found = list(factors)[::-1], list[list[_Factor]]()
    for dim in dims:
        run: list[_Factor] = []
        left = dim
        while left != 1:
            if not waiting or left == 0:
                return None
            place, size = waiting.pop()
            inside = quotient(left, size)
            if inside is not None:
                run.append((place, size))
                left = inside
                continue
            outside = quotient(size, left)
            if outside is None:
                return None
            run.append(((*place, 0), left))
            waiting.append(((*place, 1), outside))
            left = 1
        found.append(run)
    return found if all(size == 1 for _, size in waiting) else None


def transposed(terms: Terms, x: int, perm: tuple[int, ...]) -> int:
    """The term of a transposition of a value whose rank is known."""
    if perm == tuple(range(len(perm))):
        return x
    move, dims = terms.places(x), terms.dims[x]
    if move is not None:
        axes = None if move.perm is None else tuple(move.perm[axis] for axis in perm)
        return terms.moved(Move(move.core, move.places.transpose(perm), axes))
    view = terms.views.get(x)
    runs = None if view is None or not view.perm else _runs([((each,), view.factors[each]) for each in view.perm], dims)
    core = x if view is None or (runs is None and view.perm) else view.core
    if runs is None:
        runs = [[((axis,), size)] for axis, size in enumerate(dims)]
    factors = [factor for axis in perm for factor in runs[axis]]
    order = sorted(place for place, _ in factors)
    sizes = dict(factors)
    made = TermView(core, tuple(sizes[place] for place in order), tuple(order.index(place) for place, _ in factors))
    return terms.viewed(made, tuple(dims[axis] for axis in perm))


def past_moves(terms: Terms, args: Sequence[int], by_element: Callable[[list[int], Any], int]) -> int | None:
    """``op(moved(x))`` as ``moved(op(x))`` of an operator by element, which ``by_element`` makes of terms and sizes."""
    views = [terms.views[arg] for arg in args if arg in terms.views]
    if views and not any(arg in terms.moves for arg in args):
        return _past_view(terms, args, views[0], by_element)
    moves = [terms.moves[arg] for arg in args if arg in terms.moves]
    if not moves:
        return None
    move, inner = moves[0], list[int]()
    for arg in args:
        array, other = terms.constants.get(arg), terms.moves.get(arg)
        if other is not None:
            is_same = other.places.shape == move.places.shape and (other.places == move.places).all()
            if not is_same or terms.shapes[other.core] != terms.shapes[move.core]:
                return None
            inner.append(other.core)
        elif array is not None and array.size == 1 and array.ndim <= move.places.ndim:
            inner.append(terms.constant(array.reshape(())))
        elif array is not None and move.perm is not None and array.ndim == len(move.perm):
            inner.append(terms.constant(array.transpose(np.argsort(move.perm))))
        else:
            return None
    shape = terms.shapes[move.core]
    arrays = [terms.constants[arg] for arg in inner if arg in terms.constants]
    if any(array.ndim and np.broadcast_shapes(array.shape, shape) != shape for array in arrays):
        return None
    return terms.moved(Move(by_element(inner, shape), move.places, move.perm))


def _past_view(
    terms: Terms, args: Sequence[int], view: TermView, by_element: Callable[[list[int], Any], int]
) -> int | None:
    first = next(arg for arg in args if arg in terms.views)
    dims, core_dims, inner = terms.dims[first], terms.dims[view.core], list[int]()
    for arg in args:
        array, other = terms.constants.get(arg), terms.views.get(arg)
        if other is not None:
            if (other.factors, other.perm, terms.dims[arg], terms.dims[other.core]) != (
                view.factors,
                view.perm,
                dims,
                core_dims,
            ):
                return None
            inner.append(other.core)
        elif array is not None and array.size == 1 and array.ndim <= len(dims):
            inner.append(terms.constant(array.reshape(())))
        elif array is not None and array.ndim == 1 and terms.flat_core(first) is not None and array.shape == dims[-1:]:
            inner.append(arg)
        else:
            return None
    return terms.viewed(TermView(by_element(inner, core_dims), view.factors, view.perm), dims)
