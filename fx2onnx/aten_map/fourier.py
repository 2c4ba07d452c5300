"""The FFT family over DFT-17, or products with cosine and sine matrices before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from fx2onnx.aten_map.complex_numbers import as_pair, conjugate, pair, parts
from fx2onnx.aten_map.creation import counted
from fx2onnx.aten_map.table.axes import moved, whole
from fx2onnx.aten_map.table.dtypes import floating
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import has_op
from fx2onnx.irx.values import mark_complex
from fx2onnx.sizes.expr import Dim, DimLike, product

aten = torch.ops.aten
D = ir.DataType


def scale_of(norm: str | None, size: DimLike, inverse: bool) -> tuple[float, DimLike]:
    """(power of the size, size) to multiply an unscaled transform by: 1, n^-1/2 or n^-1."""
    power = {"ortho": -0.5, "forward": -1.0 if not inverse else 0.0}.get(norm or "", -1.0 if inverse else 0.0)
    return power, size


def rescaled(op: Emit, value: ir.Value, power: float, size: DimLike) -> ir.Value:
    """value * size^power."""
    if power == 0 or size == 1:
        return value
    if isinstance(size, Dim):
        factor = op.Pow(op.size(size, op.dtype(value)), op.const(power, op.dtype(value)))
    else:
        factor = op.const(float(size) ** power, op.dtype(value))
    return op.Mul(value, factor)


def resized(op: Emit, value: ir.Value, axis: int, size: DimLike) -> ir.Value:
    """Cut or filled with zeros at the end of ``axis`` to ``size``."""
    dims = list(op.dims(value))
    old = dims[axis]
    if old == size:
        return value
    pads: list[DimLike] = [0] * (2 * len(dims))
    pads[len(dims) + axis] = whole(size - old)
    dims[axis] = size
    if isinstance(old, int) and isinstance(size, int) and size < old:
        return op.Slice(value, starts=[0], ends=[size], axes=[axis])
    return op.Pad(value, pads=op.sizes(pads), outputs=[(op.dtype(value), tuple(dims))])


def transform(op: Emit, value: ir.Value, axis: int, inverse: bool, onesided: bool = False) -> ir.Value:
    """The unscaled DFT of a pair (or of reals as [.., 1]) over ``axis``; ``onesided`` keeps the first half."""
    dims = list(op.dims(value))
    size = dims[axis]
    if onesided:
        dims[axis] = size // 2 + 1  # type: ignore[assignment]
    typed = [(op.dtype(value), (*dims[:-1], 2))]
    if has_op("DFT", op.opset):
        flat = len(dims) == 2
        source = op.Unsqueeze(value, axes=[0]) if flat else value
        place = axis + 1 if flat else axis
        typed = [(op.dtype(value), (1, *dims[:-1], 2))] if flat else typed
        keywords: dict[str, Any] = {"inverse": int(inverse), "onesided": int(onesided)}
        if op.opset >= 20:
            found = op.DFT(source, None, op.const(np.int64(place)), outputs=typed, **keywords)
        else:
            found = op.DFT(source, outputs=typed, axis=place, **keywords)
        found = op.Squeeze(found, axes=[0]) if flat else found
        return mark_complex(rescaled(op, found, 1.0, size) if inverse else found)
    return _by_matrices(op, value, axis, inverse, dims[axis])


def _by_matrices(op: Emit, value: ir.Value, axis: int, inverse: bool, kept: DimLike) -> ir.Value:
    size = op.dims(value)[axis]
    if not isinstance(size, int) or not isinstance(kept, int):
        raise UserError("E203", "an FFT over a dynamic size needs DFT", next="export with opset_version=17 or newer")
    angle = 2 * np.pi * np.outer(np.arange(size), np.arange(kept)) / size * (1 if inverse else -1)
    dtype, last = op.dtype(value), op.rank(value) - 2
    cosine, sine = op.const(np.cos(angle), dtype), op.const(np.sin(angle), dtype)
    if op.dims(value)[-1] == 1:
        real = moved(op, op.Squeeze(value, axes=[op.rank(value) - 1]), [axis], [last])
        found = [op.MatMul(real, cosine), op.MatMul(real, sine)]
    else:
        real, imaginary = (moved(op, part, [axis], [last]) for part in parts(op, value))
        found = [
            op.Sub(op.MatMul(real, cosine), op.MatMul(imaginary, sine)),
            op.Add(op.MatMul(real, sine), op.MatMul(imaginary, cosine)),
        ]
    return pair(op, *(moved(op, part, [last], [axis]) for part in found))


def complex_transform(op: Emit, value: ir.Value, axes: Sequence[int], inverse: bool) -> ir.Value:
    """Unscaled, over several axes, of any operand."""
    found = as_pair(op, value, op.result_dtype() if op.is_complex(value) else floating(op.dtype(value)))
    for axis in axes:
        found = transform(op, found, axis, inverse)
    is_of_reals = len(axes) == 1 and not inverse and not op.is_complex(value)
    return exactly_real(op, found, axes[0], op.dims(value)[axes[0]]) if is_of_reals else found


def real_transform(op: Emit, value: ir.Value, axis: int) -> ir.Value:
    """Unscaled, the first half of the spectrum of a real signal."""
    real = op.cast(value, floating(op.dtype(value)))
    found = transform(op, op.Unsqueeze(real, axes=[op.rank(real)]), axis, False, True)
    return exactly_real(op, found, axis, op.dims(real)[axis])


def exactly_real(op: Emit, found: ir.Value, axis: int, size: DimLike) -> ir.Value:
    """The spectrum of ``size`` real numbers without what rounding leaves of imaginary parts at frequency 0 and at half of an even size: the
    angle of a negative number there is pi, as in PyTorch, and not -pi now and then.
    """
    bins, behind = op.dims(found)[axis], [1] * (op.rank(found) - axis - 1)
    ends = _ends(op, bins, size)
    if isinstance(ends, ir.Value):
        are_left = op.And(op.reshape(ends, [bins, *behind]), op.const([False, True]))
    else:
        are_left = op.const(ends.reshape(-1, *behind) & np.array([False, True]))
    return mark_complex(op.Where(are_left, op.const(0.0, op.dtype(found)), found))


def to_real(op: Emit, value: ir.Value, axis: int, size: DimLike) -> ir.Value:
    """The unscaled inverse of a half spectrum: the doubled half (not its ends), zeros after it, the real part."""
    half = whole(size // 2 + 1)
    value = resized(op, value, axis, half)
    weights = _doubled(op, half, size, op.dtype(value))
    shape = [half if index == axis else 1 for index in range(op.rank(value))]
    weighted = op.Mul(value, op.reshape(weights, shape))
    return parts(op, transform(op, resized(op, weighted, axis, size), axis, True))[0]


def _doubled(op: Emit, half: DimLike, size: DimLike, dtype: ir.DataType) -> ir.Value:
    """[half]: 2 for each frequency that stands for two, 1 for 0 and, of an even size, for the last."""
    ends = _ends(op, half, size)
    if isinstance(ends, ir.Value):
        return op.Where(ends, op.const(1.0, dtype), op.const(2.0, dtype))
    return op.const(np.where(ends, 1.0, 2.0), dtype)


def _ends(op: Emit, bins: DimLike, size: DimLike) -> ir.Value | npt.NDArray[np.bool_]:
    """[bins]: whether a frequency is 0 or half of ``size``."""
    if isinstance(bins, int) and isinstance(size, int):
        return np.isin(np.arange(bins) * 2, (0, size))
    places = counted(op, bins, D.INT64)
    return op.Or(op.Equal(places, op.const(np.int64(0))), op.Equal(op.Add(places, places), op.size(size)))


def _plan(
    op: Emit, value: ir.Value, sizes: Sequence[DimLike] | None, dim: Sequence[int] | None
) -> tuple[list[int], list[DimLike | None]]:
    """The axes transformed and the size wanted of each (None: its own)."""
    rank = op.rank(value) - op.is_complex(value)
    if dim is None:
        axes = list(range(rank)) if sizes is None else list(range(rank - len(sizes), rank))
    else:
        axes = [axis % rank for axis in dim]
    wanted: list[DimLike | None] = [None] * len(axes)
    if sizes is not None:
        wanted = [None if size == -1 else size for size in sizes]
    return axes, wanted


def _fitted(op: Emit, value: ir.Value, axes: Sequence[int], sizes: Sequence[DimLike | None]) -> ir.Value:
    for axis, size in zip(axes, sizes, strict=True):
        if size is not None:
            cut = resized(op, value, axis, size)
            value = mark_complex(cut) if op.is_complex(value) else cut
    return value


def forward_complex(op: Emit, value: ir.Value, sizes: Any, dim: Any, norm: str | None, inverse: bool) -> ir.Value:
    axes, wanted = _plan(op, value, sizes, dim)
    value = _fitted(op, value, axes, wanted)
    total = product([op.dims(value)[axis] for axis in axes])
    found = complex_transform(op, value, axes, inverse)
    return mark_complex(rescaled(op, found, *scale_of(norm, total, inverse)))


def forward_real(
    op: Emit, value: ir.Value, sizes: Any, dim: Any, norm: str | None, hermitian: bool = False
) -> ir.Value:
    """rfft over the last axis given, fft over the others; ``hermitian``: ihfft, the conjugate with inverse scaling."""
    axes, wanted = _plan(op, value, sizes, dim)
    value = _fitted(op, value, axes, wanted)
    total = product([op.dims(value)[axis] for axis in axes])
    found = real_transform(op, value, axes[-1])
    if hermitian:
        found = conjugate(op, found)
    for axis in axes[:-1]:
        found = transform(op, found, axis, hermitian)
    return mark_complex(rescaled(op, found, *scale_of(norm, total, hermitian)))


def backward_real(
    op: Emit, value: ir.Value, sizes: Any, dim: Any, norm: str | None, hermitian: bool = False
) -> ir.Value:
    """irfft over the last axis given, ifft over the others; ``hermitian``: hfft, of the conjugate, scaled forward."""
    axes, wanted = _plan(op, value, sizes, dim)
    last = axes[-1]
    size = wanted[-1] if wanted[-1] is not None else 2 * (op.dims(value)[last] - 1)
    found = as_pair(op, _fitted(op, value, axes[:-1], wanted[:-1]), op.result_dtype())
    total = product([*(op.dims(found)[axis] for axis in axes[:-1]), size])  # type: ignore[list-item]
    for axis in axes[:-1]:
        found = transform(op, found, axis, not hermitian)
    if hermitian:
        found = conjugate(op, found)
    real = to_real(op, found, last, size)  # type: ignore[arg-type]
    return rescaled(op, real, *scale_of(norm, total, not hermitian))


def _transforming(function: Callable[..., ir.Value], flag: bool) -> Callable[..., ir.Value]:
    def entry(op: Emit, self: ir.Value, dim: Any, norm: str | None, n: Any = None, s: Any = None) -> ir.Value:
        """The transform of one axis ``dim`` in size ``n``, or of several in sizes ``s``."""
        return function(op, self, s if n is None else [n], [dim] if isinstance(dim, int) else dim, norm, flag)

    return entry


FAMILY: dict[str, tuple[Callable[..., ir.Value], bool]] = {
    "fft": (forward_complex, False), "ifft": (forward_complex, True), "rfft": (forward_real, False),
    "ihfft": (forward_real, True), "irfft": (backward_real, False), "hfft": (backward_real, True),
}  # fmt: skip
for _name, (_function, _flag) in FAMILY.items():
    _form = "DFT-17; MatMul with cosines and sines before"
    _entry, _overloads = _transforming(_function, _flag), overloads_of(f"fft_{_name} fft_{_name}2 fft_{_name}n")
    register_shared(_entry, _form, *_overloads, is_complex=True)
    if _function is backward_real:
        register_shared(_entry, _form, *_overloads)

SCALES = {0: 0.0, 1: -0.5, 2: -1.0}
"""ATen's fft_norm_mode: none, by root n, by n (of any other number, too)."""


