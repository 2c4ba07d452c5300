"""Overloads recorded as calls of others, or answered: as torch's own code for them is written for plain numbers, or as it has none."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from fx2onnx.capture.recording.eager_refusals import not_tried
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import NeedsDecomposition, dims_of
from fx2onnx.capture.registry import Call, Kind, overloads_of, register
from fx2onnx.capture.shapes.symnode import sym_int
from fx2onnx.sizes.expr import Dim, DimLike, Scalar, apply, product
from fx2onnx.torchcompat import split
from fx2onnx.torchcompat.fake_tensors import storage_key
from fx2onnx.torchcompat.pytrees import flatten

aten = torch.ops.aten


def _is_static(*tensors: torch.Tensor) -> bool:
    return all(type(size) is int for tensor in tensors for size in tensor.shape)


@register(Kind.RECORD, aten.take_along_dim.default)
def _take_along_dim(tracer: Tracer, call: Call, self: torch.Tensor, indices: torch.Tensor, dim: int | None) -> object:
    if _is_static(self, indices) or not split.may_take_along(self, indices, dim):
        return NotImplemented
    with tracer.mode:
        return split.take_along_dim(self, indices, dim)


@register(Kind.RECORD, aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(tracer: Tracer, call: Call, condition: torch.Tensor, self: Any, other: Any) -> object:
    """The kernel takes bytes for a mask, as it says in a warning; the fake one does not."""
    if condition.dtype != torch.uint8:
        return NotImplemented
    with tracer.mode:
        return torch.where(condition.to(torch.bool), self, other)


@register(Kind.RECORD, aten.kron.default)
def _kron(tracer: Tracer, call: Call, self: torch.Tensor, other: torch.Tensor) -> object:
    if _is_static(self, other):
        return NotImplemented
    with tracer.mode:
        return split.kron(self, other)


@register(Kind.RECORD, aten.linalg_multi_dot.default, aten.chain_matmul.default)
def _chain(tracer: Tracer, call: Call) -> object:
    """Products from left to right, as in the file: torch's kernel chooses an order by plain numbers."""
    matrices = call.args[0]
    ranks = [matrix.dim() for matrix in matrices]
    if len(ranks) < 2 or _is_static(*matrices) or set(ranks[1:-1]) - {2} or {ranks[0], ranks[-1]} - {1, 2}:
        return NotImplemented
    with tracer.mode:
        return functools.reduce(torch.matmul, matrices)


@register(Kind.RECORD, *split.GRADIENTS)
def _gradient(tracer: Tracer, call: Call) -> object:
    operands = [leaf.value for leaf in flatten((call.args, call.kwargs))[0]]
    if _is_static(*(each for each in operands if isinstance(each, torch.Tensor))):
        return NotImplemented
    with tracer.mode:
        return split.gradient(call.func, *call.args, **call.kwargs)


@register(Kind.RECORD, aten._make_dual.default)
def _make_dual(tracer: Tracer, call: Call) -> object:
    """A tensor with a tangent, which composite operators lose where they are recorded whole."""
    if tracer.pre_dispatch:
        raise NeedsDecomposition
    return NotImplemented


@register(Kind.RECORD, aten._new_zeros_with_same_feature_meta.default)
def _zero_tangent(
    tracer: Tracer, call: Call, self: torch.Tensor, other: torch.Tensor, self_num_batch_dims: int
) -> object:
    """Zeros of the shape of ``other`` behind the first axes of ``self``, for forward-mode gradients: torch's kernel asks the memory."""
    with tracer.mode:
        return torch.zeros((*self.shape[:self_num_batch_dims], *other.shape), dtype=other.dtype, device=other.device)


@register(Kind.RECORD, aten.vander.default)
def _vander(tracer: Tracer, call: Call, x: torch.Tensor, N: int | None, increasing: bool) -> object:
    """The powers of each number of a vector from 0 on."""
    if x.dim() != 1 or _is_static(x) or (N is not None and N < 0):
        return NotImplemented
    with tracer.mode:
        size, count = x.shape[0], x.shape[0] if N is None else N
        dtype = torch.promote_types(x.dtype, torch.int64)
        found = torch.ones(size, 1 if N is None else min(N, 1), dtype=dtype, device=x.device)
        if N is None or N > 1:
            found = torch.cat([found, x.unsqueeze(1).expand(size, count - 1).cumprod(1)], 1)
        return found if increasing else found.flip(1)


