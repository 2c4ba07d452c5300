"""Sizes that a text names: the expressions that ``str(Dim)`` writes, read back.

    sum      = product {(+ | -) product}
    product  = factor {(* | // | / | %) factor}
    factor   = - factor | power
    power    = operand [** [-] NUMBER]
    operand  = NUMBER | NAME | u NUMBER | FUNCTION ( sum {, sum} ) | ( sum )

A file may hold any text as the name of a size. So nothing here is run as Python, and length, depth, numbers and the
polynomials that products make are bounded: any text is read in some milliseconds at most, or is no expression.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fx2onnx.sizes.expr import ARITY, Atom, Dim, Number, Scalar, apply, evaluate

MOST_CHARS = 1000
MOST_DEPTH = 30
"""Parentheses and signs inside each other."""
MOST_TERMS = 64
"""Terms of a polynomial, while it is read."""
MOST_DEGREE = 16
"""Sizes multiplied with each other, powers and what is nested included."""
MOST = 2**63
"""Numbers stay below."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|//|[-+*/%(),]))"
)
_ARITY = {op: count for op, count in ARITY.items() if op not in ("truediv", "pow")}
_ALIASES = {"Max": "max", "Min": "min", "FloorDiv": "floordiv", "Mod": "mod"}
"""Names of functions as PyTorch's exporter writes them."""
_DIVISIONS = {"//": "floordiv", "%": "mod", "/": "truediv"}
_NO_NUMBER = (ArithmeticError, ValueError, TypeError)
"""Errors of arithmetic without a result: a division by zero, a root of a negative number, complex numbers."""


UNBACKED = re.compile(r"u(0|[1-9][0-9]*)")
"""The text of a data-dependent number; no size has such a name."""


def named(name: str) -> Dim:
    """The size, or the unbacked number, that a file calls so."""
    written = UNBACKED.fullmatch(name)
    return Dim.symbol(name) if written is None else Dim.unbacked(int(written[1]))


class _NoExpression(ValueError):
    """The text is a name and nothing more."""


def parse_dim(text: str) -> int | Dim | None:
    """The size that ``text`` stands for; None where it is no expression, and so just a name.

    ``parse_dim(str(dim)) == dim`` within the bounds. Operations are kept as they are written, simplified or not.
    """
    try:
        value = _Reader(text).whole()
    except _NO_NUMBER:
        return None
    return None if isinstance(value, float) else value


def size_of(dim: int | Dim, sizes: Mapping[str, int]) -> int | None:
    """The size that a parsed ``dim`` has where symbols have ``sizes``; None where it has none: a fraction, less than 0."""
    value = integer_of(dim, sizes)
    return value if value is not None and value >= 0 else None


def integer_of(dim: int | Dim, sizes: Mapping[str, int]) -> int | None:
    """The integer that a parsed ``dim`` is there, of either sign; None where it is none."""
    try:
        value = evaluate(dim, sizes)
        integer = int(value)
    except (*_NO_NUMBER, KeyError):
        return None
    return integer if integer == value and -MOST < integer < MOST else None


@dataclass(frozen=True, slots=True)
class Root:
    """The one name in a size that is a multiple of it: ``factor * name + constant``."""

    name: str
    factor: int = 1
    constant: int = 0

    def size(self, whole: int) -> int:
        """The value of the name where the multiple is ``whole``, rounded down."""
        return (whole - self.constant) // self.factor


@functools.lru_cache(maxsize=1000)
def root_of(text: str) -> Root | None:
    """The root of ``frames`` or ``8*frames + 3``; None where the text is something else."""
    dim = parse_dim(text)
    if not isinstance(dim, Dim) or dim.is_real or len(dim.terms) != 1:
        return None
    ((monomial, factor),) = dim.terms.items()
    if len(monomial) != 1 or monomial[0].depth or factor < 1:
        return None
    return Root(monomial[0].text, int(factor), int(dim.constant))


