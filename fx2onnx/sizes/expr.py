"""Symbolic sizes: integer (and, on the way, real) expressions over named dims.

A ``Dim`` is a polynomial with number coefficients over atoms; an atom is a named symbol or an operation that
polynomials cannot express (``floordiv``, ``mod``, ``max``, ...). Equal polynomials are equal objects by ``==`` and
hash, so ``(s + 1) * 2 == 2 * s + 2``. Arithmetic returns a plain number as soon as no symbol is left.
"""

from __future__ import annotations

import bisect
import functools
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias, Union

Number: TypeAlias = int | float

MOST_SMOOTH = 1 << 31


@functools.cache
def smooth_numbers(greatest: int) -> tuple[int, ...]:
    """The numbers from 1 to above ``MOST_SMOOTH`` whose prime factors are not above ``greatest``, in order."""
    found = [1]
    for prime in (2, 3, 5, 7, 11):
        for number in found if prime <= greatest else ():  # which grows
            if number <= MOST_SMOOTH:
                found.append(number * prime)
    return tuple(sorted(found))


def next_smooth(number: int, greatest: int) -> int:
    """The least of ``smooth_numbers`` from ``number`` on: Fourier transforms of that length are fast."""
    numbers = smooth_numbers(greatest)
    place = bisect.bisect_left(numbers, number)
    if place == len(numbers):
        raise OverflowError(f"{number} is above {MOST_SMOOTH}")
    return numbers[place]


EVALUATE: dict[str, Callable[..., Number]] = {
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": max, "min": min, "truediv": lambda a, b: a / b,
    "pow": lambda a, b: a**b, "sqrt": math.sqrt, "float": float, "real": float, "floor": math.floor, "ceil": math.ceil,
    "trunc": math.trunc, "round": round, "abs": abs, "bitand": operator.and_,
    "bit_length": lambda a: int(a).bit_length(), "log2": math.log2, "log10": math.log10, "log": math.log,
    "exp": math.exp, "sin": math.sin, "cos": math.cos, "tanh": math.tanh, "atan": math.atan, "next_smooth": next_smooth,
}  # fmt: skip


class Undefined(ZeroDivisionError):
    """An operation has no value for these numbers: ``1 / 0``, ``sqrt(-1)``, ``exp(1000)``."""


def evaluated(op: str, *args: Number) -> Number:
    """``op`` of plain numbers. Raises Undefined."""
    try:
        value = EVALUATE[op](*args)
    except (ArithmeticError, ValueError) as error:
        raise Undefined(f"{op} of {', '.join(map(str, args))}: {error}") from error
    if isinstance(value, complex):
        raise Undefined(f"{op} of {', '.join(map(str, args))} is no real number")
    return value


INFIX = {"floordiv": " // ", "mod": " % ", "truediv": " / ", "pow": " ** "}
APPROXIMATE = frozenset({"log2", "log10", "log", "exp", "sin", "cos", "tanh", "atan"})
"""Real functions whose last bit may differ between two libraries: what rounds such a value is not exact at every size."""
REAL_OPS = APPROXIMATE | {"truediv", "sqrt", "float", "real"}
"""``real`` is a real number as it was rounded, whose terms further arithmetic leaves together."""
REAL_OF_REAL = frozenset({"pow", "floordiv", "mod", "max", "min", "abs"})
"""Operations that are real numbers where an operand is."""
ARITY = {
    op: 2 if op in ("floordiv", "mod", "max", "min", "truediv", "pow", "bitand", "next_smooth") else 1
    for op in EVALUATE
}


def dyadic(number: Any) -> tuple[int, int]:
    """``number`` as a fraction whose denominator is a power of two; every real number of a computer is one."""
    return (number, 1) if isinstance(number, int) else number.as_integer_ratio()


