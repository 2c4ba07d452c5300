"""Functions of Python's numbers and its module math over symbolic sizes, as expressions; None where there is none at every size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial, reduce
from typing import Any, TypeAlias

import torch

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.capture.rare_roads import road
from fx2onnx.sizes.bounds import NONE, certain
from fx2onnx.sizes.expr import APPROXIMATE, Dim, Scalar, apply, innermost_first, is_real_number
from fx2onnx.sizes.rules import is_small_fraction
from fx2onnx.torchcompat.asked_code import is_only_shown, is_shown
from fx2onnx.torchcompat.frames import asked_by_user, user_location

Number: TypeAlias = Any
"""A number of Python's, or one of torch's symbolic ones: code for both."""
Formula: TypeAlias = Callable[..., Scalar | None]
MOST_DIVISORS = 16
MOST_CHOSEN = 4


def is_exact(value: Scalar) -> bool:
    """Return whether the last bit of ``value`` is the same wherever it is computed."""
    if not isinstance(value, Dim) or not value.is_real:
        return True
    return not any(atom.op in APPROXIMATE or (atom.op == "pow" and atom.is_real) for atom in innermost_first(value))


def plain(value: Scalar) -> Scalar:
    """The integer that a real ``value`` is made of without a change: ``n`` for ``float(n)``."""
    atom = value.only_atom() if isinstance(value, Dim) else None
    return atom.args[0] if atom is not None and atom.op == "float" else value  # type: ignore[return-value]


def rounded_to_int(op: str, value: Scalar, signed: Set[str] = NONE) -> Scalar | None:
    """``floor``, ``ceil``, ``trunc`` or ``round`` of a real value; ``trunc`` is ``floor`` where nothing is below 0, as ``signed`` may be."""
    if op == "trunc" and certain("ge", from_one(value), 0, signed):
        op = "floor"
    found = apply(op, value)
    return found if is_exact(value) or (isinstance(found, Dim) and not _rounds_approximate(found)) else None


def from_one(value: Scalar) -> Scalar:
    """``value`` by how much more than 1 its sizes are."""
    if not isinstance(value, Dim):
        return value
    return value.substitute({name: Dim.symbol(name) + 1 for name in value.symbols() - value.unbacked_symbols()})


def _rounds_approximate(value: Dim) -> bool:
    return any(atom.op in APPROXIMATE for atom in innermost_first(value))


def isqrt(value: Scalar) -> Scalar | None:
    """Exact below 2**52: a root is rounded correctly, and that of no size but a square comes so near to the next number."""
    return apply("floor", apply("sqrt", value))


def shift_right(value: Scalar, count: Scalar) -> Scalar | None:
    return apply("floordiv", value, apply("pow", 2, count))


def shift_left(value: Scalar, count: Scalar) -> Scalar | None:
    return value * apply("pow", 2, count)


def bit_and(one: Scalar, two: Scalar) -> Scalar | None:
    """``n & (2**k - 1)`` is a remainder, ``n & -2**k`` what is left without it."""
    for value, mask in ((one, two), (two, one)):
        if isinstance(mask, int) and mask >= 0 and mask & (mask + 1) == 0:
            return apply("mod", value, mask + 1)
        if isinstance(mask, int) and mask < 0 and -mask & (-mask - 1) == 0:
            return value - apply("mod", value, -mask)
    return apply("bitand", one, two) if certain("ge", one, 0) or certain("ge", two, 0) else None


def bit_or(one: Scalar, two: Scalar) -> Scalar | None:
    both = bit_and(one, two)
    return None if both is None else one + two - both


def bit_xor(one: Scalar, two: Scalar) -> Scalar | None:
    both = bit_and(one, two)
    return None if both is None else one + two - 2 * both


def bit_length(value: Scalar) -> Scalar | None:
    return apply("bit_length", value)


def gcd(*values: Scalar) -> Scalar | None:
    """``math.gcd`` of a size and a number: the largest of the number's divisors that divides the size."""
    if len(values) != 2:
        return None
    size, number = values if isinstance(values[0], Dim) else values[::-1]
    if not isinstance(number, int) or number == 0:
        return None
    divisors = [one for one in range(1, abs(number) + 1) if number % one == 0] if abs(number) < 1 << 16 else []
    if not 0 < len(divisors) <= MOST_DIVISORS:
        return None
    largest: Scalar = 1
    for divisor in divisors[1:]:
        largest = apply("max", largest, divisor - divisor * apply("min", apply("mod", size, divisor), 1))
    return largest


