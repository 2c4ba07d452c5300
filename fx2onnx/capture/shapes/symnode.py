"""Symbolic sizes for fake tensors: a ``torch.SymInt`` over ``base.dims``, without sympy.

torch calls a SymInt's node for arithmetic and for comparisons. ``DimNode`` decides from the polynomial where it
is certain and from the sample's size (the hint) where it is not; every such guard is kept in ``ShapeEnv`` with
the user's line, so that a size that Python specialized is reported and never baked in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fx2onnx.base.assumptions import COMPARE, Relation
from fx2onnx.base.dims import Dim, Scalar, apply
from fx2onnx.capture.python.frames import asked_by_user
from fx2onnx.capture.shapes.shape_env import ShapeEnv, certain


class _Environment:
    """What torch's helpers (``guard_or_false``, ``statically_known_true``) expect behind a node."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env

    def evaluate_sym_node(self, node: DimNode, size_oblivious: bool = False, fallback_value: bool | None = None) -> Any:
        if fallback_value is not None and isinstance(node.value, Relation):
            env = self.env
            if node.value.symbols() & env.unbacked or bool(env.look(node.value)) == fallback_value:
                return fallback_value
        return node.guard_bool("", 0) if node.is_bool() else node.guard_int("", 0)

    def _maybe_evaluate_static(self, value: Any, **_: Any) -> bool | None:
        return None

    def is_unbacked_symint(self, _: Any) -> bool:
        return False


class DimNode:
    """The object behind a ``torch.SymInt``, ``SymFloat`` or ``SymBool``."""

    __slots__ = ("env", "pytype", "shape_env", "value")

    def __init__(self, env: ShapeEnv, value: Any, pytype: type) -> None:
        self.env = env
        self.value = value
        self.pytype = pytype
        self.shape_env = _Environment(env)

    # -- what it is ---------------------------------------------------------------------------------------------
    @property
    def constant(self) -> bool:
        return not isinstance(self.value, Dim | Relation)

    @property
    def expr(self) -> Any:
        return self.value

    @property
    def hint(self) -> Any:
        return self.value if self.constant else self.env.look(self.value)

    _hint = hint

    def has_hint(self) -> bool:
        return True

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_constant(self) -> bool:
        return self.constant

    def is_symbolic(self) -> bool:
        return not self.constant

    def maybe_as_int(self) -> int | None:
        return int(self.value) if self.constant and self.pytype is int else None

    constant_int = maybe_as_int

    def maybe_as_float(self) -> float | None:
        return float(self.value) if self.constant and self.pytype is float else None

    def maybe_as_bool(self) -> bool | None:
        return bool(self.value) if self.constant and self.pytype is bool else None

    constant_bool = maybe_as_bool

    def __str__(self) -> str:
        return f"{self.value}"

    __repr__ = _graph_repr = __str__

    def clone(self) -> DimNode:
        return self

    def _value_eq(self, other: DimNode) -> bool:
        return bool(self.value == other.value)

    def _value_hash(self) -> int:
        return hash(self.value)

    def wrap_int(self, number: int) -> DimNode:
        return DimNode(self.env, number, int)

    def wrap_float(self, number: float) -> DimNode:
        return DimNode(self.env, number, float)

    def wrap_bool(self, truth: bool) -> DimNode:
        return DimNode(self.env, truth, bool)

    # -- decisions ----------------------------------------------------------------------------------------------
    def guard_bool(self, file: Any, line: Any) -> bool:
        return self.env.guard(self.value) if isinstance(self.value, Relation) else bool(self.value)

    def bool_(self) -> bool:
        return self.env.guard(self.value, by_python=True) if isinstance(self.value, Relation) else bool(self.value)

    guard_size_oblivious = guard_bool

    def expect_true(self, file: Any, line: Any) -> bool:
        """torch checks an argument. Where it depends on data, the sample's size proves nothing: eager PyTorch checks."""
        if isinstance(self.value, Relation) and self.value.symbols() & self.env.unbacked:
            return True
        return self.guard_bool(file, line)

    def guard_or_false(self, file: Any, line: Any) -> bool:
        return self.guard_bool(file, line)

    guard_or_true = guard_or_false

    def statically_known_true(self, file: Any, line: Any) -> bool:
        return self.constant and bool(self.value)

    def guard_int(self, file: Any, line: Any) -> int:
        return self.env.specialize(self.value) if isinstance(self.value, Dim) else int(self.value)

    def int_(self) -> int:
        return self.guard_int("", 0)

    def guard_float(self, file: Any, line: Any) -> float:
        if isinstance(self.value, Dim):
            self.env.specialize(self.value)
            return float(self.env.look(self.value))
        return float(self.value)

    # -- arithmetic ---------------------------------------------------------------------------------------------
    def _wrap(self, value: Scalar) -> DimNode:
        is_float = isinstance(value, float) or (isinstance(value, Dim) and value.is_real)
        return DimNode(self.env, value, float if is_float else int)

    def add(self, other: DimNode) -> DimNode:
        return self._wrap(self.value + other.value)

    def sub(self, other: DimNode) -> DimNode:
        if type(self.value) is int and isinstance(other.value, Dim):
            return self._wrap(self._to_the_next_multiple(other.value))
        return self._wrap(self.value - other.value)

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
        return self._wrap(self.value * other.value)

    def neg(self) -> DimNode:
        return self._wrap(-self.value)

    def pos(self) -> DimNode:
        return self

    def sym_sum(self, args: list[DimNode]) -> DimNode:
        total: Scalar = 0
        for arg in args:
            total = total + arg.value
        return self._wrap(total)

    def sym_float(self) -> DimNode:
        return DimNode(self.env, apply("float", self.value), float)

    def sym_int(self) -> DimNode:
        return self if self.pytype is int else self._wrap(apply("trunc", self.value))

    def is_integer(self) -> DimNode:
        return self.wrap_bool(self.pytype is int)

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

    def and_(self, other: DimNode) -> DimNode:
        return self._logic("and", other)

    def or_(self, other: DimNode) -> DimNode:
        return self._logic("or", other)

    sym_and, sym_or = and_, or_

    def sym_ite(self, then: DimNode, otherwise: DimNode) -> DimNode:
        return then if self.guard_bool("", 0) else otherwise

    # -- layout: facts about strides, which the graph does not depend on ------------------------------------------
    def _contiguous(self, sizes: list[DimNode], strides: list[DimNode], order: Any = None) -> bool:
        expected: Scalar = 1
        for axis in order or range(len(sizes) - 1, -1, -1):
            size = sizes[axis].value
            if size == 1:
                continue
            if strides[axis].value != expected:
                return False
            expected = expected * size
        return True

    def is_contiguous(self, sizes: list[DimNode], strides: list[DimNode]) -> DimNode:
        return self.wrap_bool(self._contiguous(sizes, strides))

    def is_channels_last_contiguous_2d(self, sizes: list[DimNode], strides: list[DimNode]) -> DimNode:
        return self.wrap_bool(len(sizes) == 4 and self._contiguous(sizes, strides, (1, 3, 2, 0)))

    def is_channels_last_contiguous_3d(self, sizes: list[DimNode], strides: list[DimNode]) -> DimNode:
        return self.wrap_bool(len(sizes) == 5 and self._contiguous(sizes, strides, (1, 4, 3, 2, 0)))

    is_channels_last_strides_2d = is_channels_last_contiguous_2d
    is_channels_last_strides_3d = is_channels_last_contiguous_3d

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


