"""Terms that the elements of values become: exact ones, and polynomials of real numbers.

In exact terms an operator is a name, so that two equal terms are equal bit for bit whatever the numbers are. In real terms values are
polynomials over symbols and over functions of polynomials. No code comes from the optimizer.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

UNIT = 2.0**-24
"""The share of a number that a rounding of float32 is."""


class Unproved(Exception):
    """The graph holds something that is not written out here; the text says what."""


class Exact:
    """Terms as numbers: equal keys are equal terms."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self._ids: dict[Any, int] = {}
        self.by_values = False
        """True if an equation was used that was checked on all values of 8-bit integers."""

    def term(self, *key: Any) -> int:
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.keys)
            self.keys.append(key)
        return found

    def symbol(self, name: str, place: int, dtype: str) -> int:
        return self.term("symbol", name, place, dtype)

    def constant(self, number: Any) -> int:
        return self.term("constant", np.asarray(number).tobytes(), str(np.asarray(number).dtype))

    def element(self, op: str, key: Any, args: Sequence[Any]) -> int:
        if op in ("Max", "Relu") and all(isinstance(arg, int) for arg in args):  # a maximum of maxima
            zero = [self.constant(np.float32(0))] if op == "Relu" else []
            parts = [
                part
                for arg in [*args, *zero]
                for part in (self.keys[arg][1] if self.keys[arg][0] == "most" else (arg,))
            ]
            return self.term("most", tuple(sorted(set(parts))))
        if op in ("Add", "Mul", "And", "Or", "Xor", "Min"):
            args = sorted(args)
        if op == "QuantizeLinear" and self._is_requantized(args):
            self.by_values = True
            return int(self.keys[args[0]][2])
        return self.term(op, key, *args)

    def _is_requantized(self, args: Sequence[int]) -> bool:
        """Return whether ``args`` are quantized numbers, dequantized by the same scale and zero point, that come back on every value."""
        inner = self.keys[args[0]]
        if inner[0] != "DequantizeLinear" or inner[3:] != tuple(args[1:]):
            return False
        parts = [self.keys[each] for each in args[1:]]
        if len(parts) != 2 or any(each[0] != "constant" for each in parts) or parts[1][2] not in ("int8", "uint8"):
            return False
        scale, zero = (np.frombuffer(each[1], each[2])[0] for each in parts)
        limits = np.iinfo(zero.dtype)
        values = np.arange(limits.min, limits.max + 1).astype(zero.dtype)
        wide = ((values.astype(np.int32) - np.int32(zero)).astype(scale.dtype) * scale) / scale
        return bool((np.clip(np.rint(wide).astype(np.int32) + np.int32(zero), limits.min, limits.max) == values).all())

    def row(self, op: str, key: Any, place: int, args: Sequence[Sequence[Any]]) -> int:
        return self.term(op, key, place, *(tuple(each) for each in args))

    def dot(self, pairs: Sequence[tuple[Any, Any]]) -> int:
        return self.term("dot", tuple(pairs))


class Poly:
    """A sum of products of atoms. Each has its factor, and the magnitudes that the factor was summed from."""

    __slots__ = ("parts",)

    def __init__(self, parts: dict[tuple[int, ...], tuple[float, float]]) -> None:
        self.parts = parts

    def __add__(self, other: Poly) -> Poly:
        found = dict(self.parts)
        for key, (factor, size) in other.parts.items():
            mine = found.get(key, (0.0, 0.0))
            found[key] = mine[0] + factor, mine[1] + size
        return Poly(found)

    def __mul__(self, other: Poly) -> Poly:
        found: dict[tuple[int, ...], tuple[float, float]] = {}
        for (one, (a, p)), (two, (b, q)) in itertools.product(self.parts.items(), other.parts.items()):
            key = _cancelled(one + two)
            mine = found.get(key, (0.0, 0.0))
            found[key] = mine[0] + a * b, mine[1] + p * q
        return Poly(found)

    def apart(self, other: Poly) -> float:
        """The largest number of roundings between two factors of the same product."""
        worst = 0.0
        for key in self.parts.keys() | other.parts.keys():
            (a, p), (b, q) = self.parts.get(key, (0.0, 0.0)), other.parts.get(key, (0.0, 0.0))
            if a != b:
                worst = max(worst, abs(a - b) / (max(p, q) * UNIT) if max(p, q) else math.inf)
        return worst


EXP = 1 << 48
"""Atoms from here on are exponentials, which are never 0: ``-atom`` is the inverse of one."""


