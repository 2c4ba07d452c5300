"""Symbolic sizes: integer (and, on the way, real) expressions over named dims.

A ``Dim`` is a polynomial with number coefficients over atoms; an atom is a named symbol or an operation that
polynomials cannot express (``floordiv``, ``mod``, ``max``, ...). Equal polynomials are equal objects by ``==`` and
hash, so ``(s + 1) * 2 == 2 * s + 2``. Arithmetic returns a plain number as soon as no symbol is left.
"""

from __future__ import annotations

import functools
import math
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias, Union

from fx2onnx.sizes.functions import INFIX, REAL_OF_REAL, REAL_OPS, Number, Undefined, dyadic, evaluated

DimLike: TypeAlias = Union[int, "Dim"]
Scalar: TypeAlias = Union[int, float, "Dim"]
Monomial: TypeAlias = tuple["Atom", ...]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Atom:
    """A symbol (``op == "symbol"``, one argument: its name) or an operation over expressions. Made by ``atom_of``."""

    op: str
    args: tuple[str | int | float | Dim, ...]
    text: str = field(init=False, compare=False, repr=False)
    is_real: bool = field(init=False, compare=False, repr=False)
    symbols: frozenset[str] = field(init=False, compare=False, repr=False)
    depth: int = field(init=False, compare=False, repr=False)
    """How many operations lie inside each other; 0 for a symbol."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        is_real = self.op in REAL_OPS or (self.op in REAL_OF_REAL and any(map(is_real_number, self.args)))
        object.__setattr__(self, "text", self._text())
        object.__setattr__(self, "is_real", is_real)
        inner = [atom for arg in self.args if isinstance(arg, Dim) for atom in arg.atoms()]
        own = frozenset([str(self.args[0])]) if self.op == "symbol" else frozenset()
        object.__setattr__(self, "symbols", own.union(*(atom.symbols for atom in inner)))
        object.__setattr__(self, "depth", 0 if own else 1 + max((atom.depth for atom in inner), default=0))
        object.__setattr__(self, "_hash", hash((self.op, self.args)))

    def _text(self) -> str:
        if self.op == "symbol":
            return str(self.args[0])
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
        """Whether the expression is a real number rather than an integer."""

    @staticmethod
    def symbol(name: str) -> Dim:
        return Dim({(atom_of("symbol", (name,)),): 1})

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Dim, (self.terms, self.constant)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.constant == other.constant and self.terms == other.terms

    # -- arithmetic ---------------------------------------------------------------------------------------------
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
        return _make(terms, self.constant + other.constant)

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
            return _make({m: f * other for m, f in self.terms.items()}, self.constant * other)
        terms: dict[Monomial, Number] = {}
        for left, left_factor in self._all_terms():
            for right, right_factor in other._all_terms():
                monomial = tuple(sorted(left + right, key=_text_of))
                terms[monomial] = terms.get(monomial, 0) + left_factor * right_factor
        constant = terms.pop((), 0)
        return _make({m: f for m, f in terms.items() if f}, constant)

    __rmul__ = __mul__

    def __floordiv__(self, other: Scalar) -> Scalar:
        return apply("floordiv", self, other)

    def __rfloordiv__(self, other: Scalar) -> Scalar:
        return apply("floordiv", other, self)

    def __mod__(self, other: Scalar) -> Scalar:
        return apply("mod", self, other)

    def __rmod__(self, other: Scalar) -> Scalar:
        return apply("mod", other, self)

    # -- looking ------------------------------------------------------------------------------------------------
    def _all_terms(self) -> Iterator[tuple[Monomial, Number]]:
        yield from self.terms.items()
        if self.constant:
            yield (), self.constant

    def as_symbol(self) -> str | None:
        """The name, if the expression is one bare symbol."""
        if self.constant == 0 and len(self.terms) == 1:
            ((monomial, factor),) = self.terms.items()
            if factor == 1 and len(monomial) == 1 and monomial[0].op == "symbol":
                return monomial[0].text
        return None

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
        """Whether the expression equals ``value`` at these sizes of the symbols; False where it is undefined."""
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
                name = str(inner.args[0])
                self[inner] = self._sizes[name] if name in self._sizes else Dim({(inner,): 1})
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


def _make(terms: dict[Monomial, Number], constant: Number) -> Scalar:
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
    if op in ("floordiv", "truediv"):
        quotient = _exact_quotient(args[0], args[1])
        if quotient is not None and (op == "floordiv" or isinstance(quotient, Dim)):
            return quotient if op == "floordiv" else apply("float", quotient)
    if op in ("floordiv", "mod"):
        whole, rest = _multiples(args[0], args[1])
        if whole != 0:
            return whole + apply(op, rest, args[1]) if op == "floordiv" else apply(op, rest, args[1])
        common = _common_factor(args[0], args[1])
        if common:
            reduced = apply(op, *(_over(arg, common) for arg in args))
            return reduced if op == "floordiv" else Dim({common: 1}) * reduced
        shared, left_over = _common_sum(*args)
        if shared is not None:
            reduced = apply(op, *left_over)
            return reduced if op == "floordiv" else shared * reduced
        times = _common_number(args[0], args[1])
        if times > 1:
            less, left = _divided(args[0], times)
            reduced = apply(op, less, args[1] // times)
            return reduced if op == "floordiv" else times * reduced + left
    if op == "pow" and args[1] == 0.5:
        return apply("sqrt", args[0])
    if op == "mod":
        if args[0] == 0:
            return 0
        args = (_without_inner_remainders(args[0], args[1]), args[1])
        if _exact_quotient(args[0], args[1]) is not None:
            return 0
        if not any(isinstance(arg, Dim) for arg in args):
            return evaluated(op, *args)  # type: ignore[arg-type]
    if op in ("max", "min"):
        if args[0] == args[1]:
            return args[0]
        gap = args[0] - args[1]
        if not isinstance(gap, Dim):
            return args[0] if (gap > 0) == (op == "max") else args[1]
        low, high = _bounds(gap)
        if low is not None and (low >= 0 or high <= 0):
            return args[0] if (low >= 0) == (op == "max") else args[1]
    if op in ("floor", "ceil") and isinstance(args[0], Dim) and args[0].is_real and is_small_fraction(args[0]):
        whole, rest = _whole_part(args[0])
        if whole != 0:
            return whole + apply(op, rest)
    if op in ("floor", "ceil", "trunc", "round") and isinstance(args[0], Dim):
        rounded = _rounded(op, args[0])
        if rounded is not None:
            return rounded
    if op == "float" and is_real_number(args[0]):
        return args[0]
    return Dim({(atom_of(op, args),): 1})


def _common_number(top: Scalar, bottom: Scalar) -> int:
    """What divides the factors of ``top`` and the number ``bottom``: 2 of ``(2*n + 5) // 8``, which is ``(n + 2) // 4``."""
    if type(bottom) is not int or bottom < 2 or not isinstance(top, Dim) or type(top.constant) is not int:
        return 1
    found = bottom
    for factor in top.terms.values():
        if type(factor) is not int:
            return 1
        found = math.gcd(found, factor)
    return found


