"""Numbers at which a module does something else: what it compares with, cuts off at, rounds at. A sample seldom has some on
both sides of each of them.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_PLACES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt", "maximum", "minimum"), (0, 1)),
    **dict.fromkeys(("remainder", "fmod", "clamp_min", "clamp_max", "threshold"), (1,)),
    **dict.fromkeys(("hardshrink", "softshrink", "bucketize"), (1,)),
    **dict.fromkeys(("clamp", "hardtanh"), (1, 2)),
    "softplus": (2,),
    "huber_loss": (3,),
    "smooth_l1_loss": (3,),
    "searchsorted": (0,),
}
"""The places of the arguments of an operator that are such numbers."""
_SLICE = torch.ops.aten.slice.Tensor
_KEEPS = frozenset({"_to_copy", "clone", "index", "index_select", "gather", "copy"})
"""Operators beside views whose results have numbers of their first argument."""
_SHIFTS = frozenset({"sub", "add", "rsub"})
"""Operators whose number is one that the module compares with, where the result is compared with zero."""
_MOST_SHIFTS = 4
_STEPS = frozenset({"heaviside", "sign", "sgn"})
"""Operators that compare with zero."""
_TABLES = ("bucketize", "searchsorted")
"""Operators of which that is a table."""
_ALWAYS: dict[str, tuple[float, ...]] = {
    "round": (0.5, 1.5, 2.5), "floor": (1.0, 2.0), "ceil": (1.0, 2.0), "trunc": (1.0, 2.0), "hardtanh": (1.0,),
    "hardshrink": (0.5,), "softshrink": (0.5,), "hardsigmoid": (3.0,), "hardswish": (3.0,), "relu6": (6.0,),
    "softplus": (20.0,),
}  # fmt: skip
"""The numbers that an operator compares with by itself, by default or always."""
_INFINITIES = (math.inf, -math.inf)
_SPECIAL: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("isnan", "nansum", "nanmedian"), (math.nan,)),
    **dict.fromkeys(("isinf", "isposinf", "isneginf"), _INFINITIES),
    "nan_to_num": (math.nan, *_INFINITIES),
    **dict.fromkeys(("copysign", "signbit", "atan2"), (-0.0, 0.0)),
}
"""The values that an operator looks for and that are no numbers, or have a sign that no comparison tells."""
MOST = 64
"""Marks of a module, and numbers of a table of them."""
_LARGEST = 2.0**20
_MOST_WHOLE = 2.0**53
_ROUNDED = 1e-6
"""A share of a number by which it may differ in a file that has it in float32."""
_NEAR_FIRST = 12
"""Floats at and next to the first numbers, which come before those between numbers."""


@dataclass(frozen=True, slots=True)
class Marks:
    """``numbers``: of any dtype; ``whole``: those that integers are compared with; ``special``: NaN, infinities and
    zeros below zero, where the module looks for them. Numbers that the module or the file alone has come first.
    """

    numbers: tuple[float, ...] = ()
    whole: tuple[int, ...] = ()
    special: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    """The last places of what the module takes the begin of, such as of a table of positions."""
    is_wide: bool = False
    """True if a file turns integers into a dtype with less room for them than the module's."""


NONE = Marks()

Line = tuple[float, float]
"""The factor and the summand that give a value from a number of an input."""
AS_IT_IS: Line = (1.0, 0.0)


def line_of(name: str, line: Line, number: float, *, is_left: bool) -> Line | None:
    """The line of the result of arithmetic between a value and a number, which stands left of it where ``is_left``."""
    factor, summand = line
    if name == "add":
        return factor, summand + number
    if name in ("sub", "rsub"):
        return (-factor, number - summand) if is_left != (name == "rsub") else (factor, summand - number)
    if name == "mul" and number:
        return factor * number, summand * number
    return (factor / number, summand / number) if name == "div" and number and not is_left else None


def at_input(numbers: Iterable[float], line: Line | None) -> list[float]:
    """The numbers of an input that give ``numbers`` on a line."""
    factor, summand = line or AS_IT_IS
    return [(number - summand) / factor for number in numbers]


def whole_beside(numbers: Iterable[float]) -> list[int]:
    """Integers at numbers, or on both sides of them."""
    near = (number for number in numbers if abs(number) < _MOST_WHOLE)
    return [each for number in near for each in dict.fromkeys((math.floor(number), math.ceil(number)))]


def joined(module: Sequence[float], file: Iterable[float]) -> tuple[float, ...]:
    """The numbers of both, first those that one of them alone has: there the two may give other results."""
    others = [number for number in file if not _is_among(number, module)]
    both = [number for number in module if _is_among(number, tuple(file))]
    apart = [number for number in module if number not in both]
    turns = chain(*zip(others, apart, strict=False), others[len(apart) :], apart[len(others) :])
    return tuple(dict.fromkeys([*turns, *both]))[:MOST]


def _is_among(number: float, others: Iterable[float]) -> bool:
    return any(math.isclose(number, each, rel_tol=_ROUNDED) for each in others)


