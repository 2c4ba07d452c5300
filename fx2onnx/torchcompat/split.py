"""The stand-ins for functions and kernels of torch while a module is captured below autograd, for a graph that trains.

Forms are operators whose C++ asks for plain sizes, written in tensors: a dynamic size would be that of the example
inputs. They are the kernels of composite operators, which are split there, and of others whose gradient asks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch._decomp import decompositions as torch_decompositions

from fx2onnx.base.changes import before_change
from fx2onnx.base.code_patch import THREAD, instead_of, put_name
from fx2onnx.torchcompat.operators import OpOverload

aten = torch.ops.aten
_SPLIT = torch._C.DispatchKey.CompositeImplicitAutograd
_DIFFERENTIATED = torch._C.DispatchKey.AutogradCPU
Form: TypeAlias = Callable[..., Any]
_FORMS: dict[OpOverload, tuple[torch._C.DispatchKey, Form]] = {}


def _form(overload: OpOverload, key: torch._C.DispatchKey = _SPLIT) -> Callable[[Form], Form]:
    def register(function: Form) -> Form:
        _FORMS[overload] = (key, function)
        return function

    return register


def split_as_written() -> None:
    """Patch torch: until ``Changes`` end, this thread's calls of composite operators split into what has a form here."""
    for code_patch in _PATCHES:
        code_patch.put_in()
    put_name(torch, "ctc_loss", _ctc_loss, "below autograd it is written by operators that have gradients")
    use_forms()


def use_forms() -> None:
    """Make the forms the kernels of their operators until ``Changes`` end."""
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
    """Call PyTorch's own kernel."""
    return overload._op_dk(_FORMS[overload][0], *args, **kwargs)  # type: ignore[no-any-return]


def fill_diagonal(matrix: torch.Tensor, value: float) -> torch.Tensor:
    """``matrix.fill_diagonal_(value)`` of two axes."""
    rows, columns = (torch.arange(size, device=matrix.device) for size in matrix.shape)
    return matrix.masked_fill_(rows.unsqueeze(1) == columns, value)