class _Reader:
    """Recursive descent; a method for each line of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._degrees: dict[Atom, int] = {}

    def whole(self) -> Scalar:
        value = self._sum()
        if self._at < len(self._tokens):
            raise _NoExpression
        return value

    def _sum(self) -> Scalar:
        total = self._product()
        while sign := self._next("+", "-"):
            part = self._product()
            total = _bounded(total + part if sign == "+" else total - part)
        return total

    def _product(self) -> Scalar:
        total = self._factor()
        while sign := self._next("*", "//", "/", "%"):
            factor = self._factor()
            total = self._times(total, factor) if sign == "*" else self._applied(_DIVISIONS[sign], total, factor)
        return total

    def _factor(self) -> Scalar:
        if not self._next("-"):
            return self._power()
        self._enter()
        inner = -self._factor()
        self._depth -= 1
        return inner

    def _power(self) -> Scalar:
        base = self._operand()
        if not self._next("**"):
            return base
        sign = -1 if self._next("-") else 1
        return self._applied("pow", base, sign * _number(self._take()))

    def _operand(self) -> Scalar:
        token = self._take()
        if token == "(":
            self._enter()
            inner = self._sum()
            self._leave()
            return inner
        if token[0].isdigit():
            return _number(token)
        if not token.isidentifier():
            raise _NoExpression
        return self._call(token) if self._next("(") else named(token)

    def _call(self, name: str) -> Scalar:
        op = _ALIASES.get(name, name)
        self._enter()
        args = [self._sum()]
        while self._next(","):
            args.append(self._sum())
        self._leave()
        if len(args) != _ARITY.get(op):
            raise _NoExpression
        return self._applied(op, *args)

    def _take(self) -> str:
        if self._at == len(self._tokens):
            raise _NoExpression
        self._at += 1
        return self._tokens[self._at - 1]

    def _next(self, *wanted: str) -> str:
        """The next token where it is one of ``wanted``, else an empty text."""
        if self._at < len(self._tokens) and self._tokens[self._at] in wanted:
            return self._take()
        return ""

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise _NoExpression

    def _leave(self) -> None:
        self._depth -= 1
        if not self._next(")"):
            raise _NoExpression

    def _times(self, left: Scalar, right: Scalar) -> Scalar:
        if _count(left) * _count(right) > MOST_TERMS or self._degree(left) + self._degree(right) > MOST_DEGREE:
            raise _NoExpression
        return _bounded(left * right)

    def _applied(self, op: str, *args: Scalar) -> Scalar:
        degree = max(map(self._degree, args))
        if op == "pow":
            degree = max(degree, 1) * abs(args[1])  # type: ignore[arg-type, assignment]
        if degree > MOST_DEGREE:
            raise _NoExpression
        if not any(isinstance(arg, Dim) for arg in args):
            return _bounded(apply(op, *args))
        atom = Atom(op, args)
        self._degrees[atom] = degree
        return Dim({(atom,): 1})

    def _degree(self, value: Scalar) -> int:
        if not isinstance(value, Dim):
            return 0
        return max(sum(self._degrees.get(atom, 1) for atom in monomial) for monomial in value.terms)


def _tokens(text: str) -> list[str]:
    if len(text) > MOST_CHARS:
        raise _NoExpression
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            raise _NoExpression
        tokens.append(token[token.lastgroup or 0])
        at = token.end()
    return tokens


def _number(token: str) -> Number:
    number: Number = int(token) if token.isdecimal() else float(token)
    if number >= MOST:
        raise _NoExpression
    return number


def _count(value: Scalar) -> int:
    return len(value.terms) + 1 if isinstance(value, Dim) else 1


def _bounded(value: Scalar) -> Scalar:
    numbers = (value.constant, *value.terms.values()) if isinstance(value, Dim) else (value,)
    if len(numbers) > MOST_TERMS + 1 or not all(-MOST < number < MOST for number in numbers):
        raise _NoExpression
    return value
