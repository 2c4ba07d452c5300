"""Interpolation: upsample_nearest, linear, bilinear, bicubic, trilinear, and their antialiased forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from fx2onnx.aten_map.interpolation_taps import (
    CUBIC_COEFFICIENT,
    by_taps,
    fixed_point,
    resampling_matrix,
    symbolic_fixed_point,
)
from fx2onnx.aten_map.table.axes import fixed, steps, swap
from fx2onnx.aten_map.table.dtypes import FLOATS
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, apply

aten = torch.ops.aten
Scales = Sequence["float | None"]
Number = np.float32
DOUBLE = ir.DataType.DOUBLE


def nearest_places(size: int, count: int, scale: float | None, exact: bool, is_image: bool = True) -> list[int]:
    """The input element that PyTorch takes for each output. For images (two axes), ``nearest`` ignores the factor of an axis that
    keeps its size or doubles. Source: nearest_idx in ATen/native/UpSample.h, HelperInterpNearest in cpu/UpSampleKernel.cpp.
    """
    ignores_factor = is_image and not exact
    if ignores_factor and count == size:
        return list(range(size))
    if ignores_factor and count == 2 * size:
        return [index >> 1 for index in range(count)]
    step = Number(1.0 / scale) if scale is not None and scale > 0 else Number(size) / Number(count)
    shift = Number(0.5 if exact else 0)
    return [min(int(np.floor((Number(index) + shift) * step)), size - 1) for index in range(count)]


def _onnx_nearest_places(size: int, count: int, scale: float | None, exact: bool) -> list[int]:
    """The same by ONNX Resize's formula, as onnxruntime computes it."""
    step = Number(scale) if scale is not None else Number(count) / Number(size)
    if step == 1:
        return list(range(size))
    places = []
    for index in range(count):
        if exact:
            place = int(np.floor((Number(index) + Number(0.5)) / step - Number(0.5) + Number(0.5)))
        else:
            place = int(np.floor(Number(index) / step))
        places.append(min(max(place, 0), size - 1))
    return places


def resize(op: Emit, value: ir.Value, scales: Scales | None, **attrs: Any) -> ir.Value:
    """``Resize`` of the spatial axes: by scales where the user's factors decide the coordinates, else by sizes."""
    dims, dtype = op.result_dims(), op.dtype(value)
    inputs: dict[str, Any] = {}
    by_scales = scales is not None and all(scale is not None for scale in scales)
    # Not ``axes``: onnxruntime 1.31 moves a Transpose, from further up too, behind Resize and orders sizes and scales by
    # it, as if there were one for every axis.
    if by_scales:
        factors = [1.0, 1.0, *(float(scale) for scale in scales or () if scale is not None)]
        inputs["scales"] = op.const(np.array(factors, dtype=np.float32))
    else:
        inputs["sizes"] = op.sizes(dims)
    if op.opset < 13:
        empty = op.const(np.zeros(0, dtype=np.float32))
        inputs.setdefault("scales", empty)
        inputs["roi"] = empty
    return op.Resize(value, **inputs, outputs=[(dtype, dims)], **attrs)


def _giving_sizes(op: Emit, value: ir.Value, scales: Scales) -> Scales | None:
    """Factors by which Resize gives PyTorch's sizes, be the product taken in float32 (onnxruntime) or in float64: those given,
    or their neighbours in float32; None where none does.
    """
    found = []
    for size, count, scale in zip(op.dims(value)[2:], op.result_dims()[2:], scales, strict=True):
        if scale is None or isinstance(size, Dim) != isinstance(count, Dim):
            return None
        if isinstance(size, Dim):
            if not any(count == apply(op_type, apply("float", size) * float(scale)) for op_type in ("floor", "trunc")):
                return None
            factor = _factor_at_every_size(scale)
        else:
            assert isinstance(count, int)
            factor = _factor_for(np.array([size]), np.array([count]), scale)
        if factor is None:
            return None
        found.append(factor)
    return found


SIZES_EXACT = 1 << 14
"""The largest size of a symbolic axis for which factors are tried."""