def _c2c(op: Emit, self: ir.Value, dim: Sequence[int], normalization: int, forward: bool) -> ir.Value:
    if not dim:
        return self
    axes, _ = _plan(op, self, None, dim)
    total = product([op.dims(self)[axis] for axis in axes])
    return mark_complex(
        rescaled(op, complex_transform(op, self, axes, not forward), SCALES.get(normalization, -1.0), total)
    )


def _r2c(op: Emit, self: ir.Value, dim: Sequence[int], normalization: int, onesided: bool) -> ir.Value:
    self = op.cast(self, op.result_dtype())  # both sides of bfloat16 are of complex64
    axes, _ = _plan(op, self, None, dim)
    total = product([op.dims(self)[axis] for axis in axes])
    if not onesided:
        found = complex_transform(op, self, axes, False)
    else:
        found = real_transform(op, self, axes[-1])
        for axis in axes[:-1]:
            found = transform(op, found, axis, False)
    return mark_complex(rescaled(op, found, SCALES.get(normalization, -1.0), total))


def _c2r(op: Emit, self: ir.Value, dim: Sequence[int], normalization: int, last_dim_size: DimLike) -> ir.Value:
    axes, _ = _plan(op, self, None, dim)
    found = self
    for axis in axes[:-1]:
        found = transform(op, found, axis, True)
    total = product([*(op.dims(self)[axis] for axis in axes[:-1]), last_dim_size])
    return rescaled(op, to_real(op, found, axes[-1], last_dim_size), SCALES.get(normalization, -1.0), total)


register_shared(_c2c, "DFT-17", *overloads_of("_fft_c2c"), is_complex=True)
register_shared(_r2c, "DFT-17", *overloads_of("_fft_r2c"), is_complex=True)
register_shared(_c2r, "DFT-17", *overloads_of("_fft_c2r"), is_complex=True)
