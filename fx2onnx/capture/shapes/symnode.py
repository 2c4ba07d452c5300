"""Symbolic sizes for fake tensors: a ``torch.SymInt`` over ``sizes.expr``, without sympy.

torch calls a SymInt's node for arithmetic and for comparisons. ``DimNode`` decides from the polynomial where it
is certain and from the example's size (the hint) where it is not; every such guard is kept in ``ShapeEnv`` with
the user's line, so that a size that Python specialized is reported and never constant in silence.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partialmethod
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from fx2onnx.base.code_patch import answers_for_caller
from fx2onnx.capture.python.data_numbers import DataNumber
from fx2onnx.capture.shapes import size_math
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.capture.shapes.size_math import added, multiplied, text_of
from fx2onnx.sizes.expr import EVALUATE, Dim, Scalar, apply
from fx2onnx.sizes.relation import COMPARE, Relation
from fx2onnx.sizes.rules import fraction
from fx2onnx.torchcompat.frames import asked_by_user

NUMPY_NODES: dict[type, type[DimNode]] = {}
"""The objects behind NumPy's numbers, by the class of each (``numpy_nodes.py``)."""
T = TypeVar("T")
Operation: TypeAlias = Callable[[Scalar, Scalar], Scalar]


def _always(answer: T) -> Callable[..., T]:
    return lambda *_: answer


def _is(kind: type) -> Callable[[DimNode], bool]:
    return lambda self: self.pytype is kind


def _plain(kind: Callable[[Any], T]) -> Callable[[DimNode], T | None]:
    """The value of a constant of this kind."""
    return lambda self: kind(self.value) if self.constant and self.pytype is kind else None


def _wrapping(kind: type) -> Callable[[DimNode, Scalar], DimNode]:
    return lambda self, value: (NUMPY_NODES[np.float64] if type(value) is np.float64 else DimNode)(
        self.env, value, kind
    )


def _layout(order: Sequence[int] = ()) -> Callable[[DimNode, list[DimNode], list[DimNode]], DimNode]:
    """Return whether the axes are dense in this order, the innermost first; as they stand where there is none."""

    def is_dense(self: DimNode, sizes: list[DimNode], strides: list[DimNode]) -> DimNode:
        return self.wrap_bool(size_math.is_dense([one.value for one in sizes], [one.value for one in strides], order))

    return is_dense


