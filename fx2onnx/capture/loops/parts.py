"""Values that pass from one iteration of a loop to the next: constant, counted, or carried as a tensor, as all elements of a list are that
turns change at will (``stack.pop()``) or read as a whole (``torch.stack(out)``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
import torch.fx

from fx2onnx.capture.captured import TensorInfo
from fx2onnx.capture.loops.ragged import SIZE
from fx2onnx.capture.loops.state import Remade
from fx2onnx.capture.loops.turns import Turns, become, has_numbers, stacked
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.python.held import MISSING, Value, is_equal_number
from fx2onnx.capture.python.places import Place, put
from fx2onnx.capture.recording.values import tensor_info
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Atom, Dim, DimLike, Scalar, apply
from fx2onnx.torchcompat.pytrees import Rebuild, flatten

aten = torch.ops.aten
TURN = Dim.symbol("turn of a loop")
"""The number of a turn, in types and numbers that differ from turn to turn."""
FREE = "free size "
"""Names of sizes that have no formula in the number of a turn begin so."""


class Unlike(Exception):
    """The first turn differs from those behind it."""


def at_turn(value: Value, turn: Scalar, symbol: Dim = TURN) -> Value:
    """A number, or the sizes of a type, in another turn."""
    if isinstance(value, TensorInfo):
        return replace(value, dims=tuple(at_turn(size, turn, symbol) for size in value.dims))
    return value.substitute({str(symbol): turn}) if isinstance(value, Dim) else value


def with_sizes(info: TensorInfo, sizes: Mapping[str, DimLike]) -> TensorInfo:
    """The type with other sizes in the place of those names."""
    free = [str(size) for size in info.dims]
    return replace(info, dims=tuple(sizes.get(name, size) for name, size in zip(free, info.dims, strict=True)))


def _symbols(*values: Value) -> frozenset[str]:
    return frozenset[str]().union(*(value.symbols() for value in values if isinstance(value, Dim)))


@dataclass(eq=False)
class HandedOn:
    """A tensor, or a number as one, that a turn gets from the one before."""

    info: TensorInfo
    device: torch.device
    start: Value
    """The value before the loop: a tensor, a number, a memory, or a function that makes the tensor; None where no turn reads it."""
    is_number: bool = False
    given: Value = None
    """In the turn that runs now."""
    given_version: int = 0
    """The version of the memory before the turn writes into it."""
    output: Value = None
    """The ``Join`` that the turn leaves."""

    def free(self) -> frozenset[str]:
        """The names of those sizes that have no formula in the number of a turn."""
        return frozenset(name for name in _symbols(*self.info.dims) if name.startswith(FREE))


@dataclass(eq=False)
class Constant:
    """A value that no iteration changes, or that no iteration reads and each leaves as it is now."""

    value: Value


@dataclass(eq=False)
class Linear:
    """A number that is an expression of the turn's, as before the turn of that number."""

    value: Scalar
    is_read: bool = True
    before: frozenset[Hashable] = frozenset()
    """The exits of the loop that are before where it changes."""


Part: TypeAlias = HandedOn | Constant | Linear


@dataclass(eq=False)
class LoopEntry:
    """A place, its structure and the parts of what it has."""

    place: Place
    before: Value
    is_read: bool
    parts: list[Part]
    build: Rebuild
    after: Sequence[Value] = ()
    given: Sequence[Value] = ()
    """The values that the place has at the beginning of the turn, part by part."""

    def is_as_given(self, value: Value) -> bool:
        """Return whether a value of the place is that of the beginning of the turn."""
        leaves = [leaf.value for leaf in flatten(value)[0]]
        return [*map(id, leaves)] == [*map(id, self.given)]


