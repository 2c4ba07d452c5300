"""Overloads whose result types follow from their arguments, though PyTorch's fake implementations read data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fx2onnx.capture.overloads.common import Shape, record_sized
from fx2onnx.capture.overloads.expands import keep_rank
from fx2onnx.capture.recording.eager_refusals import not_tried
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import axis_of, dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.torchcompat.frames import user_location

aten = torch.ops.aten


@register(Kind.RECORD, aten.cov.default, aten.corrcoef.default)
def _covariance(tracer: Tracer, call: Call, self: torch.Tensor, aweights: torch.Tensor | None = None) -> object:
    """cov, corrcoef: variables [N, samples] -> [N, N]; of one variable a number."""
    dtype = self.dtype if aweights is None else torch.result_type(self, aweights)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    variables = dims_of(self)[0] if self.dim() == 2 else 1
    keep_rank(tracer, variables)
    shape = [] if variables == 1 else [variables, variables]
    return record_sized(tracer, call, [(dtype, shape)])


@register(Kind.RECORD, aten.logsumexp.default)
def _logsumexp(tracer: Tracer, call: Call, self: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> object:
    """logsumexp of floats: the fake implementation wants some elements, the kernel gives -inf of none."""
    sizes, unbacked = dims_of(self), tracer.sizes.unbacked
    if not self.is_floating_point() or not any(isinstance(size, Dim) and size.symbols() & unbacked for size in sizes):
        return NotImplemented
    gone = {axis_of(len(sizes), axis) for axis in dim or range(len(sizes))}
    left = [1 if axis in gone else size for axis, size in enumerate(sizes) if keepdim or axis not in gone]
    return record_sized(tracer, call, [(self.dtype, left)])


@register(Kind.RECORD, aten.multilabel_margin_loss.default)
def _multilabel_margin(
    tracer: Tracer, call: Call, self: torch.Tensor, target: torch.Tensor, reduction: int = 1
) -> object:
    """multilabel_margin_loss: of one row without reduction a number, where the fake implementation says [1]."""
    shape = dims_of(self)[:1] if self.dim() == 2 and not reduction else []
    return record_sized(tracer, call, [(self.dtype, shape)])


_NOISE = 1e-3
"""A cutoff, as a share of the largest singular value, below which what is left out hardly changes a solution."""


@register(Kind.RECORD, aten.linalg_lstsq.default)
def _least_squares(
    tracer: Tracer, call: Call, self: torch.Tensor, b: torch.Tensor, rcond: float | None, driver: str | None
) -> object:
    """linalg_lstsq: solution, residuals (of more equations than unknowns), rank, singular values, as the driver gives.

    Of a matrix without full rank PyTorch gives no residuals; that is known only when the model runs. The driver gelsy leaves out columns
    of a factorization with pivots, the file singular values.
    """
    matrix, right, driver = self, b, driver or "gelsy"
    if driver == "gelsy" and rcond is not None and rcond > _NOISE:
        tracer.warnings.append(
            f"linalg_lstsq with rcond={rcond}: where singular values are below that share of the largest, the file solves as the "
            f"driver gelsd does, and the driver gelsy gives something else ({user_location()})"
        )
    *batch, rows, columns = dims_of(matrix)
    is_vector = right.dim() == 1 or (matrix.dim() - 1 == right.dim() and dims_of(right) == [*batch, rows])
    columns_of_right = [] if is_vector else dims_of(right)[-1:]
    lead = [size if size != 1 else other for size, other in zip(batch, dims_of(right)[: len(batch)], strict=False)]
    has_residuals = isinstance(rows, int) and isinstance(columns, int) and rows > columns and driver != "gelsy"
    smaller = unwrap(min(matrix.shape[-2:]))
    outputs = [
        (matrix.dtype, [*lead, columns, *columns_of_right]),
        (matrix.dtype.to_real(), [*lead, *(columns_of_right or [1])] if has_residuals else [0]),
        (torch.int64, batch if driver != "gels" else [0]),
        (matrix.dtype.to_real(), [*batch, smaller] if driver in ("gelsd", "gelss") else [0]),
    ]
    return record_sized(tracer, call, outputs)


@register(Kind.RECORD, aten.combinations.default)
def _combinations(tracer: Tracer, call: Call, self: torch.Tensor, r: int, with_replacement: bool) -> object:
    """combinations: [N] -> [N choose r, r]; with replacement, [N + r - 1 choose r, r]; of no elements at a time, [0]."""
    (count,) = dims_of(self)
    if r == 0:
        return record_sized(tracer, call, [(self.dtype, [0])])
    rows: DimLike
    if isinstance(count, Dim):
        rows = tracer.sizes.new_unbacked()
    elif with_replacement:
        rows = math.comb(count + r - 1, r) if count else 0
    else:
        rows = math.comb(count, r)
    return record_sized(tracer, call, [(self.dtype, [rows, r])])


def _check_lengths(input_lengths: object, target_lengths: object) -> None:
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if isinstance(lengths, torch.Tensor) and (lengths.dtype == torch.bool or lengths.is_floating_point()):
            raise not_tried(RuntimeError(f"{name} must be integral"))


@register(Kind.RECORD, aten.ctc_loss.IntList, aten.ctc_loss.Tensor)
def _ctc_loss(
    tracer: Tracer, call: Call, log_probs: torch.Tensor, input_lengths: object, target_lengths: object, reduction: int
) -> object:
    """ctc_loss: a number; unreduced, one a sequence of log_probs [T, N, C] or [T, C]."""
    _check_lengths(input_lengths, target_lengths)
    shape = dims_of(log_probs)[1:-1] if reduction == 0 else []
    return record_sized(tracer, call, [(log_probs.dtype, shape)])


@register(Kind.RECORD, aten._ctc_loss.default, aten._ctc_loss.Tensor)
def _ctc_loss_parts(
    tracer: Tracer,
    call: Call,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: object,
    target_lengths: torch.Tensor | Sequence[int],
) -> object:
    """_ctc_loss: a number for each sequence of log_probs [T, N, C], and alpha [N, T, 2 S + 1]: S is the length of the longest
    target, or of all targets there are where the lengths are data.
    """
    _check_lengths(input_lengths, target_lengths)
    steps, batch = dims_of(log_probs)[:2]
    longest = dims_of(targets)[-1] if isinstance(target_lengths, torch.Tensor) else max([*target_lengths, 1])
    dtype = log_probs.dtype
    return record_sized(tracer, call, [(dtype, [batch]), (dtype, [batch, steps, 2 * longest + 1])])


@register(Kind.RECORD, aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def _ctc_loss_backward(
    tracer: Tracer,
    call: Call,
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    input_lengths: object,
    target_lengths: object,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
) -> object:
    """_ctc_loss_backward: of the type of log_probs. The real kernel reads beyond the other operands where they do not fit."""
    _check_lengths(input_lengths, target_lengths)
    steps, batch = dims_of(log_probs)[:2]
    for operand, sizes in ((grad, [batch]), (neg_log_likelihood, [batch]), (log_alpha, [batch, steps])):
        if operand.dtype != log_probs.dtype or operand.dtype.itemsize < 4:
            raise not_tried(RuntimeError(f"the gradient of ctc_loss of {log_probs.dtype} with {operand.dtype}"))
        given = dims_of(operand)[: len(sizes)]
        if all(isinstance(size, int) for size in (*given, *sizes)) and [*given] != sizes:
            raise not_tried(ValueError(f"the gradient of ctc_loss: sizes {given} in the place of {sizes}"))
    return record_sized(tracer, call, [(log_probs.dtype, dims_of(log_probs))])


@register(Kind.RECORD, aten.histogramdd.default, aten.histogramdd.int_bins, aten.histogramdd.TensorList_bins)
def _histogram_of_several(
    tracer: Tracer,
    call: Call,
    self: torch.Tensor,
    bins: Any,
    range: Sequence[float] | None,
    weight: torch.Tensor | None,
    density: bool,
) -> object:
    """histogramdd: a tensor and a list of tensors, which two overloads give one by one."""
    rest = {"weight": weight, "density": density}
    with tracer.mode:
        if call.func is aten.histogramdd.TensorList_bins:
            return aten._histogramdd_from_bin_tensors.default(self, bins, **rest), list(bins)
        counts = [bins] * int(self.shape[-1]) if isinstance(bins, int) else bins
        hist = aten._histogramdd_from_bin_cts.default(self, counts, range=range, **rest)
        return hist, list(aten._histogramdd_bin_edges.default(self, counts, range=range, **rest))


@register(
    Kind.RECORD,
    aten.histogram.bin_ct,
    aten.histogram.bins_tensor,
    aten._histogramdd_from_bin_cts.default,
    aten._histogramdd_from_bin_tensors.default,
    aten._histogramdd_bin_edges.default,
)
def _histogram(tracer: Tracer, call: Call, self: torch.Tensor, bins: Any) -> object:
    """histogram, and histogramdd by parts: counts [bins, ..], edges [bins + 1] of each variable."""
    func, dtype = call.func, self.dtype
    each = bins if isinstance(bins, list | tuple) else [bins]
    edges: list[DimLike] = [dims_of(one)[0] if isinstance(one, torch.Tensor) else one + 1 for one in each]
    outputs: list[tuple[torch.dtype, Shape]] = [(dtype, [size - 1 for size in edges])]
    outputs += [(dtype, [size]) for size in edges]
    if func is aten._histogramdd_bin_edges.default:
        result = record_sized(tracer, call, outputs[1:])
        return [result] if len(each) == 1 else list(result)
    return record_sized(tracer, call, outputs[: len(func._schema.returns)])


@register(Kind.RECORD, aten.geqrf.default)
def _reflections(tracer: Tracer, call: Call, self: torch.Tensor) -> object:
    """geqrf: the matrix [.., M, N] and the factors [.., min(M, N)]."""
    factors = [*dims_of(self)[:-2], unwrap(min(self.shape[-2:]))]
    return record_sized(tracer, call, [(self.dtype, dims_of(self)), (self.dtype, factors)])