@answers_for_caller
class DimNode:
    """The object behind a ``torch.SymInt``, ``SymFloat`` or ``SymBool``."""

    __slots__ = ("env", "pytype", "shape_env", "value")

    def __init__(self, env: ShapeEnv, value: Any, pytype: type) -> None:
        self.env = self.shape_env = env
        self.value = value
        self.pytype = pytype

    @property
    def constant(self) -> bool:
        return not isinstance(self.value, Dim | Relation)

    @property
    def expr(self) -> object:
        return self.value

    @property
    def hint(self) -> Any:
        return self.value if self.constant else self.env.look(self.value)

    _hint = hint

    has_hint, is_nested_int, nested_int = _always(True), _always(False), _always(None)
    is_float, is_bool = _is(float), _is(bool)

    def is_int(self) -> bool:  # torch asks this and the next for each size of each tensor, several times
        return self.pytype is int

    def maybe_as_int(self) -> int | None:
        return None if type(self.value) is Dim or self.pytype is not int else int(self.value)

    constant_int = maybe_as_int

    def is_constant(self) -> bool:
        """Return whether the node is a constant boolean: torch 2.8 knows no other constants, and asks in order to compute with
        plain numbers.
        """
        return self.constant and self.pytype is bool

    def is_symbolic(self) -> bool:
        return not self.constant

    maybe_as_float = _plain(float)
    maybe_as_bool = constant_bool = _plain(bool)

    def __str__(self) -> str:
        return text_of(self.env, self.value) if isinstance(self.value, Dim) else f"{self.value}"

    __repr__ = _graph_repr = __str__

    def clone(self) -> DimNode:
        return self

    pos = clone

    def _value_eq(self, other: DimNode) -> bool:
        return bool(self.value == other.value)

    def _value_hash(self) -> int:
        return hash(self.value)

    wrap_int, wrap_float, wrap_bool = _wrapping(int), _wrapping(float), _wrapping(bool)

    def guard_bool(self, file: object, line: object) -> bool:
        if not isinstance(self.value, Relation):
            return bool(self.value)
        return self.env.guard(self.value) if self.env.takes_notes else bool(self.env.hint(self.value))

    def bool_(self) -> bool:
        value = Relation("ne", (self.value, 0)) if isinstance(self.value, Dim) else self.value
        return self.env.guard(value, by_python=True) if isinstance(value, Relation) else bool(value)

    def as_argument(self) -> bool:
        """The boolean as an argument that the user hands to an operator: ``x * (n > 2)``."""
        if isinstance(self.value, Relation):
            return self.env.guard(self.value, by_python=True, by_user=True)
        return bool(self.value)

    guard_size_oblivious = guard_or_false = guard_or_true = guard_bool

    def expect_true(self, file: object, line: object) -> bool:
        """torch checks an argument. Where it depends on data, the example's size proves nothing: eager PyTorch
        checks."""
        if isinstance(self.value, Relation) and self.value.symbols() & self.env.unbacked:
            self.env.expect_of_data(self.value)
            return True
        return self.env.check(self.value) if isinstance(self.value, Relation) else bool(self.value)

    def expect_size(self, file: object, line: object) -> bool:
        """Asked by torch up to 2.11 of each size that it is given."""
        return _comparison("ge")(self, self.wrap_int(0)).expect_true(file, line)

    def statically_known_true(self, file: object, line: object) -> bool:
        return self.constant and bool(self.value)

    def guard_int(self, file: object, line: object) -> int:
        return self.env.specialize(self.value) if isinstance(self.value, Dim) else int(self.value)

    def int_(self) -> int:
        return self.guard_int("", 0)

    def guard_float(self, file: object, line: object) -> float:
        if isinstance(self.value, Dim):
            self.env.specialize(self.value)
            return float(self.env.look(self.value))
        return float(self.value)

    def _wrap(self, value: Scalar) -> DimNode:
        if self.env.facts.sets and isinstance(value, Dim):
            value = self.env.facts.simplified(value)
        is_float = isinstance(value, float) or (isinstance(value, Dim) and value.is_real)
        return DimNode(self.env, value, float if is_float else int)

    def add(self, other: DimNode) -> DimNode:
        return self._of_two("add", operator.add, added, other)

    def _of_two(self, name: str, of_integers: Operation, of_reals: Operation, other: DimNode) -> DimNode:
        """A sum or a product, which torch asks for again with each tensor that it makes: once for each pair of sizes."""
        env, one, two = self.env, self.value, other.value
        if self.pytype is not int or other.pytype is not int:  # real numbers may be equal to integers
            return (self if type(other) is DimNode else other)._wrap(of_reals(one, two))
        found = env.facts.remembered.get((name, one, two))
        if found is None:
            made = self._wrap(of_integers(one, two))
            if made.pytype is int:
                env.facts.remembered[name, one, two] = made.value
            return made
        return DimNode(env, found, int)

    def sub(self, other: DimNode) -> DimNode:
        if type(self.value) is int and isinstance(other.value, Dim):
            return self._wrap(self._to_the_next_multiple(other.value))
        return self._of_two("sub", operator.sub, lambda one, two: added(one, -two), other)

    def _to_the_next_multiple(self, rest: Dim) -> Scalar:
        """``n - size % n`` where Python knows that ``size`` is no multiple of ``n``: then it is ``-size % n``, which is
        right for multiples, too.
        """
        atom = rest.only_atom()
        if atom is not None and atom.op == "mod" and atom.args[1] == self.value:
            size: Any = atom.args[0]
            if self.env.is_no_multiple(size, self.value):
                return apply("mod", -size, self.value)
        return self.value - rest  # type: ignore[no-any-return]

    def mul(self, other: DimNode) -> DimNode:
        return self._of_two("mul", operator.mul, multiplied, other)

    def neg(self) -> DimNode:
        return self._wrap(-self.value)

    def sym_sum(self, args: list[DimNode]) -> DimNode:
        total: Scalar = 0
        for arg in args:
            total = added(total, arg.value)
        return self._wrap(total)

    def sym_float(self) -> DimNode:
        return DimNode(self.env, apply("float", self.value), float)

    def trunc(self) -> DimNode:
        return self._rounded("trunc")

    sym_int = trunc

    def round(self, digits: int | None = None) -> DimNode:
        """To digits, of a plain number: no operator has Python's decimal rounding."""
        return self._rounded("round") if digits is None else self.wrap_float(round(self.guard_float("", 0), digits))

    def _rounded(self, op: str) -> DimNode:
        """``floor``, ``ceil``, ``trunc`` or ``round``; of a plain number where it would not be exact at every size."""
        if self.pytype is int:
            return self
        found = size_math.rounded_to_int(op, self.value, self.env.facts.signed)
        return self._wrap(apply(op, self.guard_float("", 0)) if found is None else found)

    floor, ceil = partialmethod(_rounded, "floor"), partialmethod(_rounded, "ceil")

    def _of_integers(self, formula: size_math.Formula, other: DimNode) -> DimNode:
        """Bits of two integers; of plain numbers where no expression is right at every size."""
        is_shift = formula in (size_math.shift_left, size_math.shift_right)
        if is_shift and not size_math.has_result(self.env, [("ge", other.value, 0)]):
            raise ValueError("negative shift count")
        found = formula(self.value, other.value)
        return self._wrap(formula(self.guard_int("", 0), other.guard_int("", 0)) if found is None else found)  # type: ignore[arg-type]

    bitwise_and = partialmethod(_of_integers, size_math.bit_and)
    bitwise_or = partialmethod(_of_integers, size_math.bit_or)
    bitwise_xor = partialmethod(_of_integers, size_math.bit_xor)
    rshift = partialmethod(_of_integers, size_math.shift_right)
    lshift = partialmethod(_of_integers, size_math.shift_left)

    def is_integer(self) -> DimNode:
        if self.pytype is int or self.constant:
            return self.wrap_bool(self.pytype is int or float(self.value).is_integer())
        top, bottom = fraction(self.value)
        found = (
            (self.value, size_math.rounded_to_int("floor", self.value))
            if bottom is None
            else (apply("mod", top, bottom), 0)
        )
        if found[1] is None:
            return self.wrap_bool(self.guard_float("", 0).is_integer())
        known = self.env.asked_for("eq", *found)
        return DimNode(self.env, Relation("eq", found) if known is None else known, bool)

    def sym_not(self) -> DimNode:
        if not isinstance(self.value, Relation):
            return self.wrap_bool(not self.value)
        return DimNode(self.env, self.value.negated(), bool)

    def _logic(self, op: str, other: DimNode) -> DimNode:
        decided = op == "or"
        for one, two in ((self, other), (other, self)):
            if one.constant:
                return one if bool(one.value) == decided else two
        return DimNode(self.env, Relation(op, (self.value, other.value)), bool)

    and_ = sym_and = partialmethod(_logic, "and")
    or_ = sym_or = partialmethod(_logic, "or")

    def xor(self, other: DimNode) -> DimNode:
        """Asked by newer versions of torch."""
        return self.and_(other.sym_not()).or_(self.sym_not().and_(other))

    def sym_ite(self, then: DimNode, otherwise: DimNode) -> DimNode:
        return then if self.as_argument() else otherwise

    is_contiguous = _layout()
    is_channels_last_contiguous_2d = is_channels_last_strides_2d = _layout((1, 3, 2, 0))
    is_channels_last_contiguous_3d = is_channels_last_strides_3d = _layout((1, 4, 3, 2, 0))

    def is_non_overlapping_and_dense(self, sizes: list[DimNode], strides: list[DimNode]) -> DimNode:
        hints = sorted((node.hint, size.hint) for node, size in zip(strides, sizes, strict=True) if size.hint != 1)
        expected = 1
        for stride, size in hints:
            if stride != expected:
                return self.wrap_bool(False)
            expected *= size
        return self.wrap_bool(True)

    def is_non_overlapping_and_dense_indicator(self, sizes: list[DimNode], strides: list[DimNode]) -> DimNode:
        return self.wrap_int(int(self.is_non_overlapping_and_dense(sizes, strides).value))