class Kinds:
    """Tells how the values of a loop go from turn to turn."""

    def __init__(self, loop: Value, index: Dim) -> None:
        self._loop, self._index = loop, index
        self._left: dict[str, Value] = {}
        """The size at the end of the turn, by the name of the size at its beginning, for sizes without a formula."""

    def part(self, place: Place, before: Value, after: Value, known: Part | None) -> Part:
        """The way in which a value goes from turn to turn: as ``known``, or else as one turn shows."""
        if _is_number(after):
            return self._number_part(place, before, after, known)
        is_several = self._loop.paths.has_several
        if isinstance(known, HandedOn) and isinstance(after, bool) and known.info.dtype == torch.bool:
            return known
        if not isinstance(after, torch.Tensor):
            if isinstance(before, bool) and isinstance(after, bool) and before is not after and is_several:
                return HandedOn(TensorInfo(torch.bool, ()), torch.device("cpu"), before)
            if before is MISSING:
                return known if isinstance(known, Constant) else Constant(after)
            is_plain = type(before) is type(after) and not isinstance(before, complex) and before == after
            if is_plain or is_equal_number(before, after):
                return known if isinstance(known, Constant) else Constant(before)
            raise Unlike(f"{place.name} is {name_of(before)} before the first turn and {name_of(after)} behind it")
        info = self._type_of(after)
        if before is after and (known is None or isinstance(known, Constant)):
            return known or Constant(before)
        if isinstance(known, HandedOn) and self._is_like(known, info):
            return known
        if isinstance(before, torch.Tensor):
            was = known.info.dims if isinstance(known, HandedOn) else ()
            return HandedOn(self._from_turn_to_turn(place, self._type_of(before), info, was), after.device, before)
        if str(TURN) in _symbols(*info.dims):
            raise Unlike(f"the sizes of {place.name} differ from turn to turn")
        if before is MISSING or isinstance(before, int | float | torch.SymInt):
            return HandedOn(info, after.device, None if before is MISSING else before)
        raise Unlike(f"{place.name} is {name_of(before)} before the first turn")

    def _is_like(self, known: HandedOn, info: TensorInfo) -> bool:
        """Return whether a turn leaves a tensor of the type that is known, whatever the sizes without a formula are."""
        following = at_turn(known.info, TURN + 1)
        if (info.dtype, len(info.dims)) != (following.dtype, len(following.dims)):
            return False
        free, pairs = known.free(), [*zip(following.dims, info.dims, strict=True)]
        return all(
            self._left.setdefault(str(was), size) == size if str(was) in free else was == size for was, size in pairs
        )

    def _from_turn_to_turn(
        self, place: Place, before: TensorInfo, after: TensorInfo, known: Sequence[Value]
    ) -> TensorInfo:
        """The type before a turn: of its sizes, each turn may add the same to one. Others have no formula."""
        if before.dtype != after.dtype or len(before.dims) != len(after.dims):
            raise Unlike(f"{place.name} is {before} before the first turn and {after} behind it")
        dims: list[Value] = []
        for axis, (one, two) in enumerate(zip(before.dims, after.dims, strict=True)):
            step = two - one
            is_free = bool(known) and str(known[axis]).startswith(FREE)
            is_steady = not is_free and not _symbols(step) & ({str(TURN)} | self._own())
            if is_steady and isinstance(step, Dim) and self._loop.may_free:
                is_steady = self._loop.tracer.sizes.certain("ge", step, 0) is True
            if is_steady and (step == 0 or one not in (0, 1) or two == 1 + one):
                dims.append(one + step * (TURN - self._loop.first) if step != 0 else one)
            elif self._loop.may_free:
                dims.append(self._loop.free_size(one, two))
            else:
                raise Unlike(f"{place.name} is {before} before the first turn and {after} behind it")
        return TensorInfo(before.dtype, tuple(dims))

    def _number_part(self, place: Place, before: Value, after: Value, known: Part | None) -> Part:
        if isinstance(before, float | DataNumber) or isinstance(after, float | DataNumber):
            return self._real_part(before, after, known)
        value, is_changed = at_turn(unwrap(after), TURN, self._index), False
        if before is MISSING:
            if isinstance(known, Linear):
                is_changed = known.value != value and self._loop.paths.has_several
            if _symbols(value) & self._own() or isinstance(known, HandedOn) or is_changed:
                return known if isinstance(known, HandedOn) else self._handed_on(None)
            same = isinstance(known, Linear) and known.value == value
            return known if same and known is not None else Linear(value, is_read=False)
        if not _is_number(before):
            raise Unlike(f"{place.name} is {name_of(before)} before the first turn")
        if isinstance(known, HandedOn):
            return known
        if isinstance(known, Linear):
            if value == at_turn(known.value, TURN + 1):
                return known
        elif known is None or not isinstance(known, Constant) or unwrap(before) != value:
            step = value - unwrap(before)
            if str(TURN) not in _symbols(step) and not _symbols(step) & self._own():
                return Linear(unwrap(before) + step * (TURN - self._loop.first))
        elif isinstance(known, Constant):
            return known
        return self._handed_on(before)

    def _real_part(self, before: Value, after: Value, known: Part | None) -> Part:
        """The form in which a real number goes from turn to turn."""
        if isinstance(known, HandedOn) and known.info.dtype == torch.float64:
            return known
        is_same = type(after) is float and (before is MISSING or is_equal_number(before, after))
        if is_same and (known is None or (isinstance(known, Constant) and is_equal_number(known.value, after))):
            return known or Constant(after)
        return self._handed_on(None if before is MISSING else before, torch.float64)

    def _handed_on(self, before: Value, dtype: torch.dtype = torch.int64) -> HandedOn:
        return HandedOn(TensorInfo(dtype, ()), torch.device("cpu"), before, is_number=True)

    def info(self, value: Value) -> TensorInfo | None:
        """The type of a tensor; None for anything else."""
        return self._type_of(value) if isinstance(value, torch.Tensor) else None

    def info_of_item(self, item: Value) -> TensorInfo | None:
        """The type of what a turn adds to a list, with ``SIZE`` for a size that differs from turn to turn; None for what is no tensor."""
        info = self.info(stacked(item) if type(item) is Turns else item)
        if info is None:
            return None
        return replace(info, dims=tuple(SIZE if self.varies(size) else size for size in info.dims))

    def varies(self, size: DimLike) -> bool:
        """Return whether a size differs from turn to turn."""
        return bool(_symbols(size) & ({str(TURN)} | self._own()))

    def _type_of(self, value: torch.Tensor) -> TensorInfo:
        info: TensorInfo = at_turn(tensor_info(value), TURN, self._index)
        return info

    def _own(self) -> frozenset[str]:
        """Symbols that only the turn knows."""
        return self._loop.tracer.sizes.unbacked - self._loop.known_before  # type: ignore[no-any-return]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | torch.SymInt | DataNumber) and type(value) is not bool