def _divided(value: Scalar, times: int) -> tuple[Scalar, int]:
    """The quotient of a sum whose factors ``times`` divides, and what is left."""
    assert isinstance(value, Dim)
    assert isinstance(value.constant, int)
    quotient, left = divmod(value.constant, times)
    return _make({monomial: factor // times for monomial, factor in value.terms.items()}, quotient), left


_MOST_QUOTIENTS = 8


def _bounds(value: Dim) -> tuple[int, int] | tuple[None, float]:
    """The least and the largest value where only remainders are left: 0 and 1 of ``-n - 2*((-n) // 2)``."""
    low = high = 0
    rest: Scalar = value
    for _ in range(_MOST_QUOTIENTS):
        if not isinstance(rest, Dim) or rest.is_real:
            break
        found = next((item for item in rest.terms.items() if _is_quotient_of_number(*item)), None)
        if found is None:
            break
        ((atom,), factor) = found
        top, bottom = atom.args
        times: int = factor // bottom  # type: ignore[assignment,operator]
        spread = -times * (int(bottom) - 1)  # type: ignore[arg-type]
        low, high = low + min(spread, 0), high + max(spread, 0)
        rest = rest - factor * Dim({(atom,): 1}) + times * top  # type: ignore[operator]
    return (low + rest, high + rest) if isinstance(rest, int) else (None, math.inf)


def _is_quotient_of_number(monomial: Monomial, factor: Number) -> bool:
    """Whether it is a whole number of times ``k * (v // k)``, which is ``v`` less a remainder."""
    if len(monomial) != 1 or monomial[0].op != "floordiv" or type(factor) is not int:
        return False
    bottom = monomial[0].args[1]
    return type(bottom) is int and bottom > 0 and factor % bottom == 0


def _whole_part(value: Dim) -> tuple[Scalar, Scalar]:
    """``whole, rest`` with ``value == whole + rest``: the terms that are integers, and the others."""
    whole: dict[Monomial, Number] = {
        monomial: factor
        for monomial, factor in value.terms.items()
        if isinstance(factor, int) and not any(atom.is_real for atom in monomial)
    }
    rest = {monomial: factor for monomial, factor in value.terms.items() if monomial not in whole}
    is_whole = isinstance(value.constant, int)
    return _make(whole, value.constant if is_whole else 0), _make(rest, 0 if is_whole else value.constant)


def _rounded(op: str, value: Dim) -> Scalar | None:
    """``value`` rounded, in integers; None where that is not found."""
    if not value.is_real:
        return value
    inner = value.only_atom()
    if inner is not None and inner.op == "float":
        return inner.args[0]  # type: ignore[return-value]
    if op == "round":
        return None
    if inner is not None and inner.op == "log2" and not is_real_number(inner.args[0]):
        size: Scalar = inner.args[0]  # type: ignore[assignment]
        return apply("bit_length", size - 1 if op == "ceil" else apply("floordiv", size, 2))
    top, bottom = fraction(value)
    if bottom is None or (op == "trunc" and not _is_no_less_than_zero(top)):
        return None
    return apply("floordiv", top, bottom) if op != "ceil" else -apply("floordiv", -top, bottom)


MOST_DENOMINATOR = 1 << 10
"""Of a fraction: sizes times larger numbers might not be exact as real numbers."""


def fraction(value: Dim) -> tuple[Scalar, Scalar | None]:
    """``top, bottom`` of a quotient of integers, or of a polynomial with real coefficients that are exact fractions; None where
    they are not. ``0.5*n + 0.25`` is ``2*n + 1`` divided by 4, at every size and without a rounding error.
    """
    inner = value.only_atom()
    if inner is not None and inner.op == "truediv":
        top, bottom = inner.args
        return (value, None) if is_real_number(top) or is_real_number(bottom) else (top, bottom)  # type: ignore[return-value]
    return _polynomial_fraction(value)


def is_small_fraction(value: Scalar) -> bool:
    """Whether the expression is exact in float64 in any order of operations: its coefficients are small binary fractions."""
    if isinstance(value, Dim):
        return _polynomial_fraction(value)[1] is not None
    return isinstance(value, int) or (math.isfinite(value) and dyadic(value)[1] <= MOST_DENOMINATOR)


def _polynomial_fraction(value: Dim) -> tuple[Scalar, int | None]:
    terms: dict[Monomial, tuple[int, int]] = {}
    for monomial, factor in value.terms.items():
        plain = [_integer_of(atom) for atom in monomial]
        if None in plain or (isinstance(factor, float) and not math.isfinite(factor)):
            return value, None
        terms[monomial] = dyadic(factor)
    constant = dyadic(value.constant)
    bottom = math.lcm(constant[1], *(below for _, below in terms.values()))
    if bottom > MOST_DENOMINATOR:
        return value, None
    top: Scalar = constant[0] * (bottom // constant[1])
    for monomial, (above, below) in terms.items():
        part: Scalar = above * (bottom // below)
        for atom in monomial:
            part = part * _integer_of(atom)  # type: ignore[operator]
        top = top + part
    return top, bottom


def _integer_of(atom: Atom) -> Scalar | None:
    """The integer that an atom is, as a real number or not."""
    if atom.op == "float":
        return atom.args[0]  # type: ignore[return-value]
    return None if atom.is_real else Dim({(atom,): 1})


def is_real_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, Dim) and value.is_real)


def _exact_quotient(top: Scalar, bottom: Scalar) -> Scalar | None:
    """``top / bottom`` where every term divides without remainder, whatever the sizes; else None."""
    if is_real_number(top) or is_real_number(bottom):
        return None
    quotient = _quotient(top, bottom)
    if quotient is None:
        pair = without_remainders(top), without_remainders(bottom)
        quotient = None if pair == (top, bottom) else _quotient(*pair)
    return quotient


def _common_factor(top: Scalar, bottom: Scalar) -> Monomial:
    """The atoms that stand in every term of both: ``n`` in ``(n*m) // (4*n)``, which is ``m // 4`` unless it is a division by 0."""
    if not isinstance(top, Dim) or not isinstance(bottom, Dim) or top.constant or bottom.constant:
        return ()
    if top.is_real or bottom.is_real:
        return ()
    first, *others = (*top.terms, *bottom.terms)
    shared = list(first)
    for monomial in others:
        left = list(monomial)
        kept = []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        shared = kept
    return tuple(shared)


def _over(value: Scalar, common: Monomial) -> Scalar:
    """``value`` without the atoms of ``common``, which all of its terms have."""
    assert isinstance(value, Dim)
    total: Scalar = 0
    for monomial, factor in value.terms.items():
        rest = list(monomial)
        for atom in common:
            rest.remove(atom)
        total = total + (Dim({tuple(rest): factor}) if rest else factor)
    return total


def _common_sum(top: Scalar, bottom: Scalar) -> tuple[Dim | None, tuple[Scalar, Scalar]]:
    """A sum that is in both, and the two without it: ``n - k`` in ``(m*n - m*k) // (4*n - 4*k)``, which is ``m // 4``."""
    if isinstance(top, Dim) and isinstance(bottom, Dim) and len(bottom.terms) + bool(bottom.constant) > 1:
        factors = [factor for _, factor in bottom._all_terms()]
        times = math.gcd(*factors) if all(type(factor) is int for factor in factors) else 1  # type: ignore[arg-type]
        shared = _quotient(bottom, times) if times > 1 else None
        quotient = None if shared is None or top.is_real else _quotient(top, shared)
        if isinstance(shared, Dim) and quotient is not None:
            return shared, (quotient, times)
    return None, (top, bottom)


def _is_no_less_than_zero(value: Scalar) -> bool:
    """Whether it is a sum of sizes; numbers that the data gives (``u0``) may be less."""
    if not isinstance(value, Dim):
        return value >= 0
    are_sizes = all(atom.op == "symbol" and not OF_DATA.fullmatch(atom.text) for atom in value.atoms())
    return are_sizes and all(factor >= 0 for _, factor in value._all_terms())


OF_DATA = re.compile(r"u[0-9]+")


def _multiples(top: Scalar, bottom: Scalar) -> tuple[Scalar, Scalar]:
    """``whole, rest`` with ``top == bottom * whole + rest``: the terms that a plain number divides, and the others."""
    if not isinstance(top, Dim) or not isinstance(bottom, int) or bottom <= 0 or is_real_number(top):
        return 0, top
    divided = {monomial: factor for monomial, factor in top.terms.items() if factor % bottom == 0}
    rest = _make({m: f for m, f in top.terms.items() if m not in divided}, top.constant % bottom)
    return _make({m: f // bottom for m, f in divided.items()}, top.constant // bottom), rest


def _quotient(top: Scalar, bottom: Scalar) -> Scalar | None:
    """By a sum, by long division: ``(2*s*s + 4*s + 2) // (2*s + 2) -> s + 1``."""
    if not isinstance(top, Dim) or bottom == 0:
        return None
    if not isinstance(bottom, Dim):
        divides = all(factor % bottom == 0 for _, factor in top._all_terms())
        return _make({m: f // bottom for m, f in top.terms.items()}, top.constant // bottom) if divides else None
    lead, lead_factor = max(bottom.terms.items(), key=_rank)
    quotient: Scalar = 0
    rest: Scalar = top
    while isinstance(rest, Dim):
        monomial, factor = max(rest.terms.items(), key=_rank)
        others = list(monomial)
        for atom in lead:
            if atom not in others:
                return None
            others.remove(atom)
        if factor % lead_factor:
            return None
        part: Scalar = Dim({tuple(others): factor // lead_factor}) if others else factor // lead_factor
        quotient, rest = quotient + part, rest - part * bottom
    return quotient if rest == 0 else None


def _rank(term: tuple[Monomial, Number]) -> tuple[int, list[str]]:
    """An order of monomials that products keep, so that each step of a division leaves lower ones."""
    return len(term[0]), [atom.text for atom in term[0]]


def _without_inner_remainders(value: Scalar, divisor: Scalar) -> Scalar:
    """What leaves the same remainder: ``-n`` for ``4 - n % 4`` divided by 4."""
    if not isinstance(value, Dim) or type(divisor) is not int or divisor == 0 or value.is_real:
        return value
    inner = [
        (atom, factor)
        for (atom, *others), factor in value.terms.items()
        if not others and atom.op == "mod" and type(atom.args[1]) is int and atom.args[1] % divisor == 0
    ]
    if not inner:
        return value
    for atom, factor in inner:
        value = value + factor * (atom.args[0] - Dim({(atom,): 1}))  # type: ignore[operator]
    constant = value.constant if isinstance(value, Dim) else value
    return value - constant + constant % divisor


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