DimLike: TypeAlias = Union[int, "Dim"]
Scalar: TypeAlias = Union[int, float, "Dim"]
Monomial: TypeAlias = tuple["Atom", ...]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Atom:
    """An operation over expressions, or what has none inside it: a ``symbol``, which is a size by its name, or an
    ``unbacked`` (data-dependent) number, by its number in the run. Made by ``atom_of``.
    """

    op: str
    args: tuple[str | int | float | Dim, ...]
    text: str = field(init=False, compare=False, repr=False)
    is_real: bool = field(init=False, compare=False, repr=False)
    symbols: frozenset[str] = field(init=False, compare=False, repr=False)
    """The texts of the symbols and unbacked numbers in it."""
    unbacked: frozenset[str] = field(init=False, compare=False, repr=False)
    """The texts of the unbacked numbers in it."""
    depth: int = field(init=False, compare=False, repr=False)
    """The depth of nested operations; 0 for a symbol and an unbacked number."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        is_real = self.op in REAL_OPS or (self.op in REAL_OF_REAL and any(map(is_real_number, self.args)))
        object.__setattr__(self, "text", self._text())
        object.__setattr__(self, "is_real", is_real)
        inner = [atom for arg in self.args if isinstance(arg, Dim) for atom in arg.atoms()]
        own = frozenset([self.text]) if self.op in ("symbol", "unbacked") else frozenset()
        object.__setattr__(self, "symbols", own.union(*(atom.symbols for atom in inner)))
        unbacked = own if self.op == "unbacked" else frozenset()
        object.__setattr__(self, "unbacked", unbacked.union(*(atom.unbacked for atom in inner)))
        object.__setattr__(self, "depth", 0 if own else 1 + max((atom.depth for atom in inner), default=0))
        object.__setattr__(self, "_hash", hash((self.op, self.args)))

    def _text(self) -> str:
        if self.op == "symbol":
            return str(self.args[0])
        if self.op == "unbacked":
            return f"u{self.args[0]}"
        if self.op in INFIX:
            return f"({INFIX[self.op].join(_parenthesised(arg) for arg in self.args)})"
        return f"{self.op}({', '.join(map(str, self.args))})"

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return atom_of, (self.op, self.args)  # hashes of texts differ between processes

    def __str__(self) -> str:
        return self.text


_ATOMS: weakref.WeakValueDictionary[tuple[object, ...], Atom] = weakref.WeakValueDictionary()
"""Equal atoms are one: two expressions of a thousand operations inside each other are compared by their outermost."""


def atom_of(op: str, args: tuple[str | int | float | Dim, ...]) -> Atom:
    """The atom. ``2`` and ``2.0`` are equal and make different ones."""
    key = (op, args, tuple(map(is_real_number, args)))
    atom = _ATOMS.get(key)
    if atom is None:
        atom = _ATOMS[key] = Atom(op, args)
    return atom


_text_of = attrgetter("text")


def _parenthesised(arg: object) -> str:
    return f"({arg})" if isinstance(arg, Dim) and arg.only_atom() is None else str(arg)


class Dim:
    """A non-constant expression over named sizes. Build with ``Dim.symbol`` and arithmetic."""

    __slots__ = ("_hash", "_text", "constant", "is_real", "terms")

    def __init__(self, terms: Mapping[Monomial, Number], constant: Number = 0) -> None:
        self.terms: dict[Monomial, Number] = dict(terms)
        self.constant = constant
        self._hash = hash((frozenset(self.terms.items()), constant))
        self._text: str | None = None
        self.is_real = isinstance(constant, float) or any(
            isinstance(factor, float) or any(atom.is_real for atom in monomial)
            for monomial, factor in self.terms.items()
        )
        """True if the expression is a real number rather than an integer."""

    @staticmethod
    def symbol(name: str) -> Dim:
        """The size of that name, a number that is not below 0."""
        return Dim({(atom_of("symbol", (name,)),): 1})

    @staticmethod
    def unbacked(number: int) -> Dim:
        """A data-dependent number, of either sign, written ``u0``."""
        return Dim({(atom_of("unbacked", (number,)),): 1})

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (self.terms, self.constant)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.constant == other.constant and self.terms == other.terms

    def __add__(self, other: Scalar) -> Scalar:
        if not isinstance(other, Dim):
            return self if other == 0 and isinstance(other, int) else Dim(self.terms, self.constant + other)
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            total = terms.get(monomial, 0) + factor
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return dim_of(terms, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Dim({monomial: -factor for monomial, factor in self.terms.items()}, -self.constant)

    def __sub__(self, other: Scalar) -> Scalar:
        return self + (-other)

    def __rsub__(self, other: Scalar) -> Scalar:
        return -self + other

    def __mul__(self, other: Scalar) -> Scalar:
        if not isinstance(other, Dim):
            if other == 0 and isinstance(other, int):
                return 0
            return dim_of({m: f * other for m, f in self.terms.items()}, self.constant * other)
        terms: dict[Monomial, Number] = {}
        for left, left_factor in self.all_terms():
            for right, right_factor in other.all_terms():
                monomial = tuple(sorted(left + right, key=_text_of))
                terms[monomial] = terms.get(monomial, 0) + left_factor * right_factor
        constant = terms.pop((), 0)
        return dim_of({m: f for m, f in terms.items() if f}, constant)

    __rmul__ = __mul__

    def __floordiv__(self, other: Scalar) -> Scalar:
        return apply("floordiv", self, other)

    def __rfloordiv__(self, other: Scalar) -> Scalar:
        return apply("floordiv", other, self)

    def __mod__(self, other: Scalar) -> Scalar:
        return apply("mod", self, other)

    def __rmod__(self, other: Scalar) -> Scalar:
        return apply("mod", other, self)

    def all_terms(self) -> Iterator[tuple[Monomial, Number]]:
        """The terms and the constant, which has no atoms."""
        yield from self.terms.items()
        if self.constant:
            yield (), self.constant

    def as_symbol(self) -> str | None:
        """The name, if the expression is one bare symbol or unbacked number."""
        atom = self.only_atom()
        return atom.text if atom is not None and not atom.depth else None

    def only_atom(self) -> Atom | None:
        """The atom, if the expression is one and nothing else."""
        if self.constant == 0 and len(self.terms) == 1:
            ((monomial, factor),) = self.terms.items()
            if factor == 1 and len(monomial) == 1:
                return monomial[0]
        return None

    def atoms(self) -> Iterator[Atom]:
        """The atoms of every term."""
        for monomial in self.terms:
            yield from monomial

    def symbols(self) -> frozenset[str]:
        sets = [atom.symbols for monomial in self.terms for atom in monomial]
        return sets[0] if len(sets) == 1 else frozenset().union(*sets)

    def unbacked_symbols(self) -> frozenset[str]:
        """The texts of the unbacked (data-dependent) numbers in the expression."""
        return frozenset().union(*(atom.unbacked for atom in self.atoms()))

    def leaf(self, name: str) -> Dim:
        """The symbol or the unbacked number of this name, which is in the expression."""
        atoms = (
            atom for outer in self.atoms() if name in outer.symbols for atom in innermost_first(Dim({(outer,): 1}))
        )
        return next(Dim({(atom,): 1}) for atom in atoms if not atom.depth and atom.text == name)

    @property
    def free_symbols(self) -> frozenset[object]:
        """None: torch asks an expression for the symbols of sympy in it."""
        return frozenset()

    def evaluate(self, sizes: Mapping[str, int]) -> Number:
        """The value where every symbol has the given size. Raises KeyError for an unbound symbol."""
        return evaluate(self.substitute(sizes), {})

    def substitute(self, sizes: Mapping[str, Scalar]) -> Scalar:
        """The expression with symbols replaced by numbers or other expressions. Raises Undefined."""
        return self.with_atoms(_Substitution(sizes).__getitem__)

    def is_at(self, sizes: Mapping[str, Scalar], value: Scalar) -> bool:
        """Return whether the expression equals ``value`` at these sizes of the symbols; False where it is undefined."""
        try:
            return self.substitute(sizes) == value
        except Undefined:
            return False

    def with_atoms(self, value_of: Callable[[Atom], Scalar]) -> Scalar:
        """The expression with each atom replaced by its value."""
        total: Scalar = self.constant
        for monomial, factor in self.terms.items():
            product: Scalar = factor
            for atom in monomial:
                product = product * value_of(atom)
            total = total + product
        return total

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._written()
        return self._text

    def _written(self) -> str:
        parts: list[str] = []
        products = [("*".join(map(_text_of, monomial)), factor) for monomial, factor in self.terms.items()]
        for product, factor in sorted(products):
            sign = "-" if factor < 0 else "+"
            body = product if abs(factor) == 1 else f"{abs(factor)}*{product}"
            parts.append(f"{sign} {body}")
        if self.constant:
            parts.append(f"{'-' if self.constant < 0 else '+'} {abs(self.constant)}")
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]

    __repr__ = __str__


DEEP = 20
"""Operations inside each other; more are gone through from the innermost outwards, not by functions that call themselves."""


class _Substitution(dict[Atom, Scalar]):
    """The values of atoms where symbols are replaced by ``sizes``, each found once."""

    def __init__(self, sizes: Mapping[str, Scalar]) -> None:
        super().__init__()
        self._sizes = sizes

    def __missing__(self, atom: Atom) -> Scalar:
        for inner in innermost_first(Dim({(atom,): 1}), self.__contains__) if atom.depth > DEEP else (atom,):
            if inner.depth:
                args = [arg.with_atoms(self.__getitem__) if isinstance(arg, Dim) else arg for arg in inner.args]
                self[inner] = apply(inner.op, *args)  # type: ignore[arg-type]
            else:
                self[inner] = self._sizes[inner.text] if inner.text in self._sizes else Dim({(inner,): 1})
        return self[atom]


def innermost_first(dim: Dim, is_known: Callable[[Atom], bool] = lambda atom: False) -> list[Atom]:
    """The atoms of ``dim`` and those inside them, each after all that are inside it, save what ``is_known``."""
    ordered: dict[Atom, None] = {}
    pending = [atom for atom in dim.atoms() if not is_known(atom)]
    while pending:
        atom = pending[-1]
        if atom in ordered:
            pending.pop()
            continue
        inside = [part for arg in atom.args if isinstance(arg, Dim) for part in arg.atoms()] if atom.depth else []
        missing = [part for part in inside if part not in ordered and not is_known(part)]
        if missing:
            pending += missing
        else:
            ordered[atom] = None
            pending.pop()
    return list(ordered)


def dim_of(terms: dict[Monomial, Number], constant: Number) -> Scalar:
    """The expression, or the plain number where there are no terms."""
    return Dim(terms, constant) if terms else constant


def apply(op: str, *args: Scalar) -> Scalar:
    """``op`` of ``args``, simplified where that is exact: ``(4*s) // 2 -> 2*s``, ``(4*s) % 2 -> 0``."""
    if not any(isinstance(arg, Dim) for arg in args):
        return evaluated(op, *args)  # type: ignore[arg-type]
    return _simplified(op, args, tuple(map(is_real_number, args)))