def _cancelled(atoms: tuple[int, ...]) -> tuple[int, ...]:
    """The atoms of a product, without those whose inverse is among them."""
    if min(atoms, default=0) >= 0:
        return tuple(sorted(atoms))
    counts = Counter(atoms)
    for atom in [each for each in counts if each < 0]:
        both = min(counts[atom], counts[-atom])
        counts.subtract({atom: both, -atom: both})
    return tuple(sorted(counts.elements()))


class Real:
    """Polynomials over symbols and functions."""

    def __init__(self, most: float) -> None:
        self.most, self.worst = most, 0.0
        """The largest number of roundings between two arguments of a function, allowed and found."""
        self._symbols: dict[Any, int] = {}
        self._functions: dict[Any, list[tuple[list[Poly], int]]] = {}
        self._exponents: dict[int, Poly] = {}
        self._count, self._powers = itertools.count(), itertools.count(EXP)

    def number(self, value: float) -> Poly:
        return Poly({(): (float(value), abs(float(value)))} if value else {})

    constant = number

    def symbol(self, name: str, place: int, dtype: str) -> Poly:
        atom = self._symbols.setdefault((name, place), len(self._symbols) + (1 << 32))
        return Poly({(atom,): (1.0, 1.0)})

    def function(self, key: Any, args: list[Poly]) -> Poly:
        known = self._functions.setdefault((key, len(args)), [])
        for others, atom in known:
            apart = max((one.apart(other) for one, other in zip(args, others, strict=True)), default=0.0)
            if apart <= self.most:
                self.worst = max(self.worst, apart)
                return Poly({(atom,): (1.0, 1.0)})
        if key == ("Exp", ()):
            known.append((args, next(self._powers)))
            self._exponents[known[-1][1]] = args[0]
            return Poly({(known[-1][1],): (1.0, 1.0)})
        known.append((args, next(self._count)))
        return Poly({(known[-1][1],): (1.0, 1.0)})

    def inverse(self, value: Poly) -> Poly:
        if len(value.parts) == 1:
            ((atoms, (factor, _)),) = value.parts.items()
            found = self.number(1 / factor)
            for atom in atoms:
                own = abs(atom) >= EXP
                found = found * (
                    Poly({(-atom,): (1.0, 1.0)}) if own else self.function("inverse", [Poly({(atom,): (1.0, 1.0)})])
                )
            return found
        return self.function("inverse", [value])

    def exp(self, value: Poly) -> Poly:
        """The product of the exponentials of all terms: of ``-x`` the inverse of that of ``x``."""
        found = self.number(1.0)
        for atoms, (factor, size) in value.parts.items():
            if atoms == ():
                found = found * self.number(math.exp(factor))
                continue
            power = self.function(("Exp", ()), [Poly({atoms: (abs(factor), size)})])
            found = found * (power if factor > 0 else self.inverse(power))
        return found

    def log(self, value: Poly) -> Poly:
        """The logarithm, without exponentials that are in all terms of the sum."""
        powers = [Counter(atom for atom in atoms if abs(atom) >= EXP) for atoms in value.parts]
        common = functools.reduce(lambda one, other: one & other, powers) if powers else Counter[int]()
        inside, found = value, self.number(0.0)
        for atom in common.elements():
            inside = inside * Poly({(-atom,): (1.0, 1.0)})
            found = found + self._exponents[abs(atom)] * self.number(math.copysign(1.0, atom))
        return found if inside.parts == {(): (1.0, 1.0)} else found + self.function(("Log", ()), [inside])

    def total(self, values: Sequence[Poly]) -> Poly:
        found: dict[tuple[int, ...], tuple[float, float]] = {}
        for value in values:
            for key, (factor, size) in value.parts.items():
                mine = found.get(key, (0.0, 0.0))
                found[key] = mine[0] + factor, mine[1] + size
        return Poly(found)

    def dot(self, pairs: Sequence[tuple[Poly, Poly]]) -> Poly:
        return self.total([a * b for a, b in pairs])

    def mean(self, values: Sequence[Poly]) -> Poly:
        return self.total(values) * self.number(1 / len(values))

    def element(self, op: str, key: Any, args: Sequence[Any]) -> Poly:
        minus = self.number(-1)
        match op:
            case "Add" | "Sum":
                return self.total(args)
            case "Sub":
                return args[0] + args[1] * minus  # type: ignore[no-any-return]
            case "Mul":
                return args[0] * args[1]  # type: ignore[no-any-return]
            case "Div":
                return args[0] * self.inverse(args[1])  # type: ignore[no-any-return]
            case "Neg":
                return args[0] * minus  # type: ignore[no-any-return]
            case "Reciprocal":
                return self.inverse(args[0])
            case "Pow":
                return self._power(*args)
            case "Exp":
                return self.exp(args[0])
            case "Log":
                return self.log(args[0])
            case "Sigmoid":
                return self.inverse(self.number(1.0) + self.exp(args[0] * minus))
            case "Relu" | "Clip":
                return self._between(args[0], *([self.number(0.0)] if op == "Relu" else args[1:]))
            case "Greater" | "GreaterOrEqual":
                return self.element(op.replace("Greater", "Less"), key, args[::-1])
            case "Max" | "Min" | "Equal" | "And" | "Or":
                return self._either(op, args)
            case "Where":
                return self._picked(*args)
            case "Gelu" | "FastGelu" | "BiasGelu":
                return self._gelu(self.total(args), op == "FastGelu" or dict(key).get("approximate") == b"tanh")
        return self.function((op, key), list(args))

    def _between(self, value: Poly, *ends: Poly) -> Poly:
        for op, end in zip(("Max", "Min"), ends, strict=False):
            if abs(end.parts.get((), (0.0,))[0]) < 3.4e38:  # else the end of all floats, or none
                value = self._either(op, [value, end])
        return value

    def _either(self, op: str, args: Sequence[Poly]) -> Poly:
        """A function whose operands may change places."""
        known = self._functions.get(((op, ()), len(args)), [])
        others = list(args)[::-1]
        is_known = any(all(a.apart(b) == 0 for a, b in zip(each, others, strict=True)) for each, _ in known)
        return self.function((op, ()), others if is_known else list(args))

    def _picked(self, condition: Poly, one: Poly, other: Poly) -> Poly:
        """One of two numbers: of two that are compared, the smaller or the larger."""
        for op in ("Less", "LessOrEqual"):
            for pair, atom in self._functions.get(((op, ()), 2), []):
                for wanted, name in ((pair, "Min"), (pair[::-1], "Max")):
                    is_same = one.apart(wanted[0]) == other.apart(wanted[1]) == 0
                    if is_same and condition.parts == {(atom,): (1.0, 1.0)}:
                        return self._either(name, [one, other])
        return self.function(("Where", ()), [condition, one, other])

    def _power(self, base: Poly, exponent: Poly) -> Poly:
        value = exponent.parts.get((), (0.0, 0.0))[0]
        if len(exponent.parts) == 1 and () in exponent.parts and value in (2.0, 3.0):
            return base * base if value == 2 else base * base * base
        if len(exponent.parts) == 1 and () in exponent.parts and abs(value) == 0.5:
            root = self.function(("Sqrt", ()), [base])
            return root if value > 0 else self.inverse(root)
        return self.function(("Pow", ()), [base, exponent])

    def _gelu(self, x: Poly, is_tanh: bool) -> Poly:
        inner = x * self.number(1 / math.sqrt(2))
        if is_tanh:
            inner = (x + x * x * x * self.number(0.044715)) * self.number(math.sqrt(2 / math.pi))
        inside = self.function(("Tanh" if is_tanh else "Erf", ()), [inner])
        return x * self.number(0.5) * (inside + self.number(1))

    def row(self, op: str, key: Any, place: int, args: Sequence[Sequence[Any]]) -> Poly:
        x, named = list(args[0]), dict(key)
        if op == "ReduceMean":
            return self.mean(x)
        if op == "ReduceSum":
            return self.total(x)
        if op in ("ReduceSumSquare", "ReduceL2"):
            found = self.total([each * each for each in x])
            return found if op == "ReduceSumSquare" else self.function(("Sqrt", ()), [found])
        if op == "ReduceL1":
            return self.total([self.element("Abs", (), [each]) for each in x])
        if op in ("ReduceLogSum", "ReduceLogSumExp"):
            return self.log(self.total(x if op == "ReduceLogSum" else [self.exp(each) for each in x]))
        if op in ("Softmax", "LogSoftmax"):
            powers = [self.exp(each) for each in x]
            total = self.total(powers)
            return (
                powers[place] * self.inverse(total) if op == "Softmax" else x[place] + self.log(total) * self.number(-1)
            )
        if op in ("LayerNormalization", "RMSNormalization"):
            if op == "LayerNormalization":
                middle = self.mean(x) * self.number(-1)
                x = [each + middle for each in x]
            spread = self.mean([each * each for each in x]) + self.number(named.get("epsilon", 1e-5))
            found = x[place] * self.inverse(self.function(("Sqrt", ()), [spread])) * args[1][place]
            return found + args[2][place] if len(args) > 2 else found
        return self.function((op, key, place, tuple(map(len, args))), [part for each in args for part in each])