@answers_for_caller
def _binary(op: str) -> Callable[[DimNode, DimNode], DimNode]:
    def method(self: DimNode, other: DimNode) -> DimNode:
        if type(other.value) is Dim or other.value <= 0:
            needs = size_math.needs_of_operator(op, self.value, other.value)
            if needs and not size_math.has_result(self.env, needs):
                EVALUATE[op](self.hint, other.hint)  # raises in Python's words, at the example's sizes
                raise ZeroDivisionError("division by zero")
        return (self if type(other) is DimNode else other)._wrap(apply(op, self.value, other.value))

    return method


@answers_for_caller
def _unary(op: str) -> Callable[..., DimNode]:
    def method(self: DimNode, *_: object) -> DimNode:
        return self._wrap(apply(op, self.value))

    return method


@answers_for_caller
def _comparison(op: str) -> Callable[[DimNode, DimNode], DimNode]:
    def method(self: DimNode, other: DimNode) -> DimNode:
        env, one, two = self.env, self.value, other.value
        if self.pytype is bool or other.pytype is bool:
            return DimNode(env, Relation(op, (one, two)), bool)
        is_kept = env.remembers_comparisons() and type(one) is not float and type(two) is not float
        found = env.facts.remembered.get((op, one, two)) if is_kept else None
        if found is None:
            known = env.asked_for(op, one, two)
            found = Relation(op, (one, two)) if known is None else known
            if is_kept:
                env.facts.remembered[op, one, two] = found
        return DimNode(env, found, bool)

    return method