@register(
    Kind.RECORD,
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def _reflection_pad_backward(
    tracer: Tracer, call: Call, grad_output: torch.Tensor, self: torch.Tensor, padding: Sequence[int]
) -> object:
    """The elements that negative pads cut off have no gradient; torch's own code reads other elements for it."""
    cut = [max(-pad, 0) for pad in padding]
    if not any(type(pad) is int and pad < 0 for pad in padding):
        return NotImplemented
    with tracer.mode:
        return call.func(torch.constant_pad_nd(grad_output, cut), self, [max(pad, 0) for pad in padding])


@register(Kind.WRITE, aten.fill_diagonal_.default)
def _fill_diagonal(tracer: Tracer, call: Call, self: torch.Tensor, fill_value: float, wrap: bool) -> torch.Tensor:
    """fill_diagonal_ of a matrix; wrapped ones and those of more axes are refused."""
    if self.dim() != 2 or wrap:
        raise tracer.values.refuse(
            "E103", "fill_diagonal_ of this tensor is not known", next="torch.where with a mask of the diagonal"
        )
    with tracer.mode:
        return split.fill_diagonal(self, fill_value)


@register(Kind.RECORD, aten.pad_sequence.default)
def _pad_sequence(
    tracer: Tracer,
    call: Call,
    sequences: Sequence[torch.Tensor],
    batch_first: bool,
    padding_value: float,
    padding_side: str,
) -> object:
    """Each padded to the largest of the lengths, and stacked."""
    lengths: list[DimLike] = [dims_of(each)[0] for each in sequences]
    if not any(isinstance(length, Dim) for length in lengths) or padding_side not in ("left", "right"):
        return NotImplemented
    longest: Scalar = lengths[0]
    for length in lengths[1:]:
        longest = apply("max", longest, length)
    with tracer.mode:
        padded = []
        for each, length in zip(sequences, lengths, strict=True):
            missing = sym_int(tracer.sizes, longest - length)
            around = [0, missing] if padding_side == "right" else [missing, 0]
            pad = torch.nn.functional.pad(each, [0, 0] * (each.dim() - 1) + around, value=padding_value)
            padded.append(pad)
        return torch.stack(padded, 0 if batch_first else 1)


@register(Kind.RECORD, aten.conv_tbc.default)
def _conv_tbc(
    tracer: Tracer, call: Call, self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int
) -> object:
    """``conv_tbc`` of a dynamic time or batch, as a convolution of [batch, channels, time]: torch's kernel takes plain numbers."""
    if all(isinstance(size, int) for tensor in (self, weight) for size in dims_of(tensor)):
        return NotImplemented
    with tracer.mode:
        found = torch.conv1d(self.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
        return found.permute(2, 0, 1).contiguous()


@register(Kind.RECORD, aten.addmv.default)
def _addmv(tracer: Tracer, call: Call, self: torch.Tensor, mat: torch.Tensor, beta: float = 1) -> object:
    """The sum with a product of a matrix without elements: one number stays one number there, whatever the number of
    rows."""
    if 0 not in dims_of(mat) or any(size != 1 for size in dims_of(self)) or not beta:
        return NotImplemented
    with tracer.mode:
        return self * torch.scalar_tensor(beta, dtype=self.dtype)


@register(Kind.RECORD, aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    tracer: Tracer,
    call: Call,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    save_mean: torch.Tensor | None,
) -> object:
    """Gradients of half precision without a weight are in float32 where the statistics are; so they are with a weight of 1.

    Raises: ValueError for statistics of other channels, beyond which PyTorch's kernel reads.
    """
    channels = dims_of(input)[1] if input.dim() > 1 else 0
    for each in call.args[2 : 7 if call.args[7] else 5]:  # the batch's own are read in training
        count = product(dims_of(each)) if isinstance(each, torch.Tensor) else channels
        if isinstance(count, int) and isinstance(channels, int) and count != channels:
            raise not_tried(
                ValueError(f"a parameter of batch norm has {count} elements, the input {channels} channels")
            )
    given = save_mean if running_mean is None else running_mean
    if weight is not None or given is None or given.dtype == input.dtype:
        return NotImplemented
    grad_out, *rest = call.args
    with tracer.mode:
        ones = torch.ones(input.shape[1], dtype=given.dtype, device=input.device)
        return call.func(grad_out, input, ones, *rest[2:], **call.kwargs)


@register(Kind.RECORD, aten._scaled_mm.default)
def _scaled_mm(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> object:
    """(self @ mat2) * scale_a * scale_b + bias of float8 numbers, summed in float32. Scales are numbers, or a column and a row."""
    dtype = out_dtype or self.dtype
    with tracer.mode:
        product = self.float() @ mat2.float() * scale_a.float() * scale_b.float()
        product = product if bias is None else product + bias.float()
        if scale_result is not None and dtype.itemsize == 1:
            product = product / scale_result
        return product.to(dtype)


@register(Kind.RECORD, aten._scaled_mm_v2.default if hasattr(aten, "_scaled_mm_v2") else "aten::_scaled_mm_v2")
def _scaled_mm_by_recipe(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> object:
    """``_scaled_mm`` where the scales are of tensors or of rows; scales of blocks are refused."""
    if {*recipe_a, *recipe_b} - {0, 1}:
        raise tracer.values.refuse(
            "E203", "scaled_mm with scales of blocks", next="multiply the operands with their scales, then torch.mm"
        )
    with tracer.mode:
        by_row, by_column = scale_a[0].reshape(-1, 1), scale_b[0].reshape(1, -1)
        return aten._scaled_mm.default(self, mat2, by_row, by_column, bias, None, out_dtype)


@register(Kind.RECORD, aten._linalg_det.default, aten._linalg_slogdet.default, aten._linalg_solve_ex.default)
def _with_factors(
    tracer: Tracer, call: Call, A: torch.Tensor, B: torch.Tensor | None = None, left: bool = True
) -> tuple[object, ...]:
    """The result by the operator without factors. Those of a determinant are of the transposed matrix where it is
    contiguous, since the gradient's formula takes them so. Source: ATen/native/BatchLinearAlgebra.cpp.
    """
    info: tuple[object, ...] = ()
    is_turned = A.is_contiguous() and not A.is_complex()
    if call.func is aten._linalg_solve_ex.default:
        is_turned = False
        solution, number = tracer.handle(aten.linalg_solve_ex.default, (A, B), {"left": left})
        results, info = (solution,), (number,)
    elif call.func is aten._linalg_det.default:
        results = (tracer.handle(aten.linalg_det.default, (A,), {}),)
    else:
        results = tuple(tracer.handle(aten.linalg_slogdet.default, (A,), {}))
    with tracer.mode:
        matrix = A.mT if is_turned else A
    factors, pivots, _ = tracer.handle(aten.linalg_lu_factor_ex.default, (matrix,), {})
    return (*results, factors, pivots, *info)


@register(Kind.RECORD, aten.is_pinned.default)
def _is_pinned(tracer: Tracer, call: Call) -> bool:
    return False


@register(Kind.RECORD, aten._shape_as_tensor.default)
def _shape_as_tensor(tracer: Tracer, call: Call, self: torch.Tensor) -> torch.Tensor:
    with tracer.mode:
        sizes = [torch.scalar_tensor(size, dtype=torch.int64) for size in self.shape]
        return torch.stack(sizes) if sizes else torch.zeros(0, dtype=torch.int64)


@register(Kind.RECORD, aten.is_set_to.default)
def _is_set_to(tracer: Tracer, call: Call, self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether two tensors show the same memory in the same order."""
    one, other = tracer.values.fake_of(self), tracer.values.fake_of(tensor)
    return (
        storage_key(one) == storage_key(other)
        and one.storage_offset() == other.storage_offset()
        and one.shape == other.shape
        and one.stride() == other.stride()
    )


@register(Kind.RECORD, aten.equal.default)
def _equal(tracer: Tracer, call: Call, self: torch.Tensor, other: torch.Tensor) -> Any:
    if self.dtype != other.dtype:  # PyTorch has an error of its own
        return NotImplemented
    if self.shape != other.shape:
        return False
    with tracer.mode:
        return (self == other).all().item()


@register(Kind.RECORD, aten.allclose.default)
def _allclose(tracer: Tracer, call: Call) -> Any:
    with tracer.mode:
        return aten.isclose.default(*call.args, **call.kwargs).all().item()


_ELEMENTWISE = (
    "abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "div", "exp", "lerp", "log", "maximum", "minimum",
    "mul", "neg", "pow", "sqrt", "sub",
)  # fmt: skip
"""The operator that each ``_foreach_`` overload applies to every tensor of its list."""


@register(
    Kind.RECORD,
    *(
        overload
        for name in _ELEMENTWISE
        for overload in overloads_of(getattr(aten, f"_foreach_{name}"))
        if not overload._schema.is_mutable
    ),
)
def _foreach(tracer: Tracer, call: Call) -> list[torch.Tensor]:
    """``_foreach_add(self[], other)``: the operator for each element; lists among the arguments give one element each."""
    func, args, kwargs = call
    packet = getattr(aten, func._schema.name.removeprefix("aten::_foreach_"))
    with tracer.mode:
        return [
            packet(*(arg[place] if isinstance(arg, list | tuple) else arg for arg in args), **kwargs)
            for place in range(len(args[0]))
        ]