def lcm(*values: Scalar) -> Scalar | None:
    common = gcd(*values)
    return None if common is None else apply("floordiv", values[0] * values[1], common)


def comb(value: Scalar, count: Scalar) -> Scalar | None:
    """``n * (n - 1) * ... // count!``; 0 where n < count."""
    if not isinstance(count, int) or not 0 <= count <= MOST_CHOSEN:
        return None
    product: Scalar = 1
    for less in range(count):
        product = product * (value - less)
    return apply("floordiv", product, math.factorial(count))


def logarithm(value: Scalar, base: Scalar | None = None) -> Scalar | None:
    if base is None:
        return apply("log", plain(value))
    return apply("truediv", apply("log", plain(value)), apply("log", plain(base)))


def fmod(value: Scalar, divisor: Scalar) -> Scalar | None:
    if not certain("ge", value, 0) or not certain("gt", divisor, 0):
        return None
    return apply("float", apply("mod", value, divisor))


def power(base: Scalar, exponent: Scalar) -> Scalar | None:
    """``math.pow``, whose result is a real number."""
    return apply("pow", apply("float", base), float(exponent) if isinstance(exponent, int) else exponent)


def _of(op: str, value: Scalar) -> Scalar | None:
    return apply(op, plain(value))


def arc_tangent(opposite: Scalar, adjacent: Scalar) -> Scalar | None:
    """``math.atan2`` to the right of the vertical axis."""
    return apply("atan", apply("truediv", opposite, adjacent)) if certain("gt", from_one(adjacent), 0) else None


def arc_sine(value: Scalar) -> Scalar:
    """``math.asin`` by the tangent of half the angle, which is finite at both ends."""
    beside = apply("sqrt", added(1.0, multiplied(-1.0, multiplied(value, value))))
    return multiplied(2.0, apply("atan", apply("truediv", plain(value), added(1.0, beside))))


def hyperbolic(sign: int, value: Scalar) -> Scalar | None:
    """``cosh``, and ``sinh`` for the sign -1."""
    both = added(apply("exp", plain(value)), multiplied(float(sign), apply("exp", multiplied(-1.0, plain(value)))))
    return multiplied(0.5, both)


def with_sign(value: Scalar, sign: Scalar) -> Scalar | None:
    """``math.copysign`` of the sign of a plain number."""
    size = apply("float", apply("abs", value))
    return None if isinstance(sign, Dim) else multiplied(math.copysign(1.0, sign), size)


MATH: Mapping[str, Formula] = {
    **{name: partial(_of, name) for name in ("sqrt", "log2", "log10", "exp", "sin", "cos", "tanh", "atan")},
    "atan2": arc_tangent,
    "asin": arc_sine,
    "acos": lambda value: added(math.pi / 2, multiplied(-1.0, arc_sine(value))),
    "cosh": partial(hyperbolic, 1),
    "sinh": partial(hyperbolic, -1),
    "tan": lambda value: apply("truediv", apply("sin", plain(value)), apply("cos", plain(value))),
    "expm1": lambda value: added(apply("exp", plain(value)), -1.0),
    "cbrt": lambda value: power(value, 1 / 3) if certain("ge", value, 0) else None,
    "copysign": with_sign,
    "isqrt": isqrt,
    "gcd": gcd,
    "lcm": lcm,
    "comb": comb,
    "log": logarithm,
    "log1p": lambda value: apply("log", value + 1),
    "fmod": fmod,
    "pow": power,
    "fabs": lambda value: apply("float", apply("abs", value)),
    "hypot": lambda *values: apply("sqrt", reduce(added, (multiplied(value, value) for value in values))),
    "radians": lambda value: multiplied(apply("float", value), math.pi / 180),
    "degrees": lambda value: multiplied(apply("float", value), 180 / math.pi),
}
"""The formulas by the name of the function; each takes and gives expressions or plain numbers."""


def _coefficients(length: Scalar, taps: Scalar, mode: object) -> Scalar | None:
    """``pywt.dwt_coeff_len``: the number of coefficients of each half of a wavelet transform."""
    count: Scalar = 2 if getattr(mode, "name", mode) in ("periodization", "per") else getattr(taps, "dec_len", taps)
    return apply("floordiv", length + count - 1, 2)