@answers_for_caller
def _extreme(op: str) -> Callable[[DimNode, DimNode], DimNode]:
    """min or max; one of the two where it is certain which."""
    below, above = ("le", "ge") if op == "min" else ("ge", "le")

    def method(self: DimNode, other: DimNode) -> DimNode:
        if self.env.asked_for(below, self.value, other.value):
            return self
        return (
            other
            if self.env.asked_for(above, self.value, other.value)
            else self._wrap(apply(op, self.value, other.value))
        )

    return method


_larger = _extreme("max")


@answers_for_caller
def _sym_max(self: DimNode, other: DimNode) -> DimNode:
    """torch writes strides as ``max(size, 1)``; for the graph, which has no strides, that is the size."""
    if other.value == 1 and isinstance(self.value, Dim) and not asked_by_user():
        return self
    return _larger(self, other)


_BINARY = {
    "floordiv": ("floordiv", "int_floordiv"),
    "mod": ("mod",),
    "truediv": ("truediv", "int_truediv", "float_truediv"),
    "pow": ("pow", "pow_by_natural", "float_pow"),
}
"""Under which names torch calls an operation."""
_METHODS = {
    **{name: _binary(op) for op, names in _BINARY.items() for name in names},
    **{name: _unary(name.removeprefix("sym_")) for name in ("abs", "sqrt", "sym_sqrt")},
    **{op: _comparison(op) for op in COMPARE},
    "sym_max": _sym_max,
    "sym_min": _extreme("min"),
    "str": DimNode.__str__,
}
for _name, _method in _METHODS.items():
    setattr(DimNode, _name, _method)


def sym_int(env: ShapeEnv, dim: Scalar) -> Any:
    """A size for torch: a SymInt over ``dim``, or the plain number."""
    return torch.SymInt(DimNode(env, dim, int)) if isinstance(dim, Dim) else dim  # type: ignore[no-untyped-call]


def sym_number(env: ShapeEnv, value: Scalar) -> Any:
    """A number for Python: a SymInt or SymFloat over ``value``, or the plain number."""
    if isinstance(value, Dim) and value.is_real:
        return torch.SymFloat(DimNode(env, value, float))  # type: ignore[no-untyped-call]
    return sym_int(env, value)


def size_node(item: object) -> DimNode | None:
    """The node of a symbolic size; None for anything else."""
    node = item.node if type(item) in (torch.SymInt, torch.SymFloat) else None  # type: ignore[attr-defined]
    return node if isinstance(node, DimNode) else None


@answers_for_caller
def may_be_size(value: Any) -> bool:
    """Return whether the value, or one in it, is a symbolic size or a tensor of one number, which may be one."""
    if isinstance(value, list | tuple):
        return any(map(may_be_size, value))
    return type(value) is torch.SymInt or (isinstance(value, torch.Tensor) and value.dim() == 0)


@contextlib.contextmanager
def either_way(*sizes: object) -> Iterator[None]:
    """Inside, whether Python finds one of these sizes to be 1 makes no difference to what is computed."""
    nodes = [size.node for size in sizes if type(size) is torch.SymInt]
    added = [
        (node.env, name)
        for node in nodes
        if isinstance(node.value, Dim)
        for name in node.value.symbols() - node.env.either_way
    ]
    for env, name in added:
        env.either_way.add(name)
    try:
        yield
    finally:
        for env, name in added:
            env.either_way.discard(name)


@answers_for_caller
def unwrap(value: Any) -> Any:
    """The ``Dim`` (or plain number) behind a SymInt or SymFloat; a SymBool is decided."""
    kind = type(value)
    if kind is torch.SymBool:
        return value.node.as_argument()
    if kind is torch.SymInt or kind is torch.SymFloat:
        node: Any = value.node
        return node.value if isinstance(node, DimNode) else node.maybe_as_int() if value.node.is_int() else float(value)
    return value


def is_of_data(value: object, env: ShapeEnv) -> bool:
    """Return whether a number is known only when the model runs."""
    node = value.node if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else None
    held = node.value if isinstance(node, DimNode) else None
    return type(value) is DataNumber or (isinstance(held, Dim | Relation) and bool(held.symbols() & env.unbacked))