def _binary(op: str) -> Callable[[DimNode, DimNode], DimNode]:
    def method(self: DimNode, other: DimNode) -> DimNode:
        return self._wrap(apply(op, self.value, other.value))

    return method


def _unary(op: str) -> Callable[..., DimNode]:
    def method(self: DimNode, *_: Any) -> DimNode:
        return self._wrap(apply(op, self.value))

    return method


def _comparison(op: str) -> Callable[[DimNode, DimNode], DimNode]:
    def method(self: DimNode, other: DimNode) -> DimNode:
        if self.pytype is bool or other.pytype is bool:
            return DimNode(self.env, Relation(op, (self.value, other.value)), bool)
        known = certain(op, self.value, other.value)
        return DimNode(self.env, Relation(op, (self.value, other.value)) if known is None else known, bool)

    return method


def _extreme(op: str) -> Callable[[DimNode, DimNode], DimNode]:
    """min or max; one of the two where it is certain which."""
    below, above = ("le", "ge") if op == "min" else ("ge", "le")

    def method(self: DimNode, other: DimNode) -> DimNode:
        if certain(below, self.value, other.value):
            return self
        return other if certain(above, self.value, other.value) else self._wrap(apply(op, self.value, other.value))

    return method


for _name, _op in {
    "floordiv": "floordiv",
    "int_floordiv": "floordiv",
    "mod": "mod",
    "truediv": "truediv",
    "int_truediv": "truediv",
    "float_truediv": "truediv",
    "pow": "pow",
    "pow_by_natural": "pow",
    "float_pow": "pow",
}.items():
    setattr(DimNode, _name, _binary(_op))


def _sym_max(self: DimNode, other: DimNode) -> DimNode:
    """torch writes strides as ``max(size, 1)``; for the graph, which has no strides, that is the size."""
    if other.value == 1 and isinstance(self.value, Dim) and not asked_by_user():
        return self
    return _extreme("max")(self, other)


setattr(DimNode, "str", DimNode.__str__)  # noqa: B010
setattr(DimNode, "sym_max", _sym_max)  # noqa: B010
setattr(DimNode, "sym_min", _extreme("min"))  # noqa: B010
for _name in ("floor", "ceil", "trunc", "round", "abs", "sqrt"):
    setattr(DimNode, _name, _unary(_name))
setattr(DimNode, "sym_sqrt", _unary("sqrt"))  # noqa: B010
for _name in COMPARE:
    setattr(DimNode, _name, _comparison(_name))


def sym_int(env: ShapeEnv, dim: Scalar) -> Any:
    """A size for torch: a SymInt over ``dim``, or the plain number."""
    return torch.SymInt(DimNode(env, dim, int)) if isinstance(dim, Dim) else dim  # type: ignore[no-untyped-call]


def unwrap(value: Any) -> Any:
    """The ``Dim`` (or plain number) behind a SymInt or SymFloat; a SymBool is decided."""
    kind = type(value)
    if kind is torch.SymBool:
        return bool(value)
    if kind is torch.SymInt or kind is torch.SymFloat:
        node: Any = value.node
        return node.value if isinstance(node, DimNode) else node.maybe_as_int() if value.node.is_int() else float(value)
    return value