def kind_of(value: object) -> type:
    return torch.Tensor if isinstance(value, torch.Tensor | int | float | torch.SymInt | DataNumber) else type(value)


def name_of(value: object) -> str:
    return "nothing" if value is MISSING else type(value).__name__


@dataclass(eq=False)
class ListState:
    """A list of which turns hand on all elements along the first axis of a tensor."""

    source: Remade
    carried: HandedOn
    is_number: bool
    """True if the elements are numbers of Python's."""
    marker: torch.Tensor | None = None
    is_plain: bool = False
    """True if the list was one of Python's before the turn."""

    @classmethod
    def found(cls, loop: Value, kinds: Kinds, one: Remade) -> ListState:
        """The state of a list that the turn has changed so."""
        before, items = [*one.before], [*list.__iter__(one.now())]
        whole = stacked(items or before)
        info = kinds.info(whole)
        assert info is not None
        if any(map(kinds.varies, info.dims[1:])):
            raise loop.loops.refused("a turn changes a list of tensors whose sizes differ from turn to turn")
        info = replace(info, dims=(loop.free_size(0, f"list {one.identity}"), *info.dims[1:]))
        start = (lambda: stacked(before)) if before else None
        return cls(one, HandedOn(info, whole.device, start), has_numbers(items or before))

    def begin(self, loops: Value) -> None:
        """The list has what the turns before left, of which only the type is known."""
        self.marker = loops.repeat(self.carried.given, self.is_number)
        if self.source.place is not None:
            put(self.source.place, Turns([self.marker]))
            return
        list.__setitem__(self.source.holder, slice(None), [self.marker])
        self.is_plain = type(self.source.holder) is list
        if self.is_plain:
            become(self.source.holder, Turns)

    def is_as_given(self) -> bool:
        """Return whether the list has what it had at the beginning of the turn."""
        return [*map(id, list.__iter__(self.source.now()))] == [id(self.marker)]

    def now(self, loop: Value) -> torch.Tensor:
        """All elements at this point of the turn."""
        found = self.source.now()
        if self.is_as_given():
            return self.carried.given  # type: ignore[no-any-return]
        whole = stacked(found) if list.__len__(found) else self.carried.given[:0]
        info, known = tensor_info(whole), self.carried.info
        if (info.dtype, info.dims[1:]) != (known.dtype, known.dims[1:]):
            raise loop.loops.refused("a turn changes a list of tensors of different types")
        return whole

    def items(self, loops: Value) -> list[torch.Tensor]:
        """The tensors that the turn has put into the list."""
        found = list.__iter__(self.source.now())
        return [one for one in found if isinstance(one, torch.Tensor) and id(one) not in loops.tracer.repeats]

    def leave(self) -> None:
        """The list is one of Python's again, if it was before the turn."""
        if self.is_plain:
            become(self.source.holder, list)
            self.is_plain = False

    def give(self, loops: Value, result: torch.Tensor) -> None:
        """The list has what the last turn left."""
        marker = loops.repeat(result, self.is_number)
        if self.source.place is not None:
            put(self.source.place, Turns([marker]))
            return
        list.clear(self.source.holder)
        loops.grow(self.source.holder, [marker], is_front=False)