@lru_cache(maxsize=256)
def _factor_at_every_size(scale: float) -> float | None:
    sizes = np.arange(SIZES_EXACT)
    return _factor_for(sizes, np.floor(sizes * scale).astype(np.int64), scale)


def _factor_for(sizes: npt.NDArray[Any], counts: npt.NDArray[Any], scale: float) -> float | None:
    own = Number(scale)
    for factor in (own, np.nextafter(own, Number(np.inf)), np.nextafter(own, Number(0))):
        products = sizes.astype(Number) * factor, sizes * float(factor)
        if all((np.floor(product) == counts).all() for product in products):
            return float(scale if factor == own else factor)
    return None


def interpolated(
    op: Emit, value: ir.Value, mode: str, scales: Scales | None, align_corners: bool, antialias: bool = False
) -> ir.Value:
    """``torch.nn.functional.interpolate`` in any mode."""
    dtype = op.dtype(value)
    if mode.startswith("nearest"):
        return _nearest(op, value, scales, mode == "nearest-exact")
    if dtype not in FLOATS:
        return _in_fixed_point(op, value, mode, None if align_corners else scales, align_corners, antialias)
    if scales is not None and (antialias or mode != "cubic"):
        scales = _without_idle(op, value, scales)
    fixed_sizes = not any(isinstance(size, Dim) for size in (*op.dims(value)[2:], *op.result_dims()[2:]))
    if dtype == DOUBLE and fixed_sizes:
        return _by_matrices(op, value, mode, None if align_corners else scales, align_corners, antialias)
    usable = None if align_corners or scales is None else _giving_sizes(op, value, scales)
    has_own_places = not align_corners and scales is not None and (usable is None or _may_idle(op, value, scales))
    if not antialias and not fixed_sizes and mode in ("linear", "cubic") and (dtype == DOUBLE or has_own_places):
        return by_taps(op, value, mode, None if align_corners else scales, align_corners)
    by_numbers = not align_corners and scales is not None and any(scales) and usable is None
    is_copied = bool(usable) and mode == "cubic" and op.dims(value)[2:] == op.result_dims()[2:]
    if (by_numbers or is_copied) and not antialias and fixed_sizes:
        return _by_matrices(op, value, mode, scales, align_corners, antialias)
    if antialias and (align_corners or mode == "lanczos" or op.opset < 18 or by_numbers):
        return _by_matrices(op, value, mode, None if align_corners else scales, align_corners)
    attrs: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": "align_corners" if align_corners else "half_pixel",
    }
    if mode == "cubic":
        attrs["cubic_coeff_a"] = -0.5 if antialias else CUBIC_COEFFICIENT
    if antialias:
        attrs |= {"antialias": 1, "exclude_outside": 1}
    return resize(op, value, usable, **attrs)


def _may_idle(op: Emit, value: ir.Value, scales: Scales) -> bool:
    """Return whether an axis may keep its size under a factor other than 1, as small images do. PyTorch then ignores the factor in
    linear interpolation, and engines copy an image that keeps all its sizes.
    """
    sizes = zip(op.dims(value)[2:], scales, strict=True)
    return any(isinstance(size, Dim) and 1 < (scale or 1) < 1.5 for size, scale in sizes)


def _without_idle(op: Emit, value: ir.Value, scales: Scales) -> Scales:
    """PyTorch leaves an axis as it is where the sizes are equal, whatever the factor: the factor is 1 then."""
    sizes = zip(op.dims(value)[2:], op.result_dims()[2:], scales, strict=True)
    return [1.0 if isinstance(size, int) and size == count else scale for size, count, scale in sizes]


