"""Random tensors: dtype, shape and distribution are PyTorch's, the numbers are the runtime's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.arithmetic import add
from fx2onnx.aten_map.creation import filled_with
from fx2onnx.aten_map.sorting import top
from fx2onnx.aten_map.table.dtypes import FLOATS, Operand, as_dtype, opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import mark_complex
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
D = ir.DataType


def drawn(op: Emit, kind: str, dims: Sequence[DimLike], dtype: ir.DataType, like: ir.Value | None = None) -> ir.Value:
    """RandomUniform in [0, 1) or RandomNormal; the ...Like form where a size is symbolic."""
    wide = dtype if dtype in (D.FLOAT, D.DOUBLE) else D.FLOAT
    if not any(isinstance(dim, Dim) for dim in dims):
        value = (
            op.node(f"Random{kind}", shape=list(dims), dtype=wide)
            if dims
            else op.reshape(op.node(f"Random{kind}", shape=[1], dtype=wide), ())
        )
    else:
        source = like if like is not None and op.dims(like) == tuple(dims) else filled_with(op, dims, 0, wide)
        value = op.node(f"Random{kind}Like", source, dtype=wide)
    return op.cast(value, dtype)


def _draw(kind: str) -> Any:
    def entry(op: Emit, self: ir.Value | None = None) -> ir.Value:
        dtype, dims = op.result[0]
        return drawn(op, kind, dims, dtype, self)

    return entry


register_shared(_draw("Uniform"), "RandomUniform", *overloads_of("rand rand.generator rand_like rand_like.generator"))
register_shared(_draw("Normal"), "RandomNormal", *overloads_of("randn randn.generator randn_like randn_like.generator"))


def _draw_complex(kind: str, factor: float) -> Any:
    """Complex random numbers: independent real and imaginary parts with PyTorch's variances."""

    def entry(op: Emit) -> ir.Value:
        dtype, dims = op.result[0]
        value = drawn(op, kind, dims, dtype)
        return mark_complex(value if factor == 1 else op.Mul(value, op.const(factor, dtype)))

    return entry


for _kind, _name, _factor in (("Uniform", "rand", 1.0), ("Normal", "randn", math.sqrt(0.5))):
    _names = f"{_name} {_name}.generator {_name}_like {_name}_like.generator"
    register_shared(_draw_complex(_kind, _factor), f"Random{_kind} of pairs", *overloads_of(_names), is_complex=True)


def integers(op: Emit, low: Any, high: Any, dims: Sequence[DimLike], dtype: ir.DataType) -> ir.Value:
    """Whole numbers in [low, high), from a uniform number in float64."""
    uniform = drawn(op, "Uniform", dims, D.DOUBLE)
    if isinstance(low, int) and isinstance(high, int):
        span = op.const(float(high - low), D.DOUBLE)
    else:
        span = op.Sub(as_dtype(op, high, D.DOUBLE), as_dtype(op, low, D.DOUBLE))
    numbers = op.Floor(op.Mul(uniform, span))
    if low != 0 or isinstance(low, ir.Value | Dim):
        numbers = op.Add(numbers, as_dtype(op, low, D.DOUBLE))
    return op.cast(op.cast(numbers, D.INT64), dtype)


def _randint(op: Emit, high: Any, low: Any = 0) -> ir.Value:
    dtype, dims = op.result[0]
    return integers(op, low, high, dims, dtype)


_RANDINTS = "randint randint.generator randint.low randint.low_generator randint_like randint_like.Tensor "
_RANDINTS += "randint_like.low_dtype randint_like.generator randint_like.Tensor_generator "
_RANDINTS += "randint_like.low_generator_dtype"
register_shared(_randint, "Floor(RandomUniform * (high - low)) + low", *overloads_of(_RANDINTS))


def _normal(op: Emit, mean: Operand = 0.0, std: Operand = 1.0) -> ir.Value:
    dtype, dims = op.result[0]
    value = drawn(op, "Normal", dims, dtype)
    if std != 1.0 or isinstance(std, ir.Value):
        value = add(op, value, std, dtype, "Mul")
    if mean != 0.0 or isinstance(mean, ir.Value):
        value = add(op, value, mean, dtype)
    return value


_NORMALS = "normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor normal.float_float normal_functional"
register_shared(_normal, "RandomNormal * std + mean", *overloads_of(_NORMALS))


def _bernoulli(op: Emit, self: ir.Value, p: Operand | None = None) -> ir.Value:
    dtype, dims = op.result[0]
    chance: Operand = self if p is None else p
    wide = D.DOUBLE if isinstance(chance, ir.Value) and op.dtype(chance) == D.DOUBLE else D.FLOAT
    hit = op.Less(drawn(op, "Uniform", dims, wide), as_dtype(op, chance, wide))
    return op.cast(hit, dtype)


register_shared(_bernoulli, "RandomUniform < p", *overloads_of("bernoulli bernoulli.p bernoulli.Tensor"))


