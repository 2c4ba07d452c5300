"""torch.export's objects for dynamic shapes (``ShapesSpec``, ``ShapesCollection``, ``AdditionalInputs``), recognized by
their attributes: releases of torch before 2.14 lack the classes of the first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

from fx2onnx.sizes.expr import Scalar, apply
from fx2onnx.sizes.relation import Relation

Spec: TypeAlias = Any
"""Dynamic shapes in one of the forms that PyTorch takes, or a part of them."""
Expr: TypeAlias = Any
"""A size of torch's, or what sympy has for one."""
DECORATED = "_dynamic_spec"
"""The attribute that ``@dynamic_spec`` sets on a function."""


class Members(dict[Spec, Spec]):
    """Dynamic shapes by the keys of members; the members that are not named are static."""


class Sizes(tuple[Spec, ...]):
    """The sizes of one tensor, an entry for each axis."""

    __slots__ = ()


def is_spec(shapes: object) -> bool:
    """Return whether dynamic shapes are a ``ShapesSpec`` or a ``ParamsSpec``."""
    return hasattr(shapes, "_assumptions") or hasattr(shapes, "_named_args")


def assumptions(spec: Spec) -> list[Spec]:
    """The relations of sizes that a ``ShapesSpec`` declares."""
    return list(getattr(spec, "_assumptions", ()))


def of_parameters(spec: Spec, variadic: str) -> Members:
    """Dynamic shapes by argument of a ``ShapesSpec`` or ``ParamsSpec``; members of ``*args`` are ``args_0``, ``args_1``, ..."""
    params = spec._params if hasattr(spec, "_assumptions") else spec
    if params is None:
        return Members()
    found = {**params._named_args, **(params._varkw or {})}
    found |= {f"{variadic}_{index}": part for index, part in enumerate(params._varargs or ())}
    return Members({name: _plain(part) for name, part in found.items()})


def _plain(spec: Spec) -> Spec:
    if hasattr(spec, "_specs"):
        return Sizes(spec._specs)
    inside = getattr(spec, "_fields", None) if hasattr(spec, "_fields") else getattr(spec, "_entries", None)
    if inside is None:
        return spec
    pairs = inside.items() if isinstance(inside, Mapping) else enumerate(inside)
    return Members({key: _plain(part) for key, part in pairs})


def of_tensors(shapes: object) -> dict[int, Spec] | None:
    """Dynamic shapes by ``id`` of a ``ShapesCollection``; None for anything else."""
    found = getattr(shapes, "_shapes", None)
    return dict(found) if isinstance(found, dict) and hasattr(shapes, "dynamic_shapes") else None


def calls(shapes: object) -> list[tuple[tuple[Spec, ...], dict[str, Spec]]] | None:
    """The calls of ``AdditionalInputs``; None for anything else."""
    found = getattr(shapes, "_examples", None)
    return [(args, dict(kwargs or {})) for args, kwargs in found] if isinstance(found, list) else None


_FOLDED: dict[str, Callable[[Expr, Expr], Expr]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": lambda one, other: apply("max", one, other),
    "Min": lambda one, other: apply("min", one, other),
}
_COMPARED = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_JOINED = {"And": "and", "Or": "or", "Not": "not"}


def expression(size: Expr, named: Callable[[Expr], Scalar]) -> Expr:
    """A size or a relation of sizes that is made of spec's variables; ``named(symbol)`` is the size for one of them.

    Raises:   ValueError for what is no arithmetic of integers.
    """
    return _converted(size.node.expr, named)


def _converted(expr: Expr, named: Callable[[Expr], Scalar]) -> Expr:
    kind = type(expr).__name__
    if expr.is_Symbol:
        return named(expr)
    if expr.is_Integer:
        return int(expr)
    if expr.is_Boolean and not expr.args:
        return bool(expr)
    args = [_converted(arg, named) for arg in expr.args]
    if kind in _FOLDED:
        return reduce(_FOLDED[kind], args)
    if kind == "Pow" and isinstance(args[1], int) and args[1] > 0:
        return reduce(operator.mul, args[:1] * args[1])
    op = _COMPARED.get(getattr(expr, "rel_op", "")) or _JOINED.get(kind)
    if op is None:
        raise ValueError(f"{kind} is no arithmetic of sizes")
    return Relation(op, tuple(args))