def _in_fixed_point(
    op: Emit, value: ir.Value, mode: str, scales: Scales | None, align_corners: bool, antialias: bool
) -> ir.Value:
    """uint8: integer weights, the last axis first, rounded and clipped to a byte after each."""
    rank, what, double = op.rank(value), "a size of an integer image interpolated", DOUBLE
    current = op.cast(value, double)
    for axis in reversed(range(2, rank)):
        size, count = op.dims(value)[axis], op.result_dims()[axis]
        if size == count:
            continue
        scale = scales[axis - 2] if scales is not None else None
        is_symbolic = isinstance(size, Dim) or isinstance(count, Dim)
        if is_symbolic and antialias and mode != "lanczos" and scale is None and not align_corners:
            exact = symbolic_fixed_point(op, size, count, mode)
        else:
            delta = 0.5 if align_corners and not antialias else 0.0
            sizes = (fixed(size, what), fixed(count, what))
            matrix, bits = fixed_point(resampling_matrix(*sizes, mode, scale, align_corners, antialias, delta))
            exact = op.const(matrix / (1 << bits), double)
        if axis == rank - 1:
            current = op.MatMul(current, op.Transpose(exact, perm=[1, 0]))
        else:
            current = op.MatMul(exact, current)
        rounded = op.Floor(op.Add(current, op.const(0.5, double)))
        current = op.Min(op.Max(rounded, op.const(0.0, double)), op.const(255.0, double))
    return op.cast(current, op.dtype(value))


def _nearest(op: Emit, value: ir.Value, scales: Scales | None, exact: bool) -> ir.Value:
    """Resize where its formula picks PyTorch's elements; else one Gather an axis with PyTorch's places."""
    source, target = op.dims(value), op.result_dims()
    factors: Scales = scales or [None] * (len(source) - 2)
    usable = None if scales is None else _giving_sizes(op, value, scales)
    is_resized = scales is None or usable == scales  # the place of an element hangs on the last bit of the factor
    known = not any(isinstance(size, Dim) for size in (*source[2:], *target[2:]))
    is_image = len(source) == 4
    agree = known or all(
        _agrees_at_every_size(size, count, factor, exact, is_image)
        for size, count, factor in zip(source[2:], target[2:], factors, strict=True)
    )
    if known:
        for size, count, factor in zip(source[2:], target[2:], factors, strict=True):
            wanted = nearest_places(int(size), int(count), factor, exact, is_image)  # type: ignore[arg-type]
            step = factor if usable is not None and source != target else None  # engines copy what keeps its sizes
            agree = agree and wanted == _onnx_nearest_places(int(size), int(count), step, exact)  # type: ignore[arg-type]
    if agree and is_resized:
        mode = "half_pixel" if exact else "asymmetric"
        rounding = "round_prefer_ceil" if exact else "floor"
        return resize(op, value, usable, mode="nearest", coordinate_transformation_mode=mode, nearest_mode=rounding)
    if not known:
        return _gathered(op, value, factors, exact)
    for axis in range(2, len(source)):
        size, count = int(source[axis]), int(target[axis])  # type: ignore[arg-type]
        places = nearest_places(size, count, factors[axis - 2], exact, is_image)
        if places != list(range(int(source[axis]))):  # type: ignore[arg-type]
            value = op.Gather(value, op.const(np.array(places)), axis=axis)
    return value


SIZES_TRIED = 4096
"""The largest symbolic output size for which the two formulas for a nearest element are compared."""


@lru_cache(maxsize=256)
def _formulas_agree(factor: float, exact: bool) -> bool:
    """Return whether Resize's division by the factor and PyTorch's product with its reciprocal pick the same elements."""
    if 1 < factor < 1.5 or 2 < factor < 2.5:  # small images become equal, which engines copy, or twice as large
        return False
    index = np.arange(SIZES_TRIED, dtype=np.float32) + Number(0.5 if exact else 0)
    return bool((np.floor(index * Number(1.0 / factor)) == np.floor(index / Number(factor))).all())


def _agrees_at_every_size(size: DimLike, count: DimLike, factor: float | None, exact: bool, is_image: bool) -> bool:
    if size == count and _is_idle(factor, exact, is_image):
        return True
    for whole_factor in (2, 4) if factor is None else ():
        if count == whole_factor * size:
            return _formulas_agree(float(whole_factor), exact)
    return factor is not None and _formulas_agree(factor, exact)


