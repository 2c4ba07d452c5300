"""Complex numbers as a trailing pair of reals: making, splitting, arithmetic, and views of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.matmul import product as matrix_product
from fx2onnx.aten_map.powers import arc_tangent
from fx2onnx.aten_map.reductions import mean, reduce
from fx2onnx.aten_map.table.dtypes import FLOATS, Operand, as_dtype
from fx2onnx.aten_map.table.registry import TABLE, OpOverload, overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import mark_complex

aten = torch.ops.aten
D = ir.DataType


def parts(op: Emit, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(real, imaginary) of a pair."""
    axis = op.rank(value) - 1
    zero, one = op.const(np.int64(0)), op.const(np.int64(1))
    return op.Gather(value, zero, axis=axis), op.Gather(value, one, axis=axis)


def pair(op: Emit, real: ir.Value, imaginary: ir.Value) -> ir.Value:
    """A pair of two parts of equal dims."""
    axis = op.rank(real)
    joined = op.Concat(op.Unsqueeze(real, axes=[axis]), op.Unsqueeze(imaginary, axes=[axis]), axis=axis)
    return mark_complex(joined)


def as_pair(op: Emit, operand: Any, dtype: ir.DataType) -> ir.Value:
    """Any operand as a pair of ``dtype``."""
    if isinstance(operand, complex):
        return op.const(np.array([operand.real, operand.imag]), dtype)
    if not isinstance(operand, ir.Value):
        if isinstance(operand, bool | int | float):
            return op.const(np.array([float(operand), 0.0]), dtype)
        operand = as_dtype(op, operand, dtype)
    if op.is_complex(operand):
        return mark_complex(op.cast(operand, dtype))
    column = op.Unsqueeze(op.cast(operand, dtype), axes=[op.rank(operand)])
    pads = np.array([0] * (op.rank(column) * 2 - 1) + [1])
    result = op.Pad(column, pads=pads)
    return mark_complex(result)


def as_real(op: Emit, overload: OpOverload, given: dict[str, Any]) -> Any:
    """Apply the overload's entry for real numbers to these arguments."""
    found = TABLE.find(overload, op.opset)
    assert found is not None
    return found.call(op, given)


def is_real(op: Emit, operand: Any) -> bool:
    return not isinstance(operand, complex) and not (isinstance(operand, ir.Value) and op.is_complex(operand))


def scaled(op: Emit, value: ir.Value, factor: Operand, op_type: str = "Mul") -> ir.Value:
    """A pair times (or over) a real operand."""
    real = as_dtype(op, factor, op.dtype(value))
    if op.rank(real):
        real = op.Unsqueeze(real, axes=[op.rank(real)])
    return op.node(op_type, value, real)


def multiplied(op: Emit, left: ir.Value, right: ir.Value, multiply: Callable[..., ir.Value] | None = None) -> ir.Value:
    """(a + bi)(c + di) = (ac - bd) + (ad + bc) i, of any product that is linear in both."""
    times = multiply or (lambda op, x, y: op.Mul(x, y))
    (a, b), (c, d) = parts(op, left), parts(op, right)
    real = op.Sub(times(op, a, c), times(op, b, d))
    return pair(op, real, op.Add(times(op, a, d), times(op, b, c)))


def conjugate(op: Emit, value: ir.Value | complex) -> ir.Value:
    """The complex conjugate of a value or of a number, as the gradient of a product with ``1j`` has it."""
    if isinstance(value, complex):
        return mark_complex(as_pair(op, value.conjugate(), D.DOUBLE))
    result = op.Mul(value, op.const(np.array([1.0, -1.0]), op.dtype(value)))
    return mark_complex(result)


def quotient(op: Emit, left: ir.Value, right: ir.Value) -> ir.Value:
    """z / w = z conj(u) / |u|^2 / s, where s is the larger part of w and u is w / s; z / 0 divides both parts by 0.

    Numerics: |w|^2 would leave float32 where w does not.
    """
    axis = op.rank(right) - 1
    size = op.node("ReduceMax", op.Abs(right), axes=[axis], keepdims=1)
    is_zero = op.Equal(size, 0.0)
    unit = op.Div(right, op.Where(is_zero, op.const(1.0, op.dtype(right)), size))
    turned = multiplied(op, left, conjugate(op, unit))
    found = op.Div(turned, op.ReduceSumSquare(unit, axes=[axis], keepdims=1))
    return mark_complex(op.Div(op.Where(is_zero, left, found), size))


