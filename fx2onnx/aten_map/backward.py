"""Gradients of activations and softmax, of normalizations, weight normalization and distances: those that PyTorch has no decomposition
for, or one that takes long to record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.batch_norm import FLOAT, HALF, affine, centred_by
from fx2onnx.aten_map.comparison import compare
from fx2onnx.aten_map.gathering import where_self
from fx2onnx.aten_map.reductions import reduce
from fx2onnx.aten_map.table.axes import filled, fixed, unsqueeze
from fx2onnx.aten_map.table.dtypes import in_opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike, product

aten = torch.ops.aten


@translates(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(
    op: Emit,
    grad_out: ir.Value,
    input: ir.Value,
    weight: ir.Value | None,
    running_mean: ir.Value | None,
    running_var: ir.Value | None,
    save_mean: ir.Value | None,
    save_invstd: ir.Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ...]:
    """native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)

    ONNX:     with c = input - mean, s = sum(grad), d = sum(grad * c) and a = weight * rstd, each by channel, the input's is
              a * (grad - c * rstd² * d / n - s / n): BatchNormalization as an affine map (1 / n as of a variance n²), Sub, and
              another. In eval a * grad.
    Numerics: in float32 at least.
    Source:   batch_norm_backward_cpu_template in ATen/native/Normalization.cpp.
    """
    rank, dtype = op.rank(input), op.dtype(input)
    inner = FLOAT if dtype in HALF else dtype
    axes = [axis for axis in range(rank) if axis != 1]
    gradient, wide = op.cast(grad_out, inner), op.cast(input, inner)
    stored = save_mean if train else running_mean
    assert stored is not None
    if train:
        assert save_invstd is not None
        rstd = op.cast(save_invstd, inner)
    else:
        assert running_var is not None
        rstd = op.Reciprocal(op.Sqrt(op.Add(op.cast(running_var, inner), op.const(float(eps), inner))))
    wants_input, wants_weight, wants_bias = output_mask
    of_input = of_weight = total = None
    if wants_bias or (wants_input and train):
        total = op.ReduceSum(gradient, axes=axes, keepdims=0)
    if wants_weight or (wants_input and train):
        centred = centred_by(op, wide, op.cast(stored, inner))
        along = op.ReduceSum(op.Mul(gradient, centred), axes=axes, keepdims=0)
        of_weight = op.Mul(along, rstd)
    if wants_input:
        slope = rstd if weight is None else op.Mul(op.cast(weight, inner), rstd)
        if train:
            assert of_weight is not None
            assert total is not None
            count = product([size for axis, size in enumerate(op.dims(input)) if axis != 1])
            along = op.Mul(of_weight, rstd)
            if isinstance(count, int):
                mean = op.Mul(total, op.const(1 / max(count, 1), inner))
                moved = affine(op, centred, along, mean, variance=max(count, 1) ** 2)
            else:
                share = op.Reciprocal(op.size(count, inner))
                moved = affine(op, centred, op.Mul(along, share), op.Mul(total, share))
            gradient = op.Sub(gradient, moved)
        of_input = affine(op, gradient, slope, filled(op, (op.dims(input)[1],), 0, inner))
        of_input = op.cast(of_input, dtype)
    found = zip((wants_weight, wants_bias), (of_weight, total), strict=True)
    own = dtype if weight is None else op.dtype(weight)
    return of_input, *(op.cast(value, own) if wanted and value is not None else None for wanted, value in found)


@translates(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    op: Emit,
    grad_out: ir.Value,
    input: ir.Value,
    normalized_shape: Sequence[DimLike],
    mean: ir.Value,
    rstd: ir.Value,
    weight: ir.Value | None,
    bias: ir.Value | None,
    output_mask: Sequence[bool],
) -> tuple[ir.Value | None, ...]:
    """native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)

    ONNX:     with y = (input - mean) * rstd and g = grad * weight, the input's is rstd * (g - mean(g) - y * mean(g * y)) over
              the normalized axes; the weight's sum(grad * y), the bias's sum(grad) over the others.
    Numerics: in float32 at least.
    Source:   layer_norm_backward_frame in ATen/native/cpu/layer_norm_kernel.cpp.
    """
    rank, dtype = op.rank(input), op.dtype(input)
    inner = FLOAT if dtype in HALF else dtype
    first = rank - len(normalized_shape)
    own, others = list(range(first, rank)), list(range(first))
    wants_input, wants_weight, wants_bias = output_mask
    gradient, scale = op.cast(grad_out, inner), op.cast(rstd, inner)
    of_input = of_weight = of_bias = None
    if wants_input or wants_weight:
        normal = op.Mul(op.Sub(op.cast(input, inner), op.cast(mean, inner)), scale)
    if wants_input:
        steep = gradient if weight is None else op.Mul(gradient, op.cast(weight, inner))
        along = op.Mul(normal, reduce(op, "ReduceMean", op.Mul(steep, normal), own, keepdim=True))
        level = reduce(op, "ReduceMean", steep, own, keepdim=True)
        of_input = op.cast(op.Mul(op.Sub(op.Sub(steep, level), along), scale), dtype)
    if wants_weight and weight is not None:
        of_weight = op.cast(_summed(op, op.Mul(gradient, normal), others), op.dtype(weight))
    if wants_bias and bias is not None:
        of_bias = op.cast(_summed(op, gradient, others), op.dtype(bias))
    return of_input, of_weight, of_bias


def _summed(op: Emit, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    return reduce(op, "ReduceSum", value, list(axes)) if axes else value


@translates(aten._cdist_backward.default)
def _cdist_backward(op: Emit, grad: ir.Value, x1: ir.Value, x2: ir.Value, p: float, cdist: ir.Value) -> ir.Value:
    """_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor
    _cdist_backward(Tensor grad_output, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor

    Shapes: x1 and x2 broadcast in their batches; the result is of x1 as it is broadcast, grad and cdist are of the distances.
    Source: dist_calc in ATen/native/cpu/DistanceOpsKernel.cpp; nothing comes from a distance of 0.
    """
    dtype, rank = op.dtype(x1), max(op.rank(x1), op.rank(x2))
    if p == 0 or 0 in (*op.dims(x1), *op.dims(x2)):
        return filled(op, op.result_dims(), 0, dtype)
    difference = op.Sub(unsqueeze(op, x1, op.rank(x1) - 1), unsqueeze(op, x2, op.rank(x2) - 2))
    length, weight = unsqueeze(op, cdist, op.rank(cdist)), unsqueeze(op, grad, op.rank(grad))
    zero = op.const(0, dtype)
    sign = op.Sign(difference)
    if p == 1:
        return op.ReduceSum(op.Mul(sign, weight), axes=[rank - 1], keepdims=0)
    size = op.Abs(difference)
    if math.isinf(p):
        share = op.Mul(sign, op.cast(op.Equal(size, length), dtype))
        return op.ReduceSum(op.Mul(share, weight), axes=[rank - 1], keepdims=0)
    divisor = op.Where(op.Equal(length, zero), op.const(1, dtype), length)
    if p == 2:
        share = op.Div(difference, divisor)
    else:
        ratio = op.Div(size, divisor)
        no_size = op.Equal(size, zero)
        power = op.Pow(op.Where(no_size, op.const(1, dtype), ratio), op.const(p - 1, dtype))
        share = op.Mul(sign, op.Where(no_size, zero, power))
    return op.ReduceSum(op.Mul(share, weight), axes=[rank - 1], keepdims=0)


@translates(aten._pdist_backward.default)
def _pdist_backward(op: Emit, grad: ir.Value, self: ir.Value, p: float, pdist: ir.Value) -> ir.Value:
    """_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor
    _pdist_backward(Tensor grad_output, Tensor self, float p, Tensor pdist) -> Tensor

    The gradient of ``cdist(self, self)`` where each pair has its distance and gradient once in either order.
    """
    if op.rank(self) != 2:
        raise UserError(
            "E203", f"_pdist_backward of {op.rank(self)} axes", why="its kernel reads rows and columns alone"
        )
    size = fixed(op.dims(self)[0], "the number of rows whose distances are differentiated")
    rows, columns = np.triu_indices(size, 1)
    places = op.const(np.concatenate([np.stack([rows, columns], 1), np.stack([columns, rows], 1)]).astype(np.int64))

    def square(pairs: ir.Value) -> ir.Value:
        none = op.expand(op.const(0, op.dtype(pairs)), (size, size))
        return op.ScatterND(none, places, op.Concat(pairs, pairs, axis=0))

    return _cdist_backward(op, square(grad), self, self, p, square(pdist))


@translates(aten._weight_norm_interface_backward.default)
def _weight_norm_interface_backward(
    op: Emit, grad_w: ir.Value, saved_v: ir.Value, saved_g: ir.Value, saved_norms: ir.Value, dim: int
) -> tuple[ir.Value, ir.Value]:
    """_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim) -> (Tensor, Tensor)

    Source: the formula above weight_norm_backward_first_dim_kernel in ATen/native/cuda/WeightNorm.cu.
    """
    rank, dtype = op.rank(saved_v), op.dtype(saved_v)
    axes = [axis for axis in range(rank) if axis != dim % rank]
    terms = op.Mul(saved_v, grad_w)
    total = op.ReduceSum(terms, axes=axes, keepdims=1) if axes else terms
    if product(op.dims(saved_g)) != product(op.dims(total)):
        raise UserError(
            "E203", "the gradient of weight normalization with a gain of another number of elements than the norms"
        )
    norms, gain = (op.reshape(op.cast(value, dtype), op.dims(total)) for value in (saved_norms, saved_g))
    of_size = op.Div(total, norms)
    along = op.Mul(saved_v, op.Div(total, op.Mul(norms, norms)))
    gradient = op.Mul(op.Div(gain, norms), op.Sub(grad_w, along))
    return gradient, op.cast(op.reshape(of_size, op.dims(saved_g)), op.dtype(saved_g))


def _shrink_backward(
    op: Emit, self: ir.Value, lambd: float, grad_out: ir.Value | None = None, grad_output: ir.Value | None = None
) -> ir.Value:
    """The gradient where the input lies outside [-lambd, lambd]."""
    grad = grad_out if grad_out is not None else grad_output
    assert grad is not None
    inside = compare(op, "LessOrEqual", op.Abs(self), lambd)
    return op.Where(inside, op.const(0, op.dtype(grad)), grad)


register_shared(_shrink_backward, "Where", *overloads_of("hardshrink_backward softshrink_backward"))


@translates(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    op: Emit,
    grad_output: ir.Value,
    self: ir.Value,
    noise: ir.Value,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> ir.Value:
    """rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, Scalar upper, bool training, bool self_is_result) -> Tensor

    In training the noise has the slope of each element; else it is the mean of the bounds.
    """
    if training and upper - lower > 1e-6:
        return op.Mul(grad_output, noise)
    dtype = op.dtype(self)
    slope = op.const((lower + upper) / 2, dtype)
    return op.Where(op.Greater(self, op.const(0, dtype)), grad_output, op.Mul(grad_output, slope))


@translates(aten.threshold_backward.default)
def threshold_backward(op: Emit, grad_output: ir.Value, self: ir.Value, threshold: float) -> ir.Value:
    """threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor

    None where ``self`` is at most the threshold; ReLU's gradient, too.
    """
    return where_self(op, compare(op, "LessOrEqual", self, threshold), 0, grad_output)


@translates(aten.gelu_backward.default)
def gelu_backward(op: Emit, grad_output: ir.Value, self: ir.Value, approximate: str) -> ir.Value:
    """gelu_backward(Tensor grad_output, Tensor self, *, str approximate="none") -> Tensor

    ONNX:    grad * (cdf + x * pdf), with cdf = (1 + erf(x / sqrt(2))) / 2 and pdf = exp(-x^2 / 2) / sqrt(2 pi). With tanh,
             t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3): grad * ((1 + t) + x (1 - t^2) u') / 2.
    Source:  torch/_decomp/decompositions.py.
    """
    return in_opmath(op, _gelu_gradient if approximate == "none" else _tanh_gelu_gradient, grad_output, self)


def _gelu_gradient(op: Emit, grad: ir.Value, x: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    half, one = op.const(0.5, dtype), op.const(1, dtype)
    cdf = op.Mul(op.Add(op.Erf(op.Mul(x, op.const(math.sqrt(0.5), dtype))), one), half)
    bell = op.Exp(op.Mul(op.Mul(x, x), op.const(-0.5, dtype)))
    pdf = op.Mul(bell, op.const(1 / math.sqrt(2 * math.pi), dtype))
    return op.Mul(grad, op.Add(cdf, op.Mul(x, pdf)))


def _tanh_gelu_gradient(op: Emit, grad: ir.Value, x: ir.Value) -> ir.Value:
    dtype = op.dtype(x)
    half, one, slope = (op.const(number, dtype) for number in (0.5, 1, math.sqrt(2 / math.pi)))
    square = op.Mul(x, x)
    inner = op.Mul(op.Add(x, op.Mul(op.Mul(square, x), op.const(0.044715, dtype))), slope)
    curve = op.Tanh(inner)
    steepness = op.Mul(op.Add(op.Mul(square, op.const(3 * 0.044715, dtype)), one), slope)
    bent = op.Mul(op.Mul(op.Mul(x, half), op.Sub(one, op.Mul(curve, curve))), steepness)
    return op.Mul(grad, op.Add(op.Mul(op.Add(curve, one), half), bent))


@translates(aten.logit_backward.default)
def logit_backward(op: Emit, grad_output: ir.Value, self: ir.Value, eps: float | None) -> ir.Value:
    """logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor

    ONNX:    g / (x (1 - x)) within [eps, 1 - eps], else 0; without eps within [0, 1], else NaN. The product is never less than
             zero there, negative zero neither, as in PyTorch.
    """
    low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
    beyond = math.nan if eps is None else 0.0

    def formula(op: Emit, grad: ir.Value, value: ir.Value) -> ir.Value:
        dtype = op.dtype(value)
        slope = op.Div(grad, op.Abs(op.Mul(value, op.Sub(op.const(1.0, dtype), value))))
        is_beyond = op.Or(op.Less(value, op.const(low, dtype)), op.Greater(value, op.const(high, dtype)))
        return op.Where(is_beyond, op.const(beyond, dtype), slope)

    return in_opmath(op, formula, grad_output, self)


def _total(op: Emit, value: ir.Value, dim: int) -> ir.Value:
    """The sum along ``dim``, the axis kept."""
    if op.rank(value) == 0:
        return value
    return op.ReduceSum(value, axes=[dim % op.rank(value)], keepdims=1)


@translates(aten._softmax_backward_data.default)
def _softmax_backward_data(
    op: Emit, grad_output: ir.Value, output: ir.Value, dim: int, input_dtype: torch.dtype
) -> ir.Value:
    """_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor

    (grad - sum(grad * output)) * output.
    """
    weighted = op.Mul(grad_output, output)
    return op.cast(op.Sub(weighted, op.Mul(output, _total(op, weighted, dim))), op.result_dtype())


@translates(aten._log_softmax_backward_data.default)
def _log_softmax_backward_data(
    op: Emit, grad_output: ir.Value, output: ir.Value, dim: int, input_dtype: torch.dtype
) -> ir.Value:
    """_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor

    grad - exp(output) * sum(grad).
    """
    total = _total(op, grad_output, dim)
    return op.cast(op.Sub(grad_output, op.Mul(op.Exp(output), total)), op.result_dtype())
