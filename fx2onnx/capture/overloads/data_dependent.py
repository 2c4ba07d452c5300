"""Overloads whose result types follow from their arguments, though PyTorch's fake implementations ask for data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fx2onnx.base.dims import Dim, DimLike
from fx2onnx.capture.overloads import quantized
from fx2onnx.capture.overloads.schemas import given
from fx2onnx.capture.overloads.unbacked import Special, record_sized
from fx2onnx.capture.recording import functionalize
from fx2onnx.capture.shapes.symnode import unwrap

if TYPE_CHECKING:
    from fx2onnx.capture.recording.recorder import Recorder

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload


def _sizes(tensor: torch.Tensor) -> list[DimLike]:
    return [unwrap(size) for size in tensor.shape]


def _covariance(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """cov, corrcoef: variables [N, samples] -> [N, N]; of one variable a number."""
    filled = given(func, args, kwargs)
    variables, weights = filled["self"], filled.get("aweights")
    dtype = variables.dtype if weights is None else torch.result_type(variables, weights)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    shape = _sizes(variables)[:1] * 2 if variables.dim() == 2 and variables.shape[0] != 1 else []
    return record_sized(recorder, func, args, kwargs, [(dtype, shape)])


def _least_squares(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """linalg_lstsq: solution, residuals (of more equations than unknowns), rank, singular values, as the driver gives.

    Of a matrix without full rank PyTorch gives no residuals; that is known only when the model runs.
    """
    filled = given(func, args, kwargs)
    matrix, right, driver = filled["self"], filled["b"], filled["driver"] or "gelsy"
    *batch, rows, columns = _sizes(matrix)
    is_vector = right.dim() == 1 or (matrix.dim() - 1 == right.dim() and _sizes(right) == [*batch, rows])
    columns_of_right = [] if is_vector else _sizes(right)[-1:]
    lead = [size if size != 1 else other for size, other in zip(batch, _sizes(right)[: len(batch)], strict=False)]
    has_residuals = isinstance(rows, int) and isinstance(columns, int) and rows > columns and driver != "gelsy"
    smaller = unwrap(min(matrix.shape[-2:]))
    outputs: list[tuple[torch.dtype, list[DimLike]]] = [
        (matrix.dtype, [*lead, columns, *columns_of_right]),
        (matrix.dtype.to_real(), [*lead, *(columns_of_right or [1])] if has_residuals else [0]),
        (torch.int64, batch if driver != "gels" else [0]),
        (matrix.dtype.to_real(), [*batch, smaller] if driver in ("gelsd", "gelss") else [0]),
    ]
    return record_sized(recorder, func, args, kwargs, outputs)


def _pooled(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pooling with ceil_mode over symbolic sizes, where PyTorch compares: (size + 2 pad + more - reach) // stride + 1.

    A last window may begin in the input or the padding before it and end beyond the padding after it: ``more`` is
    stride - 1, at most what a window that begins at the input's last element needs.
    """
    filled = given(func, args, kwargs)
    source = filled["self"]
    spatial = int(func._schema.name.split("pool")[1][0])
    sizes = _sizes(source)
    if not filled["ceil_mode"] or not any(isinstance(size, Dim) for size in sizes[-spatial:]):
        return NotImplemented

    def each(name: str) -> list[int]:
        numbers = filled.get(name, 1)
        numbers = numbers if isinstance(numbers, list | tuple) else [numbers]
        return list(numbers) * (spatial if len(numbers) == 1 else 1)

    kernel, padding, dilation = each("kernel_size"), each("padding"), each("dilation")
    stride = each("stride") or kernel
    for axis in range(spatial):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        more = min(stride[axis] - 1, reach - 1 - padding[axis])
        place = len(sizes) - spatial + axis
        sizes[place] = (sizes[place] + 2 * padding[axis] + more - reach) // stride[axis] + 1  # type: ignore[assignment]
    outputs = [(source.dtype, sizes), (torch.int64, sizes)]
    return record_sized(recorder, func, args, kwargs, outputs[: len(func._schema.returns)])