def begin_of(size: object, turn: Dim) -> DimLike | None:
    """The beginning of the piece of a turn, if its ``size`` is ``begin(turn + 1) - begin(turn)`` with ``begin(turn) = min(step * turn + first,
    end)``; None for other sizes.
    """
    inner, limits = _without_limits(size)
    if not isinstance(inner, Dim) or inner.constant or len(inner.terms) != 2:
        return None
    atoms = {factor: monomial[0] for monomial, factor in inner.terms.items() if len(monomial) == 1}
    if atoms.keys() != {1, -1}:
        return None
    found, following = _line(atoms[-1], turn), _line(atoms[1], turn)
    if found is None or following is None:
        return None
    (line, end), (next_line, next_end) = found, following
    (of_turn,) = turn.terms
    step = line.terms[of_turn]
    is_next = end == next_end and next_line == line + step and all(limit >= step for limit in limits)
    return apply("min", line, end) if type(step) is int and step > 0 and is_next else None  # type: ignore[return-value]


def simplest(size: DimLike, env: Value) -> DimLike:
    """A minimum of which it is known which argument it is."""
    atom = size.only_atom() if isinstance(size, Dim) else None
    if atom is not None and atom.op == "min" and len(atom.args) == 2:
        for less, more in (atom.args, atom.args[::-1]):
            if env.certain("le", less, more) or env.certain("le", less, _at_least(more)):
                return less  # type: ignore[return-value]
    return size


def _at_least(size: Value) -> Value:
    """A bound of the size: with an expression in the place of its maximum with a number."""
    for monomial, factor in size.terms.items() if isinstance(size, Dim) else ():
        parts = [arg for arg in monomial[0].args if isinstance(arg, Dim)] if monomial[0].op == "max" else []
        if len(monomial) == 1 and factor > 0 and len(parts) == 1:
            return size - Dim({monomial: factor}) + parts[0] * factor
    return size


def _without_limits(size: object) -> tuple[object, list[int]]:
    """The expression inside of ``max(..., 0)`` and of minima with numbers, and these numbers."""
    limits: list[int] = []
    while isinstance(size, Dim) and (atom := size.only_atom()) is not None and atom.op in ("min", "max"):
        numbers = [arg for arg in atom.args if type(arg) is int]
        rest = [arg for arg in atom.args if type(arg) is not int]
        if len(rest) != 1 or len(numbers) != 1 or (atom.op == "max" and numbers[0] > 0):
            break
        limits += numbers if atom.op == "min" else []
        size = rest[0]
    return size, limits


def _line(atom: Atom, turn: Dim) -> tuple[Dim, DimLike] | None:
    """The argument of a minimum that grows by a number from turn to turn, and the one that does not change."""
    args = dict.fromkeys(_arguments(atom)) if atom.op == "min" else {}
    moving = [arg for arg in args if isinstance(arg, Dim) and str(turn) in arg.symbols()]
    fixed = [arg for arg in args if arg not in moving]
    if len(moving) != 1 or len(fixed) != 1 or not turn.terms.keys() <= moving[0].terms.keys():
        return None
    return moving[0], fixed[0]


def _arguments(atom: Atom) -> list[Value]:
    """The arguments of a minimum and of minima within it."""
    found: list[Value] = []
    for arg in atom.args:
        inner = arg.only_atom() if isinstance(arg, Dim) else None
        found += _arguments(inner) if inner is not None and inner.op == "min" else [arg]
    return found