def inverse_of(op: Emit, value: ir.Value) -> ir.Value:
    return quotient(op, op.const(np.array([1.0, 0.0]), op.dtype(value)), value)


def magnitude(op: Emit, value: ir.Value) -> ir.Value:
    """|z|. Numerics: float32 in float64, since the squares of large and small parts leave float32."""
    dtype = op.dtype(value)
    wide = op.cast(value, ir.DataType.DOUBLE)
    return op.cast(op.ReduceL2(wide, axes=[op.rank(value) - 1], keepdims=0), dtype)


def _relabelled(op: Emit, self: ir.Value) -> ir.Value:
    """The same numbers as a value of its own: whether a value is complex is noted on it."""
    result = op.Identity(self)
    return mark_complex(result) if len(op.result_dims()) == op.rank(self) and not op.is_complex(self) else result


def _complex(op: Emit, real: ir.Value, imag: ir.Value) -> ir.Value:
    dims = op.result_dims()[:-1]
    return pair(op, op.expand(real, dims), op.expand(imag, dims))


def _polar(op: Emit, abs: ir.Value, angle: ir.Value) -> ir.Value:
    dims = op.result_dims()[:-1]
    return pair(op, op.expand(op.Mul(abs, op.Cos(angle)), dims), op.expand(op.Mul(abs, op.Sin(angle)), dims))


def _part(index: int) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value) -> ir.Value:
        return parts(op, self)[index] if op.is_complex(self) else self

    return entry


def _add(op_type: str) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: Any, other: Any, alpha: Any = 1) -> ir.Value:
        dtype = op.result_dtype()
        right = as_pair(op, other, dtype)
        if alpha != 1:
            right = (
                multiplied(op, right, as_pair(op, alpha, dtype))
                if isinstance(alpha, complex)
                else scaled(op, right, alpha)
            )
        return op.node(op_type, as_pair(op, self, dtype), right)

    return entry


def _rsub(op: Emit, self: Any, other: Any, alpha: Any = 1) -> ir.Value:
    return _add("Sub")(op, other, self, alpha)


def _mul(op: Emit, self: Any, other: Any) -> ir.Value:
    dtype = op.result_dtype()
    if is_real(op, other):
        return scaled(op, op.cast(self, dtype), other)
    if is_real(op, self):
        return scaled(op, as_pair(op, other, dtype), self)
    return multiplied(op, as_pair(op, self, dtype), as_pair(op, other, dtype))


def _div(op: Emit, self: Any, other: Any) -> ir.Value:
    dtype = op.result_dtype()
    if is_real(op, other):
        if isinstance(other, ir.Value):  # both zeros divide alike
            other = op.cast(other, dtype)
            other = op.Where(op.Equal(other, 0.0), op.const(0.0, dtype), other)
        return scaled(op, op.cast(self, dtype), other, "Div")
    return quotient(op, as_pair(op, self, dtype), as_pair(op, other, dtype))


def exponential(op: Emit, self: ir.Value) -> ir.Value:
    real, angle = parts(op, self)
    size = op.Exp(real)
    return pair(op, op.Mul(size, op.Cos(angle)), op.Mul(size, op.Sin(angle)))


def _angle(op: Emit, self: ir.Value) -> ir.Value:
    real, imaginary = parts(op, self)
    return arc_tangent(op, imaginary, real)


def logarithm(op: Emit, self: ir.Value) -> ir.Value:
    return pair(op, op.Log(magnitude(op, self)), _angle(op, self))


def _sgn(op: Emit, self: ir.Value) -> ir.Value:
    size = op.Unsqueeze(magnitude(op, self), axes=[op.rank(self) - 1])
    zero = op.const(0.0, op.result_dtype())
    return op.Where(op.Equal(size, 0), zero, op.Div(self, size))