MOST_REMEMBERED = 1 << 14
"""Operations: runs of one module for several branches ask for the same."""


@functools.lru_cache(MOST_REMEMBERED)
def _simplified(op: str, args: tuple[Scalar, ...], _are_real: tuple[bool, ...]) -> Scalar:
    """``2`` and ``2.0`` are equal, and results of real numbers others."""
    for rule in RULES.get(op, ()):
        found = rule(*args)
        if found is not None:
            return found
    return Dim({(atom_of(op, args),): 1})


RULES: dict[str, tuple[Callable[..., Scalar | None], ...]] = {}
"""Rules that say an operation more simply, in order: the first that does not give None. ``rules.py`` is the table."""


def is_real_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, Dim) and value.is_real)


def without_remainders(value: Scalar) -> Scalar:
    """``value`` with ``a - n * (a // n)`` for each ``a % n``: a size and what pads it to a multiple become that multiple."""
    if not isinstance(value, Dim) or not any(atom.op == "mod" for atom in value.atoms()):
        return value
    return value.with_atoms(_quotient_form)


def _quotient_form(atom: Atom) -> Scalar:
    if atom.op != "mod" or atom.is_real:
        return Dim({(atom,): 1})
    value, divisor = atom.args
    return value - divisor * apply("floordiv", value, divisor)  # type: ignore[arg-type, operator]