OF_LIBRARIES: Mapping[tuple[str, str], Formula] = {
    **{(name, "next_fast_len"): lambda target, real=False, most=most: apply("next_smooth", target, 5 if real else most) for name, most in (
        ("scipy.fft", 11), ("scipy.fftpack", 5), ("pyro.ops.tensor_utils", 5), ("pytorch_forecasting.utils._utils", 5),
        ("torch_audiomentations.utils.convolution", 5),
    )},
    **{(name, "dwt_coeff_len"): _coefficients for name in ("pywt", "pywt._dwt")},
}  # fmt: skip
"""The formulas of libraries' functions, by module and name: fast lengths have no prime factors above a number."""


Needs: TypeAlias = Sequence[tuple[str, Scalar, Scalar]]
"""Comparisons that hold where an operation has a result."""


def nonzero(value: Scalar) -> Needs:
    """``value != 0``, for each factor: a quotient is 0 where its dividend is."""
    terms = [*value.terms] if isinstance(value, Dim) and not value.constant else []
    if len(terms) != 1:
        return [("ne", value, 0)]
    found: list[tuple[str, Scalar, Scalar]] = []
    for atom in terms[0]:
        factor: Any = atom.args[0] if atom.op in _ZERO_AT_ZERO else Dim({(atom,): 1})
        found += [("ne", factor, 0)] if factor == value else nonzero(factor)
    return found


_ZERO_AT_ZERO = frozenset({"truediv", "float", "real", "sqrt", "abs"})


def _needs_of_power(base: Scalar, exponent: Scalar) -> Needs:
    """Roots of negative numbers are none that ``math.pow`` has."""
    is_root = isinstance(exponent, float) and not exponent.is_integer()
    return [*([("ge", base, 0)] if is_root else ()), *needs_of_operator("pow", base, exponent)]


def needs_of_operator(op: str, one: Scalar, other: Scalar) -> Needs:
    """The needs of Python's operators of two numbers."""
    if op == "pow":
        return [] if isinstance(other, Dim) or other >= 0 else nonzero(one)
    return nonzero(other)


def _needs_of_logarithm(value: Scalar, base: Scalar | None = None) -> Needs:
    return [("gt", value, 0), *(() if base is None else (("gt", base, 0), ("ne", base, 1)))]


NEEDS: Mapping[str, Callable[..., Needs]] = {
    **dict.fromkeys(("sqrt", "isqrt"), lambda value: [("ge", value, 0)]),
    **dict.fromkeys(("log2", "log10"), lambda value: [("gt", value, 0)]),
    "log": _needs_of_logarithm,
    "log1p": lambda value: [("gt", value, -1)],
    "comb": lambda value, count: [("ge", value, 0)],
    "atan2": lambda opposite, adjacent: nonzero(adjacent),
    **dict.fromkeys(("asin", "acos"), lambda value: [("ge", value, -1), ("le", value, 1)]),
    "exp": lambda value: [("lt", value, _LARGEST_EXPONENT)],
    "pow": _needs_of_power,
}
"""The needs of a call, by the function of the module math."""
_LARGEST_EXPONENT = 709.78271289338397
"""``math.exp`` of more overflows, and Python raises."""


@answers_for_caller
def has_result(env: Any, needs: Needs) -> bool:
    """Return whether the user's arithmetic has a result at the example's sizes in a run with ``env``, a ``ShapeEnv``.
    Where it has none at others, that is a condition.
    """
    return not asked_by_user() or all(road("decisions by sizes").is_met(env, *need) for need in needs)


IS_FINITE: Mapping[str, bool] = {"isfinite": True, "isinf": False, "isnan": False}
_OF_NUMPY = (
    "sqrt", "log2", "log10", "log", "exp", "sin", "cos", "tanh", "hypot", "cbrt", "expm1", "tan", "sinh", "cosh",
)  # fmt: skip
REAL: Mapping[str, Formula] = {
    **{name: MATH[name] for name in _OF_NUMPY},
    **{f"arc{name[1:]}": MATH[name] for name in ("atan", "atan2", "asin", "acos")},
    **dict.fromkeys(("radians", "deg2rad"), MATH["radians"]),
    **dict.fromkeys(("degrees", "rad2deg"), MATH["degrees"]),
}
"""Functions that NumPy calls as methods of an object that it does not know: ``np.sqrt(n)``."""