def _is_idle(factor: float | None, exact: bool, is_image: bool) -> bool:
    """Return whether PyTorch copies an axis that keeps its size, whatever its factor."""
    return factor in (None, 1) or (is_image and not exact)


def _gathered(op: Emit, value: ir.Value, factors: Scales, exact: bool) -> ir.Value:
    """One Gather an axis with places computed as PyTorch does: floor((i + 0 or 0.5) in / out), in float32."""
    is_image = op.rank(value) == 4
    pairs = zip(op.dims(value)[2:], op.result_dims()[2:], factors, strict=True)
    for axis, (size, count, factor) in enumerate(pairs, start=2):
        if size == count and _is_idle(factor, exact, is_image):
            continue
        float32 = ir.DataType.FLOAT
        step = op.Div(op.size(size, float32), op.size(count, float32))
        if factor is not None:
            own, step = step, op.const(1.0 / factor, float32)
            plain = op.Or(op.Equal(op.size(count), op.size(size)), op.Equal(op.size(count), op.size(2 * size)))
            step = op.Where(plain, own, step) if is_image and not exact else step
        index = op.cast(steps(op, count), float32)
        index = op.Add(index, op.const(0.5, float32)) if exact else index
        places, last = op.cast(op.Floor(op.Mul(index, step)), ir.DataType.INT64), op.size(size - 1)
        value = op.Gather(value, op.Where(op.Greater(places, last), last, places), axis=axis)
    return value


def _by_matrices(
    op: Emit, value: ir.Value, mode: str, scales: Scales | None, align_corners: bool, antialias: bool = True
) -> ir.Value:
    """One product with a matrix of filter weights an axis: what Resize cannot say exactly, and float64."""
    rank, what = op.rank(value), "a size interpolated with antialias in this form"
    for axis in range(2, rank):
        size, count = fixed(op.dims(value)[axis], what), fixed(op.result_dims()[axis], what)
        scale = scales[axis - 2] if scales is not None else None
        if size == count and (mode != "cubic" or antialias or scale is None):
            continue
        delta = 0.5 if align_corners and not antialias else 0.0
        matrix = resampling_matrix(size, count, mode, scale, align_corners, antialias, delta)
        if axis == rank - 1:
            value = op.MatMul(value, op.const(matrix.T, op.dtype(value)))
        elif axis == rank - 2:
            value = op.MatMul(op.const(matrix, op.dtype(value)), value)
        else:
            value = swap(
                op, op.MatMul(swap(op, value, axis, rank - 1), op.const(matrix.T, op.dtype(value))), axis, rank - 1
            )
    return value


MODES = {
    "upsample_nearest{}d": ("nearest", (1, 2, 3)),
    "_upsample_nearest_exact{}d": ("nearest-exact", (1, 2, 3)),
    "upsample_linear{}d": ("linear", (1,)),
    "upsample_bilinear{}d": ("linear", (2,)),
    "upsample_trilinear{}d": ("linear", (3,)),
    "upsample_bicubic{}d": ("cubic", (2,)),
    "_upsample_bilinear{}d_aa": ("linear", (2,)),
    "_upsample_bicubic{}d_aa": ("cubic", (2,)),
    "_upsample_lanczos{}d_aa": ("lanczos", (2,)),
}
"""Overload packet -> mode, and the numbers of spatial axes it exists for."""


def _resize(mode: str, antialias: bool) -> Callable[..., ir.Value]:
    def entry(
        op: Emit,
        self: ir.Value,
        scale_factors: Scales | None = None,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
        align_corners: bool = False,
    ) -> ir.Value:
        if scale_factors is None:
            spatial = op.rank(self) - 2
            each = [scales] if spatial == 1 else [scales_d, scales_h, scales_w][-spatial:]
            scale_factors = each if any(scale is not None for scale in each) else None
        return interpolated(op, self, mode, scale_factors, align_corners, antialias)

    return entry


for _name, (_mode, _ranks) in MODES.items():
    for _spatial in _ranks:
        _packet = _name.format(_spatial)
        register_shared(_resize(_mode, _packet.endswith("_aa")), "Resize", *overloads_of(f"{_packet}.vec {_packet}"))