def _to(op: Emit, self: ir.Value) -> ir.Value:
    if op.is_complex(self) and len(op.result_dims()) == op.rank(self) - 1:
        return op.cast(parts(op, self)[0], op.result_dtype())
    return as_pair(op, self, op.result_dtype())


def _matmul(op: Emit, self: ir.Value, other: ir.Value) -> ir.Value:
    dtype = op.result_dtype()
    return multiplied(op, as_pair(op, self, dtype), as_pair(op, other, dtype), matrix_product)


def _where(op: Emit, condition: ir.Value, self: Any, other: Any) -> ir.Value:
    dtype = op.result_dtype()
    column = op.Unsqueeze(condition, axes=[op.rank(condition)])
    return op.Where(column, as_pair(op, self, dtype), as_pair(op, other, dtype))


def _not_equal_parts(negate: bool) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: Any, other: Any) -> ir.Value:
        tensors = [op.dtype(item) for item in (self, other) if isinstance(item, ir.Value)]
        dtype = D.DOUBLE if D.DOUBLE in tensors else next((each for each in tensors if each in FLOATS), D.FLOAT)
        same = op.Equal(as_pair(op, self, dtype), as_pair(op, other, dtype))
        axis = op.rank(same) - 1
        found = op.cast(op.ReduceMin(op.cast(same, D.INT32), axes=[axis], keepdims=0), D.BOOL)
        return op.Not(found) if negate else found

    return entry


_SAME = "clone alias detach contiguous lift_fresh resolve_conj resolve_neg positive detach_copy alias_copy"
_RELABELLED = "view_as_real view_as_real_copy view_as_complex view_as_complex_copy"
_FORMS: list[tuple[str, str, Callable[..., Any]]] = [
    (_SAME, "nothing", lambda op, self: self),
    (_RELABELLED, "Identity", _relabelled),
    ("complex", "Concat of the parts", _complex),
    ("polar", "Cos, Sin, Mul, Concat", _polar),
    ("real", "Gather", _part(0)),
    ("imag", "Gather", _part(1)),
    ("abs absolute", "ReduceL2", lambda op, self: magnitude(op, self)),
    ("angle", "Atan, quadrants by Where", _angle),
    ("_conj conj conj_physical _conj_physical", "Mul by (1, -1)", lambda op, self: conjugate(op, self)),
    ("neg negative _neg_view _neg_view_copy", "Neg", lambda op, self: op.Neg(self)),
    ("add.Tensor add.Scalar", "Add of pairs", _add("Add")),
    ("sub.Tensor sub.Scalar subtract.Tensor subtract.Scalar", "Sub of pairs", _add("Sub")),
    ("rsub.Tensor rsub.Scalar", "Sub of pairs", _rsub),
    ("mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar", "four Mul, Sub, Add", _mul),
    (
        "div.Tensor div.Scalar divide.Tensor divide.Scalar true_divide.Tensor true_divide.Scalar",
        "Mul by conj, Div by |z|^2",
        _div,
    ),
    ("reciprocal", "conj, Div by |z|^2", lambda op, self: inverse_of(op, self)),
    ("square", "four Mul, Sub, Add", lambda op, self: multiplied(op, self, self)),
    ("exp", "Exp, Cos, Sin", exponential),
    ("log", "Log |z|, angle", logarithm),
    ("sgn", "z / |z|", _sgn),
    ("to.dtype to.device to.dtype_layout to.other _to_copy type_as", "Pad to a pair; the real part", _to),
    ("matmul mm bmm linalg_matmul", "four MatMul", _matmul),
    ("where.self where.ScalarOther where.ScalarSelf", "Where of pairs", _where),
    ("eq.Tensor eq.Scalar", "Equal of both parts", _not_equal_parts(False)),
    ("ne.Tensor ne.Scalar not_equal.Tensor not_equal.Scalar", "Equal of both parts, Not", _not_equal_parts(True)),
]
for _names, _form, _function in _FORMS:
    register_shared(_function, _form, *overloads_of(_names), is_complex=True)
register_shared(_to, "Cast, Pad to a pair", *overloads_of("chalf"), is_complex=True)