def is_dense(sizes: Sequence[Scalar], strides: Sequence[Scalar], order: Sequence[int]) -> bool:
    """Return whether axes are dense in this order, the innermost first; as they stand where there is none."""
    expected: Scalar = 1
    axes = order or range(len(sizes) - 1, -1, -1)
    if len(axes) != len(sizes):
        return False
    for axis in axes:
        if sizes[axis] != 1:
            if strides[axis] != expected:
                return False
            expected = expected * sizes[axis]
    return True


def added(one: Scalar, two: Scalar) -> Scalar:
    """``one + two``."""
    if not is_real_number(one) and not is_real_number(two):
        return one + two
    if is_small_fraction(one) and is_small_fraction(two):
        return one + two
    if _is_negative_of(one, two):
        return 0.0
    left, right = _one_term(one), _one_term(two)
    total = left + right
    is_apart = isinstance(total, Dim) and len(total.terms) + (total.constant != 0) == 2
    return total if is_apart or not isinstance(left, Dim) else _kept(left) + right


def multiplied(one: Scalar, two: Scalar) -> Scalar:
    """``one * two``."""
    if not is_real_number(one) and not is_real_number(two):
        return one * two
    if is_small_fraction(one) and is_small_fraction(two):
        return one * two
    if isinstance(one, Dim) and isinstance(two, Dim):
        return _unit(one) * _unit(two)
    value, factor = (one, two) if isinstance(one, Dim) else (two, one)
    assert isinstance(value, Dim)
    assert not isinstance(factor, Dim)
    is_exact = len(value.terms) == 1 and not value.constant and abs(math.frexp(factor)[0]) == 0.5
    return value * factor if is_exact else _unit(value) * factor


def _is_negative_of(one: Scalar, two: Scalar) -> bool:
    return isinstance(one, Dim) and isinstance(two, Dim) and one == -two


def _one_term(value: Scalar) -> Scalar:
    """A product of a number and an atom, or a number."""
    is_sum = isinstance(value, Dim) and len(value.terms) + (value.constant != 0) > 1
    return _kept(value) if is_sum else value


def _unit(value: Dim) -> Scalar:
    """An atom, or less one: a factor of it is the only one."""
    return value if value.only_atom() is not None or (-value).only_atom() is not None else _kept(value)


def _kept(value: Scalar) -> Scalar:
    return value if isinstance(value, Dim) and value.only_atom() is not None else apply("real", value)


def _of_truth(name: str) -> Callable[..., Any]:
    """A method of ``bool`` that torch's class of truths lacks, of the truth that is decided."""

    @answers_for_caller
    def method(self: Any, *others: Any) -> Any:
        plain = (bool(other) if isinstance(other, torch.SymBool) else other for other in others)
        return getattr(bool(self), name)(*plain)

    return method


_LACKED = [
    "abs", "ceil", "divmod", "float", "floor", "floordiv", "ge", "gt", "index", "invert", "le", "lshift", "lt", "mod", "neg",
    "pos", "pow", "rdivmod", "rfloordiv", "rlshift", "rmod", "round", "rpow", "rrshift", "rshift", "rtruediv", "rxor",
    "truediv", "trunc", "xor",
]  # fmt: skip
METHODS_OF_TRUTHS = {f"__{name}__": _of_truth(f"__{name}__") for name in _LACKED}
"""Methods for ``torch.SymBool`` that do what Python does with a ``bool`` as a number or an index, by name."""


@answers_for_caller
def text_of(env: Any, value: Dim) -> str:
    """The text that Python shows of a size in a run with ``env``, a ``ShapeEnv``. It is noted where it is not only shown."""
    if asked_by_user() and not is_only_shown():
        env.texts = {**env.texts, user_location(): None}
    elif (tracer := env.tracer()) is not None and value.symbols() & env.unbacked:
        is_shown(tracer.warnings)
    has_number = env.has_texts_of_sample and value.symbols() <= env.hints.keys()
    numbers = {**env.hints, **dict.fromkeys(env.unbacked, 1)} if has_number else {}  # texts of data may be equal
    return str(value.evaluate(numbers) if has_number else value)
