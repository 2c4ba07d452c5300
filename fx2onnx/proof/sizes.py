"""Sizes that have no number, as polynomials, and what operators on integers make of them. Each named size is at least 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Parts: TypeAlias = dict[tuple[Any, ...], int]


class NamedSize:
    """A polynomial of named sizes with integer factors; one without names is an int."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: Parts) -> None:
        self.parts, self._hash = parts, hash(frozenset(parts.items()))

    @classmethod
    def of(cls, *key: Any) -> NamedSize:
        """A size that has a name."""
        return cls({(key,): 1})

    @property
    def is_natural(self) -> bool:
        """True where it is known to be 0 or more."""
        names = (name for names in self.parts for name in names)
        return min(self.parts.values()) >= 0 and all(name[0] in ("size", "dim") for name in names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedSize) and self.parts == other.parts

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"NamedSize({self.parts})"

    def __add__(self, other: Any) -> Dim:
        return NotImplemented if not _is_size(other) else _sum(self, other, 1)

    def __sub__(self, other: Any) -> Dim:
        return NotImplemented if not _is_size(other) else _sum(self, other, -1)

    def __rsub__(self, other: Any) -> Dim:
        return NotImplemented if not _is_size(other) else _sum(int(other), self, -1)

    def __mul__(self, other: Any) -> Dim:
        if not _is_size(other):
            return NotImplemented
        found: Parts = {}
        for names, factor in self.parts.items():
            for others, by in _parts(other).items():
                key = tuple(sorted((*names, *others), key=repr))
                found[key] = found.get(key, 0) + factor * by
        return _plain(found)

    __radd__, __rmul__ = __add__, __mul__


Dim: TypeAlias = int | NamedSize


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer | NamedSize)


def _parts(size: Any) -> Parts:
    return size.parts if isinstance(size, NamedSize) else {(): int(size)}


def _plain(parts: Parts) -> Dim:
    parts = {names: factor for names, factor in parts.items() if factor}
    return NamedSize(parts) if any(parts) else parts.get((), 0)


def _sum(one: Any, other: Any, sign: int) -> Dim:
    found = dict(_parts(one))
    for names, factor in _parts(other).items():
        found[names] = found.get(names, 0) + sign * factor
    return _plain(found)


def quotient(one: Any, other: Any) -> Dim | None:
    """``one / other`` where it is a polynomial; None where it is none, or is not found."""
    above, below = _parts(one), _parts(other)
    if not any(below.values()):
        return None
    lead, first = (max(parts, key=lambda names: (len(names), repr(names))) for parts in (above, below))
    left = list(lead)
    for name in first:
        if name not in left:
            return None
        left.remove(name)
    if above[lead] % below[first]:
        return None
    found = _plain({tuple(left): above[lead] // below[first]})
    return found if found * other == one else None


def sign(size: Any) -> int | None:
    """1 or -1 where the size is above or below 0 whatever its names are, 0 where it is 0; None where that is not known."""
    parts = _parts(size)
    factors = [factor for names, factor in parts.items() if names]
    if any(name[0] != "size" for names in parts for name in names):
        return None
    total = sum(parts.values())  # the least magnitude: each name is 1
    if not factors:
        return (total > 0) - (total < 0)
    if total and (min(factors) > 0 < total or max(factors) < 0 > total):
        return 1 if total > 0 else -1
    return None


def broadcast(shapes: Sequence[Sequence[Dim] | None]) -> tuple[Dim | None, ...] | None:
    """The sizes of what operands are broadcast to; None for an unknown rank or size."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known), default=0)
    found: list[Dim | None] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in known), strict=True):
        wide = {size for size in sizes if size != 1}
        numbers = [size for size in wide if isinstance(size, int)]
        found.append(numbers[0] if numbers else wide.pop() if len(wide) == 1 else None if wide else 1)
    return tuple(found)


Objects: TypeAlias = "np.ndarray[Any, np.dtype[np.object_]]"


def _each(function: Callable[..., Any]) -> Any:
    return np.frompyfunc(function, function.__code__.co_argcount, 1)


def _divided(one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        return None if not other else abs(one) // abs(other) * (-1 if (one < 0) != (other < 0) else 1)
    found = quotient(one, other)
    return NamedSize.of("/", one, other) if found is None else found


def _equals(one: Any, other: Any) -> Any:
    found = sign(one - other)
    return None if found is None else found == 0


def _larger(one: Any, other: Any) -> Any:
    found = sign(one - other)
    return None if found is None else one if found >= 0 else other


def _smaller(one: Any, other: Any) -> Any:
    found = sign(one - other)
    return None if found is None else other if found >= 0 else one


def _chosen(condition: Any, one: Any, other: Any) -> Any:
    return one if one == other else one if condition is True else other if condition is False else None


_ELEMENTS: Mapping[str, Callable[..., Any]] = {
    "Add": _each(lambda one, other: one + other),
    "Sub": _each(lambda one, other: one - other),
    "Mul": _each(lambda one, other: one * other),
    "Neg": _each(lambda one: -1 * one),
    "Div": _each(_divided),
    "Equal": _each(_equals),
    "Max": _each(_larger),
    "Min": _each(_smaller),
    "Where": _each(_chosen),
}


def on_sizes(op: str, arrays: Sequence[Objects], attributes: Mapping[str, Any]) -> Objects | None:
    """The output of an operator on arrays of sizes; None where it is not known."""
    if op == "Concat":
        found = np.concatenate(arrays, axis=attributes["axis"])
    elif op in ("Identity", "Cast") or (op in ("Max", "Min") and len(arrays) == 1):
        found = arrays[0]
    elif op == "ReduceProd" and len(arrays) == 1 and not attributes.get("axes"):
        found = np.array(np.prod(arrays[0]), dtype=object)
        found = found.reshape((1,) * arrays[0].ndim) if attributes.get("keepdims", 1) else found
    elif op in _ELEMENTS and len(arrays) == (3 if op == "Where" else 1 if op == "Neg" else 2):
        found = np.asarray(_ELEMENTS[op](*arrays), dtype=object)
    else:
        return None
    return None if any(each is None for each in found.reshape(-1)) else found