def rewritten(value: Scalar, rule: Callable[[Atom], Scalar | None]) -> Scalar:
    """``value`` with each atom that ``rule`` has a value for replaced by it, from the innermost outwards: the rule sees atoms
    whose own arguments are rewritten already.
    """
    if not isinstance(value, Dim):
        return value
    values: dict[Atom, Scalar] = {}

    def ruled(atom: Atom) -> Scalar:
        given = rule(atom)
        return Dim({(atom,): 1}) if given is None else given

    for atom in innermost_first(value):
        if atom.depth == 0:
            values[atom] = ruled(atom)
            continue
        args = [arg.with_atoms(values.__getitem__) if isinstance(arg, Dim) else arg for arg in atom.args]
        made = apply(atom.op, *args)  # type: ignore[arg-type]
        values[atom] = made.with_atoms(ruled) if isinstance(made, Dim) else made
    return value.with_atoms(values.__getitem__)


def evaluate(value: Scalar, sizes: Mapping[str, int]) -> Number:
    """The number that ``value`` is where every symbol has the given size."""
    if not isinstance(value, Dim):
        return value
    result = value.substitute(sizes)
    if isinstance(result, Dim):
        raise KeyError(f"no size for {', '.join(sorted(result.symbols()))}")
    return result


def product(dims: Iterator[DimLike] | tuple[DimLike, ...] | list[DimLike]) -> DimLike:
    """The product of sizes; 1 for none."""
    total: Scalar = 1
    for dim in dims:
        total = total * dim
    return total  # type: ignore[return-value]