def _multinomial(op: Emit, self: ir.Value, num_samples: DimLike, replacement: bool) -> ir.Value:
    """With replacement: each sample by its own race of log p + Gumbel noise; without: the best of one race."""
    logs = op.Log(op.cast(self, D.FLOAT if op.dtype(self) != D.DOUBLE else D.DOUBLE))
    dtype, last = op.dtype(logs), op.rank(self) - 1
    dims = op.dims(self)
    if replacement:
        logs = op.Unsqueeze(logs, axes=[last])
        dims = (*dims[:-1], num_samples, dims[-1])
    uniform = drawn(op, "Uniform", dims, dtype)
    floor = op.const(1e-30, dtype)
    noise = op.Neg(op.Log(op.Neg(op.Log(op.Max(uniform, floor)))))
    race = op.Add(logs, noise)
    if replacement:
        return op.ArgMax(race, axis=last + 1, keepdims=0)
    return top(op, race, num_samples, last, True)[1]


def _randperm(op: Emit, n: DimLike) -> ir.Value:
    uniform = drawn(op, "Uniform", (n,), D.DOUBLE)
    return op.cast(top(op, uniform, n, 0, True)[1], op.result_dtype())


register_shared(_multinomial, "Log + Gumbel noise, ArgMax or TopK", *overloads_of("multinomial"))
register_shared(_randperm, "TopK of RandomUniform", *overloads_of("randperm randperm.generator"))


def _positive_uniform(op: Emit, self: ir.Value) -> ir.Value:
    """Uniform numbers in (0, 1], of which a logarithm exists."""
    wide = opmath(op.dtype(self)) if op.dtype(self) in FLOATS else D.FLOAT
    return op.Sub(op.const(1.0, wide), drawn(op, "Uniform", op.dims(self), wide, self))


def _uniform(op: Emit, self: ir.Value, from_: float, to: float) -> ir.Value:
    dtype = op.dtype(self)
    value = drawn(op, "Uniform", op.dims(self), dtype, self)
    value = value if (from_, to) == (0.0, 1.0) else op.Add(op.Mul(value, float(to - from_)), float(from_))
    return value


def _exponential(op: Emit, self: ir.Value, lambd: float) -> ir.Value:
    value = op.Mul(op.Log(_positive_uniform(op, self)), -1.0 / float(lambd))
    return op.cast(value, op.dtype(self))


def _log_normal(op: Emit, self: ir.Value, mean: float, std: float) -> ir.Value:
    value = drawn(op, "Normal", op.dims(self), opmath(op.dtype(self)), self)
    return op.cast(op.Exp(op.Add(op.Mul(value, float(std)), float(mean))), op.dtype(self))


def _geometric(op: Emit, self: ir.Value, p: float) -> ir.Value:
    value = op.Ceil(op.Div(op.Log(_positive_uniform(op, self)), math.log1p(-p)))
    return op.cast(op.Max(value, op.const(1.0, op.dtype(value))), op.dtype(self))


def _cauchy(op: Emit, self: ir.Value, median: float, sigma: float) -> ir.Value:
    angle = op.Mul(op.Sub(_positive_uniform(op, self), 0.5), math.pi)
    return op.cast(op.Add(op.Mul(op.Tan(angle), float(sigma)), float(median)), op.dtype(self))


register_shared(_uniform, "RandomUniform * (to - from) + from", *overloads_of("uniform"))
register_shared(_exponential, "-Log(RandomUniform) / lambda", *overloads_of("exponential"))
register_shared(_log_normal, "Exp(RandomNormal * std + mean)", *overloads_of("log_normal"))
register_shared(_geometric, "Ceil(Log(RandomUniform) / log(1 - p))", *overloads_of("geometric"))
register_shared(_cauchy, "Tan(pi (RandomUniform - 1/2)) * sigma + median", *overloads_of("cauchy"))


def _random(op: Emit, self: ir.Value, from_: int = 0, to: int | None = None) -> ir.Value:
    dtype = op.dtype(self)
    if to is None:
        limits = {D.FLOAT: 2**24 + 1, D.FLOAT16: 2**11 + 1, D.BFLOAT16: 2**8 + 1, D.DOUBLE: 2**53 + 1, D.BOOL: 2}
        to = limits.get(dtype, min(2 ** (8 * dtype.numpy().itemsize - 1), 2**53))
    return integers(op, from_, to, op.dims(self), dtype)


register_shared(_random, "Floor(RandomUniform * span) + from", *overloads_of("random random.to random.from"))


def _refused(op: Emit) -> ir.Value:
    raise UserError(
        "E203",
        "gamma, Poisson and binomial numbers cannot be drawn in ONNX",
        why="ONNX draws uniform, normal and Bernoulli numbers; these need rejection sampling",
        next="draw them outside the model and pass them as an input",
    )


register_shared(_refused, "refused", *overloads_of("poisson _standard_gamma binomial"))
