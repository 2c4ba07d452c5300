"""einx writes a function for each shape of its operands: for symbolic sizes it gets numbers that stand for them.

A number is the product of a prime of its own and of ``_DIVISIBLE``, so that einx may split such an axis. The function that it
writes has products and quotients of these numbers in it, which are read back as sizes whenever the function is called. einx
writes the function a second time, with other primes: a number that is anything else, such as a sum, is found by that.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fx2onnx.base.code_patch import THREAD, answers_for_caller
from fx2onnx.base.errors import UserError
from fx2onnx.capture.shapes.symnode import sym_int, unwrap
from fx2onnx.model_patches.patching import patches
from fx2onnx.sizes.expr import Dim, apply

_DIVISIBLE = 16
_FIRST, _LAST = 59, 2_000
"""The primes lie between: einx computes in 32 bits, which a product of three small ones fits in."""
_SIZES: WeakKeyDictionary[Any, dict[int, Dim | int]] = WeakKeyDictionary()
"""The size for which each prime stands, by tracer."""


@functools.cache
def _primes() -> dict[int, int]:
    """The primes that stand for sizes, and for each the one of the second function."""
    primes = [n for n in range(_FIRST, _LAST, 2) if all(n % divisor for divisor in range(3, min(n, 45), 2))]
    return dict(zip(primes[::2], primes[1::2], strict=False))


@answers_for_caller
def stand_in(size: Any) -> int:
    """The number in the place of a size, or of a number that one might be taken for. Raises: UserError E105 for too many sizes."""
    value = unwrap(size)
    if not isinstance(value, Dim):
        return _number_of(value) if any(_factors(value, _primes())) else int(value)
    ((monomial, factor),) = value.terms.items() if len(value.terms) == 1 else (((), 1),)
    if not monomial or value.constant or type(factor) is not int or factor < 1:
        return _number_of(value)
    return math.prod((_number_of(Dim({(atom,): 1})) for atom in monomial), start=factor)


def _number_of(value: Dim | int) -> int:
    sizes = _SIZES.setdefault(THREAD.tracer, {})
    prime = next((prime for prime, known in sizes.items() if known == value), None)
    prime = prime or next((prime for prime in _primes() if prime not in sizes), None)
    if prime is None:
        raise UserError("E105", f"einx is called with more than {len(sizes)} different sizes")
    sizes[prime] = value
    return prime * _DIVISIBLE


@answers_for_caller
def size_of(number: int) -> Any:
    """The size that a number in the code stands for, in this run; the number itself where it stands for none."""
    sizes = _SIZES.get(THREAD.tracer, {}) if THREAD.captures else {}
    factors = list(_factors(number, sizes))
    rest = Fraction(number, math.prod(prime * _DIVISIBLE for prime in factors))
    env, top = THREAD.tracer.sizes, math.prod((sizes[prime] for prime in factors), start=rest.numerator)
    env.expect("eq", apply("mod", top, rest.denominator), 0)
    return sym_int(env, apply("floordiv", top, rest.denominator))


def _factors(number: int, primes: Iterable[int]) -> Iterator[int]:
    for prime in primes:
        while number and number % prime == 0:
            number //= prime
            yield prime


def at_other_primes(number: int) -> int:
    """The number that stands for the same product in the second function."""
    for prime in _factors(number, _primes()):
        number = number // prime * _primes()[prime]
    return number


def with_sizes(function: Callable[..., Any], code: str, other: str) -> Callable[..., Any]:
    """The function that ``code`` defines, with sizes in the place of the numbers that stand for them; ``other``: the code of the second
    one. Raises: UserError E105 where it has a number that is no product of sizes.
    """
    tree = ast.parse(code)
    if ast.dump(_Numbers(lambda number: ast.Constant(at_other_primes(number))).visit(ast.parse(code))) != ast.dump(
        ast.parse(other)
    ):
        what = "einx computes a size that is no product of the dynamic sizes of its operands"
        raise UserError("E105", what, next="compute it with PyTorch's operators, such as torch.cat")
    name = "__fx2onnx_size"
    call = _Numbers(lambda number: ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number)], []))
    names = dict(getattr(function, "__globals__", {}), **{name: size_of})
    exec(compile(ast.fix_missing_locations(call.visit(tree)), "<einx>", "exec"), names)
    found: Callable[..., Any] = names[tree.body[-1].name]  # type: ignore[attr-defined]
    return found


class _Numbers(ast.NodeTransformer):
    def __init__(self, replacement: Callable[[int], ast.AST]) -> None:
        self.replacement = replacement

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        is_large = type(node.value) is int and node.value >= _FIRST
        return self.replacement(node.value) if is_large else node  # type: ignore[arg-type]


_API = "einx._src.frontend.api"


@patches(f"{_API}:_to_tracer", around=True)
def to_tracer(original: FunctionType, x: Any, backend: Any, name: str) -> Any:
    """An argument of the function that einx writes, with numbers for symbolic sizes."""
    value = getattr(x, "value", x)
    if isinstance(value, torch.Tensor):
        shape = [stand_in(size) for size in value.shape]
        return _shaped(original.__globals__["tracer"].signature.classical.Tensor)(None, shape=shape)
    return stand_in(value) if isinstance(value, torch.SymInt) or type(value) is int else original(x, backend, name)


def _hash_of_sizes(shaped: Any) -> int:
    return hash(("sizes", shaped.shape))


@functools.cache
def _shaped(kind: type) -> Any:
    """The class of shapes in which numbers may stand for sizes: einx takes no function for them that it wrote for numbers."""
    return type("Shaped", (kind,), {"__hash__": _hash_of_sizes, "__eq__": kind.__eq__})


@patches(f"{_API}:_construct_graph", around=True)
def construct_graph(original: FunctionType, args: Any, kwargs: Any, func: Any, backend: Any = None) -> Any:
    """The function that einx writes, and its code."""
    made, code = original(args, kwargs, func, backend)
    kind = _shaped(original.__globals__["tracer"].signature.classical.Tensor)
    others = [_at_other_primes(each, kind) for each in args]
    named = {name: _at_other_primes(each, kind) for name, each in kwargs.items()}
    if all(one is other for one, other in zip([*args, *kwargs.values()], [*others, *named.values()], strict=True)):
        return made, code
    return with_sizes(made, code, original(others, named, func, backend)[1]), code


def _at_other_primes(value: Any, kind: Any) -> Any:
    """An argument for the second function; the argument itself where no size is in it."""
    if type(value) is int:
        moved: Any = at_other_primes(value)
    elif type(value) is tuple:
        moved = tuple(_at_other_primes(each, kind) for each in value)
    elif type(value) is kind:
        moved = kind(None, shape=tuple(map(at_other_primes, value.shape)))
    else:
        return value
    is_same = moved.shape == value.shape if type(value) is kind else moved == value
    return value if is_same else moved