# Views of pairs: the real entry, with one more axis in sizes, and dims that count without it.
SIZES = frozenset({"size", "shape", "sizes", "repeats", "input_sizes"})
DIMS = frozenset(
    {"dim", "dim0", "dim1", "dims", "axis", "axis0", "axis1", "start_dim", "end_dim", "source", "destination"}
)
NEW_AXIS = frozenset({"unsqueeze", "stack"})
_VIEWS = "view reshape _unsafe_view _reshape_alias flatten.using_ints transpose.int swapaxes swapdims permute movedim.int moveaxis.int "
_VIEWS += "movedim.intlist moveaxis.intlist unsqueeze squeeze squeeze.dim squeeze.dims expand slice.Tensor select.int narrow cat concat "
_VIEWS += "concatenate stack unbind.int split.Tensor split_with_sizes chunk repeat roll flip index_select index.Tensor "
_VIEWS += "sum.dim_IntList sum mean.dim mean cumsum diff unflatten.int broadcast_to"
ONE_ELEMENT = frozenset({"cumsum", "index_select", "flip", "roll"})
"""Views along an axis that PyTorch takes of a 0-d tensor too: they are the tensor."""
TAKES_REAL = frozenset({"cat", "concat", "concatenate", "stack", "diff", "sum", "mean", "cumsum"})
"""Real operands may stand among complex ones, or the result be asked for in a complex dtype."""
REPEATS_ONE = frozenset({"repeat"})


def _with_pair(overload: OpOverload) -> Callable[..., Any]:
    packet = str(overload._schema.name).split("::")[-1]

    def entry(op: Emit, **given: Any) -> Any:
        wanted = given.get("dtype")
        if wanted is not None and not wanted.is_complex:
            return as_real(op, overload, given | {"self": parts(op, given["self"])[0]})
        if packet in TAKES_REAL:
            dtype = op.result_dtype()
            as_pairs = {
                name: [as_pair(op, each, dtype) for each in value]
                for name, value in given.items()
                if isinstance(value, list | tuple) and value and isinstance(value[0], ir.Value)
            }
            given |= as_pairs | {
                name: as_pair(op, value, dtype) for name, value in given.items() if isinstance(value, ir.Value)
            }
        first = next(iter(given.values()))
        source = first[0] if isinstance(first, list | tuple) else first
        rank = op.rank(source) - 1 + (packet in NEW_AXIS)
        if not rank and packet in ONE_ELEMENT:
            return source if packet == "cumsum" else op.reshape(source, op.result_dims())
        if packet == "squeeze" and given.get("dim") == []:
            return source
        if packet == "roll" and not given["dims"]:  # all elements in a row, two numbers each
            given["shifts"] = [2 * shift for shift in given["shifts"]]
        for name, value in given.items():
            if name in SIZES and isinstance(value, list | tuple) and packet not in ("split_with_sizes", "unflatten"):
                given[name] = [*value, 1 if packet in REPEATS_ONE else 2]
            elif name in DIMS and isinstance(value, int):
                given[name] = value % max(rank, 1)
            elif name in DIMS and isinstance(value, list | tuple):
                given[name] = [dim % max(rank, 1) for dim in value] + ([rank] if packet == "permute" else [])
        is_over_all = not rank or (not given.get("dim") and not isinstance(given.get("dim"), int))
        if packet in ("sum", "mean", "squeeze") and is_over_all:
            return _over_all(op, packet, source, given)
        if packet == "permute" and len(given["dims"]) == rank:
            given["dims"] = [*given["dims"], rank]
        return as_real(op, overload, given)

    return entry


def _over_all(op: Emit, packet: str, value: ir.Value, given: dict[str, Any]) -> ir.Value:
    """sum, mean and squeeze over every axis but the pair's."""
    axes = list(range(op.rank(value) - 1))
    if packet == "squeeze":
        ones = [axis for axis in axes if op.dims(value)[axis] == 1]
        return op.Squeeze(value, axes=ones) if ones else value
    if not axes:
        return value
    keeps = bool(given.get("keepdim"))
    return reduce(op, "ReduceSum", value, axes, keeps) if packet == "sum" else mean(op, value, axes, keeps)


for _overload in overloads_of(_VIEWS):
    register_shared(_with_pair(_overload), "as of reals, with the pair as a last axis", _overload, is_complex=True)