def beside(whole: Sequence[int]) -> list[int]:
    """Integers at, behind and before each number."""
    return list(dict.fromkeys(each for number in whole for each in (number, number + 1, number - 1)))


def near(numbers: Sequence[float], step: float) -> list[float]:
    """Floats at and next to each number, halfway between neighbours, and all of these with the other sign."""
    at = [each for number in numbers for each in (number, number * (1 + step), number * (1 - step))]
    between = [(low + high) / 2 for low, high in pairwise(sorted(numbers))]
    at = [*at[:_NEAR_FIRST], *between, *at[_NEAR_FIRST:]]
    return list(dict.fromkeys([*at, *(-each for each in at)]))


@dataclass(slots=True)
class Marking:
    """Collects the marks of operators as they run."""

    numbers: dict[float, None] = field(default_factory=dict)
    whole: dict[int, None] = field(default_factory=dict)
    special: dict[str, float] = field(default_factory=dict)
    lengths: dict[int, None] = field(default_factory=dict)
    shifts: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SHIFTS))
    """Numbers that forward added or subtracted last."""
    lines: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    """For values on a line of an input: the line, and True if the input has integers."""

    def start(self, inputs: Iterable[torch.Tensor]) -> None:
        """Follow lines from these inputs."""
        for tensor in inputs:
            if not tensor.is_complex() and tensor.dtype != torch.bool:
                self.lines[tensor] = (AS_IT_IS, _is_whole(tensor))

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """The line of what an operator returns, if it has one."""
        has_line = [isinstance(each, torch.Tensor) and each in self.lines for each in args[:2]]
        at = has_line.index(True) if True in has_line else None
        if at is None:
            return
        line, is_whole = self.lines[args[at]]
        name, other = _name(func), _numbers_of(args[1 - at], 0) if len(args) > 1 else []
        if at == 0 and (func.is_view or name in _KEEPS):
            found = line
        else:
            found = line_of(name, line, other[0], is_left=at == 1) if other and not kwargs else None
        for each in result if isinstance(result, list | tuple) else [result]:
            if isinstance(each, torch.Tensor) and found is not None:
                self.lines[each] = (found, is_whole)
            elif isinstance(each, torch.Tensor) and each in self.lines:
                del self.lines[each]

    def see(self, func: Any, args: Any) -> None:
        """One call of an operator."""
        if func is _SLICE:
            self._note_length(*args)
        name = _name(func)
        if name in _SHIFTS:
            self.shifts.extend(_numbers_of(args[1], 0) or _numbers_of(args[0], 0))
        elif name in _STEPS:
            self._note(self.shifts)
        places, always, special = _facts(func)
        if not places and not always and not special:
            return
        self._note(always)
        self._note_special(special)
        if places and len(self.numbers) < MOST:
            given = [args[place] for place in places if place < len(args)]
            self._note_operands(args, given, is_table=name in _TABLES)

    def found(self) -> Marks:
        special, lengths = tuple(self.special.values()), tuple(self.lengths)[:MOST]
        return Marks(tuple(self.numbers)[:MOST], tuple(self.whole)[:MOST], special, lengths)

    def _note_length(self, of: Any, axis: int = 0, start: Any = None, end: Any = None, *_: Any) -> None:
        if isinstance(end, int) and not start and 0 < end < of.shape[axis]:
            self.lengths.setdefault(of.shape[axis] - 1)

    def _note_operands(self, args: Any, given: list[Any], is_table: bool) -> None:
        if len(given) == 2 and given[0] is given[1]:  # what differs from itself is no number
            self._note_special((math.nan,))
            return
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        line, is_whole = next((self.lines[each] for each in tensors if each in self.lines), (None, False))
        is_whole = is_whole or any(map(_is_whole, tensors))
        for each in given:
            numbers = at_input(_numbers_of(each, int(is_table)), line)
            self._note(numbers if is_table or numbers != [0] else [0, *self.shifts])
            if is_whole:
                self.whole |= dict.fromkeys(whole_beside(numbers))

    def _note(self, found: Iterable[float]) -> None:
        for number in found:
            if abs(number) <= _LARGEST:
                self.numbers.setdefault(float(number))
            elif math.isinf(number):
                self._note_special(_INFINITIES)

    def _note_special(self, found: Iterable[float]) -> None:
        self.special |= {str(number): number for number in found}


def _name(func: Any) -> str:
    return str(func._schema.name).rpartition("::")[2].removesuffix("_")


@functools.cache
def _facts(func: Any) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    name = _name(func)
    return _PLACES.get(name, ()), _ALWAYS.get(name, ()), _SPECIAL.get(name, ())


def _is_whole(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _numbers_of(given: Any, most_dims: int) -> list[float]:
    """The numbers of a number, or of a table of few."""
    if isinstance(given, torch.Tensor):
        if given.numel() > MOST or given.dim() > most_dims or given.dtype == torch.bool or given.is_complex():
            return []
        return [number for number in given.reshape(-1).tolist() if math.isfinite(number)]
    return [given] if isinstance(given, int | float) and not isinstance(given, bool) and given == given else []