@_form(aten.fill_diagonal_.default)
def _fill_diagonal(self: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    if self.dim() != 2 or wrap:
        return _as_it_is(aten.fill_diagonal_.default, self, fill_value, wrap)
    return fill_diagonal(self, fill_value)


@_form(aten.masked_select_backward.default)
def _masked_select_backward(grad: torch.Tensor, input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(torch.where(mask, input, input)).masked_scatter(mask, grad)


def _sum_from_each_on(values: torch.Tensor, dim: int) -> torch.Tensor:
    return values.flip(dim).cumsum(dim).flip(dim)


@_form(aten.cumprod_backward.default)
def _cumprod_backward(grad: torch.Tensor, input: torch.Tensor, dim: int, output: torch.Tensor) -> torch.Tensor:
    """The gradient of cumprod: before the first zero of a row ``sum(grad * output)`` from there on ``/ input``, at it
    the same of products without it, behind it 0.
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


def take_along_dim(self: torch.Tensor, indices: torch.Tensor, dim: int | None) -> torch.Tensor:
    """A gather; the axes beside ``dim`` broadcast."""
    if dim is None:
        return self.reshape(-1).gather(0, indices.reshape(-1))
    axis = dim % self.dim()
    sizes = [_wider(*pair) for pair in zip(self.shape, indices.shape, strict=True)]
    own, taken = ([*sizes[:axis], one.shape[axis], *sizes[axis + 1 :]] for one in (self, indices))
    return self.expand(own).gather(axis, indices.expand(taken))


def _wider(one: int, other: int) -> int:
    return other if type(one) is int and one == 1 else one


def may_take_along(self: torch.Tensor, indices: torch.Tensor, dim: int | None) -> bool:
    """Return whether the arguments are right; torch words what is wrong with others."""
    return dim is None or (self.dim() == indices.dim() and -self.dim() <= dim < self.dim())


@_form(aten.take_along_dim.default)
def _take_along_dim(self: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if not may_take_along(self, indices, dim):
        return _as_it_is(aten.take_along_dim.default, self, indices, dim)
    return take_along_dim(self, indices, dim)


@_form(aten.kron.default)
def kron(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """kron(a, b)[i * p + k, j * q + l] = a[i, j] * b[k, l]: of ``a`` as [m, 1, n, 1] and ``b`` as [1, p, 1, q]."""
    rank = max(self.dim(), other.dim())
    left, right = (one.reshape([1] * (rank - one.dim()) + list(one.shape)) for one in (self, other))
    sizes = [a * b for a, b in zip(left.shape, right.shape, strict=True)]
    for axis in range(rank):
        left, right = left.unsqueeze(2 * axis + 1), right.unsqueeze(2 * axis)
    return (left * right).reshape(sizes)


@_form(aten.cov.default)
def _cov(self: torch.Tensor, *, correction: int = 1, **weights: torch.Tensor | None) -> torch.Tensor:
    given = any(weight is not None for weight in weights.values())
    if given or self.dim() > 2 or not (self.is_floating_point() or self.is_complex()):
        return _as_it_is(aten.cov.default, self, correction=correction, **weights)
    rows = self if self.dim() == 2 else self.reshape(1, -1)
    centred = rows - rows.mean(1, keepdim=True)
    found = centred @ centred.t().conj() / (rows.shape[1] - correction)
    return found.squeeze()


def _are_usual_steps(self: torch.Tensor, steps: list[Any], axes: list[int], edge_order: int) -> bool:
    """Return whether the arguments of a gradient are right and no step is 0; torch words what is wrong with others."""
    return (
        edge_order in (1, 2)
        and self.dtype not in (torch.bool, torch.uint8)
        and len(steps) == len(axes) == len({axis % self.dim() for axis in axes if -self.dim() <= axis < self.dim()})
        and all(step.dim() == 1 if isinstance(step, torch.Tensor) else step for step in steps)
    )


def gradient(overload: OpOverload, self: torch.Tensor, **named: Any) -> list[torch.Tensor]:
    """Differences of second order inside, of order ``edge_order`` at the ends, for steps or coordinates along each axis."""
    spacing, dim, edge_order = named.get("spacing"), named.get("dim"), named.get("edge_order", 1)
    axes = list(range(self.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    steps = list(spacing) if isinstance(spacing, list | tuple) else [1 if spacing is None else spacing] * len(axes)
    if not _are_usual_steps(self, steps, axes, edge_order):
        return list(_as_it_is(overload, self, **named))
    return [_slope(self, axis, step, edge_order) for axis, step in zip(axes, steps, strict=True)]


_KINDS = ("scalarint", "scalararray", "array", "scalarrayint", "scalarrayarray", "tensorarrayint", "tensorarray")
GRADIENTS = tuple(getattr(aten.gradient, kind) for kind in _KINDS)
for _overload in GRADIENTS:
    _form(_overload)(partial(gradient, _overload))


def _slope(values: torch.Tensor, axis: int, step: Any, edge_order: int) -> torch.Tensor:
    f = values.movedim(axis, -1)
    size = f.shape[-1]
    if size <= edge_order:
        raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
    if isinstance(step, torch.Tensor):
        gaps = step.diff()
        before, after = gaps[:-1], gaps[1:]
        both = before + after
        left, own, right = -after / (before * both), (after - before) / (before * after), before / (after * both)
        inner = left * f.narrow(-1, 0, size - 2) + own * f.narrow(-1, 1, size - 2) + right * f.narrow(-1, 2, size - 2)
        ends = [(gaps[0], gaps[edge_order - 1]), (gaps[-1], gaps[-edge_order])]
    else:
        inner = (f.narrow(-1, 2, size - 2) - f.narrow(-1, 0, size - 2)) / step / 2
        ends = [(step, step), (step, step)]
    near = range(edge_order + 1)
    first = _slope_at_end([f.narrow(-1, place, 1) for place in near], *ends[0])
    last = _slope_at_end([f.narrow(-1, size - 1 - place, 1) for place in near], *ends[1])
    return torch.cat([first, inner, -last], -1).movedim(-1, axis)


def _slope_at_end(f: Sequence[torch.Tensor], gap: Any, more: Any) -> torch.Tensor:
    """The slope at the first of two or three values, which are ``gap`` and then ``more`` apart."""
    slope: torch.Tensor = (f[1] - f[0]) / gap
    if len(f) == 2:
        return slope
    bend: torch.Tensor = (slope - (f[2] - f[1]) / more) * (gap / (gap + more))
    return slope + bend


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


_LSTM = instead_of(
    torch_decompositions.select_one_layer_lstm_function,
    lambda *_: torch_decompositions.one_layer_lstm,
    "recurrent layers that are not recorded whole split into ATen overloads, not into oneDNN's own",
)


def _multilabel_margin(input: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """torch 2.13's own counts class 0 again for each place after the first -1. Of reductions 1 is the mean, 2 the sum."""
    values, classes = (x if x.dim() == 2 else x.reshape(1, -1) for x in (input, target))
    is_named = (classes < 0).cumsum(-1) == 0
    places = torch.where(is_named, classes, 0)
    own = (places.unsqueeze(-1) == torch.arange(values.shape[1])) & is_named.unsqueeze(-1)
    is_target = own.any(1)
    gap = (1 - values.gather(1, places).unsqueeze(-1) + values.unsqueeze(1)).clamp_min(0) / values.shape[1]
    loss = torch.where(is_named.unsqueeze(-1) & ~is_target.unsqueeze(1), gap, 0).sum((1, 2))
    whole = loss.mean() if reduction == 1 else loss.sum() if reduction == 2 else loss
    return whole if reduction or input.dim() > 1 else whole.reshape(()), is_target.to(input.dtype).reshape(target.shape)


_PATCHES = (
    _LSTM,
    instead_of(
        inspect.unwrap(torch_decompositions.multilabel_margin_loss_forward),
        _multilabel_margin,
        "torch's own counts class 0 again for each place after the first -1",
    ),
)


Lengths: TypeAlias = torch.Tensor | Sequence[int]
_PLAIN_CTC_LOSS: Callable[..., torch.Tensor] = torch.ctc_loss


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    *more: object,
    **named: object,
) -> torch.Tensor:
    """``torch.ctc_loss`` of lengths as tensors: of lengths as numbers torch writes into the memory of a tensor, of which a fake one has none."""
    if THREAD.captures:
        input_lengths, target_lengths = (
            given if isinstance(given, torch.Tensor) else torch.tensor(given)
            for given in (input_lengths, target_lengths)
        )
    return _PLAIN_CTC_LOSS(log_probs, targets, input_lengths, target_lengths, *more, **named)
