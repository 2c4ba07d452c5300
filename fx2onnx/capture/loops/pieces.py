"""Sizes of pieces that lie one behind the other, as in ``range(0, n, 4)``: those of all together have a formula."""

from __future__ import annotations

from fx2onnx.capture.python.held import Value
from fx2onnx.sizes.expr import Atom, Dim, DimLike, apply


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
