"""Operators whose C++ asks for plain sizes, written in tensors: a dynamic size would be that of the sample.

They are the kernels of these operators while a module is captured below autograd: of composite operators, which are split
there, and of others whose gradient asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from fx2onnx.base.changes import before_change
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten
_SPLIT = torch._C.DispatchKey.CompositeImplicitAutograd
_DIFFERENTIATED = torch._C.DispatchKey.AutogradCPU
Form: TypeAlias = Callable[..., torch.Tensor]
_FORMS: dict[OpOverload, tuple[torch._C.DispatchKey, Form]] = {}


def _form(overload: OpOverload, key: torch._C.DispatchKey = _SPLIT) -> Callable[[Form], Form]:
    def register(function: Form) -> Form:
        _FORMS[overload] = (key, function)
        return function

    return register


def use_forms() -> None:
    """Until ``Changes`` end, these are the kernels."""
    before_change(_drop_forms)
    for overload, (key, form) in _FORMS.items():
        overload.py_kernels.setdefault(key, form)
        overload._dispatch_cache.clear()


def _drop_forms() -> None:
    for overload, (key, form) in _FORMS.items():
        if overload.py_kernels.get(key) is form:
            del overload.py_kernels[key]
        overload._dispatch_cache.clear()


def _as_it_is(overload: OpOverload, *args: object, **kwargs: object) -> torch.Tensor:
    """By PyTorch's own kernel."""
    return overload._op_dk(_FORMS[overload][0], *args, **kwargs)  # type: ignore[no-any-return]


@_form(aten.fill_diagonal_.default)
def _fill_diagonal(self: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    if self.dim() != 2 or wrap:
        return _as_it_is(aten.fill_diagonal_.default, self, fill_value, wrap)
    rows, columns = (torch.arange(size, device=self.device) for size in self.shape)
    return self.masked_fill_(rows.unsqueeze(1) == columns, fill_value)


@_form(aten.masked_select_backward.default)
def _masked_select_backward(grad: torch.Tensor, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(torch.where(mask, input, input)).masked_scatter(mask, grad)


def _sum_from_each_on(values: torch.Tensor, dim: int) -> torch.Tensor:
    return values.flip(dim).cumsum(dim).flip(dim)


@_form(aten.cumprod_backward.default)
def _cumprod_backward(grad: torch.Tensor, input: torch.Tensor, dim: int, output: torch.Tensor) -> torch.Tensor:
    """Before the first zero of a row ``sum(grad * output)`` from there on ``/ input``, at it the same of products without it,
    behind it 0.
    """
    if input.dim() == 0:
        return grad
    is_zero = input == 0
    zeros = is_zero.cumsum(dim)
    is_before, is_first = zeros == 0, is_zero & (zeros == 1)
    others = torch.where(is_first, 1, input).cumprod(dim)
    before = _sum_from_each_on(grad * output.conj(), dim) / torch.where(is_before, input, 1).conj()
    first = _sum_from_each_on(grad * others.conj(), dim)
    return torch.where(is_before, before, torch.where(is_first, first, 0))


def _is_one(size: object) -> bool:
    return type(size) is int and size == 1


@_form(aten.take_along_dim.default)
def _take_along_dim(self: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if dim is None:
        return self.reshape(-1).gather(0, indices.reshape(-1))
    if self.dim() != indices.dim() or not -self.dim() <= dim < self.dim():
        return _as_it_is(aten.take_along_dim.default, self, indices, dim)
    along = dim % self.dim()
    sizes = [own if _is_one(other) else other for own, other in zip(self.shape, indices.shape, strict=True)]
    own_sizes, index_sizes = list(sizes), list(sizes)
    own_sizes[along], index_sizes[along] = self.shape[along], indices.shape[along]
    return self.expand(own_sizes).gather(dim, indices.expand(index_sizes))


@_form(aten.kron.default)
def _kron(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    rank = max(self.dim(), other.dim())
    left, right = ([1] * (rank - tensor.dim()) + list(tensor.shape) for tensor in (self, other))
    spread = self.reshape([part for size in left for part in (size, 1)])
    product = spread * other.reshape([part for size in right for part in (1, size)])
    return product.reshape([a * b for a, b in zip(left, right, strict=True)])


@_form(aten.cov.default)
def _cov(self: torch.Tensor, *, correction: int = 1, **weights: torch.Tensor | None) -> torch.Tensor:
    given = any(weight is not None for weight in weights.values())
    if given or self.dim() > 2 or not (self.is_floating_point() or self.is_complex()):
        return _as_it_is(aten.cov.default, self, correction=correction, **weights)
    rows = self if self.dim() == 2 else self.reshape(1, -1)
    centred = rows - rows.mean(1, keepdim=True)
    found = centred @ centred.t().conj() / (rows.shape[1] - correction)
    return found.squeeze()


@_form(aten.sgn.default, _DIFFERENTIATED)
def _sgn(self: torch.Tensor) -> torch.Tensor:
    """The gradient of real numbers is made of plain sizes, that of ``sign`` is not."""
    return _as_it_is(aten.sgn.default, self) if self.is_complex() else self.sign()


@_form(aten.block_diag.default, _DIFFERENTIATED)
def _block_diag(tensors: list[torch.Tensor]) -> torch.Tensor:
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
        return _as_it_is(aten.block_diag.default, tensors)
    if any(tensor.dim() > 2 for tensor in tensors):  # an error, which PyTorch words
        return _as_it_is(aten.block_diag.default, tensors)
    blocks = [tensor if tensor.dim() == 2 else tensor.reshape(1, -1) for tensor in tensors]
    before, after, rows = 0, sum(block.shape[1] for block in blocks), []
    for block in blocks:
        after = after - block.shape[1]
        rows.append(aten.constant_pad_nd(block, [before, after]))
        before = before + block.shape[1]
    return torch.cat(rows)