def _max_pool1d(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = _pooled(recorder, func, args, kwargs)
    return functionalize.max_pool1d(recorder, func, args, kwargs) if found is NotImplemented else found


def _combinations(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """combinations: [N] -> [N choose r, r]; with replacement, [N + r - 1 choose r, r]."""
    filled = given(func, args, kwargs)
    (count,), chosen = _sizes(filled["self"]), filled["r"]
    rows: DimLike
    if isinstance(count, Dim):
        rows = recorder.unknown_size()
    elif filled["with_replacement"]:
        rows = math.comb(count + chosen - 1, chosen) if count else 0
    else:
        rows = math.comb(count, chosen)
    return record_sized(recorder, func, args, kwargs, [(filled["self"].dtype, [rows, chosen])])


def _ctc_loss(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """ctc_loss: a number; unreduced, one a sequence of log_probs [T, N, C] or [T, C]."""
    filled = given(func, args, kwargs)
    log_probs = filled["log_probs"]
    shape = _sizes(log_probs)[1:-1] if filled["reduction"] == 0 else []
    return record_sized(recorder, func, args, kwargs, [(log_probs.dtype, shape)])


def _histogram_of_several(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """histogramdd: a tensor and a list of tensors, which two overloads give one by one."""
    filled = given(func, args, kwargs)
    samples, bins = filled["self"], filled["bins"]
    rest = {name: filled[name] for name in ("range", "weight", "density")}
    with recorder.mode:
        if func is aten.histogramdd.TensorList_bins:
            del rest["range"]
            return aten._histogramdd_from_bin_tensors.default(samples, bins, **rest), list(bins)
        counts = [bins] * int(samples.shape[-1]) if isinstance(bins, int) else bins
        hist = aten._histogramdd_from_bin_cts.default(samples, counts, **rest)
        return hist, list(aten._histogramdd_bin_edges.default(samples, counts, **rest))


def _histogram(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """histogram, and histogramdd by parts: counts [bins, ..], edges [bins + 1] of each variable."""
    filled = given(func, args, kwargs)
    dtype, bins = filled["self"].dtype, filled["bins"]
    each = bins if isinstance(bins, list | tuple) else [bins]
    edges: list[DimLike] = [_sizes(one)[0] if isinstance(one, torch.Tensor) else one + 1 for one in each]
    counts: list[DimLike] = [size - 1 for size in edges]  # type: ignore[misc]
    outputs: list[tuple[torch.dtype, list[DimLike]]] = [(dtype, counts), *((dtype, [size]) for size in edges)]
    if func is aten._histogramdd_bin_edges.default:
        found = record_sized(recorder, func, args, kwargs, outputs[1:])
        return [found] if len(each) == 1 else list(found)
    return record_sized(recorder, func, args, kwargs, outputs[: len(func._schema.returns)])


def _reflections(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """geqrf: the matrix [.., M, N] and the factors [.., min(M, N)]."""
    matrix = args[0]
    factors = [*_sizes(matrix)[:-2], unwrap(min(matrix.shape[-2:]))]
    return record_sized(recorder, func, args, kwargs, [(matrix.dtype, _sizes(matrix)), (matrix.dtype, factors)])


SPECIAL: dict[OpOverload, Special] = {
    **quantized.SPECIAL,
    aten.cov.default: _covariance,
    aten.corrcoef.default: _covariance,
    aten.linalg_lstsq.default: _least_squares,
    aten.combinations.default: _combinations,
    aten.geqrf.default: _reflections,
    aten.histogram.bin_ct: _histogram,
    aten.histogram.bins_tensor: _histogram,
    aten._histogramdd_from_bin_cts.default: _histogram,
    aten._histogramdd_from_bin_tensors.default: _histogram,
    aten._histogramdd_bin_edges.default: _histogram,
    aten.ctc_loss.IntList: _ctc_loss,
    aten.ctc_loss.Tensor: _ctc_loss,
    **{
        getattr(aten, f"{kind}_pool{spatial}d{suffix}").default: _pooled
        for spatial in (1, 2, 3)
        for kind, suffix in (("avg", ""), ("max", ""), ("max", "_with_indices"))
    },
    aten.max_pool1d.default: _max_pool1d,
    **dict.fromkeys(
        (aten.histogramdd.default, aten.histogramdd.int_bins, aten.histogramdd.TensorList_bins), _histogram_of_several
    ),
}
